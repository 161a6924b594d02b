//! The tables of bpf/heap_combined.h: rules go in, counts by stack come out.

use super::skel::{HeapMaps, types};
use crate::capture::CaptureError;
use crate::model::{MmKey, Pid};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use std::mem::size_of;

/// The kernel's number for a stack that calls a function.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SiteKey {
    /// Which state of which address space's code.
    pub code: u64,
    pub first: u64,
    pub second: u64,
    pub function: u32,
}

/// What was counted for it since tracing began.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SiteCounts {
    pub allocations: u64,
    pub bytes: u64,
    pub frees: u64,
    pub freed_bytes: u64,
    /// Of `frees`: proven by the address being handed out again.
    pub unseen_frees: u64,
    /// A number that no two address spaces have.
    pub space: u64,
    pub mm: MmKey,
    pub pid: Pid,
}

/// From a frame to its caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TaughtRule {
    /// The canonical frame address is so far from the stack pointer or rbp; the caller's rbp is so many
    /// words from there, or still in the register.
    Offsets { from_bp: bool, cfa: i32, bp: Option<i16> },
    /// Nobody called this.
    Root,
}

/// Rules and counts.
#[derive(Debug)]
pub struct Counted {
    rules: MapHandle,
    sites: MapHandle,
}

/// Entries read at once.
const BATCH: u32 = 1024;

impl Counted {
    pub(super) fn of(maps: &HeapMaps<'_>) -> Result<Counted, CaptureError> {
        let copy = |map| MapHandle::try_from(map).map_err(CaptureError::Counters);
        Ok(Counted { rules: copy(&maps.rules)?, sites: copy(&maps.sites)? })
    }

    /// Teaches the rule at an address; `innermost`: of a frame that nothing was called from.
    ///
    /// # Errors
    /// When the table is full.
    pub fn teach(
        &self,
        code: u64,
        (address, innermost): (u64, bool),
        rule: TaughtRule,
    ) -> Result<(), CaptureError> {
        let (kind, cfa, bp) = match rule {
            TaughtRule::Offsets { from_bp, cfa, bp } => (1 + u8::from(from_bp), cfa, bp.unwrap_or(0)),
            TaughtRule::Root => (3, 0, 0),
        };
        let mut key = [0; size_of::<types::vmaudit_heap_rule_key>()];
        key[..8].copy_from_slice(&code.to_ne_bytes());
        key[8..].copy_from_slice(&(address << 1 | u64::from(innermost)).to_ne_bytes());
        let mut value = [0; size_of::<types::vmaudit_heap_rule>()];
        value[..4].copy_from_slice(&cfa.to_ne_bytes());
        value[4..6].copy_from_slice(&bp.to_ne_bytes());
        value[6] = kind;
        self.rules.update(&key, &value, MapFlags::ANY).map_err(CaptureError::Counters)
    }

    /// Takes back the rules at these addresses.
    pub fn unteach(&self, taught: impl IntoIterator<Item = (u64, u64, bool)>) {
        for (code, address, innermost) in taught {
            let mut key = [0; size_of::<types::vmaudit_heap_rule_key>()];
            key[..8].copy_from_slice(&code.to_ne_bytes());
            key[8..].copy_from_slice(&(address << 1 | u64::from(innermost)).to_ne_bytes());
            // What is not there need not be deleted.
            let _ = self.rules.delete(&key);
        }
    }

    /// All counts.
    ///
    /// # Errors
    /// When the kernel does not hand them out.
    pub fn read(&self) -> Result<Vec<(SiteKey, SiteCounts)>, CaptureError> {
        let all = self.sites.lookup_batch(BATCH, MapFlags::ANY, MapFlags::ANY);
        let all = all.map_err(CaptureError::Counters)?;
        Ok(all.filter_map(|(key, value)| Some((site_key(&key)?, site_counts(&value)?))).collect())
    }

    /// Forgets counts.
    pub fn forget<'k>(&self, keys: impl IntoIterator<Item = &'k SiteKey>) {
        for key in keys {
            let mut bytes = [0; size_of::<types::vmaudit_heap_site_key>()];
            for (at, word) in [key.code, key.first, key.second, u64::from(key.function)].iter().enumerate() {
                bytes[at * 8..][..8].copy_from_slice(&word.to_le_bytes());
            }
            // What is not there need not be deleted.
            let _ = self.sites.delete(&bytes);
        }
    }
}

fn site_key(bytes: &[u8]) -> Option<SiteKey> {
    let bytes = bytes.get(..size_of::<types::vmaudit_heap_site_key>())?;
    // SAFETY: the type is plain integers (any bit pattern is valid) and `bytes` is as long as it;
    // read_unaligned needs no alignment.
    let key = unsafe { bytes.as_ptr().cast::<types::vmaudit_heap_site_key>().read_unaligned() };
    Some(SiteKey { code: key.code, first: key.first, second: key.second, function: key.function })
}

fn site_counts(bytes: &[u8]) -> Option<SiteCounts> {
    let bytes = bytes.get(..size_of::<types::vmaudit_heap_site>())?;
    // SAFETY: as in `site_key`.
    let site = unsafe { bytes.as_ptr().cast::<types::vmaudit_heap_site>().read_unaligned() };
    Some(SiteCounts {
        allocations: site.allocations,
        bytes: site.bytes,
        frees: site.frees,
        freed_bytes: site.freed_bytes,
        unseen_frees: site.unseen_frees,
        space: site.space,
        mm: MmKey(site.mm),
        pid: site.pid as Pid,
    })
}

//! The tables of bpf/heap_combined.h: rules go in, counts by stack come out.

use super::skel::HeapMaps;
use super::skel::types::{
    block_key, vmaudit_heap_rule as Rule, vmaudit_heap_rule_key as RuleKey, vmaudit_heap_rule_kind as Kind,
    vmaudit_heap_site as Counts, vmaudit_heap_site_key as Site,
};
use crate::capture::CaptureError;
use crate::capture::plain::{bytes_of, value_of};
use crate::model::{MmKey, Pid, UnwindRow};
use libbpf_rs::{MapCore, MapFlags, MapHandle};

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

/// Rules and counts.
#[derive(Debug)]
pub struct Counted {
    rules: MapHandle,
    sites: MapHandle,
    blocks: MapHandle,
}

/// Entries read at once.
const BATCH: u32 = 1024;

impl Counted {
    pub(super) fn of(maps: &HeapMaps<'_>) -> Result<Counted, CaptureError> {
        let copy = |map| MapHandle::try_from(map).map_err(CaptureError::Counters);
        Ok(Counted { rules: copy(&maps.rules)?, sites: copy(&maps.sites)?, blocks: copy(&maps.blocks)? })
    }

    /// Publishes the rule at an address; `innermost`: of a frame that nothing was called from.
    ///
    /// # Errors
    /// When the table is full.
    pub fn publish(
        &self,
        code: u64,
        (address, innermost): (u64, bool),
        rule: UnwindRow,
    ) -> Result<(), CaptureError> {
        let (kind, cfa, bp) = match rule {
            UnwindRow::Offsets { from_bp: false, cfa, bp } => (Kind::VMAUDIT_RULE_SP, cfa, bp.unwrap_or(0)),
            UnwindRow::Offsets { from_bp: true, cfa, bp } => (Kind::VMAUDIT_RULE_BP, cfa, bp.unwrap_or(0)),
            UnwindRow::Root => (Kind::VMAUDIT_RULE_ROOT, 0, 0),
        };
        let value = Rule { cfa, bp, kind: kind.0 as u8, unused: 0 };
        let key = rule_key(code, address, innermost);
        self.rules.update(bytes_of(&key), bytes_of(&value), MapFlags::ANY).map_err(CaptureError::Counters)
    }

    /// Takes back the rules at these addresses.
    pub fn withdraw(&self, rules: impl IntoIterator<Item = (u64, u64, bool)>) {
        for (code, address, innermost) in rules {
            // What is not there need not be deleted.
            let _ = self.rules.delete(bytes_of(&rule_key(code, address, innermost)));
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
            let SiteKey { code, first, second, function } = *key;
            // What is not there need not be deleted.
            let _ = self.sites.delete(bytes_of(&Site { code, first, second, function, unused: 0 }));
        }
    }

    /// Forgets the outstanding blocks of these address spaces. Goes through all.
    ///
    /// # Errors
    /// When the kernel does not hand them out.
    pub fn forget_blocks(&self, is_gone: impl Fn(u64) -> bool) -> Result<(), CaptureError> {
        let all = self.blocks.lookup_batch(BATCH, MapFlags::ANY, MapFlags::ANY);
        let all = all.map_err(CaptureError::Counters)?;
        let is_gone = |key: &Vec<u8>| value_of(key).is_some_and(|key: block_key| is_gone(key.space));
        let gone: Vec<Vec<u8>> = all.map(|(key, _)| key).filter(is_gone).collect();
        for key in gone {
            let _ = self.blocks.delete(&key);
        }
        Ok(())
    }
}

fn rule_key(code: u64, address: u64, innermost: bool) -> RuleKey {
    RuleKey { code, address: address << 1 | u64::from(innermost) }
}

fn site_key(bytes: &[u8]) -> Option<SiteKey> {
    let Site { code, first, second, function, .. } = value_of(bytes)?;
    Some(SiteKey { code, first, second, function })
}

fn site_counts(bytes: &[u8]) -> Option<SiteCounts> {
    let site: Counts = value_of(bytes)?;
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

//! mmap's arguments in words, and the story of a reservation.

use super::units::{count_word, exact_size};
use crate::ledger::OriginRecord;
use crate::model::{Addr, Prot, VmOp};
pub use crate::sys::abi::{
    MAP_ANONYMOUS, MAP_FIXED, MAP_FIXED_NOREPLACE, MAP_NORESERVE, MAP_SHARED, MAP_STACK,
};
use crate::sys::abi::{MAP_GROWSDOWN, MAP_HUGETLB, MAP_LOCKED, MAP_POPULATE};

const NAMED_FLAGS: &[(u64, &str)] = &[
    (MAP_SHARED, "SHARED"),
    (MAP_FIXED, "FIXED"),
    (MAP_FIXED_NOREPLACE, "FIXED_NOREPLACE"),
    (MAP_GROWSDOWN, "GROWSDOWN"),
    (MAP_LOCKED, "LOCKED"),
    (MAP_NORESERVE, "NORESERVE"),
    (MAP_POPULATE, "POPULATE"),
    (MAP_STACK, "STACK"),
    (MAP_HUGETLB, "HUGETLB"),
];

/// The arguments of an mmap, for rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MmapCall {
    pub addr: Addr,
    pub len: u64,
    pub prot: Prot,
    pub flags: u64,
}

impl MmapCall {
    pub fn of(op: &VmOp) -> Option<MmapCall> {
        match *op {
            VmOp::Mmap { addr, len, prot, flags, .. } => {
                Some(MmapCall { addr, len, prot: Prot::from_mmap_bits(prot), flags })
            }
            _ => None,
        }
    }

    pub fn has(&self, flag: u64) -> bool {
        self.flags & flag != 0
    }

    pub fn is_anonymous(&self) -> bool {
        self.has(MAP_ANONYMOUS)
    }
}

/// `mmap(128 MiB, PROT_NONE, NORESERVE), trimmed to 64 MiB by two munmaps, opened by 3 mprotects`.
pub fn story(record: &OriginRecord) -> String {
    let mut out = match &record.op {
        VmOp::Mmap { len, prot, flags, file, .. } => {
            let mut args = vec![exact_size(*len), prot_words(Prot::from_mmap_bits(*prot)).to_string()];
            args.extend(
                NAMED_FLAGS.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, n)| (*n).to_string()),
            );
            if let Some(file) = file {
                let base = file.path.rsplit(|&b| b == b'/').next().unwrap_or(&file.path);
                // the name of a file without a link is not always known here
                if !base.is_empty() {
                    args.push(String::from_utf8_lossy(base).into_owned());
                }
            }
            format!("mmap({})", args.join(", "))
        }
        VmOp::Mremap { old_len, new_len, .. } => {
            format!("mremap({} to {})", exact_size(*old_len), exact_size(*new_len))
        }
        VmOp::Brk { .. } => format!("brk, {} at once", exact_size(record.mapped.0)),
        op => format!("{}({})", op.name(), exact_size(record.mapped.0)),
    };
    if record.unmapped.0 > 0 {
        let left = record.mapped - record.unmapped;
        let calls = u64::from(record.unmap_calls.max(1));
        let plural = if calls == 1 { "munmap" } else { "munmaps" };
        out += &format!(", trimmed to {} by {} {plural}", exact_size(left.0), count_word(calls));
    }
    if record.replaced.0 > 0 {
        out += &format!(", {} of it mapped over since", exact_size(record.replaced.0));
    }
    if record.mprotect_calls > 0 {
        let opened = MmapCall::of(&record.op).is_some_and(|c| c.prot.is_none());
        let verb = match (opened, record.mprotect_calls) {
            (true, 1) => "opened by one mprotect".to_string(),
            (true, n) => format!("opened piece by piece by {} mprotects", count_word(n.into())),
            (false, 1) => "changed by one mprotect".to_string(),
            (false, n) => format!("changed by {} mprotects", count_word(n.into())),
        };
        out += &format!(", {verb}");
    }
    if record.madvise_calls > 0 {
        let plural = if record.madvise_calls == 1 { "" } else { "s" };
        out += &format!(", {} madvise{plural}", count_word(record.madvise_calls.into()));
    }
    out
}

fn prot_words(prot: Prot) -> &'static str {
    match (prot.read, prot.write, prot.exec) {
        (false, false, false) => "PROT_NONE",
        (true, false, false) => "READ",
        (true, true, false) => "READ|WRITE",
        (true, false, true) => "READ|EXEC",
        (true, true, true) => "READ|WRITE|EXEC",
        (false, true, false) => "WRITE",
        (false, false, true) => "EXEC",
        (false, true, true) => "WRITE|EXEC",
    }
}

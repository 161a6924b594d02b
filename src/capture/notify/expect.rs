//! What a call is expected to do: from its arguments, and from what was mapped before.

use super::effect::{Expected, Replacement};
use super::peek::{self, Maps};
use super::shadow::{ACCESS, Shadow, pages};
use crate::model::{AddrRange, Mapping, PAGE, Tid};
use crate::sys::abi::refused::{EEXIST, EFAULT, EINVAL, ENOMEM};
use crate::sys::abi::{
    MADV_DOFORK, MADV_DONTFORK, MAP_32BIT, MAP_ANONYMOUS, MAP_FIXED, MAP_FIXED_NOREPLACE, MAP_HUGETLB,
    MAP_PRIVATE, MAP_TYPE, MREMAP_DONTUNMAP, MREMAP_FIXED, MREMAP_MAYMOVE, PROT_GROWSDOWN, PROT_GROWSUP,
    PROT_SEM,
};

/// As [`pages`]; None where the address is not that of a page, too.
fn aligned(addr: u64, len: u64) -> Option<AddrRange> {
    pages(addr, len).filter(|_| addr.is_multiple_of(PAGE))
}

impl Expected {
    pub fn mmap(tid: Tid, args: [u64; 6], shadow: &Shadow, maps: &mut Maps) -> Expected {
        let [addr, len, prot, flags, descriptor, offset] = args;
        let Some(range) = pages(addr & !(PAGE - 1), len).filter(|_| len <= 1 << 47) else {
            return Expected::Known(ENOMEM);
        };
        if len == 0 || offset % PAGE != 0 {
            return Expected::Known(EINVAL);
        }
        let (len, access) = (range.len(), prot & ACCESS);
        let fixed = flags & (MAP_FIXED | MAP_FIXED_NOREPLACE) != 0;
        if fixed && addr % PAGE != 0 {
            return Expected::Known(EINVAL);
        }
        if flags & MAP_FIXED_NOREPLACE != 0 && !shadow.is_free(range) {
            // By then it may be gone, if the call does not run in its turn.
            return Expected::Settles(EEXIST, range);
        }
        let huge = flags & MAP_HUGETLB != 0;
        let odd = huge || flags & MAP_32BIT != 0;
        let before = if fixed && shadow.covers(range) { maps.at(addr).ok().flatten() } else { None };
        let replacement =
            match (before.is_some(), flags & MAP_ANONYMOUS != 0, flags & MAP_TYPE == MAP_PRIVATE) {
                (false, ..) => Replacement::Any,
                _ if huge => Replacement::Any,
                (_, true, true) => Replacement::Anonymous,
                // A file of its own: no other mapping has it.
                (_, true, false) => Replacement::File { shared: true, offset: 0, inode: Some(0) },
                (_, false, private) => Replacement::File {
                    shared: !private,
                    offset,
                    inode: peek::inode_of(tid, descriptor as i32),
                },
            };
        Expected::Map {
            place: fixed.then_some(addr),
            // round_hint_to_min, mm/mmap.c
            hint: if odd { u64::MAX } else { addr & !(PAGE - 1) },
            len,
            offset: if flags & MAP_ANONYMOUS != 0 { 0 } else { offset },
            access,
            before,
            replacement,
            huge,
        }
    }

    pub fn munmap([addr, len, ..]: [u64; 6], shadow: &Shadow) -> Expected {
        let Some(range) = aligned(addr, len).filter(|range| !range.is_empty()) else {
            return Expected::Known(EINVAL);
        };
        match shadow.pieces(range).first() {
            Some(piece) => Expected::Unmap { range, first: piece.start },
            None => Expected::Settles(0, range),
        }
    }

    pub fn mprotect([addr, len, prot, ..]: [u64; 6], shadow: &Shadow) -> Expected {
        let Some(range) = aligned(addr, len) else {
            return Expected::Known(EINVAL);
        };
        const BOTH_WAYS: u64 = PROT_GROWSDOWN | PROT_GROWSUP;
        if prot & !(ACCESS | PROT_SEM | BOTH_WAYS) != 0 || prot & BOTH_WAYS == BOTH_WAYS {
            return Expected::Known(EINVAL);
        }
        if range.is_empty() {
            return Expected::Known(0);
        }
        let access = prot & ACCESS;
        let hole = !shadow.covers(range);
        // Up to a hole the change takes effect (do_mprotect_pkey, mm/mprotect.c).
        let mut end = range.start.0;
        let mut probe = None;
        for piece in shadow.pieces(range) {
            if piece.start > end {
                break;
            }
            end = piece.end;
            if piece.access != access {
                probe = Some(piece.end - PAGE);
            }
        }
        match probe {
            Some(probe) => {
                Expected::Protect { range: AddrRange::new(range.start.0, end), probe, access, hole }
            }
            None => Expected::Settles(if hole { ENOMEM } else { 0 }, range),
        }
    }

    /// Advice changes no mapping; what the arguments allow is taken as done.
    pub fn madvise([addr, len, advice, ..]: [u64; 6], shadow: &Shadow) -> Expected {
        let Some(range) = aligned(addr, len) else {
            return Expected::Known(EINVAL);
        };
        let ret = if shadow.covers(range) { 0 } else { ENOMEM };
        match advice as i32 {
            // The next fork goes by it.
            MADV_DONTFORK | MADV_DOFORK => Expected::Settles(ret, range),
            0..=4 | 8..=25 | 100..=103 => Expected::Known(ret),
            _ => Expected::Known(EINVAL),
        }
    }

    pub fn mremap(
        [old, old_len, new_len, flags, new, _]: [u64; 6],
        shadow: &Shadow,
        maps: &mut Maps,
    ) -> Expected {
        let (Some(range), Some(len)) = (pages(old, old_len), pages(0, new_len).map(|range| range.len()))
        else {
            return Expected::Known(EINVAL);
        };
        let moves = flags & MREMAP_MAYMOVE != 0;
        let bad_flags = flags & !7 != 0 || flags & (MREMAP_FIXED | MREMAP_DONTUNMAP) != 0 && !moves;
        if old % PAGE != 0 || new_len == 0 || bad_flags {
            return Expected::Known(EINVAL);
        }
        if flags & MREMAP_DONTUNMAP != 0 && range.len() != len {
            return Expected::Known(EINVAL);
        }
        let keeps_old = flags & MREMAP_DONTUNMAP != 0 || old_len == 0;
        // Without MREMAP_FIXED the last argument is a wish, or not examined.
        let place = (flags & MREMAP_FIXED != 0).then_some(new);
        let mut before = Vec::new();
        if let Some(place) = place {
            let Some(target) = pages(place, new_len).filter(|_| place % PAGE == 0) else {
                return Expected::Known(EINVAL);
            };
            if range.start < target.end && target.start < range.end {
                return Expected::Known(EINVAL);
            }
            if keeps_old {
                before = maps.vmas(target).unwrap_or_default();
            }
        }
        if shadow.at(old).is_none() {
            return Expected::Settles(EFAULT, range);
        }
        if place.is_none() && !keeps_old && range.len() == len {
            return Expected::Settles(if shadow.covers(range) { old as i64 } else { EFAULT }, range);
        }
        Expected::Remap { old: range, new_len: len, place, keeps_old, before }
    }

    /// ipc/shm.c, ksys_shmdt: the first piece of an attachment at `addr` that is still there.
    pub fn shmdt([addr, ..]: [u64; 6], maps: &Maps) -> Expected {
        let seen = maps.read().unwrap_or_default();
        let belongs = |m: &&Mapping| {
            let start = m.range.start.0;
            start >= addr && start - addr == m.offset && m.name.starts_with(b"/SYSV")
        };
        let Some(first) = seen.iter().find(belongs) else {
            return Expected::Settles(EINVAL, AddrRange::new(addr, addr));
        };
        let same_file = seen.iter().filter(belongs).filter(|m| m.file == first.file);
        Expected::Detach { pieces: same_file.map(|m| m.range).collect() }
    }

    /// fs/aio.c, kill_ioctx: the ring at `ctx` goes at once, whatever is waited for then.
    pub fn io_destroy([ctx, ..]: [u64; 6], maps: &Maps) -> Expected {
        let seen = maps.read().unwrap_or_default();
        let is_ring = |m: &&Mapping| m.range.start.0 == ctx && m.name.starts_with(b"/[aio]");
        match seen.iter().find(is_ring) {
            Some(ring) => Expected::Detach { pieces: vec![ring.range] },
            None => Expected::Settles(EINVAL, AddrRange::new(ctx, ctx)),
        }
    }

    pub fn brk([to, ..]: [u64; 6], from: u64, start: u64) -> Expected {
        if to < start {
            return Expected::Known(from as i64);
        }
        match to.checked_next_multiple_of(PAGE) {
            Some(end) if end == from.next_multiple_of(PAGE) => {
                Expected::Settles(to as i64, AddrRange::new(end, end))
            }
            Some(_) => Expected::Brk { from, to },
            None => Expected::Known(from as i64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::shadow::ShadowVma;
    use super::*;

    fn shadow() -> Shadow {
        let mut shadow = Shadow::default();
        shadow.insert(ShadowVma { start: 0x1000, end: 0x5000, access: 3 });
        shadow
    }

    /// Calls that leave maps as they are wait for their turn where what others do next depends on them.
    #[test]
    fn what_changes_nothing_may_still_have_to_be_over() {
        let shadow = shadow();
        let args = |a: u64, b: u64, c: u64| [a, b, c, 0, 0, 0];
        let settles = |ret, start, end| Expected::Settles(ret, AddrRange::new(start, end));
        assert_eq!(Expected::madvise(args(0x1000, 0x1000, 4), &shadow), Expected::Known(0));
        assert_eq!(Expected::madvise(args(0x1000, 0x1000, 10), &shadow), settles(0, 0x1000, 0x2000));
        assert_eq!(Expected::madvise(args(0x1000, 0x9000, 11), &shadow), settles(ENOMEM, 0x1000, 0xa000));
        assert_eq!(Expected::madvise(args(0x1001, 0x1000, 10), &shadow), Expected::Known(EINVAL));
        assert_eq!(Expected::munmap(args(0x7000, 0x1000, 0), &shadow), settles(0, 0x7000, 0x8000));
        assert_eq!(Expected::mprotect(args(0x1000, 0x1000, 3), &shadow), settles(0, 0x1000, 0x2000));
        assert_eq!(Expected::mprotect(args(0x4000, 0x2000, 3), &shadow), settles(ENOMEM, 0x4000, 0x6000));
        let mut maps = Maps::open(std::process::id() as Tid, |_| Vec::new()).expect("its own maps");
        let remapped = Expected::mremap(args(0x1000, 0x1000, 0x1000), &shadow, &mut maps);
        assert_eq!(remapped, settles(0x1000, 0x1000, 0x2000));
        assert_eq!(Expected::brk(args(0x9008, 0, 0), 0x9004, 0x8000), settles(0x9008, 0xa000, 0xa000));
    }
}

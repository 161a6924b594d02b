//! Reconciliation against a naive comparison, page by page; and input that makes no sense.

use super::in_order::any_call;
use super::mini_kernel::{END, FIRST, MM, MiniKernel, PID, exec, report};
use super::pages_of;
use crate::ledger::rules::observed;
use proptest::prelude::*;
use std::collections::BTreeMap;
use vmaudit::ledger::{AddressSpaces, Origin};
use vmaudit::model::{Addr, AddrRange, Mapping, MmKey, PAGE, Prot, Sharing, VmOp};

/// Maps as the kernel would print them: neighbouring pages of equal attributes are one line.
pub fn maps_of(pages: &BTreeMap<u64, (Prot, bool)>) -> Vec<Mapping> {
    let mut maps: Vec<Mapping> = Vec::new();
    for (&page, &(prot, shared)) in pages {
        let sharing = if shared { Sharing::Shared } else { Sharing::Private };
        let range = AddrRange::new(page * PAGE, (page + 1) * PAGE);
        match maps.last_mut() {
            Some(last) if last.range.end == range.start && (last.prot, last.sharing) == (prot, sharing) => {
                last.range.end = range.end;
            }
            _ => maps.push(Mapping { range, prot, sharing, offset: 0, file: None, name: Vec::new() }),
        }
    }
    maps
}

/// Operations with arguments from anywhere.
fn any_op() -> impl Strategy<Value = VmOp> {
    let near = || {
        prop_oneof![
            4 => (FIRST..END).prop_map(|p| p * PAGE),
            1 => any::<u64>(),
            1 => Just(u64::MAX),
        ]
    };
    let small = || prop_oneof![4 => (0..20u64).prop_map(|p| p * PAGE + 1), 1 => any::<u64>()];
    prop_oneof![
        (near(), small(), any::<u64>(), any::<u64>()).prop_map(|(addr, len, prot, flags)| VmOp::Mmap {
            addr: Addr(addr),
            len,
            prot,
            flags,
            fd: 3,
            offset: prot,
            file: None
        }),
        (near(), small()).prop_map(|(addr, len)| VmOp::Munmap { addr: Addr(addr), len }),
        (near(), small(), small(), 0..8u64, near()).prop_map(|(old, old_len, new_len, flags, new)| {
            VmOp::Mremap { old: Addr(old), old_len, new_len, flags, new_addr: Addr(new) }
        }),
        (near(), any::<Option<u64>>())
            .prop_map(|(to, now)| VmOp::Brk { requested: Addr(to), current: now.map(Addr) }),
        (near(), small(), any::<u64>()).prop_map(|(addr, len, prot)| VmOp::Mprotect {
            addr: Addr(addr),
            len,
            prot,
            pkey: None
        }),
        (near(), small(), 0..30i32).prop_map(|(addr, len, advice)| VmOp::Madvise {
            addr: Addr(addr),
            len,
            advice
        }),
        (near(), any::<u64>(), any::<bool>(), small()).prop_map(|(addr, flags, known, len)| VmOp::Shmat {
            shmid: 1,
            addr: Addr(addr),
            flags,
            mapped: known.then(|| AddrRange::from_len(Addr(addr), len)),
        }),
        near().prop_map(|addr| VmOp::Shmdt { addr: Addr(addr) }),
        (near(), small(), any::<u64>()).prop_map(|(addr, len, pgoff)| VmOp::RemapFilePages {
            addr: Addr(addr),
            len,
            pgoff,
            flags: 0
        }),
        (near(), small()).prop_map(|(addr, len)| VmOp::SetVmaName { addr: Addr(addr), len, name: None }),
        (near(), 0..5u64, any::<bool>(), any::<bool>()).prop_map(|(at, mm, is_thread, listed)| {
            let listed = listed.then(|| {
                let pages = (at / PAGE..(at / PAGE).saturating_add(3)).filter(|p| *p < 1 << 40);
                maps_of(&pages.map(|p| (p, (Prot::RW, false))).collect())
            });
            VmOp::Fork {
                child_pid: PID + mm as i32,
                child_tid: PID + mm as i32,
                child_mm: MmKey(MM.0 + mm),
                child_sp: Addr(0),
                child_brk: None,
                is_thread,
                mappings: listed,
            }
        }),
        (any::<i32>(), any::<bool>()).prop_map(|(code, group_dead)| VmOp::Exit { code, group_dead }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn drift_is_what_a_page_by_page_comparison_finds(
        calls in prop::collection::vec(any_call(), 1..40),
        changes in prop::collection::vec((FIRST..END, 0..4u8), 0..12),
    ) {
        let mut kernel = MiniKernel::new();
        let mut spaces = AddressSpaces::new();
        spaces.apply(&exec());
        for call in calls {
            let event = kernel.call(PID, call);
            // A refused move may have changed something on the way: its ranges are excused.
            if !(event.failed() && matches!(event.op, VmOp::Mremap { .. })) {
                spaces.apply(&event);
            }
        }
        let ledger: BTreeMap<u64, (Prot, bool)> =
            pages_of(&spaces).into_iter().map(|(p, page)| (p, (page.prot, page.shared))).collect();
        let mut pages = ledger.clone();
        for (page, change) in changes {
            match change {
                0 => drop(pages.remove(&page)),
                1 => drop(pages.insert(page, (Prot::NONE, false))),
                2 => drop(pages.insert(page, (Prot::RW, true))),
                _ => drop(pages.insert(page, (Prot::RW, false))),
            }
        }
        let differ = (FIRST..END + 20).filter(|p| ledger.get(p) != pages.get(p)).count() as u64;
        let maps = maps_of(&pages);
        let result = spaces.reconcile(PID, &observed(PID, maps.clone(), u64::MAX));
        prop_assert_eq!(result.drift.0, differ * PAGE);
        let listed: u64 = result.drift_ranges.iter().map(|r| r.len()).sum();
        prop_assert_eq!(listed, differ * PAGE);

        // The regions are the kernel's mappings, in order and without a gap.
        let mut regions = result.regions.iter();
        for (vma, mapping) in maps.iter().enumerate() {
            let mut at = mapping.range.start;
            while at < mapping.range.end {
                let region = regions.next().expect("covers the mapping");
                prop_assert_eq!((region.range.start, region.vma), (at, vma));
                prop_assert_eq!((region.prot, region.sharing), (mapping.prot, mapping.sharing));
                if let Origin::Event(id) = region.origin {
                    prop_assert!((id.0 as usize) < result.origins.len());
                }
                at = region.range.end;
            }
            prop_assert_eq!(at, mapping.range.end);
        }
        prop_assert!(regions.next().is_none());

        // Once taken over, nothing differs.
        spaces.resync(PID, &observed(PID, maps.clone(), u64::MAX));
        prop_assert_eq!(spaces.reconcile(PID, &observed(PID, maps, u64::MAX)).drift.0, 0);
    }

    /// Whatever a confused backend delivers: no panic, and the regions still cover the maps.
    #[test]
    fn impossible_events_are_survived(
        ops in prop::collection::vec((any_op(), prop_oneof![Just(0i64), any::<i64>(),
            (FIRST..END).prop_map(|p| (p * PAGE) as i64), Just(-12), Just(-1)], 0..4i32, 0..3u64), 1..60),
    ) {
        let mut spaces = AddressSpaces::new();
        let page = |p: u64| (p, (Prot::RW, false));
        let maps = maps_of(&(FIRST..END).step_by(3).map(page).collect());
        for (number, (op, ret, who, mm)) in (1u64..).zip(ops) {
            let mut event = report(number, PID + who, op, ret);
            event.mm = MmKey(MM.0 + mm);
            event.task.pid = PID + who % 2;
            spaces.apply(&event);
            if number % 16 == 0 {
                spaces.note_loss(number * 1000);
                spaces.resync(PID, &observed(PID, maps.clone(), 0));
            }
        }
        for pid in PID..PID + 4 {
            let result = spaces.reconcile(pid, &observed(PID, maps.clone(), u64::MAX));
            let covered: u64 = result.regions.iter().map(|r| r.range.len()).sum();
            prop_assert_eq!(covered, maps.iter().map(|m| m.range.len()).sum::<u64>());
        }
    }
}

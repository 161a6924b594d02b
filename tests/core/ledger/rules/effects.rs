//! Calls one by one.

use super::{ANON, FIXED, PID, Story, at, event_of, file, mapping, pages};
use vmaudit::ledger::RegionKind;
use vmaudit::model::{Addr, AddrRange, Prot, Sharing, VmOp};

const ENOMEM: i64 = -12;

fn pieces(story: &Story) -> usize {
    story.spaces.ledger_of_pid(PID).expect("seen").pieces().count()
}

#[test]
fn an_arena_that_grows_page_by_page_stays_two_pieces() {
    let mut story = Story::new(Vec::new());
    let arena = AddrRange::new(0x7f00_0000_0000, 0x7f00_0400_0000);
    let reserved = story.mmap(arena, 0, ANON | 0x4000);
    for page in 0..10_000 {
        let step = AddrRange::from_len(arena.start.saturating_add(page * 4096), 4096);
        story.mprotect(step, 3, 0);
    }
    assert_eq!(pieces(&story), 2);
    let grown = AddrRange::from_len(arena.start, 10_000 * 4096);
    let rest = AddrRange::new(grown.end.0, arena.end.0);
    let result = story.reconcile(vec![mapping(grown, "rw-p", ""), mapping(rest, "---p", "")]);
    assert_eq!((result.drift.0, result.regions.len(), result.origins.len()), (0, 2, 1));
    assert_eq!(result.origins[0].event.0, reserved);
    assert_eq!(result.origins[0].mprotect_calls, 10_000);
}

#[test]
fn a_trimmed_reservation_remembers_what_was_cut() {
    let mut story = Story::new(Vec::new());
    story.mmap(pages(0, 128), 0, ANON);
    story.munmap(pages(0, 40));
    story.munmap(pages(104, 128));
    story.mmap(pages(50, 60), 3, ANON | FIXED);
    let result = story.reconcile(vec![mapping(pages(40, 50), "---p", "")]);
    let origin = &result.origins[0];
    assert_eq!((origin.mapped.0, origin.unmapped.0), (128 * 4096, 64 * 4096));
    assert_eq!((origin.unmap_calls, origin.replaced.0), (2, 10 * 4096));
}

#[test]
fn huge_pages_are_rounded_to_their_size() {
    let mut story = Story::new(Vec::new());
    let hugetlb = |log2: u64| 0x4_0000 | log2 << 26 | ANON;
    let start = 0x7f00_0000_0000u64;
    story.mmap(AddrRange::new(start, start + 4096), 3, hugetlb(0));
    story.mmap(AddrRange::new(start + (1 << 30), start + (1 << 30) + 4096), 3, hugetlb(30));
    let owned: Vec<u64> = story.owners().iter().map(|(r, _)| r.len()).collect();
    assert_eq!(owned, vec![2 << 20, 1 << 30]);
    let kind = story.spaces.ledger_of_pid(PID).expect("seen").pieces().next().expect("mapped").kind;
    assert_eq!(kind, RegionKind::HugeTlb);
}

#[test]
fn mprotect_over_a_hole_changes_what_lies_before_it() {
    let mut story = Story::new(Vec::new());
    story.mmap(pages(0, 4), 3, ANON);
    story.mmap(pages(6, 8), 3, ANON);
    story.mprotect(pages(2, 8), 1, ENOMEM);
    let result = story.reconcile(vec![
        mapping(pages(0, 2), "rw-p", ""),
        mapping(pages(2, 4), "r--p", ""),
        mapping(pages(6, 8), "rw-p", ""),
    ]);
    assert_eq!(result.drift.0, 0);
}

#[test]
fn madvise_over_a_hole_purges_the_mapped_parts() {
    let mut story = Story::new(Vec::new());
    story.mmap(pages(0, 4), 3, ANON);
    story.mmap(pages(6, 8), 3, ANON);
    story.madvise(pages(2, 8), 4, ENOMEM);
    let maps = || vec![mapping(pages(0, 4), "rw-p", ""), mapping(pages(6, 8), "rw-p", "")];
    assert_eq!(story.reconcile(maps()).purged, vec![pages(2, 4), pages(6, 8)]);
    // A new mapping there was never purged.
    story.mmap(pages(3, 4), 3, ANON | FIXED);
    assert_eq!(story.reconcile(maps()).purged, vec![pages(2, 3), pages(6, 8)]);
    story.munmap(pages(6, 8));
    assert_eq!(story.reconcile(maps()).purged, vec![pages(2, 3)]);
}

#[test]
fn refused_calls_change_nothing() {
    let mut story = Story::new(Vec::new());
    let first = story.mmap(pages(0, 4), 3, ANON);
    let huge =
        VmOp::Mmap { addr: Addr(0), len: 144 << 20, prot: 3, flags: 0x4_0021, fd: -1, offset: 0, file: None };
    story.report(huge, ENOMEM);
    story.report(VmOp::Munmap { addr: Addr(at(0)), len: 0 }, -22);
    assert_eq!(story.owners(), vec![(pages(0, 4), Some(first))]);
    assert_eq!(story.reconcile(Vec::new()).events, 4, "refused calls and the exec are counted");
}

#[test]
fn a_name_that_the_kernel_refused_is_kept() {
    let mut story = Story::new(Vec::new());
    story.mmap(pages(0, 4), 3, ANON);
    let name = Some(b"mimalloc".to_vec());
    story.report(VmOp::SetVmaName { addr: Addr(at(0)), len: 4 * 4096, name }, -22);
    let result = story.reconcile(vec![mapping(pages(0, 4), "rw-p", "")]);
    assert_eq!(result.origins[0].anon_names.at(Addr(at(0))), Some(b"mimalloc".as_slice()));
}

#[test]
fn names_that_cannot_be_are_none() {
    let mut story = Story::new(Vec::new());
    story.mmap(pages(0, 4), 3, ANON);
    let mut name = |page: u64, name: Option<&[u8]>| {
        let name = name.map(<[u8]>::to_vec);
        story.report(VmOp::SetVmaName { addr: Addr(at(page)), len: 4096, name }, -22);
        let result = story.reconcile(vec![mapping(pages(0, 4), "rw-p", "")]);
        result.origins[0].anon_names.at(Addr(at(page))).map(<[u8]>::to_vec)
    };
    let pool = || Some(b"pool".to_vec());
    assert_eq!(name(0, Some(b"pool")), pool());
    // what no kernel takes changes nothing
    assert_eq!(name(0, Some(b"[stack]")), pool());
    assert_eq!(name(0, Some(&[b'x'; 80])), pool());
    // and was it one that could not be read, it is not the old one
    assert_eq!(name(0, Some(b"")), None);
    assert_eq!((name(1, Some(b"pool")), name(1, None)), (pool(), None));
}

#[test]
fn the_break_grows_and_shrinks_in_pages() {
    let mut story = Story::new(Vec::new());
    let brk = |story: &mut Story, to: u64, current: Option<u64>| {
        story.report(VmOp::Brk { requested: Addr(to), current: current.map(Addr) }, to as i64)
    };
    let heap = 0x5000_0000u64;
    let first = brk(&mut story, heap + 0x2100, None);
    brk(&mut story, heap + 0x2200, None);
    let second = brk(&mut story, heap + 0x5000, None);
    brk(&mut story, heap + 0x3800, None);
    assert_eq!(
        story.owners(),
        vec![
            (AddrRange::new(heap, heap + 0x3000), Some(first)),
            (AddrRange::new(heap + 0x3000, heap + 0x4000), Some(second)),
        ]
    );
    // Two threads raced; the break read at the report is the true one.
    brk(&mut story, heap + 0x6000, Some(heap + 0x8000));
    assert_eq!(story.spaces.ledger_of_pid(PID).map(|l| l.mapped_bytes()), Some(0x8000));
    // Refused: the old break comes back.
    story.report(VmOp::Brk { requested: Addr(1), current: None }, (heap + 0x8000) as i64);
    assert_eq!(story.spaces.ledger_of_pid(PID).map(|l| l.mapped_bytes()), Some(0x8000));
}

#[test]
fn a_shared_segment_goes_as_a_whole() {
    let mut story = Story::new(Vec::new());
    let shmat = |mapped| VmOp::Shmat { shmid: 5, addr: Addr(0), flags: 0, mapped: Some(mapped) };
    story.report(shmat(pages(0, 8)), at(0) as i64);
    let other = story.report(shmat(pages(8, 10)), at(8) as i64);
    story.mprotect(pages(2, 4), 1, 0);
    story.munmap(pages(5, 6));
    story.report(VmOp::Shmdt { addr: Addr(at(0)) }, 0);
    assert_eq!(story.owners(), vec![(pages(8, 10), Some(other))]);
}

#[test]
fn an_attachment_of_unknown_length_takes_the_kernels() {
    let mut story = Story::new(Vec::new());
    let op = VmOp::Shmat { shmid: 5, addr: Addr(0), flags: 0, mapped: None };
    let attached = story.report(op, at(0) as i64);
    let result = story.reconcile(vec![mapping(pages(0, 8), "rw-s", "/SYSV00000000 (deleted)")]);
    assert_eq!((result.drift.0, result.regions.len()), (0, 1));
    assert_eq!(event_of(&result, &result.regions[0]), Some(attached));
    assert_eq!(result.regions[0].kind, RegionKind::SysvShm);
}

#[test]
fn a_ring_is_the_calls_wherever_the_kernel_put_it() {
    let mut story = Story::new(Vec::new());
    let setup = story.report(VmOp::IoSetup { nr_events: 128, mapped: None }, 0);
    let maps = vec![mapping(pages(0, 3), "rw-s", "/[aio] (deleted)")];
    let result = story.reconcile(maps);
    assert_eq!((result.drift.0, event_of(&result, &result.regions[0])), (0, Some(setup)));

    // With its place known.
    story.report(VmOp::IoSetup { nr_events: 128, mapped: Some(pages(10, 13)) }, 0);
    story.report(VmOp::IoDestroy { ctx: Addr(at(11)) }, -22);
    assert_eq!(story.reconcile(vec![mapping(pages(10, 13), "rw-s", "/[aio] (deleted)")]).drift.0, 0);
    assert_eq!(story.reconcile(Vec::new()).drift.0, 3 * 4096);
    story.report(VmOp::IoDestroy { ctx: Addr(at(10)) }, 0);
    assert_eq!(story.reconcile(Vec::new()).drift.0, 0);

    // The place has a new owner before the destruction is reported.
    story.report(VmOp::IoSetup { nr_events: 1, mapped: Some(pages(20, 23)) }, 0);
    story.thread(11);
    story.tid = 11;
    let new = story.mmap(pages(20, 24), 3, ANON);
    story.tid = PID;
    story.report(VmOp::IoDestroy { ctx: Addr(at(20)) }, 0);
    assert_eq!(story.owners(), vec![(pages(20, 24), Some(new))]);

    // Only a part of it has.
    story.report(VmOp::IoSetup { nr_events: 1, mapped: Some(pages(30, 33)) }, 0);
    story.tid = 11;
    let other = story.mmap(pages(30, 31), 3, ANON);
    story.tid = PID;
    story.report(VmOp::IoDestroy { ctx: Addr(at(30)) }, 0);
    assert_eq!(story.owners(), vec![(pages(20, 24), Some(new)), (pages(30, 31), Some(other))]);
}

#[test]
fn remapped_file_pages_are_the_callers() {
    let mut story = Story::new(Vec::new());
    let first = story.map_file(pages(0, 8), 3, 1, 0, file(b"/dev/shm/x", 9));
    let op = VmOp::RemapFilePages { addr: Addr(at(2)), len: 2 * 4096, pgoff: 6, flags: 0 };
    let second = story.report(op, 0);
    assert_eq!(
        story.owners(),
        vec![(pages(0, 2), Some(first)), (pages(2, 4), Some(second)), (pages(4, 8), Some(first))]
    );
}

#[test]
fn growing_bytes_are_the_mremaps_and_moved_bytes_keep_their_owner() {
    let mut story = Story::new(Vec::new());
    let first = story.mmap(pages(0, 4), 3, ANON);
    story.madvise(pages(1, 2), 4, 0);
    let op =
        VmOp::Mremap { old: Addr(at(0)), old_len: 4 * 4096, new_len: 6 * 4096, flags: 1, new_addr: Addr(0) };
    let moved = story.report(op, at(20) as i64);
    assert_eq!(story.owners(), vec![(pages(20, 24), Some(first)), (pages(24, 26), Some(moved))]);
    let result = story.reconcile(vec![mapping(pages(20, 26), "rw-p", "")]);
    assert_eq!((result.drift.0, result.purged.clone()), (0, vec![pages(21, 22)]));
    assert_eq!(result.origins[0].unmapped.0, 0, "moved is not unmapped");
}

#[test]
fn a_move_reported_late_still_moves_the_owner() {
    let mut story = Story::new(Vec::new());
    story.thread(11);
    let first = story.mmap(pages(0, 4), 3, ANON);
    // 11 moves it away; the main thread is given the place and reports first.
    let second = story.mmap(pages(0, 2), 3, ANON);
    assert_eq!(story.spaces.ledger_of_pid(PID).map(|l| l.unreported_bytes()), Some(2 * 4096));
    story.tid = 11;
    let op =
        VmOp::Mremap { old: Addr(at(0)), old_len: 4 * 4096, new_len: 4 * 4096, flags: 1, new_addr: Addr(0) };
    story.report(op, at(20) as i64);
    assert_eq!(story.owners(), vec![(pages(0, 2), Some(second)), (pages(20, 24), Some(first))]);
    assert_eq!(story.spaces.ledger_of_pid(PID).map(|l| l.unreported_bytes()), Some(0));
}

#[test]
fn a_thread_that_reported_since_owes_nothing() {
    let mut story = Story::new(Vec::new());
    story.thread(11);
    story.thread(12);
    story.mmap(pages(0, 4), 3, ANON);
    let second = story.mmap(pages(0, 4), 3, ANON);
    // 12 reports something else: what it unmaps from now on is the new mapping.
    story.tid = 12;
    story.mmap(pages(20, 21), 3, ANON);
    story.munmap(pages(0, 1));
    assert_eq!(story.owners()[0], (pages(1, 4), Some(second)));
    // 11 is the one that was late.
    story.tid = 11;
    story.munmap(pages(0, 4));
    assert_eq!(story.owners()[0], (pages(1, 4), Some(second)));
}

#[test]
fn an_unmapping_that_never_comes_is_given_up() {
    let mut story = Story::new(Vec::new());
    story.thread(11);
    story.mmap(pages(0, 4), 3, ANON);
    story.mmap(pages(0, 4), 3, ANON);
    let unreported = |s: &Story| s.spaces.ledger_of_pid(PID).map(|l| l.unreported_bytes());
    assert_eq!(unreported(&story), Some(4 * 4096));
    story.tid = 11;
    story.exit(0, false);
    assert_eq!(unreported(&story), Some(0), "nobody is left who could report it");
}

#[test]
fn memory_is_bounded_by_what_is_mapped() {
    let mut story = Story::new(Vec::new());
    story.thread(11);
    story.mmap(pages(0, 64), 0, ANON);
    for round in 0..20_000u64 {
        story.mmap(pages(64, 64 + round % 7 + 1), 3, ANON | FIXED);
        story.mprotect(pages(round % 50, round % 50 + 3), 3, 0);
        story.madvise(pages(round % 64, round % 64 + 1), 4, 0);
        story.munmap(pages(64, 72));
    }
    assert!(pieces(&story) <= 3, "{}", pieces(&story));
    let result = story.reconcile(vec![mapping(pages(0, 64), "rw-p", "")]);
    assert_eq!(result.origins.len(), 1);
}

#[test]
fn kinds_follow_from_the_call() {
    let mut story = Story::new(Vec::new());
    story.mmap(pages(0, 1), 3, 0x21);
    story.map_file(pages(2, 3), 1, 2, 0, file(b"/lib/a.so", 4));
    story.report(VmOp::MapShadowStack { addr: Addr(0), len: 4096, flags: 0 }, at(4) as i64);
    let ledger = story.spaces.ledger_of_pid(PID).expect("seen");
    let kinds: Vec<_> = ledger.pieces().map(|p| (p.kind, p.sharing, p.prot)).collect();
    let read = Prot { read: true, ..Prot::NONE };
    assert_eq!(
        kinds,
        vec![
            (RegionKind::SharedAnonymous, Sharing::Shared, Prot::RW),
            (RegionKind::File, Sharing::Private, read),
            (RegionKind::ShadowStack, Sharing::Private, Prot::RW),
        ]
    );
}

/// A recording may say so; sums of such ranges would overflow.
#[test]
fn calls_beyond_user_space_map_nothing() {
    let mut story = Story::new(Vec::new());
    let (addr, beyond) = (Addr(at(0)), u64::MAX - 59);
    let whole = AddrRange::from_len(addr, beyond);
    story.mmap(whole, 3, ANON);
    story.munmap(whole);
    story.mmap(AddrRange::from_len(addr, 1 << 62), 3, ANON);
    story.mmap(AddrRange::new(1 << 60, (1 << 60) + 4096), 3, ANON);
    let ret = at(0) as i64;
    story.report(VmOp::MapShadowStack { addr, len: beyond, flags: 0 }, ret);
    story.report(VmOp::Mremap { old: addr, old_len: 4096, new_len: beyond, flags: 1, new_addr: addr }, ret);
    story.report(VmOp::RemapFilePages { addr, len: beyond, pgoff: 0, flags: 0 }, 0);
    story.report(VmOp::Shmat { shmid: 1, addr, flags: 0, mapped: Some(whole) }, ret);
    story.report(VmOp::IoSetup { nr_events: 1, mapped: Some(whole) }, 0);
    story.report(VmOp::Brk { requested: Addr(1 << 60), current: None }, 1 << 60);
    let ledger = story.spaces.ledger_of_pid(PID).expect("seen");
    assert_eq!((ledger.pieces().count(), ledger.mapped_bytes()), (0, 0));
    assert_eq!((ledger.peak().virt, ledger.peak().shares.len()), (0, 0));
}

//! The ledger compared with the kernel's maps.

use super::{ANON, MM, Story, event_of, file, mapping, pages};
use vmaudit::ledger::{Origin, RegionKind};
use vmaudit::model::{Addr, AddrRange, VmOp};

#[test]
fn a_merged_mapping_is_split_by_owner() {
    let mut story = Story::new(Vec::new());
    let first = story.mmap(pages(0, 4), 3, ANON);
    let second = story.mmap(pages(4, 6), 3, ANON);
    let result = story.reconcile(vec![mapping(pages(0, 6), "rw-p", "")]);
    let parts: Vec<_> = result.regions.iter().map(|r| (r.range, event_of(&result, r), r.vma)).collect();
    assert_eq!(parts, vec![(pages(0, 4), Some(first), 0), (pages(4, 6), Some(second), 0)]);
    assert_eq!(result.drift.0, 0);
}

#[test]
fn one_owner_in_several_mappings_is_one_origin() {
    let mut story = Story::new(Vec::new());
    story.mmap(pages(0, 6), 0, ANON);
    story.mprotect(pages(0, 2), 3, 0);
    let result = story.reconcile(vec![mapping(pages(0, 2), "rw-p", ""), mapping(pages(2, 6), "---p", "")]);
    assert_eq!((result.regions.len(), result.origins.len()), (2, 1));
    assert_eq!(result.regions[1].vma, 1);
}

/// READ_IMPLIES_EXEC, which GCL sets for itself: brk's memory is executable then, and the call does not say so.
#[test]
fn a_break_that_can_be_executed_is_the_same_break() {
    let mut story = Story::new(Vec::new());
    let heap = 0x5000_0000;
    let to = heap + 0x4000;
    story.report(VmOp::Brk { requested: Addr(to), current: Some(Addr(to)) }, to as i64);
    let range = AddrRange::new(heap, to);
    let result = story.reconcile(vec![mapping(range, "rwxp", "")]);
    assert_eq!((result.drift.0, result.regions[0].kind), (0, RegionKind::Brk));
    assert_eq!(story.reconcile(vec![mapping(range, "r--p", "[heap]")]).drift.0, 0x4000);
}

#[test]
fn what_only_one_side_has_is_drift() {
    let mut story = Story::new(Vec::new());
    story.mmap(pages(0, 4), 3, ANON);
    story.mmap(pages(8, 10), 3, ANON);
    let result = story.reconcile(vec![
        mapping(pages(2, 6), "rw-p", ""),
        mapping(pages(8, 10), "r--p", ""),
        mapping(pages(20, 21), "rw-p", ""),
    ]);
    assert_eq!(result.drift_ranges, vec![pages(0, 2), pages(4, 6), pages(8, 10), pages(20, 21)]);
    assert_eq!(result.drift.0, 7 * 4096);
    let unknown: Vec<_> =
        result.regions.iter().filter(|r| r.origin == Origin::Unknown).map(|r| r.range).collect();
    assert_eq!(unknown, vec![pages(4, 6), pages(20, 21)]);
    // The kernel's maps decide.
    assert_eq!(result.regions[2].prot.to_string(), "r--");
}

#[test]
fn pieces_behind_the_last_mapping_are_drift() {
    let mut story = Story::new(Vec::new());
    story.mmap(pages(0, 4), 3, ANON);
    story.mmap(pages(8, 10), 3, ANON);
    let vsyscall =
        mapping(AddrRange::new(0xffff_ffff_ff60_0000, 0xffff_ffff_ff60_1000), "--xp", "[vsyscall]");
    let result = story.reconcile(vec![mapping(pages(0, 3), "rw-p", ""), vsyscall]);
    assert_eq!(result.drift_ranges, vec![pages(3, 4), pages(8, 10)]);
    assert_eq!(result.regions.len(), 1);
}

#[test]
fn one_piece_over_two_mappings_with_a_hole() {
    let mut story = Story::new(Vec::new());
    story.mmap(pages(0, 10), 3, ANON);
    let result = story.reconcile(vec![mapping(pages(1, 3), "rw-p", ""), mapping(pages(5, 7), "rw-p", "")]);
    assert_eq!(result.drift_ranges, vec![pages(0, 1), pages(3, 5), pages(7, 10)]);
    assert_eq!(result.regions.len(), 2);
}

#[test]
fn ranges_that_change_meanwhile_are_excused() {
    let mut story = Story::new(Vec::new());
    story.mmap(pages(0, 4), 3, ANON);
    let begun = story.count * 1000 + 1;
    story.mmap(pages(4, 6), 3, ANON);
    story.munmap(pages(0, 1));
    // maps was read in between: with neither of the two.
    let maps = || vec![mapping(pages(0, 4), "rw-p", "")];
    let during = story.reconcile_at(maps(), begun);
    assert_eq!(during.drift.0, 0);
    assert_eq!(during.regions.iter().map(|r| r.range.len()).sum::<u64>(), 4 * 4096);
    let after = story.reconcile(maps());
    assert_eq!(after.drift_ranges, vec![pages(0, 1), pages(4, 6)]);
}

#[test]
fn stacks_grow_without_a_call() {
    let mut story = Story::new(vec![mapping(pages(100, 133), "rw-p", "[stack]")]);
    let growing = story.mmap(pages(10, 12), 3, ANON | 0x100);
    let result =
        story.reconcile(vec![mapping(pages(6, 12), "rw-p", ""), mapping(pages(80, 133), "rw-p", "[stack]")]);
    assert_eq!(result.drift.0, 0);
    let parts: Vec<_> = result.regions.iter().map(|r| (r.range, r.kind, event_of(&result, r))).collect();
    assert_eq!(
        parts,
        vec![(pages(6, 12), RegionKind::Anonymous, Some(growing)), (pages(80, 133), RegionKind::Stack, None),]
    );
    assert_eq!(result.regions[1].origin, Origin::Kernel);
}

#[test]
fn the_kernels_own_mappings_are_the_kernels() {
    let story = Story::new(Vec::new());
    let names = ["[uprobes]", "[vvar]", "[vvar_vclock]", "[vdso]"];
    let maps = (0..4).map(|i| mapping(pages(i * 4, i * 4 + 2), "r-xp", names[i as usize])).collect();
    let result = story.reconcile(maps);
    assert_eq!(result.drift.0, 0);
    assert!(result.regions.iter().all(|r| r.origin == Origin::Kernel && r.kind == RegionKind::Special));
}

#[test]
fn without_a_list_execs_images_are_known_by_name() {
    let mut story = Story::unseen();
    story.exec(MM, None);
    let library = story.map_file(pages(40, 44), 1, 2, 0, file(b"/lib/libc.so.6", 5));
    let heap = AddrRange::new(0x4fff_f000, 0x5000_0000);
    let maps = vec![
        mapping(heap, "rw-p", "[heap]"),
        mapping(pages(0, 2), "r-xp", "/bin/prog"),
        mapping(pages(2, 3), "rw-p", ""),
        mapping(pages(20, 22), "r-xp", "/lib64/ld-linux-x86-64.so.2"),
        mapping(pages(30, 31), "rw-p", ""),
        mapping(pages(40, 44), "r--p", "/lib/libc.so.6"),
        mapping(pages(50, 52), "r--p", "/lib/libz.so"),
        mapping(pages(60, 62), "rw-p", "[stack]"),
    ];
    let result = story.reconcile(maps);
    let origins: Vec<_> = result.regions.iter().map(|r| r.origin).collect();
    use Origin::{Kernel, Unknown};
    assert_eq!(origins[..5], [Kernel, Kernel, Kernel, Kernel, Unknown]);
    assert_eq!(event_of(&result, &result.regions[5]), Some(library));
    assert_eq!(origins[6..], [Unknown, Kernel]);
    assert_eq!(result.drift_ranges, vec![pages(30, 31), pages(50, 52)]);
}

#[test]
fn another_file_than_the_calls_is_not_the_calls() {
    let mut story = Story::new(Vec::new());
    story.mmap(pages(0, 4), 1, ANON);
    let result = story.reconcile(vec![mapping(pages(0, 4), "r--p", "/lib/libz.so")]);
    assert_eq!((result.regions[0].origin, result.drift.0), (Origin::Unknown, 4 * 4096));
    assert_eq!(result.regions[0].kind, RegionKind::File);
}

#[test]
fn a_process_never_seen_was_there_before() {
    let story = Story::unseen();
    let result =
        story.reconcile(vec![mapping(pages(0, 4), "rw-p", ""), mapping(pages(8, 9), "rw-p", "[stack]")]);
    assert_eq!(result.drift.0, 0);
    assert_eq!(result.regions[0].origin, Origin::Preexisting);
    assert_eq!(result.regions[1].origin, Origin::Kernel);
}

#[test]
fn a_call_that_gave_up_midway_excuses_its_range() {
    let mut story = Story::new(Vec::new());
    story.map_file(pages(0, 2), 1, 2, 0, file(b"/a", 1));
    story.map_file(pages(2, 4), 1, 1, 0, file(b"/b", 2));
    // EACCES for the second VMA; the first is changed.
    story.mprotect(pages(0, 4), 3, -13);
    let result =
        story.reconcile(vec![mapping(pages(0, 2), "rw-p", "/a"), mapping(pages(2, 4), "r--s", "/b")]);
    assert_eq!(result.drift.0, 0);
    // A rename changes nothing.
    story.report(VmOp::Rename, 0);
}

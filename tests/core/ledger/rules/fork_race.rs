//! fork copies the address space before it is reported: calls of other threads that took effect
//! in between may be reported first, and calls from before may be reported later.

use super::{ANON, FIXED, MM, PID, Story, at, event_of, file, mapping, pages};
use vmaudit::ledger::{Origin, Reconciled};
use vmaudit::model::{Addr, AddrRange, Mapping, MmKey, VmOp};

const OTHER: i32 = 11;
const CHILD: i32 = 20;
const GRANDCHILD: i32 = 30;
const SHARED: u64 = 0x21;
const MOVE_TO: u64 = 3;

/// A process of two threads; the next report is the second thread's.
fn two_threads() -> Story {
    let mut story = Story::new(Vec::new());
    story.thread(OTHER);
    story.tid = OTHER;
    story
}

fn mm_of(pid: i32) -> MmKey {
    if pid == PID { MM } else { MmKey(0xa000 + pid as u64) }
}

/// The first thread of the current process forks `child`, whose address space is `mappings`.
fn fork(story: &mut Story, child: i32, child_brk: Option<u64>, mappings: Option<Vec<Mapping>>) {
    story.tid = story.pid;
    let op = VmOp::Fork {
        child_pid: child,
        child_tid: child,
        child_mm: mm_of(child),
        child_sp: Addr(0),
        child_brk: child_brk.map(Addr),
        is_thread: false,
        mappings,
    };
    story.report(op, i64::from(child));
}

fn become_(story: &mut Story, pid: i32, tid: i32) {
    (story.pid, story.tid, story.mm) = (pid, tid, mm_of(pid));
}

/// Forks with these mappings; the child's regions as (range, event), none of which may differ.
fn forked_with(story: &mut Story, mappings: Vec<Mapping>) -> Vec<(AddrRange, Option<u64>)> {
    fork(story, CHILD, None, Some(mappings.clone()));
    become_(story, CHILD, CHILD);
    let result = story.reconcile(mappings);
    assert_eq!(result.drift.0, 0, "{:?}", result.drift_ranges);
    let owners = owners(&result);
    become_(story, PID, OTHER);
    owners
}

fn owners(result: &Reconciled) -> Vec<(AddrRange, Option<u64>)> {
    result.regions.iter().map(|r| (r.range, event_of(result, r))).collect()
}

fn mremap(story: &mut Story, from: AddrRange, to: AddrRange) -> u64 {
    let (old, old_len, new_len) = (from.start, from.len(), to.len());
    let op = VmOp::Mremap { old, old_len, new_len, flags: MOVE_TO, new_addr: to.start };
    story.report(op, to.start.0 as i64)
}

fn brk(story: &mut Story, to: u64) -> u64 {
    story.report(VmOp::Brk { requested: Addr(to), current: Some(Addr(to)) }, to as i64)
}

#[test]
fn what_was_unmapped_after_the_copy_is_the_childs() {
    let mut story = two_threads();
    let made = story.mmap(pages(0, 8), 3, ANON);
    story.munmap(pages(2, 4));
    let child = forked_with(&mut story, vec![mapping(pages(0, 8), "rw-p", "")]);
    assert_eq!(child, vec![(pages(0, 8), Some(made))]);
    assert_eq!(story.owners(), vec![(pages(0, 2), Some(made)), (pages(4, 8), Some(made))]);
    // Nothing of it was ever unmapped there, and all still counts once it is.
    become_(&mut story, CHILD, CHILD);
    let result = story.reconcile(vec![mapping(pages(0, 8), "rw-p", "")]);
    assert_eq!(result.origins[0].unmapped.0, 0);
    story.munmap(pages(0, 7));
    let result = story.reconcile(vec![mapping(pages(7, 8), "rw-p", "")]);
    assert_eq!(result.origins[0].unmapped.0, 7 * 4096);
    story.munmap(pages(7, 8));
    let again = story.mmap(pages(0, 8), 3, ANON);
    assert_eq!(story.owners(), vec![(pages(0, 8), Some(again))]);
}

#[test]
fn what_was_replaced_after_the_copy_is_the_childs() {
    let mut story = two_threads();
    let old = story.mmap(pages(0, 8), 3, ANON);
    let new = story.map_file(pages(2, 4), 3, 1 | FIXED, 0, file(b"/tmp/a", 5));
    let child = forked_with(&mut story, vec![mapping(pages(0, 8), "rw-p", "")]);
    assert_eq!(child, vec![(pages(0, 8), Some(old))]);
    assert_eq!(story.owners()[1], (pages(2, 4), Some(new)));
}

#[test]
fn of_two_files_the_child_has_the_one_the_kernel_shows() {
    let mut story = two_threads();
    let name = "/tmp/a";
    let shown = mapping(pages(0, 4), "rw-s", name);
    let inode = shown.file.expect("a file").inode;
    let old = story.map_file(pages(0, 4), 3, 1, 0, file(name.as_bytes(), inode));
    story.map_file(pages(0, 2), 3, 1 | FIXED, 0x4000, file(name.as_bytes(), inode));
    story.map_file(pages(2, 4), 3, 1 | FIXED, 0x2000, file(b"/tmp/b", inode + 1));
    assert_eq!(forked_with(&mut story, vec![shown]), vec![(pages(0, 4), Some(old))]);
}

#[test]
fn what_moved_away_after_the_copy_is_at_its_old_place() {
    let mut story = two_threads();
    let made = story.mmap(pages(0, 8), 3, ANON);
    mremap(&mut story, pages(0, 8), pages(20, 28));
    let child = forked_with(&mut story, vec![mapping(pages(0, 8), "rw-p", "")]);
    assert_eq!(child, vec![(pages(0, 8), Some(made))]);
    assert_eq!(story.owners(), vec![(pages(20, 28), Some(made))]);
}

#[test]
fn what_a_move_covered_after_the_copy_is_the_childs() {
    let mut story = two_threads();
    let source = story.mmap(pages(0, 4), 3, ANON);
    let target = story.mmap(pages(20, 24), 3, SHARED);
    mremap(&mut story, pages(0, 4), pages(20, 24));
    let maps = vec![mapping(pages(0, 4), "rw-p", ""), mapping(pages(20, 24), "rw-s", "/dev/zero")];
    let child = forked_with(&mut story, maps);
    assert_eq!(child, vec![(pages(0, 4), Some(source)), (pages(20, 24), Some(target))]);
}

#[test]
fn a_segment_detached_after_the_copy_is_the_childs() {
    let mut story = two_threads();
    let mapped = Some(pages(0, 4));
    let op = VmOp::Shmat { shmid: 1, addr: Addr(0), flags: 0, mapped };
    let made = story.report(op, at(0) as i64);
    story.report(VmOp::Shmdt { addr: Addr(at(0)) }, 0);
    let child = forked_with(&mut story, vec![mapping(pages(0, 4), "rw-s", "/SYSV00000000 (deleted)")]);
    assert_eq!(child, vec![(pages(0, 4), Some(made))]);
}

#[test]
fn a_break_moved_after_the_copy_is_not_the_childs() {
    let mut story = two_threads();
    let start = 0x5000_0000;
    let grown = brk(&mut story, start + 0x8000);
    brk(&mut story, start + 0x3000);
    let heap = |end: u64| vec![mapping(AddrRange::new(start, start + end), "rw-p", "[heap]")];
    fork(&mut story, CHILD, Some(start + 0x8000), Some(heap(0x8000)));
    become_(&mut story, CHILD, CHILD);
    assert_eq!(owners(&story.reconcile(heap(0x8000)))[0].1, Some(grown));
    let more = brk(&mut story, start + 0xa000);
    let result = story.reconcile(heap(0xa000));
    assert_eq!(result.drift.0, 0);
    let parts = [(0, 0x8000, grown), (0x8000, 0xa000, more)];
    let expected = parts.map(|(from, to, event)| (AddrRange::new(start + from, start + to), Some(event)));
    assert_eq!(owners(&result), expected);
}

/// fork copies mm->brk before it takes the lock (kernel/fork.c, dup_mm): it may lie above what was
/// mapped when the mappings were copied.
#[test]
fn a_question_for_the_break_maps_nothing() {
    let mut story = two_threads();
    let start = 0x5000_0000;
    brk(&mut story, start + 0x8000);
    brk(&mut story, start + 0x3000);
    let heap = vec![mapping(AddrRange::new(start, start + 0x3000), "rw-p", "[heap]")];
    for recorded in [Some(start + 0x8000), None] {
        fork(&mut story, CHILD, recorded, Some(heap.clone()));
        become_(&mut story, CHILD, CHILD);
        let now = Addr(start + 0x8000);
        story.report(VmOp::Brk { requested: Addr(0), current: Some(now) }, now.0 as i64);
        // Refused: nothing is mapped between it and the break (mm/mmap.c, brk).
        story.report(VmOp::Brk { requested: Addr(start + 0x5000), current: Some(now) }, now.0 as i64);
        assert_eq!(story.reconcile(heap.clone()).drift.0, 0);
        // The hole stays a hole.
        let more = brk(&mut story, start + 0xa000);
        assert_eq!(story.owners()[1], (AddrRange::new(now.0, start + 0xa000), Some(more)));
        become_(&mut story, PID, OTHER);
    }
}

#[test]
fn a_protection_changed_after_the_copy_keeps_its_origin() {
    let mut story = two_threads();
    let made = story.mmap(pages(0, 8), 3, ANON);
    story.mprotect(pages(2, 4), 0, 0);
    let child = forked_with(&mut story, vec![mapping(pages(0, 8), "rw-p", "")]);
    assert_eq!(child, vec![(pages(0, 8), Some(made))]);
}

#[test]
fn what_an_unreported_unmapping_freed_may_still_be_the_childs() {
    let mut story = two_threads();
    story.thread(12);
    let old = story.mmap(pages(0, 8), 3, SHARED);
    // 12 has unmapped it without having reported that: the range is free for 11.
    let new = story.mmap(pages(0, 4), 3, ANON);
    let child = forked_with(&mut story, vec![mapping(pages(0, 8), "rw-s", "/dev/zero")]);
    assert_eq!(child, vec![(pages(0, 8), Some(old))]);
    story.tid = 12;
    story.munmap(pages(0, 8));
    assert_eq!(story.owners(), vec![(pages(0, 4), Some(new))]);
}

#[test]
fn what_was_removed_last_is_taken_first() {
    let mut story = two_threads();
    story.mmap(pages(0, 4), 3, ANON);
    story.munmap(pages(0, 4));
    let last = story.mmap(pages(0, 4), 3, ANON);
    story.munmap(pages(0, 4));
    let child = forked_with(&mut story, vec![mapping(pages(0, 4), "rw-p", "")]);
    assert_eq!(child, vec![(pages(0, 4), Some(last))]);
}

#[test]
fn between_equals_the_protection_decides() {
    let mut story = two_threads();
    let old = story.mmap(pages(0, 8), 1, ANON);
    story.munmap(pages(0, 8));
    let new = story.mmap(pages(0, 8), 3, ANON);
    story.mprotect(pages(4, 6), 0, 0);
    let maps = vec![mapping(pages(0, 4), "r--p", ""), mapping(pages(4, 8), "rw-p", "")];
    let child = forked_with(&mut story, maps);
    assert_eq!(child, vec![(pages(0, 4), Some(old)), (pages(4, 8), Some(new))]);
}

#[test]
fn what_was_gone_before_the_fork_began_stays_gone() {
    let mut story = two_threads();
    story.mmap(pages(0, 4), 3, ANON);
    story.munmap(pages(0, 4));
    // The forking thread has reported since: its fork began later.
    story.tid = PID;
    story.mmap(pages(10, 11), 3, ANON);
    story.tid = OTHER;
    let maps = vec![mapping(pages(0, 4), "rw-p", ""), mapping(pages(10, 11), "rw-p", "")];
    let child = forked_with(&mut story, maps);
    assert_eq!(child[0], (pages(0, 4), None));
}

#[test]
fn a_single_threads_fork_is_exact_without_a_list() {
    let mut story = Story::new(Vec::new());
    let kept = story.mmap(pages(0, 4), 3, ANON);
    story.mmap(pages(4, 8), 3, ANON);
    story.munmap(pages(4, 8));
    fork(&mut story, CHILD, None, None);
    become_(&mut story, CHILD, CHILD);
    assert_eq!(story.owners(), vec![(pages(0, 4), Some(kept))]);
}

#[test]
fn a_late_moves_bytes_keep_their_origin_in_the_child() {
    let mut story = two_threads();
    let made = story.mmap(pages(0, 4), 3, ANON);
    // 11 moved and grew them, then the main thread forked, then 11 reports.
    fork(&mut story, CHILD, None, Some(vec![mapping(pages(20, 26), "rw-p", "")]));
    story.tid = OTHER;
    let moved = mremap(&mut story, pages(0, 4), pages(20, 26));
    become_(&mut story, CHILD, CHILD);
    assert_eq!(story.owners(), vec![(pages(20, 24), Some(made)), (pages(24, 26), Some(moved))]);
    let result = story.reconcile(vec![mapping(pages(20, 26), "rw-p", "")]);
    assert_eq!(result.drift.0, 0);
}

#[test]
fn a_late_unmapping_is_in_the_copy_already() {
    let mut story = two_threads();
    let made = story.mmap(pages(0, 8), 3, ANON);
    fork(&mut story, CHILD, None, Some(vec![mapping(pages(0, 2), "rw-p", "")]));
    assert_eq!(story.owners(), vec![(pages(0, 8), Some(made))]);
    story.tid = OTHER;
    story.munmap(pages(2, 8));
    assert_eq!(story.owners(), vec![(pages(0, 2), Some(made))]);
    become_(&mut story, CHILD, CHILD);
    assert_eq!(story.owners(), vec![(pages(0, 2), Some(made))]);
}

#[test]
fn a_late_break_explains_the_childs_heap_only() {
    let mut story = two_threads();
    let start = 0x5000_0000;
    let maps = vec![
        mapping(AddrRange::new(0x4000_0000, 0x4000_2000), "rw-p", ""),
        mapping(AddrRange::new(start, start + 0x4000), "rw-p", "[heap]"),
    ];
    fork(&mut story, CHILD, Some(start + 0x4000), Some(maps.clone()));
    story.tid = OTHER;
    let grown = brk(&mut story, start + 0x4000);
    become_(&mut story, CHILD, CHILD);
    let result = story.reconcile(maps);
    assert_eq!(owners(&result)[1].1, Some(grown));
    assert_eq!(result.regions[0].origin, Origin::Unknown);
}

#[test]
fn a_late_call_cannot_explain_another_files_mapping() {
    let mut story = two_threads();
    let maps = vec![mapping(pages(0, 4), "rw-s", "/tmp/a")];
    let inode = maps[0].file.expect("a file").inode;
    fork(&mut story, CHILD, None, Some(maps.clone()));
    story.tid = OTHER;
    story.map_file(pages(0, 4), 3, 1, 0, file(b"/tmp/b", inode + 1));
    become_(&mut story, CHILD, CHILD);
    assert_eq!(story.reconcile(maps).regions[0].origin, Origin::Unknown);
}

#[test]
fn a_grandchild_waits_for_the_same_report() {
    let mut story = two_threads();
    story.thread(12);
    let maps = vec![mapping(pages(0, 8), "rw-p", "")];
    fork(&mut story, CHILD, None, Some(maps.clone()));
    become_(&mut story, CHILD, CHILD);
    story.munmap(pages(6, 8));
    fork(&mut story, GRANDCHILD, None, None);
    become_(&mut story, GRANDCHILD, GRANDCHILD);
    fork(&mut story, GRANDCHILD + 1, None, None);
    become_(&mut story, PID, OTHER);
    let late = story.mmap(pages(0, 4), 3, ANON);
    story.tid = 12;
    let later = story.mmap(pages(4, 8), 3, ANON);
    for pid in [CHILD, GRANDCHILD, GRANDCHILD + 1] {
        become_(&mut story, pid, pid);
        assert_eq!(story.owners(), vec![(pages(0, 4), Some(late)), (pages(4, 6), Some(later))], "{pid}");
    }
}

#[test]
fn a_grandchild_does_not_wait_for_what_its_parent_mapped_since() {
    let mut story = two_threads();
    fork(&mut story, CHILD, None, Some(vec![mapping(pages(0, 4), "rw-p", "")]));
    become_(&mut story, CHILD, CHILD);
    let own = story.mmap(pages(0, 4), 3, ANON | FIXED);
    fork(&mut story, GRANDCHILD, None, None);
    become_(&mut story, PID, OTHER);
    story.mmap(pages(0, 4), 3, ANON);
    for pid in [CHILD, GRANDCHILD] {
        become_(&mut story, pid, pid);
        assert_eq!(story.owners(), vec![(pages(0, 4), Some(own))], "{pid}");
    }
}

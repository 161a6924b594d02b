//! Threads, fork, vfork, exec, exit, and keys that are used again.

use super::{ANON, FIXED, MM, PID, Story, at, event_of, file, mapping, observed, pages};
use vmaudit::ledger::Origin;
use vmaudit::model::{Addr, AddrRange, FileRef, Mapping, MmKey, Observations, Pid, VmOp};

const CHILD: i32 = 20;
const SHARED: u64 = 1;
const CHILD_MM: MmKey = MmKey(0xb000);

fn fork(story: &mut Story, child_mm: MmKey, mappings: Option<Vec<Mapping>>) {
    fork_to(story, CHILD, child_mm, mappings);
}

fn fork_to(story: &mut Story, child: Pid, child_mm: MmKey, mappings: Option<Vec<Mapping>>) {
    let op = VmOp::Fork {
        child_pid: child,
        child_tid: child,
        child_mm,
        child_sp: Addr(0),
        child_brk: None,
        is_thread: false,
        mappings,
    };
    story.report(op, i64::from(child));
}

fn as_child(story: &mut Story, mm: MmKey) {
    (story.pid, story.tid, story.mm) = (CHILD, CHILD, mm);
}

fn as_parent(story: &mut Story) {
    (story.pid, story.tid, story.mm) = (PID, PID, MM);
}

#[test]
fn a_fork_copies_and_then_goes_its_own_way() {
    let mut story = Story::new(Vec::new());
    let old = story.mmap(pages(0, 8), 3, ANON);
    fork(&mut story, CHILD_MM, None);
    let parents = story.mmap(pages(8, 10), 3, ANON);
    as_child(&mut story, CHILD_MM);
    story.munmap(pages(0, 2));
    assert_eq!(story.owners(), vec![(pages(2, 8), Some(old))]);
    as_parent(&mut story);
    assert_eq!(story.owners(), vec![(pages(0, 8), Some(old)), (pages(8, 10), Some(parents))]);
}

#[test]
fn a_fork_leaves_dontfork_ranges_behind() {
    let mut story = Story::new(Vec::new());
    story.mmap(pages(0, 8), 3, ANON);
    story.madvise(pages(2, 6), 10, 0);
    story.madvise(pages(4, 5), 11, 0);
    fork(&mut story, CHILD_MM, None);
    as_child(&mut story, CHILD_MM);
    let ranges: Vec<_> = story.owners().into_iter().map(|(r, _)| r).collect();
    assert_eq!(ranges, vec![pages(0, 2), pages(4, 5), pages(6, 8)]);
}

#[test]
fn a_fork_leaves_perf_rings_behind() {
    let mut story = Story::new(Vec::new());
    let ring = |major| FileRef { major, ..file(b"/anon_inode:[perf_event]", 1038) };
    story.map_file(pages(0, 2), 3, SHARED, 0, ring(0));
    // A file that only has the name.
    let named = story.map_file(pages(4, 6), 3, SHARED, 0, ring(8));
    story.map_file(pages(8, 10), 3, SHARED, 0, ring(0));
    let anew = story.mmap(pages(8, 9), 3, ANON | FIXED);
    fork(&mut story, CHILD_MM, None);
    as_child(&mut story, CHILD_MM);
    assert_eq!(story.owners(), vec![(pages(4, 6), Some(named)), (pages(8, 9), Some(anew))]);
}

#[test]
fn advice_about_forks_moves_with_the_mapping() {
    let mut story = Story::new(Vec::new());
    story.mmap(pages(0, 4), 3, ANON);
    story.madvise(pages(0, 4), 10, 0);
    let mremap = |old: AddrRange, new: AddrRange| VmOp::Mremap {
        old: old.start,
        old_len: old.len(),
        new_len: new.len(),
        flags: 1,
        new_addr: Addr(0),
    };
    // Moved and grown, then grown in place.
    for (old, new) in [(pages(0, 4), pages(20, 26)), (pages(20, 26), pages(20, 28))] {
        story.report(mremap(old, new), new.start.0 as i64);
    }
    let free = story.mmap(pages(0, 1), 3, ANON);
    fork(&mut story, CHILD_MM, None);
    as_child(&mut story, CHILD_MM);
    assert_eq!(story.owners(), vec![(pages(0, 1), Some(free))]);
}

#[test]
fn a_forks_mappings_are_the_childs_exactly() {
    let mut story = Story::new(Vec::new());
    let kept = story.mmap(pages(0, 4), 3, ANON);
    story.mmap(pages(10, 12), 3, ANON);
    // The kernel had already taken the second one away, and half of the first.
    fork(&mut story, CHILD_MM, Some(vec![mapping(pages(0, 2), "r--p", "")]));
    as_child(&mut story, CHILD_MM);
    assert_eq!(story.owners(), vec![(pages(0, 2), Some(kept))]);
    let result = story.reconcile(vec![mapping(pages(0, 2), "r--p", "")]);
    assert_eq!(result.drift.0, 0);
}

#[test]
fn a_call_reported_after_the_fork_explains_the_childs_range() {
    let mut story = Story::new(Vec::new());
    story.thread(11);
    // Thread 11's mmap took effect, then the main thread forked, then 11 reports.
    fork(&mut story, CHILD_MM, Some(vec![mapping(pages(0, 4), "rw-p", "")]));
    story.tid = 11;
    let late = story.mmap(pages(0, 4), 3, ANON);
    let after = story.mmap(pages(4, 6), 3, ANON);
    assert_eq!(story.owners(), vec![(pages(0, 4), Some(late)), (pages(4, 6), Some(after))]);
    as_child(&mut story, CHILD_MM);
    assert_eq!(story.owners(), vec![(pages(0, 4), Some(late))]);
    let result = story.reconcile(vec![mapping(pages(0, 4), "rw-p", "")]);
    assert_eq!((result.drift.0, event_of(&result, &result.regions[0])), (0, Some(late)));
    assert_eq!(result.origins[0].mapped.0, 4 * 4096);
}

#[test]
fn a_call_begun_after_the_fork_explains_nothing() {
    let mut story = Story::new(Vec::new());
    story.thread(11);
    fork(&mut story, CHILD_MM, Some(vec![mapping(pages(0, 4), "rw-p", "")]));
    story.tid = 11;
    story.mmap(pages(20, 21), 3, ANON);
    // 11 has reported since the fork: this call began later.
    story.mmap(pages(0, 4), 3, ANON);
    as_child(&mut story, CHILD_MM);
    let result = story.reconcile(vec![mapping(pages(0, 4), "rw-p", "")]);
    assert_eq!(result.regions[0].origin, Origin::Unknown);
}

#[test]
fn a_vfork_child_shares_until_it_execs() {
    let mut story = Story::new(Vec::new());
    let first = story.mmap(pages(0, 2), 3, ANON);
    fork(&mut story, MM, None);
    as_child(&mut story, MM);
    let childs = story.mmap(pages(2, 4), 3, ANON);
    story.exec(CHILD_MM, Some(vec![mapping(pages(100, 101), "r-xp", "/bin/other")]));
    assert_eq!(story.owners(), vec![(pages(100, 101), None)]);
    as_parent(&mut story);
    assert_eq!(story.owners(), vec![(pages(0, 2), Some(first)), (pages(2, 4), Some(childs))]);
}

#[test]
fn a_vfork_childs_exit_leaves_the_parents_space() {
    let mut story = Story::new(Vec::new());
    let first = story.mmap(pages(0, 2), 3, ANON);
    fork(&mut story, MM, None);
    as_child(&mut story, MM);
    story.exit(127 << 8, true);
    as_parent(&mut story);
    let second = story.mmap(pages(2, 4), 3, ANON);
    assert_eq!(story.owners(), vec![(pages(0, 2), Some(first)), (pages(2, 4), Some(second))]);
    assert_eq!(story.spaces.process(CHILD).and_then(|p| p.exit_code()), Some(127));
}

#[test]
fn exec_replaces_even_under_the_same_key() {
    let mut story = Story::new(Vec::new());
    story.mmap(pages(0, 8), 3, ANON);
    story.exec(MM, Some(vec![mapping(pages(100, 101), "r-xp", "/bin/other")]));
    assert_eq!(story.owners(), vec![(pages(100, 101), None)]);
}

#[test]
fn a_key_used_again_inherits_nothing() {
    let mut story = Story::new(Vec::new());
    let kept = story.mmap(pages(0, 8), 3, ANON);
    story.exit(0, true);
    // Another process is given the mm's address.
    as_child(&mut story, MM);
    story.exec(MM, Some(Vec::new()));
    let own = story.mmap(pages(0, 1), 3, ANON);
    assert_eq!(story.owners(), vec![(pages(0, 1), Some(own))]);
    // The last state of the dead is still there.
    as_parent(&mut story);
    assert_eq!(story.owners(), vec![(pages(0, 8), Some(kept))]);
}

#[test]
fn a_pid_used_again_is_another_process() {
    let mut story = Story::new(Vec::new());
    story.mmap(pages(0, 8), 3, ANON);
    story.exit(9, true);
    let own = story.mmap(pages(20, 21), 3, ANON);
    assert_eq!(story.owners(), vec![(pages(20, 21), Some(own))]);
    let of_pid: Vec<_> = story.spaces.processes().iter().filter(|p| p.pid == PID).collect();
    assert_eq!(of_pid.len(), 2);
    assert_eq!((of_pid[0].signal(), of_pid[1].signal()), (Some(9), None));
}

#[test]
fn threads_are_remembered_with_their_stack_pointers() {
    let mut story = Story::new(Vec::new());
    story.thread(11);
    story.tid = 11;
    story.mmap(pages(0, 1), 3, ANON);
    story.exit(0, false);
    let result = story.reconcile(Vec::new());
    let thread = result.threads.iter().find(|t| t.tid == 11).expect("seen");
    assert_eq!(thread.initial_sp, Some(Addr(at(500))));
    assert_eq!(thread.comm, b"t11");
    assert!(thread.exited_ns.is_some());
    assert_eq!(story.spaces.process(PID).map(|p| p.threads_seen()), Some(2));
}

#[test]
fn ended_processes_are_kept_until_they_are_returned() {
    const MANY: Pid = 3000;
    let mut story = Story::new(Vec::new());
    story.mmap(pages(0, 4), 3, ANON);
    let children = 1000..1000 + MANY;
    for child in children.clone() {
        fork_to(&mut story, child, MmKey(0xb000 + child as u64), None);
        (story.pid, story.tid, story.mm) = (child, child, MmKey(0xb000 + child as u64));
        story.mmap(pages(10, 10 + u64::from(child.unsigned_abs()) % 7 + 1), 3, ANON);
        story.exit(0, true);
        as_parent(&mut story);
    }
    let knows = |story: &Story, pid: Pid| story.spaces.ledger_of_pid(pid).is_some();
    assert_eq!(story.spaces.unreported_ends(), children.len());
    assert_eq!(story.spaces.take_ended(), children.clone().collect::<Vec<_>>());
    assert!(children.clone().all(|child| knows(&story, child)), "all of them can be queried");
    story.spaces.take_ended();
    assert!(!knows(&story, 1000) && knows(&story, 999 + MANY), "the last ones are kept");
}

#[test]
fn a_loss_makes_processes_doubtful_that_ended_since_the_last_query() {
    let doubts = |story: &Story, pid: Pid| {
        let seen = observed(pid, vec![mapping(pages(0, 4), "rw-p", "")], u64::MAX);
        story.spaces.reconcile(pid, &seen).regions.iter().filter(|region| region.doubt.is_some()).count()
    };
    let mut story = Story::new(Vec::new());
    story.mmap(pages(0, 4), 3, ANON);
    for child in [20, 30] {
        fork_to(&mut story, child, MmKey(0xb000 + child as u64), None);
        (story.pid, story.tid, story.mm) = (child, child, MmKey(0xb000 + child as u64));
        story.exit(0, true);
        as_parent(&mut story);
        if child == 20 {
            story.spaces.take_ended();
        }
    }
    let taken_ns = story.spaces.taken_ns();
    story.spaces.note_loss(taken_ns);
    assert_eq!((doubts(&story, 20), doubts(&story, 30)), (0, 1));
    assert_eq!(story.spaces.changed_since(30, taken_ns), None);
}

#[test]
fn what_was_there_before_is_preexisting() {
    let mut story = Story::unseen();
    let maps = vec![
        mapping(pages(0, 4), "rw-p", ""),
        mapping(pages(10, 12), "r-xp", "[vdso]"),
        mapping(pages(20, 22), "rw-p", "[stack]"),
    ];
    story.spaces.start_observed(MM, &Observations { pid: PID, mappings: maps, ..Observations::default() });
    let own = story.mmap(pages(4, 6), 3, ANON);
    story.munmap(pages(0, 1));
    let result = story.reconcile(vec![
        mapping(pages(1, 6), "rw-p", ""),
        mapping(pages(10, 12), "r-xp", "[vdso]"),
        mapping(pages(20, 22), "rw-p", "[stack]"),
    ]);
    assert_eq!(result.drift.0, 0);
    let origins: Vec<_> = result.regions.iter().map(|r| r.origin).collect();
    assert_eq!(origins[0], Origin::Preexisting);
    assert_eq!(event_of(&result, &result.regions[1]), Some(own));
    assert_eq!(origins[2..], [Origin::Kernel, Origin::Kernel]);
}

#[test]
fn a_call_from_before_the_first_snapshot_is_not_applied_twice() {
    let mut story = Story::unseen();
    // Maps were read from 1.5 to 2.5 µs: the first call is in them, the second may be.
    let mut seen = observed(PID, vec![mapping(pages(0, 4), "rw-p", "")], 1500);
    seen.ended_ns = 2500;
    story.spaces.start_observed(MM, &seen);
    story.munmap(pages(2, 3));
    let second = story.mmap(pages(0, 2), 3, ANON);
    assert_eq!(story.owners(), vec![(pages(0, 2), Some(second)), (pages(2, 4), None)]);
    let ledger = story.spaces.ledger_of_pid(PID).expect("seen");
    assert_eq!(ledger.unreported_bytes(), 0, "no unmapping is proven by a call that was already seen");
}

#[test]
fn modules_change_only_with_executable_files() {
    let mut story = Story::new(vec![mapping(pages(100, 101), "r-xp", "/bin/prog")]);
    let generation = |s: &Story| s.spaces.module_generation(MM).expect("living");
    let before = generation(&story);
    story.mmap(pages(0, 8), 3, ANON);
    story.mprotect(pages(0, 2), 1, 0);
    story.munmap(pages(0, 8));
    story.map_file(pages(0, 4), 1, 2, 0, file(b"/lib/data", 3));
    assert_eq!(generation(&story), before);
    // Code that is made at run time is a change, too, when it comes and when it goes.
    story.mmap(pages(30, 32), 7, ANON);
    let with_code = generation(&story);
    assert_ne!(with_code, before);
    story.munmap(pages(30, 32));
    assert_ne!(generation(&story), with_code);
    let before = generation(&story);
    story.map_file(pages(10, 14), 5, 2, 0x3000, file(b"/lib/a.so", 4));
    let with_library = generation(&story);
    assert_ne!(with_library, before);
    let found = story.spaces.executable_regions(MM);
    let library = found.iter().find(|(_, _, f)| f.path == b"/lib/a.so").expect("mapped");
    assert_eq!((library.0, library.1), (pages(10, 14), 0x3000));
    // No longer executable, still what return addresses point to.
    story.mprotect(pages(12, 14), 1, 0);
    assert_eq!(generation(&story), with_library);
    assert_eq!(story.spaces.executable_regions(MM).len(), 3);
    // Executable only now.
    story.mprotect(pages(0, 4), 5, 0);
    assert_ne!(generation(&story), with_library);
    let all = generation(&story);
    story.mmap(pages(13, 14), 0, ANON | FIXED);
    assert_ne!(generation(&story), all);
}

#[test]
fn a_forked_child_has_the_parents_modules() {
    let mut story = Story::new(vec![mapping(pages(100, 101), "r-xp", "/bin/prog")]);
    let maps = vec![mapping(pages(100, 101), "r-xp", "/bin/prog")];
    fork(&mut story, CHILD_MM, Some(maps));
    assert_eq!(story.spaces.module_generation(CHILD_MM), story.spaces.module_generation(MM));
}

#[test]
fn execs_images_may_be_reported_later() {
    let mut story = Story::unseen();
    story.exec(MM, None);
    assert!(story.spaces.executable_regions(MM).is_empty());
    let maps = || {
        vec![
            mapping(pages(0, 2), "r-xp", "/bin/prog"),
            mapping(pages(2, 3), "rw-p", ""),
            mapping(pages(20, 22), "r-xp", "/lib64/ld-linux-x86-64.so.2"),
            mapping(pages(40, 42), "r-xp", "/lib/libc.so.6"),
        ]
    };
    story.spaces.start_observed(MM, &Observations { pid: PID, mappings: maps(), ..Observations::default() });
    assert_eq!(story.spaces.executable_regions(MM).len(), 2);
    // The library's call is on its way.
    let library = story.map_file(pages(40, 42), 5, 2, 0, file(b"/lib/libc.so.6", 5));
    let result = story.reconcile(maps());
    assert_eq!(result.drift.0, 0);
    let origins: Vec<_> = result.regions.iter().map(|r| r.origin).collect();
    assert_eq!(origins[..3], [Origin::Kernel; 3]);
    assert_eq!(event_of(&result, &result.regions[3]), Some(library));
}

//! Names, threads, heap headers, and processes that are half or wholly gone.

use super::target::{Target, compile, differences, is_ready, observe_from, smaps_of};
use crate::support::skip_this;
use std::process::Command;
use vmaudit::model::observation::ResidencySource;
use vmaudit::model::{Addr, AddrRange};
use vmaudit::procfs::{ObserveError, ObserveOptions, SmapsEntry, observe};

#[test]
fn names_threads_and_heap_headers() {
    let directory = tempfile::tempdir().expect("a directory");
    let Some(program) = compile("procfs_shapes", directory.path()) else { return };
    let target = Target::start(&program, &[], is_ready).settled();
    let seen = observe_from(target.pid(), ResidencySource::PagemapScan);

    let has_name = |name: &[u8]| seen.mappings.iter().any(|mapping| mapping.name == name);
    assert!(has_name(b"/memfd:odd \n\xff name (deleted)"));
    assert!(has_name(b"[stack]") && has_name(b"[vdso]") && !has_name(b"[vsyscall]"));
    assert!(seen.mappings.iter().any(|mapping| mapping.name.starts_with(b"/tmp/vmaudit two words ")
        && mapping.name.ends_with(b" (deleted)")));

    assert_eq!(seen.comm, b"procfs_shapes");
    assert!(seen.exe.ends_with(b"/procfs_shapes"));
    assert_eq!(seen.cmdline, [program.to_string_lossy().as_bytes().to_vec()]);
    let expected_aslr = std::fs::read("/proc/sys/kernel/randomize_va_space").map(|v| v[0] != b'0');
    assert_eq!(seen.aslr, expected_aslr.unwrap_or(true));
    assert!(0 < seen.begun_ns && seen.begun_ns < seen.ended_ns);

    let [main, other] = seen.threads.as_slice() else { panic!("two threads: {:?}", seen.threads) };
    assert_eq!((main.tid, main.comm.as_slice()), (target.pid(), b"procfs_shapes".as_slice()));
    assert_eq!(other.comm, b"arena \xff name");
    let stack = seen.mappings.iter().find(|mapping| mapping.is_special("[stack]")).expect("a stack");
    if let Some(sp) = main.stack_pointer {
        assert!(stack.range.contains(sp));
    }
    if let Some(sp) = other.stack_pointer {
        assert!(!stack.range.contains(sp) && seen.mappings.iter().any(|m| m.range.contains(sp)));
    }

    // glibc gives a thread that allocates an arena of its own, here of two heaps; musl has none.
    let is_glibc = seen.mappings.iter().any(|mapping| mapping.name.ends_with(b"/libc.so.6"));
    if is_glibc {
        let mut heaps = seen.heap_infos.clone();
        heaps.sort_by_key(|heap| heap.prev);
        let [first, second] = heaps.as_slice() else { panic!("two heaps: {heaps:?}") };
        assert_eq!((first.prev, second.prev), (Addr(0), first.at));
        assert_eq!(first.ar_ptr, second.ar_ptr);
        for heap in [first, second] {
            // The kernel may have joined neighbouring heaps to one mapping.
            let vma = seen.mappings.iter().find(|m| m.range.contains(heap.at)).expect("a mapping");
            assert!(vma.range.contains_range(AddrRange::from_len(heap.at, heap.mprotect_size)));
        }
    }
}

#[test]
fn reading_does_not_touch_the_target() {
    let directory = tempfile::tempdir().expect("a directory");
    let Some(program) = compile("procfs_shapes", directory.path()) else { return };
    let target = Target::start(&program, &[], is_ready).settled();
    let before = smaps_of(target.pid());
    let first = observe_from(target.pid(), ResidencySource::PagemapScan);
    // Without page-exact residency every place is examined, touched or not.
    observe_from(target.pid(), ResidencySource::None);
    let second = observe_from(target.pid(), ResidencySource::PagemapScan);
    assert_eq!(first.residency, second.residency);
    // What other processes share of libraries is theirs to change.
    let own = |entries: Vec<SmapsEntry>| -> Vec<SmapsEntry> {
        let alone = |e| SmapsEntry { pss: 0, swap_pss: 0, ..e };
        entries.into_iter().map(alone).collect()
    };
    let (before, after) = (own(before), own(smaps_of(target.pid())));
    assert!(before == after, "smaps have changed");
}

#[test]
fn details_can_be_left_out() {
    let directory = tempfile::tempdir().expect("a directory");
    let Some(program) = compile("procfs_shapes", directory.path()) else { return };
    let target = Target::start(&program, &[], is_ready).settled();
    let options =
        ObserveOptions { residency_from: ResidencySource::None, threads: false, ..ObserveOptions::default() };
    let seen = observe(target.pid(), target.pid(), options).expect("a living child");
    assert_eq!(seen.residency.source, ResidencySource::None);
    assert!(seen.residency.resident.is_empty() && seen.threads.is_empty() && seen.heap_infos.is_empty());
    assert!(!seen.mappings.is_empty());
}

#[test]
fn a_thread_shows_what_its_dead_leader_does_not() {
    let directory = tempfile::tempdir().expect("a directory");
    let Some(program) = compile("procfs_zombie_leader", directory.path()) else { return };
    let target = Target::start(&program, &[], |_| true).settled();
    let tid: i32 = target.lines[0].parse().expect("a thread id");
    assert_ne!(tid, target.pid());

    let by_leader = observe(target.pid(), target.pid(), ObserveOptions::default());
    assert!(
        matches!(by_leader, Err(ObserveError::NoAddressSpace { .. } | ObserveError::Gone { .. })),
        "{by_leader:?}"
    );
    let seen = observe(target.pid(), tid, ObserveOptions::default()).expect("the living thread");
    assert!(seen.gaps.is_empty(), "{:?}", seen.gaps);
    assert_eq!(seen.threads.iter().map(|thread| thread.tid).collect::<Vec<_>>(), [tid]);
    assert_eq!(seen.comm, b"procfs_zombie_l");
    assert!(seen.exe.ends_with(b"/procfs_zombie_leader"));
    assert_eq!(differences(&seen, &smaps_of(tid)), Vec::<String>::new());
}

#[test]
fn a_process_that_is_gone_says_so() {
    let mut child = Command::new("true").spawn().expect("true");
    let pid = child.id() as i32;
    child.wait().expect("its end");
    let error = observe(pid, pid, ObserveOptions::default()).expect_err("it is gone");
    assert!(matches!(error, ObserveError::Gone { .. }), "{error:?}");
    assert!(error.to_string().contains(&pid.to_string()), "{error}");
}

#[test]
fn a_process_of_another_user_is_refused_by_name() {
    let error = match observe(1, 1, ObserveOptions::default()) {
        Ok(_) => return skip_this("process 1 is open to this user"),
        Err(error) => error,
    };
    assert!(matches!(error, ObserveError::PermissionDenied { .. }), "{error:?}");
    assert_eq!(error.to_string(), "cannot open /proc/1/maps of process 1: permission denied");
}

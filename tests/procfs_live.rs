//! Real processes: what `procfs::observe` reads, against what the kernel says in smaps.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use vmaudit::model::observation::{Observations, ResidencySource};
use vmaudit::model::{Addr, AddrRange};
use vmaudit::procfs::{ObserveError, ObserveOptions, SmapsEntry, observe, pages_within, parse_smaps};

/// A running program that waits for its standard input to end; dropping it lets it end.
struct Target {
    child: Child,
    _stdin: ChildStdin,
    /// What it printed up to and including the line that says it is ready.
    lines: Vec<String>,
}

impl Target {
    /// Starts a program of tests/programs and reads lines until `last` accepts one.
    fn start(program: &Path, args: &[&str], last: impl Fn(&str) -> bool) -> Target {
        let mut child = Command::new(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the test program starts");
        let stdin = child.stdin.take().expect("a pipe");
        let mut output = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let mut target = Target { child, _stdin: stdin, lines: Vec::new() };
        while !target.lines.last().is_some_and(|line| last(line)) {
            let line = output.next().expect("the test program ended before it was ready");
            target.lines.push(line.expect("text"));
        }
        target
    }

    fn pid(&self) -> i32 {
        self.child.id() as i32
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Compiles a program of tests/programs once for a test; None (said aloud) without a compiler.
fn compile(name: &str, directory: &Path) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(format!("{name}.c"));
    let program = directory.join(name);
    let compiler = Command::new("cc").args(["-O1", "-pthread", "-o"]).arg(&program).arg(source).status();
    match compiler {
        Ok(status) => assert!(status.success(), "{name}.c does not compile"),
        Err(error) => {
            println!("SKIPPED: no C compiler: {error}");
            return None;
        }
    }
    Some(program)
}

fn is_ready(line: &str) -> bool {
    line == "ready"
}

fn smaps_of(id: i32) -> Vec<SmapsEntry> {
    let bytes = std::fs::read(format!("/proc/{id}/smaps")).expect("smaps");
    let parsed = parse_smaps(&bytes);
    assert!(parsed.damaged.is_empty(), "{:?}", parsed.damaged);
    parsed.entries.into_iter().filter(|entry| entry.mapping.name != b"[vsyscall]").collect()
}

fn observe_from(pid: i32, rung: ResidencySource) -> Observations {
    let options = ObserveOptions { residency_from: rung, ..ObserveOptions::default() };
    observe(pid, pid, options).expect("a living child")
}

/// (Rss, Swap) of each mapping, by whichever rung was used.
fn figures(seen: &Observations) -> BTreeMap<AddrRange, (u64, u64)> {
    match seen.residency.source {
        ResidencySource::SmapsProportion => {
            seen.residency.per_vma.iter().map(|&(range, rss, swap)| (range, (rss, swap))).collect()
        }
        _ => seen
            .mappings
            .iter()
            .map(|mapping| (mapping.range, pages_within(&seen.residency, mapping.range)))
            .collect(),
    }
}

/// Each mapping that differs from smaps, in words. Empty when all agree.
fn differences(seen: &Observations, smaps: &[SmapsEntry]) -> Vec<String> {
    let ours = figures(seen);
    let mut wrong = Vec::new();
    if seen.mappings.len() != smaps.len() {
        wrong.push(format!("{} mappings, smaps has {}", seen.mappings.len(), smaps.len()));
    }
    for (mapping, entry) in seen.mappings.iter().zip(smaps) {
        let name = String::from_utf8_lossy(&entry.mapping.name).into_owned();
        if *mapping != entry.mapping {
            wrong.push(format!("{mapping:?} is {:?} in smaps", entry.mapping));
        }
        let (rss, swap) = ours.get(&mapping.range).copied().unwrap_or((u64::MAX, 0));
        if (rss, swap) != (entry.rss, entry.swap) {
            let smaps = (entry.rss, entry.swap);
            wrong.push(format!("{} {name}: ours {:?}, smaps {smaps:?}", mapping.range, (rss, swap)));
        }
    }
    wrong
}

#[test]
fn every_rung_agrees_with_smaps_for_every_kind_of_memory() {
    let directory = tempfile::tempdir().expect("a directory");
    let Some(program) = compile("procfs_shapes", directory.path()) else { return };
    let target = Target::start(&program, &[], is_ready);
    if !target.lines.iter().any(|line| line == "hugetlb") {
        println!("SKIPPED in part: no hugetlb pages on this machine (vm.nr_hugepages)");
    }
    let smaps = smaps_of(target.pid());
    let total: u64 = smaps.iter().map(|entry| entry.rss).sum();
    assert!(total > 8 << 20, "the program has touched its memory");
    for rung in [ResidencySource::PagemapScan, ResidencySource::Pagemap, ResidencySource::SmapsProportion] {
        let seen = observe_from(target.pid(), rung);
        if rung == ResidencySource::PagemapScan && seen.residency.source != rung {
            println!("SKIPPED in part: no PAGEMAP_SCAN on this kernel");
        } else {
            assert_eq!(seen.residency.source, rung);
        }
        assert!(seen.gaps.is_empty(), "{:?}", seen.gaps);
        let wrong = differences(&seen, &smaps);
        assert!(wrong.is_empty(), "{rung:?}:\n{}", wrong.join("\n"));
        let virt: u64 = seen.mappings.iter().map(|mapping| mapping.range.len()).sum();
        assert_eq!(virt, seen.status.vm_size, "mappings add up to VmSize");
    }
}

#[test]
fn names_threads_and_heap_headers() {
    let directory = tempfile::tempdir().expect("a directory");
    let Some(program) = compile("procfs_shapes", directory.path()) else { return };
    let target = Target::start(&program, &[], is_ready);
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

    // glibc gives a thread that allocates an arena of its own; musl has none.
    let is_glibc = seen.mappings.iter().any(|mapping| mapping.name.ends_with(b"/libc.so.6"));
    if is_glibc {
        let [heap] = seen.heap_infos.as_slice() else { panic!("one heap: {:?}", seen.heap_infos) };
        let arena = seen.mappings.iter().find(|m| m.range.start == heap.at).expect("a mapping of its own");
        assert_eq!(heap.mprotect_size, arena.range.len());
        assert_eq!(heap.prev, Addr(0));
    }
}

#[test]
fn reading_does_not_touch_the_target() {
    let directory = tempfile::tempdir().expect("a directory");
    let Some(program) = compile("procfs_shapes", directory.path()) else { return };
    let target = Target::start(&program, &[], is_ready);
    let before = smaps_of(target.pid());
    let first = observe_from(target.pid(), ResidencySource::PagemapScan);
    // Without page-exact residency every place is looked at, touched or not.
    observe_from(target.pid(), ResidencySource::None);
    let second = observe_from(target.pid(), ResidencySource::PagemapScan);
    assert_eq!(first.residency, second.residency);
    assert_eq!(before, smaps_of(target.pid()));
}

#[test]
fn details_can_be_left_out() {
    let directory = tempfile::tempdir().expect("a directory");
    let Some(program) = compile("procfs_shapes", directory.path()) else { return };
    let target = Target::start(&program, &[], is_ready);
    let options = ObserveOptions {
        residency_from: ResidencySource::None,
        threads: false,
        heap_info: false,
        ..ObserveOptions::default()
    };
    let seen = observe(target.pid(), target.pid(), options).expect("a living child");
    assert_eq!(seen.residency.source, ResidencySource::None);
    assert!(seen.residency.resident.is_empty() && seen.threads.is_empty() && seen.heap_infos.is_empty());
    assert!(!seen.mappings.is_empty());
}

#[test]
fn a_thread_shows_what_its_dead_leader_does_not() {
    let directory = tempfile::tempdir().expect("a directory");
    let Some(program) = compile("procfs_zombie_leader", directory.path()) else { return };
    let target = Target::start(&program, &[], |_| true);
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

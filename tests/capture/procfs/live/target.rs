//! Starting programs that say when they are ready, and comparing with smaps.

use crate::support::skip_this;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use vmaudit::attribution::rules::heap_headers;
use vmaudit::model::AddrRange;
use vmaudit::model::observation::{Observations, Residency, ResidencySource};
use vmaudit::procfs::{ObserveOptions, SmapsEntry, observe, parse_smaps};

/// The ladder, best first.
pub const RUNGS: [ResidencySource; 3] =
    [ResidencySource::PagemapScan, ResidencySource::Pagemap, ResidencySource::SmapsProportion];

/// A running program that waits for its standard input to end; dropping it lets it end.
pub struct Target {
    child: Child,
    _stdin: ChildStdin,
    /// What it printed up to and including the line that says it is ready.
    pub lines: Vec<String>,
}

impl Target {
    /// Starts a program and reads lines until `last` accepts one.
    pub fn start(program: &Path, args: &[&str], last: impl Fn(&str) -> bool) -> Target {
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

    /// Waits until every thread is blocked in read(2) or pause(2) (a dead leader in none):
    /// between saying "ready" and blocking a program may still touch a page.
    pub fn settled(self) -> Target {
        let tasks = format!("/proc/{}/task", self.pid());
        for _ in 0..1_000_000 {
            let blocked = std::fs::read_dir(&tasks).expect("threads").flatten().all(|task| {
                let text = std::fs::read_to_string(task.path().join("syscall")).unwrap_or_default();
                let number = text.split(' ').next();
                let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
                matches!(number, Some("0" | "34")) || stat.contains(") Z ")
            });
            if blocked {
                return self;
            }
            std::thread::yield_now();
        }
        panic!("the test program never came to rest");
    }

    /// Returns when all its threads have stopped: nothing of its own changes its memory any more.
    pub fn stopped(self) -> Target {
        let pid = Pid::from_raw(self.pid());
        kill(pid, Signal::SIGSTOP).expect("a living child");
        let stopped = waitpid(pid, Some(WaitPidFlag::WUNTRACED));
        assert!(matches!(stopped, Ok(WaitStatus::Stopped(..))), "{stopped:?}");
        self
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Compiles a program of tests/programs once for a test; None, with a SKIP line, without a compiler.
pub fn compile(name: &str, directory: &Path) -> Option<PathBuf> {
    compile_with(name, directory, &[])
}

/// The same with further arguments for the compiler.
pub fn compile_with(name: &str, directory: &Path, args: &[&str]) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(format!("{name}.c"));
    let program = directory.join(name);
    let compiler =
        Command::new("cc").args(["-O1", "-pthread", "-o"]).arg(&program).arg(source).args(args).status();
    match compiler {
        Ok(status) if !status.success() && !args.is_empty() => {
            skip_this(&format!("the C compiler cannot do {args:?}"));
            return None;
        }
        Ok(status) => assert!(status.success(), "{name}.c does not compile"),
        Err(error) => {
            skip_this(&format!("no C compiler: {error}"));
            return None;
        }
    }
    Some(program)
}

/// The line that the programs of tests/programs print.
pub fn is_ready(line: &str) -> bool {
    line == "ready"
}

/// smaps of a living process, without vsyscall.
pub fn smaps_of(id: i32) -> Vec<SmapsEntry> {
    let bytes = std::fs::read(format!("/proc/{id}/smaps")).expect("smaps");
    let parsed = parse_smaps(&bytes);
    assert!(parsed.damaged.is_empty(), "{:?}", parsed.damaged);
    parsed.entries.into_iter().filter(|entry| entry.mapping.name != b"[vsyscall]").collect()
}

/// A snapshot that begins at a rung of the residency ladder.
pub fn observe_from(pid: i32, rung: ResidencySource) -> Observations {
    let options =
        ObserveOptions { residency_from: rung, headers: heap_headers(), ..ObserveOptions::default() };
    observe(pid, pid, options).expect("a living child")
}

/// (Rss, Swap) of each mapping, by whichever rung was used.
pub fn figures(seen: &Observations) -> BTreeMap<AddrRange, (u64, u64)> {
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
pub fn differences(seen: &Observations, smaps: &[SmapsEntry]) -> Vec<String> {
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

/// The mapped bytes that are resident and swapped in `range`, page-exact. For
/// `SmapsProportion` only whole VMAs are known: use `Residency::per_vma` there.
fn pages_within(residency: &Residency, range: AddrRange) -> (u64, u64) {
    let sum = |runs: &[AddrRange]| {
        let first = runs.partition_point(|run| run.end <= range.start);
        runs[first..]
            .iter()
            .take_while(|run| run.start < range.end)
            .map(|run| run.intersect(range).len())
            .sum()
    };
    (sum(&residency.resident), sum(&residency.swapped))
}

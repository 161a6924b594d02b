//! The perf backend, as an ordinary user: it has to see what the BPF backend sees as root.

use crate::support::churn::what_is_wrong;
use crate::support::report::{list, number, spans_of_maps, spans_of_regions};
use crate::support::{Audit, AuditReport, demo_program, finished, program, run_command, skip, skip_without};
use crate::support::{skip_without_bpf, vmaudit};
use serde_json::Value;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const NOBODY: u32 = 65534;

/// A folder that everybody may use, with the binary in it.
struct Stage {
    folder: tempfile::TempDir,
}

impl Stage {
    fn new() -> Stage {
        let folder = tempfile::Builder::new().tempdir_in("/tmp").expect("a temporary folder");
        open_to_all(folder.path());
        let stage = Stage { folder };
        stage.bring(&vmaudit());
        stage
    }

    /// Copies a program to where every user may run it.
    fn bring(&self, file: &Path) -> PathBuf {
        let copy = self.folder.path().join(file.file_name().expect("a file name"));
        fs::copy(file, &copy).expect("copied");
        open_to_all(&copy);
        copy
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// `vmaudit run --backend perf` as user nobody; None where another tracer keeps the events from all
    /// others on this machine.
    fn perf<S: AsRef<OsStr>>(&self, options: &[&str], words: &[S]) -> Option<Audit> {
        self.perf_as(NOBODY, options, words)
    }

    fn perf_as<S: AsRef<OsStr>>(&self, user: u32, options: &[&str], words: &[S]) -> Option<Audit> {
        let report = self.path("perf.json");
        let mut run = Command::new(self.path("vmaudit"));
        run.args(["run", "--backend", "perf", "-f", "json", "--report"]).arg(&report);
        run.args(options).arg("--").args(words).stdin(Stdio::null());
        run.env("XDG_RUNTIME_DIR", self.folder.path());
        if is_root() {
            // SAFETY: between fork and exec only system calls are made.
            unsafe { run.pre_exec(move || lock_any_memory_as(user)) };
        }
        let _ = fs::remove_file(&report);
        let audit = finished(run.output().expect("vmaudit starts"), &report);
        if audit.stderr.contains("a BPF program keeps them") {
            skip("perf", "another program's BPF keeps the events from perf");
            return None;
        }
        Some(audit)
    }

    /// The same command traced as root.
    fn bpf<S: AsRef<OsStr>>(&self, options: &[&str], words: &[S]) -> Audit {
        let report = self.path("bpf.json");
        let mut run = run_command(&report, options, words);
        run.stdin(Stdio::null()).env("XDG_RUNTIME_DIR", self.folder.path());
        finished(run.output().expect("vmaudit starts"), &report)
    }
}

/// Becomes an ordinary user, who may have rings that no reader has to keep up with.
fn lock_any_memory_as(user: u32) -> std::io::Result<()> {
    use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};
    let limit = Resource::RLIMIT_MEMLOCK;
    // Root of a container may have no CAP_SYS_RESOURCE.
    if setrlimit(limit, RLIM_INFINITY, RLIM_INFINITY).is_err() {
        let (_, hard) = getrlimit(limit)?;
        setrlimit(limit, hard, hard)?;
    }
    nix::unistd::setgroups(&[])?;
    nix::unistd::setgid(user.into())?;
    Ok(nix::unistd::setuid(user.into())?)
}

fn open_to_all(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o777)).expect("permissions");
}

fn is_root() -> bool {
    // SAFETY: geteuid has no preconditions.
    unsafe { libc::geteuid() == 0 }
}

/// Read from the kernel's setting, so that a backend that is broken fails.
pub fn skip_without_perf(test: &str) -> bool {
    let text = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
    let allowed = text.trim().parse::<i32>().is_ok_and(|level| level <= 2);
    if !allowed {
        skip(test, &format!("perf_event_paranoid is {}", text.trim()));
    }
    !allowed || skip_without(test, "/sys/bus/event_source/devices/tracepoint")
}

/// A region without its address: threads race for places.
type Kind = (u64, String, String, String, Vec<String>);

fn kinds(report: &AuditReport, process: &Value) -> BTreeMap<Kind, u32> {
    let mut kinds = BTreeMap::new();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let address = |value: &Value| {
        u64::from_str_radix(value.as_str().unwrap_or_default().trim_start_matches("0x"), 16)
            .expect("an address")
    };
    for region in list(process, "regions") {
        let origin = &region["origin"];
        let frames = origin["stack"].as_u64().map_or_else(Vec::new, |stack| frames(report, stack));
        let size = address(&region["end"]) - address(&region["start"]);
        let kind = (size, text(&region["prot"]), text(&region["category"]), text(&origin["op"]), frames);
        *kinds.entry(kind).or_default() += 1;
    }
    kinds
}

fn frames(report: &AuditReport, stack: u64) -> Vec<String> {
    let frames = list(&report.stacks()[stack as usize], "frames");
    // Of an interpreter, only the BPF backend has the frames.
    let native = frames.iter().filter(|frame| frame["managed"] != true);
    native.map(|frame| format!("{}+{}", frame["module"], frame["offset"])).collect()
}

/// Everything that has to be equal, whichever backend saw the calls.
fn assert_same(perf: &AuditReport, bpf: &AuditReport) {
    assert_eq!(perf.event("lost"), 0);
    assert_eq!(perf.event("unwind_incomplete"), bpf.event("unwind_incomplete"));
    assert_eq!(perf.event("truncated_stacks"), bpf.event("truncated_stacks"));
    assert_eq!(perf.processes().len(), bpf.processes().len());
    for (ours, theirs) in perf.processes().iter().zip(bpf.processes()) {
        for key in ["comm", "exe", "signal", "exit_code", "threads_seen", "coverage"] {
            assert_eq!(ours[key], theirs[key], "{key}");
        }
        assert_eq!(number(&ours["coverage"], "ledger_drift"), 0);
        for key in ["virt", "writable", "reserved"] {
            assert_eq!(ours["totals"][key], theirs["totals"][key], "{key}");
        }
        let sizes = |process: &Value| -> BTreeMap<String, u64> {
            let rows = list(process, "categories").iter();
            rows.map(|row| (row["id"].to_string(), number(row, "virt"))).collect()
        };
        assert_eq!(sizes(ours), sizes(theirs));
        let (ours, theirs) = (kinds(perf, ours), kinds(bpf, theirs));
        let missing: Vec<_> = theirs.iter().filter(|(kind, count)| ours.get(kind) != Some(count)).collect();
        let extra: Vec<_> = ours.iter().filter(|(kind, count)| theirs.get(kind) != Some(count)).collect();
        assert!(missing.is_empty() && extra.is_empty(), "only BPF: {missing:#?}\nonly perf: {extra:#?}");
    }
}

fn compare<S: AsRef<OsStr>>(stage: &Stage, words: &[S]) {
    compare_as(NOBODY, stage, words);
}

fn compare_as<S: AsRef<OsStr>>(user: u32, stage: &Stage, words: &[S]) {
    // Some 130 calls each: rings of 2 MiB for each CPU, which 8 MiB of locked memory allow, hold them all,
    // however late they are read.
    let options = ["--aslr", "off", "--stack-bytes", "8192", "--min-virt", "0"];
    let Some(perf) = stage.perf_as(user, &options, words) else { return };
    let bpf = stage.bpf(&options, words);
    assert_eq!(perf.code(), bpf.code(), "{}", perf.stderr);
    assert_same(perf.report(), bpf.report());
}

fn skipped(test: &str) -> bool {
    if skip_without_bpf(test) || skip_without_perf(test) {
        return true;
    }
    if !is_root() {
        skip(test, "needs root, to compare with the BPF backend");
    }
    !is_root()
}

#[test]
fn a_program_with_threads_and_two_allocators_has_equal_events() {
    if skipped("perf C1") {
        return;
    }
    let built = match demo_program() {
        Ok(built) => built,
        Err(why) => return skip("perf C1", &why),
    };
    let stage = Stage::new();
    compare(&stage, &[stage.bring(&built)]);
}

#[test]
fn python_with_files_and_children_has_equal_events() {
    if skipped("perf python") || skip_without("perf python", "/usr/bin/python3") {
        return;
    }
    let script = "import json, mmap, os, subprocess\n\
        with open('/usr/bin/python3', 'rb') as f: m = mmap.mmap(f.fileno(), 65536, prot=mmap.PROT_READ)\n\
        a = [bytearray(300000) for _ in range(20)]\n\
        subprocess.run(['/bin/true'], check=True)\n\
        pid = os.fork()\n\
        b = mmap.mmap(-1, 1 << 20)\n\
        os._exit(3) if pid == 0 else os.wait()\n";
    compare(&Stage::new(), &["/usr/bin/python3", "-S", "-c", script]);
}

/// Root reads the tracepoints' numbers, an ordinary user has to try them.
#[test]
fn an_ordinary_user_traces_what_root_traces_and_tries_once() {
    const TEST: &str = "perf tracepoints";
    if skip_without_perf(TEST) {
        return;
    }
    if !is_root() {
        return skip(TEST, "needs root, to run as two users");
    }
    let stage = Stage::new();
    let tracepoints = |user: u32| {
        let said = stage.perf_as(user, &["-v"], &["/bin/true"])?.stderr;
        let (head, rest) = said.split_once(" tracepoints on ").unwrap_or_else(|| panic!("{said}"));
        let number: usize = head.rsplit(' ').next().and_then(|word| word.parse().ok()).expect("a number");
        Some((number, rest.contains("(ids from tracefs)")))
    };
    let Some((by_root, true)) = tracepoints(0) else { return skip(TEST, "root has no tracefs here") };
    let Some(by_nobody) = tracepoints(NOBODY) else { return };
    assert_eq!(by_nobody, (by_root, false));
    let kept = fs::read_to_string(stage.path("vmaudit-tracepoints")).expect("kept for the next run");
    assert_eq!(kept.lines().filter(|line| line.starts_with("exit ")).count(), by_root, "{kept}");
}

#[test]
fn odd_calls_are_reported_the_same() {
    if skipped("perf oddcalls") {
        return;
    }
    let stage = Stage::new();
    // As root, too: what some of them do depends on who calls.
    compare_as(0, &stage, &[stage.bring(&program("oddcalls"))]);
}

#[test]
fn a_shell_with_pipes_has_equal_events() {
    if skipped("perf sh") {
        return;
    }
    // Without ASLR: where the stack begins in its page decides whether it takes one more, in each of the processes.
    let shell = ["setarch", "-R", "/bin/sh", "-c", "ls / | sort | head -1 >/dev/null; (exit 7); exit 3"];
    compare(&Stage::new(), &shell);
}

#[test]
fn a_signal_that_ends_a_process_is_reported() {
    if skip_without_perf("perf kill") {
        return;
    }
    let Some(audit) = Stage::new().perf(&[], &["/bin/sh", "-c", "kill -9 $$"]) else { return };
    assert_eq!(audit.code(), Some(137), "{}", audit.stderr);
    assert_eq!(number(audit.report().first(), "signal"), 9);
}

/// Every process writes its own maps file just before it leaves: the report has to be that file.
#[test]
fn random_calls_are_followed_exactly() {
    if skip_without_perf("perf churn") {
        return;
    }
    let stage = Stage::new();
    let churn = stage.bring(&program("churn"));
    for (seed, threads, mode) in
        [(1, "1", "normal"), (2, "1", "exec"), (3, "4", "leaf"), (4, "1", "thread-exec"), (5, "4", "leaf")]
    {
        let maps = tempfile::Builder::new().tempdir_in(stage.folder.path()).expect("a temporary folder");
        open_to_all(maps.path());
        let words: Vec<OsString> = [
            churn.clone().into_os_string(),
            seed.to_string().into(),
            threads.into(),
            "150".into(),
            maps.path().join("maps").into_os_string(),
            mode.into(),
        ]
        .into();
        let Some(audit) = stage.perf(&[], &words) else { return };
        assert_eq!(audit.code(), Some(0), "{}", audit.stderr);
        // Stacks may get lost where others keep the processors busy; calls may not.
        let report = audit.report();
        let mut compared = 0;
        for file in fs::read_dir(maps.path()).expect("maps files") {
            let file = file.expect("a file").path();
            let name = file.file_name().expect("a name").to_string_lossy().into_owned();
            let pid: u64 = name.rsplit('.').next().expect("a pid").parse().expect("a number");
            let process = report.process(pid).unwrap_or_else(|| panic!("{pid} is not in the report"));
            for key in ["ledger_drift", "unknown", "preexisting"] {
                assert_eq!(number(&process["coverage"], key), 0, "{key} of {pid}, seed {seed}, {mode}");
            }
            let theirs = spans_of_maps(&fs::read(&file).expect("a maps file"));
            assert_eq!(spans_of_regions(process), theirs, "seed {seed}, {mode}");
            compared += 1;
        }
        assert!(compared > 0, "no maps file");
    }
}

/// What a refused call did before it was refused is not in its result: that is in doubt. But no call is lost,
/// and the report is what the kernel shows.
#[test]
fn calls_that_fail_are_not_lost() {
    if skip_without_perf("perf turmoil") {
        return;
    }
    let stage = Stage::new();
    let turmoil = stage.bring(&program("turmoil"));
    for (seed, threads, mode) in [(1, "1", "plain"), (2, "3", "plain"), (3, "4", "tight"), (4, "2", "plain")]
    {
        let maps = tempfile::Builder::new().tempdir_in(stage.folder.path()).expect("a temporary folder");
        open_to_all(maps.path());
        let words: Vec<OsString> = [
            turmoil.clone().into_os_string(),
            seed.to_string().into(),
            threads.into(),
            "150".into(),
            maps.path().join("maps").into_os_string(),
            mode.into(),
        ]
        .into();
        let Some(audit) = stage.perf(&[], &words) else { return };
        let wrong = what_is_wrong(&audit, maps.path(), &["preexisting"]);
        assert!(wrong.is_empty(), "seed {seed}, {mode}: {}", wrong.join("\n"));
    }
}

#[test]
fn what_perf_cannot_do_is_refused_with_a_way_out() {
    let refused = |words: &[&str]| {
        let output = Command::new(vmaudit()).args(words).output().expect("vmaudit starts");
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("--backend bpf"), "{said}");
    };
    refused(&["run", "--backend", "perf", "--touch", "--", "/bin/true"]);
    refused(&["attach", "--backend", "perf", "-p", &std::process::id().to_string()]);
}

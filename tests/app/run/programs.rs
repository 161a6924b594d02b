//! `vmaudit run` on real programs: C, C++, Python, shells, redis-server, a program with two
//! allocators. What every report has to satisfy is checked in `support::report`.

use crate::support::death::assert_survives_death_of_vmaudit;
use crate::support::redis::{REDIS, free_port, load_and_stop, redis_command, until_ready};
use crate::support::report::{AuditReport, category, list, number, spans_of_maps, spans_of_regions};
use crate::support::{
    self, Guard, audit, demo_program, finished, program, run_command, shared_object, skip, skip_without,
    skip_without_bpf, under_limits, vmaudit,
};
use serde_json::Value;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

const PYTHON: &str = "/usr/bin/python3";
const BASH: &str = "/bin/bash";

/// A command line of a test program.
fn words(name: &str, args: &[&str]) -> Vec<OsString> {
    let mut all = vec![program(name).into_os_string()];
    all.extend(args.iter().map(OsString::from));
    all
}

/// Audits a command that has to end with status 0, exactly and with complete stacks.
fn audit_exactly<S: AsRef<OsStr>>(command: &[S]) -> support::Audit {
    let audit = audit(&[], command);
    assert_eq!(audit.code(), Some(0), "{}\n{}", audit.stdout, audit.stderr);
    audit.report().assert_exact();
    audit.report().assert_stacks_complete();
    audit
}

#[test]
fn true_has_a_complete_report() {
    if skip_without_bpf("run_programs") {
        return;
    }
    let audit = audit_exactly(&["/bin/true"]);
    let process = audit.report().first();
    assert_eq!(process["exit_code"], 0);
    assert!(process["signal"].is_null());
    assert_eq!(process["comm"], "true");
    assert_eq!(audit.report().json["backend"], "bpf");
    assert!(number(&process["totals"], "virt") > 1 << 20);
    assert!(number(&process["coverage"], "traced") > 0, "ld.so maps libc by itself");
}

#[test]
fn the_text_report_is_the_default() {
    if skip_without_bpf("run_programs") {
        return;
    }
    let output =
        Command::new(vmaudit()).args(["run", "--as-root", "--", "/bin/true"]).output().expect("starts");
    let text = String::from_utf8_lossy(&output.stdout);
    for word in ["VIRT", "RSS", "total", "0 lost"] {
        assert!(text.contains(word), "no {word} in:\n{text}");
    }
    assert!(!text.contains('\u{1b}'), "colours without a terminal");
}

#[test]
fn exit_status_passes_through() {
    if skip_without_bpf("run_programs") {
        return;
    }
    for (args, code) in [
        (&["exit", "3"][..], 3),
        (&["exit", "255"], 255),
        (&["_exit", "4"], 4),
        (&["thread-exit", "9"], 9),
        (&["vfork"], 7),
        (&["closefds", "5"], 5),
        (&["last-thread"], 0),
    ] {
        let audit = audit(&[], &words("ends", args));
        assert_eq!(audit.code(), Some(code), "{args:?}: {}", audit.stderr);
        audit.report().assert_exact();
        assert_eq!(audit.report().first()["exit_code"], code, "{args:?}");
    }
}

#[test]
fn death_by_signal_is_128_and_the_signal() {
    if skip_without_bpf("run_programs") {
        return;
    }
    for signal in [libc::SIGSEGV, libc::SIGKILL, libc::SIGTERM] {
        let audit = audit(&[], &words("ends", &["kill", &signal.to_string()]));
        assert_eq!(audit.code(), Some(128 + signal), "{}", audit.stderr);
        let process = audit.report().first();
        assert_eq!(process["signal"], signal);
        assert!(process["exit_code"].is_null());
    }
}

#[test]
fn commands_that_cannot_start() {
    if skip_without_bpf("run_programs") {
        return;
    }
    assert_eq!(audit(&[], &["/nonexistent/program"]).code(), Some(127));
    assert_eq!(audit(&[], &["no-such-program-in-path"]).code(), Some(127));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("data");
    std::fs::write(&file, "no program").expect("written");
    assert_eq!(audit(&[], &[&file]).code(), Some(126), "not executable");
    assert_eq!(audit(&[], &[folder.path()]).code(), Some(126), "a folder");
}

#[test]
fn unusable_command_lines_are_2() {
    for args in [
        &["run"][..],
        &["run", "--"],
        &["run", "--no-such-option", "--", "/bin/true"],
        &["run", "-f", "no-such-format", "--", "/bin/true"],
        &["no-such-command"],
        &[],
    ] {
        let output = Command::new(vmaudit()).args(args).output().expect("starts");
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(!output.stderr.is_empty(), "{args:?} says nothing");
    }
}

#[test]
fn own_failures_are_125() {
    if skip_without_bpf("run_programs") {
        return;
    }
    let report = Path::new("/nonexistent/folder/report.json");
    let output = run_command(report, &[], &["/bin/true"]).output().expect("starts");
    assert_eq!(output.status.code(), Some(125));
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(message.contains("/nonexistent/folder/report.json"), "{message}");
}

#[test]
fn shells_and_what_they_start() {
    if skip_without_bpf("run_programs") {
        return;
    }
    let audit = audit_exactly(&["/bin/sh", "-c", "/bin/true; (exit 3) | cat; /bin/sh -c 'exec /bin/true'"]);
    let report = audit.report();
    let comms: Vec<&str> = report.processes().iter().filter_map(|p| p["comm"].as_str()).collect();
    assert_eq!(report.first()["comm"], "sh", "{comms:?}");
    assert!(comms.iter().filter(|c| **c == "true").count() >= 2, "{comms:?}");
    assert!(comms.contains(&"cat"), "{comms:?}");

    let alone = support::audit(&["--no-follow-forks"], &["/bin/sh", "-c", "/bin/true; /bin/true"]);
    assert_eq!(alone.code(), Some(0), "{}", alone.stderr);
    assert_eq!(alone.report().processes().len(), 1);
}

#[test]
fn cxx_with_exceptions_and_threads() {
    if skip_without_bpf("run_programs") {
        return;
    }
    let audit = audit_exactly(&words("cxx", &["3"]));
    let process = audit.report().first();
    assert_eq!(process["threads_seen"], 4);
    assert!(category(process, "thread-stack").is_some_and(|c| number(c, "virt") >= 3 * (8 << 20)));
    let stacks = audit.report().json["stacks"].to_string();
    for name in ["std::thread::_State_impl<", "operator new", "start_thread"] {
        assert!(stacks.contains(name), "no {name} in the stacks");
    }
}

#[test]
fn a_stack_with_untouched_pages_is_read_around_them() {
    if skip_without_bpf("run_programs") {
        return;
    }
    let audit = audit_exactly(&words("stack_holes", &[]));
    let regions = list(audit.report().first(), "regions");
    let without = regions.iter().filter(|r| r["origin"].is_object() && r["origin"]["stack"].is_null());
    assert_eq!(without.count(), 0, "{}", audit.stdout);
}

#[test]
fn python_with_threads() {
    if skip_without_bpf("run_programs") || skip_without("python_with_threads", PYTHON) {
        return;
    }
    let script = "import threading, json, re, subprocess\n\
        ts = [threading.Thread(target=lambda: [bytes(100000) for _ in range(100)]) for _ in range(4)]\n\
        [t.start() for t in ts]; [t.join() for t in ts]\n\
        subprocess.run(['/bin/true'], check=True)\n";
    let audit = audit_exactly(&[PYTHON, "-c", script]);
    let process = audit.report().first();
    assert!(category(process, "glibc-arena").is_some(), "{}", process["categories"]);
}

#[test]
fn redis_under_load() {
    if skip_without_bpf("run_programs") || skip_without("redis_under_load", REDIS) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("report.json");
    let port = free_port();
    let mut run = run_command(&file, &[], &redis_command(port, folder.path()));
    let mut server =
        Guard(run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("vmaudit starts"));
    until_ready(&mut server);
    load_and_stop(port);
    let audit = finished(server.finish().expect("output"), &file);
    assert_eq!(audit.code(), Some(0), "{}", audit.stderr);
    audit.report().assert_exact();
    audit.report().assert_stacks_complete();
    let process = audit.report().first();
    let jemalloc = category(process, "jemalloc").expect("Debian's redis is linked with jemalloc");
    assert!(number(jemalloc, "virt") > 4 << 20, "{jemalloc}");
}

#[test]
fn two_allocators_in_one_process() {
    if skip_without_bpf("run_programs") {
        return;
    }
    let demo = match demo_program() {
        Ok(path) => path,
        Err(why) => return skip("two_allocators_in_one_process", &why),
    };
    let audit = audit_exactly(&[demo]);
    let report = audit.report();
    let process = report.first();
    let arenas = category(process, "glibc-arena").expect("arenas");
    assert_eq!(number(arenas, "virt"), 2 * (64 << 20), "one of the reader's, one of the freer's: {arenas}");
    assert!(category(process, "jemalloc").is_some_and(|c| number(c, "virt") > 8 << 20));
    assert_eq!(number(category(process, "thread-stack").expect("stacks"), "virt"), 3 * ((8 << 20) + 4096));

    let arena_regions: Vec<_> =
        list(process, "regions").iter().filter(|r| r["category"] == "glibc-arena").collect();
    for (thread, function) in [("reader", "reader"), ("freer", "freer")] {
        let region = arena_regions.iter().find(|r| r["origin"]["comm"] == thread);
        let region = region.unwrap_or_else(|| panic!("no arena made by the thread {thread}"));
        let names = report.stack_names(&region["origin"]["stack"]);
        assert!(names.contains(&format!("two_allocators!{function}")), "{names:?}");
        let exported = if thread == "reader" { "libc.so.6!malloc" } else { "free" };
        assert!(names.iter().any(|n| n.contains(exported)), "{names:?}");
    }
    let finding =
        list(process, "findings").iter().find(|f| f["category"] == "glibc-arena").expect("a finding");
    let knobs = finding["fix"].to_string();
    assert!(knobs.contains("MALLOC_ARENA_MAX"), "{knobs}");
}

#[test]
fn code_that_was_unloaded_keeps_its_name() {
    if skip_without_bpf("run_programs") {
        return;
    }
    let plugin = shared_object("dlplugin");
    let plugin = plugin.to_str().expect("a plain path");
    let audit = audit_exactly(&words("dlcycle", &[plugin, "5"]));
    let report = audit.report();
    let regions = list(report.first(), "regions");
    let by_plugin: u64 = regions
        .iter()
        .filter(|r| report.stack_names(&r["origin"]["stack"]).contains(&"dlplugin.so!plugin_map".to_owned()))
        .map(|r| number(r, "virt"))
        .sum();
    assert_eq!(by_plugin, 5 * (3 << 20), "what the plugin mapped outlives it");
    assert!(!regions.iter().any(|r| r["path"].as_str().is_some_and(|p| p.ends_with("dlplugin.so"))));
}

#[test]
fn odd_file_names() {
    if skip_without_bpf("run_programs") {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let audit = audit_exactly(&words("oddnames", &[folder.path().to_str().expect("a plain path")]));
    let name = folder.path().file_name().and_then(OsStr::to_str).expect("a plain name");
    let regions = list(audit.report().first(), "regions");
    let paths: Vec<&str> =
        regions.iter().filter_map(|r| r["path"].as_str()).filter(|p| p.contains(name)).collect();
    assert_eq!(paths.len(), 9, "{paths:?}");
    // Not among them: "back\\012slash". The kernel escapes the newline in maps, but not the backslash.
    for end in ["/a b  c", "/new\nline", "/looks (deleted)", "/[heap]", "/7f00-8000 r-xp", "/€"] {
        assert!(paths.iter().any(|p| p.ends_with(end)), "{end:?} is not in {paths:?}");
    }
}

#[test]
fn a_refused_call_changes_nothing() {
    if skip_without_bpf("run_programs") {
        return;
    }
    let audit = audit(&[], &words("hugetlb", &[]));
    if audit.code() == Some(3) {
        return skip("a_refused_call_changes_nothing", "this machine has 144 MiB of huge pages to give");
    }
    audit.report().assert_exact();
    let shared = category(audit.report().first(), "shared-anon").expect("the second, granted call");
    assert_eq!(number(shared, "virt"), 144 << 20);
}

#[test]
fn the_target_survives_the_death_of_vmaudit() {
    if skip_without_bpf("run_programs") {
        return;
    }
    assert_survives_death_of_vmaudit(&[]);
}

#[test]
fn an_interrupt_ends_the_run_with_a_report() {
    if skip_without_bpf("run_programs") {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (report, proof) = (folder.path().join("report.json"), folder.path().join("proof"));
    let command = words("ends", &["orphan", proof.to_str().expect("a plain path")]);
    let mut run = run_command(&report, &[], &command);
    run.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut tracer = Guard(run.spawn().expect("vmaudit starts"));
    let mut ready = [0; 6];
    tracer.0.stdout.as_mut().expect("a pipe").read_exact(&mut ready).expect("the target is ready");
    let input = tracer.0.stdin.take();
    tracer.signal(libc::SIGINT);
    tracer.0.wait().expect("waited");
    // Only now may the target see the end of its input, if it is still there.
    drop(input);
    let audit = finished(tracer.finish().expect("output"), &report);
    let process = audit.report().first();
    assert!(number(&process["totals"], "virt") > 1 << 20, "{}", process["totals"]);
}

/// What is continued without a snapshot is known all the same, but for what was in memory.
#[test]
fn small_and_short_processes_are_not_examined() {
    let name = "small_and_short_processes_are_not_examined";
    if skip_without_bpf(name) || skip_without(name, PYTHON) {
        return;
    }
    let script =
        "/bin/true; /usr/bin/python3 -c 'import mmap, os; m = mmap.mmap(-1, 64 << 20); os._exit(0)'; exit 3";
    let of = |report: &AuditReport, comm: &str| {
        let found = report.processes().iter().find(|process| process["comm"] == comm);
        found.unwrap_or_else(|| panic!("no {comm}")).clone()
    };
    let examined = |options: &[&str], comm: &str| {
        let audit = audit(options, &["sh", "-c", script]);
        assert_eq!(audit.code(), Some(3), "{}", audit.stderr);
        audit.report().assert_exact();
        (of(audit.report(), comm), of(audit.report(), "sh"), of(audit.report(), "python3"))
    };
    let (spared, main, large) = examined(&["--backend", "bpf"], "true");
    assert_eq!((&main["snapshot"], &large["snapshot"]), (&"exit".into(), &"exit".into()));
    assert_eq!((&spared["snapshot"], &spared["residency"]), (&"ledger".into(), &"none".into()));
    assert_eq!(spared["exit_code"], 0);
    let (seen, ..) = examined(&["--backend", "bpf", "--min-virt", "0"], "true");
    assert_eq!((&seen["snapshot"], &seen["residency"]), (&"exit".into(), &main["residency"]));
    // The same program: the same categories, but for what depends on where execve puts it.
    for figure in ["virt", "writable", "reserved"] {
        assert_eq!(spared["totals"][figure], seen["totals"][figure], "{figure}");
    }
    let sums = |process: &Value| {
        let rows = list(process, "categories").iter();
        rows.map(|row| (row["id"].to_string(), number(row, "virt"))).collect::<BTreeMap<_, _>>()
    };
    assert_eq!(sums(&spared), sums(&seen));
    assert_eq!(spared["coverage"], seen["coverage"]);
}

/// No call shows that a stack has grown: such a process is examined, however small and short.
#[test]
fn a_stack_that_has_grown_is_examined() {
    let name = "a_stack_that_has_grown_is_examined";
    if skip_without_bpf(name) || skip_without(name, BASH) {
        return;
    }
    let recursion = |depth: u32| {
        let deep = "deep() { [ $1 = 0 ] || deep $(($1 - 1)); }";
        let inner = format!("{deep}; deep {depth}; cat /proc/$$/maps; echo; echo $$; exit 3");
        let audit = audit(&["--backend", "bpf"], &["sh", "-c", &format!("{BASH} -c '{inner}'; exit 4")]);
        assert_eq!(audit.code(), Some(4), "{}", audit.stderr);
        let (maps, pid) = audit.stdout.split_once("\n\n").expect("maps, and a number");
        let pid = pid.trim().parse().expect("a number");
        let process = audit.report().process(pid).expect("bash").clone();
        assert_eq!(spans_of_regions(&process), spans_of_maps(maps.as_bytes()), "{depth}");
        process["snapshot"].clone()
    };
    assert_eq!((recursion(1), recursion(500)), ("ledger".into(), "exit".into()));
}

/// As `ulimit -s`: a program that raises its soft limit as far as it may (gcc's driver) gets no further.
#[test]
fn the_stack_limit_cannot_be_raised_again() {
    if skip_without_bpf("run_programs") {
        return;
    }
    let script = "ulimit -Hs; ulimit -Ss; ulimit -Ss $(ulimit -Hs); ulimit -Ss";
    let output = Command::new(vmaudit())
        .args([
            "run",
            "--as-root",
            "--stack-limit=1048576",
            "--report=/dev/null",
            "--",
            "/bin/sh",
            "-c",
            script,
        ])
        .output()
        .expect("starts");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "1024\n1024\n1024\n");
}

/// vmaudit takes as many descriptors as the hard limit allows; the command has the limits that vmaudit was started
/// with.
#[test]
fn the_soft_limit_on_open_files_is_raised_for_vmaudit_alone() {
    if skip_without_bpf("run_programs") {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let report = folder.path().join("report.json");
    let command = ["/bin/bash", "-c", "ulimit -Sn; ulimit -Hn; cat /proc/self/maps >/dev/null"];
    let mut run = under_limits("-Sn 33 && ulimit -Hn 5000", &run_command(&report, &[], &command));
    let audit = finished(run.output().expect("starts"), &report);
    assert_eq!((audit.code(), audit.stdout.as_str()), (Some(0), "33\n5000\n"), "{}", audit.stderr);
    assert!(!audit.stderr.contains("could not be opened"), "{}", audit.stderr);
    assert_eq!(audit.report().event("unwind_incomplete"), 0);
}

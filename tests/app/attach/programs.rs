//! `vmaudit attach` to real programs: what was there before, what comes after, and their ends.

use crate::support::report::{category, list, number};
use crate::support::{Audit, Guard, finished, program, skip_without, skip_without_bpf, vmaudit};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Attaches with `options` and waits for vmaudit's end; `when_tracing` is called once it says that
/// it traces.
fn attach(pids: &[u32], options: &[&str], when_tracing: impl FnOnce(&Guard)) -> Audit {
    attach_until(pids, options, ("Ctrl-C ends tracing", when_tracing))
}

/// `act` is called once it says `sign`.
fn attach_until(pids: &[u32], options: &[&str], (sign, act): (&str, impl FnOnce(&Guard))) -> Audit {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("report.json");
    let mut command = Command::new(vmaudit());
    command.args(["attach", "-f", "json", "--report"]).arg(&file).args(options);
    for pid in pids {
        command.args(["-p", &pid.to_string()]);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut auditor = Guard(command.spawn().expect("vmaudit starts"));
    let mut stderr = BufReader::new(auditor.0.stderr.take().expect("a pipe"));
    let mut said = String::new();
    let mut act = Some(act);
    while let Ok(1..) = stderr.read_line(&mut said) {
        if said.contains(sign)
            && let Some(act) = act.take()
        {
            act(&auditor);
        }
    }
    let mut output = auditor.finish().expect("it ends");
    output.stderr = said.into_bytes();
    finished(output, &file)
}

/// A program that says READY when it has set itself up.
fn ready(command: &mut Command) -> (Guard, BufReader<std::process::ChildStdout>) {
    let child: Child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the program starts");
    let mut guard = Guard(child);
    let mut out = BufReader::new(guard.0.stdout.take().expect("a pipe"));
    let mut line = String::new();
    out.read_line(&mut line).expect("it speaks");
    assert_eq!(line, "READY\n");
    (guard, out)
}

fn interrupt(auditor: &Guard) {
    auditor.signal(libc::SIGINT);
}

fn assert_exact(process: &Value) {
    let coverage = &process["coverage"];
    assert_eq!((number(coverage, "ledger_drift"), number(coverage, "unknown")), (0, 0), "{coverage}");
}

fn python(code: &str) -> Command {
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", code]);
    command
}

#[test]
fn a_quiet_process_is_reported_and_goes_on() {
    if skip_without_bpf("a_quiet_process_is_reported_and_goes_on") {
        return;
    }
    let (mut target, _out) = ready(Command::new(program("manymaps")).arg("50"));
    let audit = attach(&[target.0.id()], &[], interrupt);
    assert_eq!(audit.code(), Some(0), "{}", audit.stderr);
    let process = audit.report().first();
    assert_eq!((&process["attached"], &process["exit_code"]), (&Value::Bool(true), &Value::Null));
    assert_exact(process);
    assert!(number(&process["coverage"], "preexisting") > 0);
    assert_eq!(number(&process["coverage"], "traced"), 0);
    drop(target.0.stdin.take());
    assert_eq!(target.0.wait().expect("it ends").code(), Some(0), "unharmed");
}

/// What was seen of the old program is not the new one's.
#[test]
fn a_snapshot_from_before_execve_is_not_used_for_the_new_program() {
    let name = "a_snapshot_from_before_execve_is_not_used_for_the_new_program";
    if skip_without_bpf(name) || skip_without(name, "/usr/bin/python3") {
        return;
    }
    let code = "
import mmap, os, sys
kept = mmap.mmap(-1, 512 << 20)
print('READY', flush=True); sys.stdin.readline(); os.execv('/bin/true', ['true'])";
    let (target, _out) = ready(&mut python(code));
    let pid = target.0.id();
    let mut input = target.0.stdin.as_ref().expect("a pipe");
    let examined = format!("Live of {pid}: ");
    let go = |_: &Guard| input.write_all(b"go\n").expect("it reads");
    let audit = attach_until(&[pid], &["-v", "--interval", "0.05"], (&examined, go));
    let process = audit.report().first();
    assert_eq!(process["exe"], "/usr/bin/true", "{}", audit.stderr);
    let totals = &process["totals"];
    assert!(number(totals, "virt") < 16 << 20 && number(totals, "vm_peak") < 16 << 20, "{totals}");
    assert_exact(process);
}

/// What was mapped before and has gone may have been anything: it is not what is left of it.
#[test]
fn what_was_there_before_and_has_gone_is_not_named() {
    let name = "what_was_there_before_and_has_gone_is_not_named";
    if skip_without_bpf(name) || skip_without(name, "/usr/bin/python3") {
        return;
    }
    let code = "
import mmap, sys
kept = mmap.mmap(-1, 80 << 20)
gone = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
print('READY', flush=True); sys.stdin.readline(); gone.close(); print('GONE', flush=True); sys.stdin.readline()";
    let (target, mut out) = ready(&mut python(code));
    let mut input = target.0.stdin.as_ref().expect("a pipe");
    let audit = attach(&[target.0.id()], &[], |auditor| {
        input.write_all(b"go\n").expect("it reads");
        let mut line = String::new();
        out.read_line(&mut line).expect("it speaks");
        assert_eq!(line, "GONE\n");
        interrupt(auditor);
    });
    let peak = &audit.report().first()["peak"];
    assert_eq!(peak["by_category"]["shared-anon"], 80 << 20, "{peak}");
    assert!(number(&peak["by_category"], "unknown") >= 64 << 20, "{peak}");
}

#[test]
fn sixty_five_thousand_mappings() {
    if skip_without_bpf("sixty_five_thousand_mappings") {
        return;
    }
    let (target, _out) = ready(Command::new(program("manymaps")).arg("65000"));
    let audit = attach(&[target.0.id()], &[], interrupt);
    assert_exact(audit.report().first());
    assert!(list(audit.report().first(), "regions").len() >= 65_000);
}

/// Each of 5,000 threads maps a region of its own once tracing has begun: none is missed.
#[test]
fn every_one_of_five_thousand_threads_is_traced() {
    let name = "every_one_of_five_thousand_threads_is_traced";
    if skip_without_bpf(name) || skip_without(name, "/usr/bin/python3") {
        return;
    }
    let code = "
import mmap, sys, threading
threading.stack_size(65536)
go, done, kept = threading.Event(), threading.Semaphore(0), []
def work():
    go.wait(); kept.append(mmap.mmap(-1, 1 << 20)); done.release(); threading.Event().wait()
for _ in range(5000): threading.Thread(target=work, daemon=True).start()
print('READY', flush=True); sys.stdin.readline(); go.set()
for _ in range(5000): done.acquire()
print('DONE', flush=True); sys.stdin.readline()
import os; os._exit(0)";
    let (mut target, mut out) = ready(&mut python(code));
    let mut input = target.0.stdin.take().expect("a pipe");
    let audit = attach(&[target.0.id()], &[], |auditor| {
        input.write_all(b"go\n").expect("it reads");
        let mut line = String::new();
        out.read_line(&mut line).expect("it speaks");
        assert_eq!(line, "DONE\n");
        interrupt(auditor);
    });
    let process = audit.report().first();
    assert_exact(process);
    assert!(number(process, "threads_seen") >= 5001, "{}", process["threads_seen"]);
    let mapped_by: std::collections::BTreeSet<i64> = list(process, "regions")
        .iter()
        .filter(|region| region["origin"]["op"] == "mmap")
        .filter_map(|region| region["origin"]["tid"].as_i64())
        .collect();
    assert!(mapped_by.len() >= 5000, "only {} threads were seen mapping", mapped_by.len());
}

#[test]
fn an_exec_after_attaching_begins_a_new_address_space() {
    let name = "an_exec_after_attaching_begins_a_new_address_space";
    if skip_without_bpf(name) {
        return;
    }
    let many = program("manymaps");
    let mut shell = Command::new("sh");
    shell.args(["-c", "echo READY; read go; exec \"$0\" 30"]).arg(&many);
    let (mut target, mut out) = ready(&mut shell);
    let mut input = target.0.stdin.take().expect("a pipe");
    let audit = attach(&[target.0.id()], &[], |auditor| {
        input.write_all(b"go\n").expect("it reads");
        let mut line = String::new();
        out.read_line(&mut line).expect("it speaks");
        assert_eq!(line, "READY\n");
        interrupt(auditor);
    });
    let process = audit.report().first();
    assert_exact(process);
    assert_eq!(number(&process["coverage"], "preexisting"), 0, "nothing of the old program is left");
    assert!(number(&process["coverage"], "traced") >= 30 * 4096);
}

#[test]
fn children_are_followed_and_the_end_of_the_targets_ends_it() {
    if skip_without_bpf("children_are_followed_and_the_end_of_the_targets_ends_it") {
        return;
    }
    let script = "echo READY; read go; /bin/true; exit 7";
    let (mut one, _out) = ready(Command::new("sh").args(["-c", script]));
    let (mut two, _out2) = ready(Command::new("sh").args(["-c", script]));
    let pids = [one.0.id(), two.0.id()];
    let audit = attach(&pids, &[], |_| {
        drop(one.0.stdin.take());
        drop(two.0.stdin.take());
    });
    assert_eq!(audit.code(), Some(0), "{}", audit.stderr);
    let report = audit.report();
    for pid in pids {
        let process = report.process(u64::from(pid)).expect("each target is in it");
        assert_eq!((&process["exit_code"], &process["snapshot"]), (&7.into(), &"periodic".into()));
    }
    assert!(report.processes().len() >= 4, "two targets and their children: {}", report.processes().len());
}

/// Maps, gives back and grows, writes its maps, and ends.
const LAST_ACTS: &str = "
import mmap, os, sys, threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
given_back = [bytearray(30 << 20)]
kept = mmap.mmap(-1, 40 << 20)
kept[: 20 << 20] = b'x' * (20 << 20)
print('READY', flush=True)
sys.stdin.readline()
late = mmap.mmap(-1, 512 << 20)
late[: 8 << 20] = b'y' * (8 << 20)
grown = [b'q' * 1000 for _ in range(20000)]
given_back = None
truth = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
maps = os.open('/proc/self/maps', os.O_RDONLY)
while part := os.read(maps, 65536): os.write(truth, part)
os.kill(os.getpid(), 9) if sys.argv[2] == 'killed' else os._exit(3)";

/// `start-end perms` with neighbours alike as one.
fn joined(ranges: impl Iterator<Item = (u64, u64, String)>) -> Vec<(u64, u64, String)> {
    let mut all: Vec<(u64, u64, String)> = Vec::new();
    for (start, end, perms) in ranges {
        match all.last_mut() {
            Some((_, last, same)) if *last == start && *same == perms => *last = end,
            _ => all.push((start, end, perms)),
        }
    }
    all
}

fn joined_maps(maps: &str) -> Vec<(u64, u64, String)> {
    joined(maps.lines().filter(|line| !line.contains("[vsyscall]")).map(|line| {
        let (range, rest) = line.split_once(' ').expect("a line of maps");
        let (start, end) = range.split_once('-').expect("a range");
        let address = |text| u64::from_str_radix(text, 16).expect("an address");
        (address(start), address(end), rest[..4].to_owned())
    }))
}

fn joined_regions(process: &Value) -> Vec<(u64, u64, String)> {
    let address = |region: &Value, end: &str| {
        let text = region[end].as_str().and_then(|text| text.strip_prefix("0x"));
        u64::from_str_radix(text.expect("an address"), 16).expect("hexadecimal")
    };
    let regions = list(process, "regions").iter();
    joined(regions.map(|region| {
        let perms = region["prot"].as_str().expect("perms").to_owned();
        (address(region, "start"), address(region, "end"), perms)
    }))
}

#[test]
fn what_a_target_mapped_just_before_its_end_is_reported() {
    let name = "what_a_target_mapped_just_before_its_end_is_reported";
    if skip_without_bpf(name) || skip_without(name, "/usr/bin/python3") {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    for end in ["killed", "exits"] {
        let truth = folder.path().join(end);
        let (mut target, _out) = ready(python(LAST_ACTS).arg(&truth).arg(end));
        let recording = folder.path().join(format!("{end}.rec"));
        let options = ["-o", recording.to_str().expect("UTF-8")];
        let audit = attach(&[target.0.id()], &options, |_| drop(target.0.stdin.take()));
        let process = audit.report().first();
        let truth = std::fs::read_to_string(truth).expect("it reported its maps");
        assert_eq!(joined_regions(process), joined_maps(&truth), "{end}");
        assert_eq!(process["snapshot"], "periodic", "{end}");
        let totals = &process["totals"];
        let (unknown, rss) = (number(totals, "residency_unknown"), number(totals, "rss"));
        assert!((512 << 20..600 << 20).contains(&unknown), "{end}: {totals}");
        assert!((20 << 20..60 << 20).contains(&rss), "{end}: what was there before was seen: {totals}");
        assert_eq!(number(totals, "unused"), number(totals, "virt") - rss - number(totals, "swap"), "{end}");
        assert!(number(totals, "vm_peak") >= number(&process["peak"], "virt"), "{end}: {totals}");
        let late = &list(process, "findings")[0];
        assert_eq!(
            (number(late, "virt") >= 512 << 20, late["stack"].is_u64()),
            (true, true),
            "{end}: {late}"
        );
        assert_eq!(number(late, "residency_unknown"), 512 << 20, "{end}");
        let again = Command::new(vmaudit()).args(["report", "-f", "json"]).arg(&recording).output();
        let again: Value = serde_json::from_slice(&again.expect("vmaudit starts").stdout).expect("JSON");
        assert_eq!(again, audit.report().json, "{end}: the recording");
    }
}

#[test]
fn no_number_of_ended_processes_is_too_many() {
    if skip_without_bpf("no_number_of_ended_processes_is_too_many") {
        return;
    }
    const CHILDREN: usize = 1100;
    let script =
        format!("echo READY; read go; i=0; while [ $i -lt {CHILDREN} ]; do /bin/true; i=$((i+1)); done");
    let (mut shell, _out) = ready(Command::new("sh").args(["-c", &script]));
    let audit = attach(&[shell.0.id()], &[], |_| drop(shell.0.stdin.take()));
    assert_eq!(audit.report().event("lost"), 0);
    let processes = audit.report().processes();
    assert_eq!(processes.len(), CHILDREN + 1);
    for process in processes {
        assert!(number(&process["totals"], "virt") > 1 << 20, "{process}");
        assert_ne!(process["snapshot"], "live", "{process}");
    }
}

#[test]
fn what_cannot_be_traced_is_said() {
    let gone = Command::new("true").spawn().and_then(|mut child| child.wait().map(|_| child.id()));
    let gone = gone.expect("true runs").to_string();
    let run = |arguments: &[&str]| {
        let output = Command::new(vmaudit()).arg("attach").args(arguments).output().expect("vmaudit starts");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, said) = run(&["-p", &gone]);
    assert_eq!(code, Some(125));
    assert!(said.contains(&gone) && said.contains("no such process"), "{said}");
    // The first kernel thread, where this PID namespace has one.
    if Path::new("/proc/2/stat").exists()
        && std::fs::read_to_string("/proc/2/comm").is_ok_and(|comm| comm == "kthreadd\n")
    {
        let (code, said) = run(&["-p", "2"]);
        assert_eq!(code, Some(125));
        assert!(said.contains("kernel thread"), "{said}");
    }
    for bad in ["0", "-1", "99999999999999999999", "redis"] {
        assert_eq!(run(&["-p", bad]).0, Some(2), "{bad}");
    }
}

#[test]
fn a_thread_leads_to_its_process_and_one_of_several_may_be_gone() {
    let name = "a_thread_leads_to_its_process_and_one_of_several_may_be_gone";
    if skip_without_bpf(name) || skip_without(name, "/usr/bin/python3") {
        return;
    }
    let code = "
import sys, threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
print('READY', flush=True); sys.stdin.readline()
import os; os._exit(0)";
    let (target, _out) = ready(&mut python(code));
    let tasks = std::fs::read_dir(format!("/proc/{}/task", target.0.id())).expect("it lives");
    let ids = tasks.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let thread = ids.max().expect("threads");
    assert_ne!(thread, target.0.id());
    let gone = Command::new("true").spawn().and_then(|mut child| child.wait().map(|_| child.id()));
    let gone = gone.expect("true runs");
    let audit = attach(&[gone, thread], &[], interrupt);
    assert_eq!(audit.code(), Some(0), "{}", audit.stderr);
    assert!(
        audit.stderr.contains("no such process") && audit.stderr.contains("is a thread of"),
        "{}",
        audit.stderr
    );
    assert_eq!(audit.report().first()["pid"], target.0.id());
}

#[test]
fn two_auditors_of_one_process_both_report() {
    if skip_without_bpf("two_auditors_of_one_process_both_report") {
        return;
    }
    let (target, _out) = ready(Command::new(program("manymaps")).arg("50"));
    let pid = target.0.id();
    let mut inner = None;
    let outer = attach(&[pid], &[], |auditor| {
        inner = Some(attach(&[pid], &[], interrupt));
        interrupt(auditor);
    });
    for audit in [&outer, inner.as_ref().expect("it ran")] {
        assert_exact(audit.report().first());
    }
}

/// Jemalloc's extents that the load makes have stacks; those from before say that they have none.
#[test]
fn redis_under_load() {
    let name = "redis_under_load";
    if skip_without_bpf(name) || skip_without(name, "/usr/bin/redis-server") {
        return;
    }
    let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
    let port = port.expect("a free port").port().to_string();
    let mut server = Command::new("redis-server");
    server.args(["--port", &port, "--save", "", "--bind", "127.0.0.1"]).stdout(Stdio::piped());
    let mut server = Guard(server.spawn().expect("redis-server starts"));
    let mut log = BufReader::new(server.0.stdout.take().expect("a pipe"));
    let mut line = String::new();
    while !line.contains("Ready to accept connections") {
        line.clear();
        assert!(log.read_line(&mut line).expect("a log") > 0, "redis-server ended");
    }
    let audit = attach(&[server.0.id()], &[], |auditor| {
        let load = ["-p", &port, "-q", "-n", "20000", "-r", "100000", "-d", "1000", "-t", "set"];
        assert!(Command::new("redis-benchmark").args(load).output().expect("a client").status.success());
        interrupt(auditor);
    });
    let process = audit.report().first();
    assert_exact(process);
    assert!(category(process, "jemalloc").is_some() && category(process, "thread-stack").is_some());
    let stacks: Vec<Vec<String>> =
        list(process, "regions").iter().map(|r| audit.report().stack_names(&r["origin"]["stack"])).collect();
    let by_load = stacks.iter().find(|stack| stack.iter().any(|frame| frame.ends_with("!main")));
    assert!(by_load.is_some(), "no mapping of the load has a stack that reaches main");
    assert!(list(process, "findings").iter().any(|finding| number(finding, "preexisting") > 0));
    server.signal(libc::SIGTERM);
    let status = server.0.wait().expect("it ends");
    assert_eq!((status.code(), status.signal()), (Some(0), None), "unharmed");
}

/// Children map, unmap and end between snapshots of them and their comparison: what a snapshot saw has an owner.
#[test]
fn children_that_end_during_a_snapshot_leave_nothing_unknown() {
    let name = "children_that_end_during_a_snapshot_leave_nothing_unknown";
    if skip_without_bpf(name) || skip_without(name, "/usr/bin/python3") {
        return;
    }
    let code = "
import mmap, os, select, sys
print('READY', flush=True)
while not select.select([sys.stdin], [], [], 0)[0]:
    for child in range(8):
        if os.fork() == 0:
            for step in range(3):
                area = mmap.mmap(-1, 1 << 20)
                select.select([], [], [], child / 200)
                area.close()
            if child == 3:
                os.execv('/bin/true', ['true'])
            os._exit(0)
    for child in range(8):
        os.wait()";
    let (mut target, _out) = ready(&mut python(code));
    let audit = attach(&[target.0.id()], &["--duration", "2"], |_| {});
    drop(target.0.stdin.take());
    assert_eq!(target.0.wait().expect("it ends").code(), Some(0), "unharmed");
    let processes = audit.report().processes();
    let seen = processes.iter().filter(|process| process["residency"] == "pagemap-scan").count();
    assert!(seen > 1, "only {seen} of {} were examined", processes.len());
    processes.iter().for_each(assert_exact);
}

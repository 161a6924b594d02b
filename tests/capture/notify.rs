//! The `notify` backend: no privileges, every call seen while its thread waits in it. Reports are held
//! against maps files, stacks against the BPF backend's.

use crate::support::churn::{command_of, mode, run_seed, run_turmoil, what_is_wrong};
use crate::support::death::assert_survives_death_of_vmaudit;
use crate::support::report::number;
use crate::support::stacks::{Calls, Comparison, calls_of};
use crate::support::{
    self, Guard, audit, demo_program, finished, program, run_command, skip, skip_without, skip_without_bpf,
    under_limits, vmaudit, watchdog,
};
use serde_json::Value;
use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::process::{Command, Stdio};

const NOTIFY: [&str; 2] = ["--backend", "notify"];
const SEEDS: u64 = 24;

fn words(command: &[&str]) -> Vec<OsString> {
    command.iter().map(OsString::from).collect()
}

fn churn(shard: u64) {
    let failures: Vec<String> = (0..SEEDS)
        .filter(|seed| seed / 8 == shard)
        .filter_map(|seed| {
            let wrong = run_seed(seed, &NOTIFY);
            (!wrong.is_empty()).then(|| format!("seed {seed} ({}): {}", mode(seed), wrong.join("\n")))
        })
        .collect();
    assert!(failures.is_empty(), "{} seeds failed\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn random_work_of_threads_and_children_0() {
    churn(0);
}

#[test]
fn random_work_of_threads_and_children_1() {
    churn(1);
}

#[test]
fn random_work_of_threads_and_children_2() {
    churn(2);
}

/// The results of calls that fail, some after half of their work, are what the kernel shows, and no guess.
fn turmoil(mode: &str, threads: u64) {
    let failures: Vec<String> = (1..=4)
        .filter_map(|seed| {
            let wrong = run_turmoil(seed, threads, mode, &NOTIFY);
            (!wrong.is_empty()).then(|| format!("seed {seed}: {}", wrong.join("\n")))
        })
        .collect();
    assert!(failures.is_empty(), "{} seeds failed\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn calls_that_fail_are_followed() {
    turmoil("plain", 4);
}

#[test]
fn calls_that_fail_for_lack_of_memory_are_followed() {
    turmoil("tight", 3);
}

#[test]
fn calls_of_threads_that_take_no_notice_of_each_other_are_followed() {
    turmoil("shared", 5);
}

/// One seed with as many descriptors as `limits` allow: what is wrong, and what vmaudit said.
fn churn_under(limits: &str, seed: u64) -> (Vec<String>, support::Audit) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let report = folder.path().join("report.json");
    let command = command_of(seed, folder.path());
    let command = command.each_ref().map(|word| word.as_os_str());
    let mut run = under_limits(limits, &run_command(&report, &NOTIFY, &command));
    let audit = finished(watchdog::output(&mut run), &report);
    (what_is_wrong(&audit, folder.path(), &["ledger_drift", "unknown", "preexisting"]), audit)
}

/// Five threads and a dozen children with 32 descriptors: where those are all that there are, what was not followed
/// is said, and all else is right.
#[test]
fn few_descriptors() {
    for seed in [0, 1, 6] {
        let (wrong, audit) = churn_under("-Sn 32", seed);
        assert!(wrong.is_empty(), "seed {seed}: {} {}", wrong.join("\n"), audit.stderr);
        let (wrong, audit) = churn_under("-n 32", seed);
        let all_missing = wrong.iter().all(|wrong| wrong.ends_with("is not in the report"));
        assert!(all_missing, "seed {seed}: {} {}", wrong.join("\n"), audit.stderr);
        for said in ["could not be followed", "could not be opened, because vmaudit may have 32 open"] {
            assert!(wrong.is_empty() || audit.stderr.contains(said), "seed {seed}: {}", audit.stderr);
        }
    }
}

/// Another tool probes libc: each program gets a page at the first hit that no call of its own has mapped,
/// where an instruction is single-stepped.
#[test]
fn probes_of_others_are_no_calls() {
    if skip_without_bpf("notify") {
        return;
    }
    // An instruction that the kernel executes itself needs no page.
    const FUNCTIONS: [&str; 2] = ["memfd_create", "posix_fadvise"];
    let pattern = format!("^({})$", FUNCTIONS.join("|"));
    let libc = ["--lib", "libc.so.6", "--match", &pattern];
    let listed =
        Command::new(vmaudit()).args(["symbols", "-f", "json"]).args(libc).output().expect("vmaudit starts");
    let listed: Value = serde_json::from_slice(&listed.stdout).expect("JSON");
    let functions = listed["files"][0]["functions"].as_array().expect("functions");
    if functions.iter().filter(|row| row["site"]["cost"] == "single-stepped").count() < FUNCTIONS.len() {
        return skip("notify", "this libc's memfd_create and posix_fadvise need no single step");
    }
    let mut probes = Command::new(vmaudit());
    probes
        .args(["probe", "--all-processes"])
        .args(libc)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut probes = Guard(probes.spawn().expect("vmaudit starts"));
    // cat calls posix_fadvise before it reads.
    let is_probed = || {
        let maps = Command::new("/bin/cat").arg("/proc/self/maps").output().expect("cat starts");
        String::from_utf8_lossy(&maps.stdout).contains("[uprobes]")
    };
    while !is_probed() {
        if probes.0.try_wait().expect("waited").is_some() {
            return skip("notify", "libc cannot be probed here");
        }
    }
    for seed in [12, 13] {
        let wrong = run_seed(seed, &NOTIFY);
        assert!(wrong.is_empty(), "seed {seed}: {}", wrong.join("\n"));
    }
}

/// Nothing lost, nothing unknown, no byte on which ledger and kernel disagree.
fn audit_exactly(command: &[OsString]) -> support::Audit {
    let audit = audit(&NOTIFY, command);
    let report = audit.report();
    assert_eq!(report.json["backend"], "notify");
    assert_eq!(report.event("lost"), 0, "{}", audit.stderr);
    assert!(!audit.stderr.contains("could not be followed"), "{}", audit.stderr);
    for process in report.json["processes"].as_array().expect("processes") {
        for key in ["ledger_drift", "unknown", "preexisting"] {
            assert_eq!(number(&process["coverage"], key), 0, "{key} of {:.400}", process.to_string());
        }
    }
    audit
}

#[test]
fn the_demonstration_program_is_explained() {
    let demo = match demo_program() {
        Ok(demo) => demo,
        Err(why) => return skip("notify", &why),
    };
    let audit = audit_exactly(&[demo.into_os_string()]);
    let process = audit.report().first();
    let arenas = process["categories"].as_array().expect("categories");
    let arenas = arenas.iter().find(|c| c["id"] == "glibc-arena").expect("glibc's arenas");
    assert_eq!(number(arenas, "virt") % (64 << 20), 0, "whole heaps");
    assert_eq!(process["threads_seen"], 4);
    assert_eq!(process["exit_code"], 0);
}

#[test]
fn real_programs_to_the_byte() {
    let python = "import json, threading; [threading.Thread(target=lambda: bytearray(10**6)).start() \
                  for _ in range(4)]; x = json.dumps([str(i) * 9 for i in range(30000)])";
    let commands: [&[&str]; 4] = [
        &["/usr/bin/python3", "-c", python],
        &["/bin/sh", "-c", "for i in 1 2 3; do ls / | cat >/dev/null; (true; true) & done; wait; exit 5"],
        &["/usr/bin/perl", "-e", "my @a = map { [1..50] } 1..3000; print scalar @a;"],
        &["/bin/bash", "-c", "x=$(seq 2000); exec /bin/true"],
    ];
    for command in commands {
        if !skip_without("notify", command[0]) {
            audit_exactly(&words(command));
        }
    }
    let status = audit(&NOTIFY, &words(commands[1])).code();
    assert_eq!(status, Some(5));
}

#[test]
fn calls_that_are_refused_and_odd_ones() {
    audit_exactly(&[program("oddcalls").into_os_string()]);
    let audit = audit(&NOTIFY, &[program("hugetlb").into_os_string()]);
    let report = audit.report();
    assert_eq!(number(&report.first()["coverage"], "ledger_drift"), 0);
}

/// What a fork copies is what the threads' advice before it says, and not the advice after it.
#[test]
fn advice_about_forks_and_forks_keep_their_order() {
    let audit = audit_exactly(&[program("forkadvice").into_os_string()]);
    assert_eq!(audit.report().processes().len(), 61);
}

/// Each generation's first thread is in vfork while another one executes the next: the child is left in an
/// address space that everybody else has left, its own execve on its way.
#[test]
fn a_vfork_child_outlives_the_program_that_started_it() {
    for _ in 0..2 {
        let audit = audit_exactly(&[program("exec_race").into_os_string(), "40".into()]);
        assert_eq!(audit.code(), Some(0), "{}", audit.stderr);
        assert!(audit.report().processes().len() > 10, "{}", audit.stderr);
    }
}

#[test]
fn death_by_a_signal() {
    for signal in [libc::SIGSEGV, libc::SIGKILL] {
        let command = [program("ends").into_os_string(), "kill".into(), signal.to_string().into()];
        let audit = audit(&NOTIFY, &command);
        assert_eq!(audit.code(), Some(128 + signal), "{}", audit.stderr);
        assert_eq!(audit.report().first()["signal"].as_i64(), Some(i64::from(signal)));
    }
}

/// The rest of its calls are notified, and the keeper lets them go.
#[test]
fn the_target_survives_the_death_of_vmaudit() {
    assert_survives_death_of_vmaudit(&NOTIFY);
}

/// vmaudit dies while the target's threads are in the middle of calls: all of them go on.
#[test]
fn calls_under_way_survive_the_death_of_vmaudit() {
    for round in 0..6 {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let maps = folder.path().join("maps");
        let churn = program("churn").into_os_string();
        let command = [churn, "3".into(), "4".into(), "400".into(), maps.into(), "normal".into()];
        let mut run = run_command(&folder.path().join("report.json"), &NOTIFY, &command);
        // The pipe's end is the last process's end.
        run.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut tracer = Guard(run.spawn().expect("vmaudit starts"));
        let mut output = tracer.0.stdout.take().expect("a pipe");
        let target = loop {
            let children = format!("/proc/{0}/task/{0}/children", tracer.0.id());
            let pids = fs::read_to_string(children).unwrap_or_default();
            let threads = |pid: &str| fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
            if let Some(pid) = pids.split_whitespace().find(|pid| threads(pid) > 1 + round % 3) {
                break pid.to_owned();
            }
            if tracer.0.try_wait().expect("waited").is_some() {
                break String::new();
            }
        };
        assert!(!target.is_empty(), "the target ended before it could be caught at work");
        tracer.signal(libc::SIGKILL);
        tracer.0.wait().expect("waited");
        output.read_to_end(&mut Vec::new()).expect("all processes end");
        let written = fs::read_dir(folder.path()).expect("the folder").flatten();
        let own = format!("maps.{target}");
        assert!(written.into_iter().any(|e| e.file_name() == *own), "the target did not reach its end");
    }
}

#[test]
fn command_lines_that_cannot_be() {
    let run = |options: &[&str], command: &[OsString]| {
        let mut run = Command::new(vmaudit());
        run.args(["run", "--as-root"]).args(options).arg("--").args(command);
        let out = run.output().expect("vmaudit starts");
        (out.status.code(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    let (code, said) = run(&["--backend", "notify", "--no-exit-hold"], &words(&["true"]));
    assert!(code == Some(2) && said.contains("--no-exit-hold"), "{code:?} {said}");
    let (code, said) = run(&["--backend", "notify", "--touch"], &words(&["true"]));
    assert!(code == Some(2) && said.contains("bpf"), "{code:?} {said}");
    let (code, _) = run(&NOTIFY, &words(&["/no/such/command"]));
    assert_eq!(code, Some(127));
    // Only one listener can be: the inner one is refused, and says so.
    let inner = vmaudit().into_os_string();
    let inner = [inner, "run".into(), "--backend".into(), "notify".into(), "--".into(), "true".into()];
    let (code, said) = run(&NOTIFY, &inner);
    assert_eq!(code, Some(125), "{said}");
    assert!(said.contains("EBUSY") && said.contains("vmaudit snapshot"), "{said}");
}

/// As a user without any privilege, in namespaces of its own and without any capability.
#[test]
fn without_any_privilege() {
    // SAFETY: takes nothing.
    if unsafe { libc::geteuid() } != 0 || skip_without("notify", "/usr/bin/setpriv") {
        return skip("notify", "not root, so that there is nothing to give up");
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let copy = |from: &std::path::Path, name: &str| {
        let to = folder.path().join(name);
        fs::copy(from, &to).expect("copied");
        to
    };
    let (tool, churn) = (copy(&vmaudit(), "vmaudit"), copy(&program("snapshot_threads"), "threads"));
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(folder.path(), open).expect("chmod");
    let mut run = Command::new("/usr/bin/setpriv");
    run.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all", "--no-new-privs"]);
    run.arg(tool).args(["run", "--backend", "notify", "-f", "json", "--"]).arg(churn);
    let out = run.stdin(Stdio::null()).output().expect("setpriv starts");
    let said = String::from_utf8_lossy(&out.stderr);
    let text = String::from_utf8_lossy(&out.stdout);
    let json = text.find("{\n").or_else(|| text.find("{\"")).map(|at| &text[at..]).unwrap_or_default();
    let mut values = serde_json::Deserializer::from_str(json).into_iter::<Value>();
    let report = values.next().and_then(Result::ok).unwrap_or_else(|| panic!("no report: {said} {text}"));
    assert_eq!(report["backend"], "notify");
    assert_eq!(report["processes"][0]["coverage"]["ledger_drift"], 0);
    assert_eq!(report["processes"][0]["threads_seen"], 4);
}

/// The calls of a command, with their stacks, as one backend sees them.
fn calls(backend: &str, command: &[OsString]) -> Calls {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("events");
    let mut run = Command::new(vmaudit());
    run.args(["events", "--as-root", "--backend", backend, "--aslr", "off", "-f", "json", "--report"]);
    run.arg(&file).arg("--").args(command).stdin(Stdio::null()).stdout(Stdio::null());
    // Where things lie depends on these.
    run.env("PYTHONHASHSEED", "0").env("PERL_HASH_SEED", "0");
    let out = run.output().expect("vmaudit starts");
    assert!(file.exists(), "{}", String::from_utf8_lossy(&out.stderr));
    calls_of(&fs::read_to_string(file).expect("the events"), |_| true)
}

/// Every stack is the BPF backend's, or its beginning, or what differs is marked as a guess.
#[test]
fn stacks_are_those_of_the_bpf_backend_or_say_where_they_are_guessed() {
    if skip_without_bpf("notify") {
        return;
    }
    let python = "import json, re, decimal; re.findall('a(b|c)*', 'abcb' * 999); json.dumps([9] * 30000)";
    let mut commands = vec![
        words(&["/usr/bin/python3", "-c", python]),
        words(&["/usr/bin/perl", "-e", "my @a = map { [1..50] } 1..3000; print scalar @a;"]),
        words(&["/bin/bash", "-c", "x=$(seq 3000); echo ${#x} | cat"]),
        words(&["/bin/ls", "-lR", "/etc"]),
        vec![program("snapshot_threads").into_os_string()],
        vec![program("unwind_deep").into_os_string()],
    ];
    commands.extend(demo_program().ok().map(|demo| vec![demo.into_os_string()]));
    commands.retain(|command| !skip_without("notify", command[0].to_str().unwrap_or_default()));
    let mut found = Comparison::default();
    for command in &commands {
        found.add(&calls("bpf", command), &calls("notify", command));
    }
    let Comparison { equal, marked, wrong } = found;
    let compared = equal + marked + wrong.len();
    assert!(wrong.is_empty(), "{} of {compared} differ unmarked:\n{}", wrong.len(), wrong.join("\n"));
    assert!(compared > 200, "only {compared} calls compared");
    assert!(equal * 10 >= compared * 6, "{equal} of {compared} are equal, {marked} marked");
}

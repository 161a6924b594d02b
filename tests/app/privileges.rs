//! What vmaudit does with less than root: as an ordinary user with a few capabilities, as a binary with
//! file capabilities, with nothing; and what `doctor` says of each.

use crate::support::report::number;
use crate::support::unprivileged::{Bench, DOCUMENTED, finish, skip_without_root};
use crate::support::{AuditReport, skip, skip_without_bpf, vmaudit};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::process::Command;

const BOTH: &[&str] = &["bpf", "perfmon"];

/// What `doctor -f json` says, and its exit code.
fn doctor(command: &mut Command) -> (Value, Option<i32>) {
    let (output, said) = finish(command.args(["doctor", "-f", "json"]));
    let parsed = serde_json::from_slice(&output.stdout);
    (parsed.unwrap_or_else(|error| panic!("{error}: {said}")), output.status.code())
}

fn trial<'a>(diagnosis: &'a Value, id: &str) -> &'a Value {
    let trials = diagnosis["trials"].as_array().expect("trials");
    trials.iter().find(|trial| trial["id"] == id).unwrap_or_else(|| panic!("no trial {id}"))
}

fn backend<'a>(diagnosis: &'a Value, name: &str) -> &'a Value {
    let backends = diagnosis["backends"].as_array().expect("backends");
    backends.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("no backend {name}"))
}

fn assert_exact(report: &AuditReport) {
    let coverage = &report.first()["coverage"];
    assert_eq!((number(coverage, "ledger_drift"), number(coverage, "unknown")), (0, 0), "{coverage}");
}

#[test]
fn two_capabilities_are_enough_for_bpf() {
    let name = "two_capabilities_are_enough_for_bpf";
    if skip_without_bpf(name) || skip_without_root(name) {
        return;
    }
    let bench = Bench::new();
    let (output, said) = finish(bench.with(BOTH).args([
        "run",
        "--backend",
        "bpf",
        "-f",
        "json",
        "--report",
        "r.json",
        "--",
        "/bin/true",
    ]));
    assert_eq!(output.status.code(), Some(0), "{said}");
    let report = bench.report("r.json");
    assert_eq!(report.json["backend"], "bpf");
    assert_exact(&report);
    let (diagnosis, code) = doctor(&mut bench.with(BOTH));
    assert_eq!((code, &diagnosis["auto"]), (Some(0), &Value::from("bpf")));
    for expected in ["bpf-load", "bpf-ringbuf", "bpf-raw-tracepoint", "seccomp-notify", "smaps-own"] {
        assert_eq!(trial(&diagnosis, expected)["result"], "works", "{expected}");
    }
}

#[test]
fn one_of_the_two_is_not_enough_and_the_advice_says_which() {
    let name = "one_of_the_two_is_not_enough_and_the_advice_says_which";
    if skip_without_root(name) {
        return;
    }
    let bench = Bench::new();
    for (has, lacks) in [("bpf", "CAP_PERFMON is missing"), ("perfmon", "CAP_BPF is missing")] {
        let (output, said) = finish(bench.with(&[has]).args(["run", "--backend", "bpf", "--", "/bin/true"]));
        assert_eq!(output.status.code(), Some(125), "{said}");
        assert!(said.contains("the backend bpf cannot work here"), "{said}");
        // Under a container's profile the advice is another.
        assert!(said.contains(lacks) || said.contains("container"), "{said}");
        assert!(said.contains("vmaudit doctor"), "{said}");
    }
}

/// LD_LIBRARY_PATH is taken from the environment of vmaudit itself, whose file has capabilities; the
/// command has none, and runs as it would without vmaudit.
#[test]
fn a_binary_with_capabilities_hands_down_the_environment_and_no_capability() {
    let name = "a_binary_with_capabilities_hands_down_the_environment_and_no_capability";
    if skip_without_bpf(name) || skip_without_root(name) {
        return;
    }
    let Some(bench) = Bench::with_file_capabilities(name, DOCUMENTED) else { return };
    let script = "echo library=$LD_LIBRARY_PATH; grep ^Cap /proc/self/status";
    let mut command = bench.with(&[]);
    command.env("LD_LIBRARY_PATH", "/nowhere").env("LD_PRELOAD", "");
    let run = ["run", "--backend", "bpf", "-f", "json", "--report", "r.json", "--", "/bin/sh", "-c", script];
    let (output, said) = finish(command.args(run));
    assert_eq!(output.status.code(), Some(0), "{said}");
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(printed.contains("library=/nowhere\n"), "{printed}");
    for set in ["CapPrm", "CapEff", "CapInh", "CapAmb"] {
        assert!(printed.contains(&format!("{set}:\t0000000000000000\n")), "{printed}");
    }
    assert_exact(&bench.report("r.json"));
}

#[test]
fn auto_says_in_one_line_what_it_takes_and_why_not_better() {
    let name = "auto_says_in_one_line_what_it_takes_and_why_not_better";
    if skip_without_root(name) {
        return;
    }
    let bench = Bench::new();
    let (diagnosis, code) = doctor(&mut bench.with(&[]));
    assert_eq!(trial(&diagnosis, "bpf-load")["errno_name"], "EPERM");
    assert_eq!(backend(&diagnosis, "bpf")["works"], false);
    assert!(backend(&diagnosis, "bpf")["error"].as_str().is_some_and(|text| text.contains("not permitted")));
    if code != Some(0) {
        return skip(name, "an ordinary user can trace nothing here");
    }
    let run = ["run", "-f", "json", "--report", "r.json", "--", "/bin/true"];
    let (output, said) = finish(bench.with(&[]).args(run));
    assert_eq!(output.status.code(), Some(0), "{said}");
    let taken = bench.report("r.json").json["backend"].as_str().map(str::to_owned).unwrap_or_default();
    assert!(["perf", "notify"].contains(&taken.as_str()), "{taken}");
    let lines: Vec<&str> = said.lines().filter(|line| line.contains("because")).collect();
    assert_eq!(lines.len(), 1, "{said}");
    assert!(lines[0].starts_with(&format!("vmaudit: backend {taken}, because ")), "{said}");
    assert_exact(&bench.report("r.json"));
}

#[test]
fn what_a_backend_cannot_see_is_an_unusable_command_line() {
    let own = std::process::id().to_string();
    for backend in ["perf", "notify"] {
        let mut command = Command::new(vmaudit());
        let (output, said) = finish(command.args(["attach", "--backend", backend, "-p", &own]));
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("running processes need --backend bpf"), "{said}");
    }
}

/// A profile that forbids everything that tracing could rest on.
#[test]
fn where_nothing_works_doctor_says_so_and_exits_1() {
    let name = "where_nothing_works_doctor_says_so_and_exits_1";
    let forbid = |mut command: Command| {
        // SAFETY: between fork and exec only prctl(2) is called, with memory of its own.
        unsafe { command.pre_exec(forbid_tracing) };
        command
    };
    let (diagnosis, code) = doctor(&mut forbid(Command::new(vmaudit())));
    assert_eq!((code, &diagnosis["auto"]), (Some(1), &Value::Null), "{name}");
    assert_eq!(diagnosis["machine"]["seccomp_filter"], true);
    for id in ["bpf-load", "perf-tracepoint", "seccomp-notify"] {
        assert_eq!(trial(&diagnosis, id)["errno_name"], "EPERM", "{id}");
    }
    assert_eq!(diagnosis["advice"].as_array().map(Vec::len), Some(3), "one for each backend");
    let (output, said) =
        finish(forbid(Command::new(vmaudit())).args(["run", "--as-root", "--", "/bin/true"]));
    assert_eq!(output.status.code(), Some(125), "{said}");
    for backend in ["bpf", "perf", "notify"] {
        assert!(said.contains(&format!("the backend {backend} cannot work here")), "{said}");
    }
}

fn forbid_tracing() -> std::io::Result<()> {
    let step = |code: u32, jt: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf: 0, k };
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let end = libc::BPF_RET | libc::BPF_K;
    let mut program = [
        // seccomp_data.nr
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        step(equal, 3, libc::SYS_bpf as u32),
        step(equal, 2, libc::SYS_perf_event_open as u32),
        step(equal, 1, libc::SYS_seccomp as u32),
        step(end, 0, libc::SECCOMP_RET_ALLOW),
        step(end, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: prctl with integers, then with a filter that outlives the call.
    let failed = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
            || libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) != 0
    };
    if failed { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}

/// As inside a container: the kernel's numbers of the processes are not those of /proc.
#[test]
fn in_a_pid_namespace_of_its_own_bpf_sees_and_finds_the_command() {
    let name = "in_a_pid_namespace_of_its_own_bpf_sees_and_finds_the_command";
    if skip_without_bpf(name) || skip_without_root(name) {
        return;
    }
    let bench = Bench::new();
    let mut inside = Command::new("unshare");
    inside.args(["--pid", "--fork", "--mount-proc"]).arg(bench.path("vmaudit"));
    inside
        .args(["run", "--as-root", "--backend", "bpf", "--min-virt", "0", "-f", "json", "--report"])
        .arg(bench.path("r.json"));
    let (output, said) = finish(inside.args(["--", "/bin/sh", "-c", "/bin/true; exit 7"]));
    assert_eq!(output.status.code(), Some(7), "{said}");
    let report = bench.report("r.json");
    let processes = report.json["processes"].as_array().expect("processes");
    assert_eq!(processes.len(), 2, "{said}");
    for process in processes {
        assert!(number(process, "pid") < 100, "a number of the namespace: {}", process["pid"]);
        assert!(number(&process["totals"], "rss") > 0, "it was examined: {}", process["totals"]);
        assert_eq!(number(&process["coverage"], "ledger_drift"), 0, "{}", process["coverage"]);
    }
}

#[test]
fn the_table_fits_the_terminal_and_changes_nothing() {
    let mounts = || fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
    let before = mounts();
    let (output, said) = finish(Command::new(vmaudit()).arg("doctor"));
    assert_eq!(before, mounts());
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(text.starts_with("vmaudit ") && text.contains("backends, the best first"), "{text}{said}");
    // A command to copy is never broken.
    let table = text.split("\nFor ").next().unwrap_or_default();
    let wide: Vec<&str> = table.lines().filter(|line| line.chars().count() > 100).collect();
    assert!(wide.is_empty(), "{wide:#?}");
}

/// The names of the programs in the objects, by the objects themselves.
fn programs_in_the_objects() -> BTreeSet<String> {
    use libbpf_rs::OpenObject;
    use libbpf_rs::skel::{OpenSkel, SkelBuilder};
    use vmaudit::capture::{bpf, heap, uprobe};
    let names = |object: &OpenObject| -> Vec<String> {
        object.progs().map(|program| program.name().to_string_lossy().into_owned()).collect()
    };
    let mut storage = [const { MaybeUninit::<OpenObject>::uninit() }; 3];
    let [mappings, allocators, counts] = &mut storage;
    let mappings = bpf::skel::VmauditSkelBuilder::default().open(mappings).expect("an object");
    let allocators = heap::skel::HeapSkelBuilder::default().open(allocators).expect("an object");
    let counts = uprobe::skel::ProbeSkelBuilder::default().open(counts).expect("an object");
    let objects = [mappings.open_object(), allocators.open_object(), counts.open_object()];
    objects.into_iter().flat_map(names).collect()
}

/// True of a program that no command loads on this kernel (docs/backends.md, "bpf").
fn is_for_newer_kernels(program: &str) -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("a release");
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().unwrap_or(0));
    let version: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let on_functions = ["syscall_returned", "combined_unmapping", "combined_unmapped"];
    program.contains("_spare") && version < (7, 0) || on_functions.contains(&program) && version < (7, 2)
}

#[test]
fn doctor_loads_every_program_and_has_a_verdict_on_every_command() {
    let name = "doctor_loads_every_program_and_has_a_verdict_on_every_command";
    if skip_without_bpf(name) {
        return;
    }
    let (diagnosis, code) = doctor(&mut Command::new(vmaudit()));
    let tried = diagnosis["programs"].as_array().expect("programs");
    let names: BTreeSet<String> =
        tried.iter().filter_map(|row| row["program"].as_str()).map(str::to_owned).collect();
    let mut expected = programs_in_the_objects();
    expected.retain(|program| !is_for_newer_kernels(program));
    assert_eq!(names, expected);
    for row in tried {
        let refused = row["result"] == "refused";
        assert_eq!(row["error"].is_string(), refused, "{row}");
        assert!(refused || row["result"] == "loaded", "{row}");
    }
    let commands = diagnosis["commands"].as_array().expect("commands");
    for expected in
        ["run", "attach", "--touch", "--container", "heap", "heap --combined", "probe", "probe --stacks"]
    {
        let row =
            commands.iter().find(|row| row["name"].as_str().is_some_and(|name| name.starts_with(expected)));
        let row = row.unwrap_or_else(|| panic!("no verdict on {expected}"));
        assert_eq!(row["how"].is_string(), row["works"] == true, "{row}");
        assert_eq!(row["why"].is_string(), row["works"] == false, "{row}");
    }
    // What it says works does.
    assert_eq!(code, Some(0));
    let heap = commands.iter().find(|row| row["name"] == "heap").expect("a verdict");
    let (output, said) = finish(
        Command::new(vmaudit()).args(["heap", "--method", "uprobes", "-v", "--", "/bin/sh", "-c", "exit 4"]),
    );
    assert_eq!(output.status.code() == Some(4), heap["works"] == true, "{heap}: {said}");
    if let Some(how) = heap["how"].as_str() {
        assert!(said.contains(how), "{how}: {said}");
    }
}

#[test]
fn without_capabilities_doctor_says_which_commands_lack_what() {
    let name = "without_capabilities_doctor_says_which_commands_lack_what";
    if skip_without_root(name) {
        return;
    }
    let (diagnosis, _) = doctor(&mut Bench::new().with(&[]));
    assert_eq!(diagnosis["programs"].as_array().map(Vec::len), Some(0), "none can be loaded");
    for row in diagnosis["commands"].as_array().expect("commands") {
        let name = row["name"].as_str().unwrap_or_default();
        // What needs a command of the user's own works for everybody.
        if !matches!(name, "heap -- CMD") && !name.starts_with("run") {
            assert_eq!(row["works"], false, "{row}");
            let why = row["why"].as_str().unwrap_or_default();
            assert!(why.contains("missing") || why.contains("container"), "{row}");
        }
    }
}

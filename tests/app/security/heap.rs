//! The preloaded library's trust boundary (docs/security.md): who gets in, what a hostile process can do to vmaudit, and what
//! counting leaves in a process that did not ask for it.

use crate::support::heap::{Obedient, Watching, rows_of, sum};
use crate::support::report::{list, number};
use crate::support::unprivileged::{as_nobody, skip_without_root};
use crate::support::{Guard, program, skip, vmaudit, watchdog};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use vmaudit::capture::preload::layout::{self, Doubts, Head, PARTS};

const MIB: u64 = 1 << 20;
/// Debian's: every user may run it.
const PYTHON: &str = "/usr/bin/python3";

fn heap(options: &[&str], command: &mut Command) -> (Value, Output) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("report.json");
    let mut heap = Command::new(vmaudit());
    heap.args(["heap", "--as-root", "-f", "json", "--report"]).arg(&file).args(options).arg("--");
    heap.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        heap.env(name, value.expect("a value"));
    }
    let output = watchdog::output(&mut heap);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let text = fs::read(&file).unwrap_or_else(|_| panic!("no report: {said}"));
    (serde_json::from_slice(&text).expect("JSON"), output)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Offsets in the file, as the program `heap_hostile` takes them.
fn offsets(seed: u64) -> Vec<String> {
    let part = |number: usize| PARTS[number].at;
    [
        ("head", 64),
        ("last_stack", std::mem::offset_of!(Head, last_stack)),
        ("next_leaf", std::mem::offset_of!(Head, next_leaf)),
        ("next_chunk", std::mem::offset_of!(Head, next_chunk)),
        ("doubts", std::mem::offset_of!(Head, doubts)),
        ("rules", part(layout::RULE_PART)),
        ("stacks", part(layout::STACK_PART)),
        ("words", part(layout::WORD_PART)),
        ("nodes", part(layout::NODE_PART)),
        ("owners", part(layout::OWNER_PART)),
        ("counts", part(layout::COUNT_PART)),
        ("leaf_windows", part(layout::LEAF_WINDOW_PART)),
        ("leaves", part(layout::LEAF_PART)),
        ("blocks", part(layout::BLOCK_PART)),
        ("samples", part(layout::SAMPLE_PART)),
        ("seed", seed as usize),
    ]
    .map(|(name, at)| format!("{name}={at}"))
    .into()
}

const _: () = assert!(size_of::<Doubts>() >= 80);

/// What the process says of itself is bounded by what it has written, and a process can end neither vmaudit nor itself by it.
#[test]
fn a_process_that_forges_its_figures_costs_little_and_harms_nobody() {
    let name = "a_process_that_forges_its_figures_costs_little_and_harms_nobody";
    if skip_without_root(name) {
        return;
    }
    let hostile = program("heap_hostile");
    for mode in ["truncate", "blocks", "stacks", "overflow"] {
        let (report, output) = heap(&[], Command::new(&hostile).arg(mode).args(offsets(0)));
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{mode}: {said}");
        let printed = text(&output.stdout);
        let [process] = list(&report, "processes") else { panic!("{mode}: {report:#}") };
        let claims = process["gaps"].to_string().contains("cannot be true");
        match mode {
            "truncate" => assert_eq!(printed, "cut 1 longer 1\ndone\n", "EPERM"),
            _ => assert!(claims && printed == "done\n", "{mode}: {printed} {process:#}"),
        }
        assert!(number(&process["totals"], "outstanding_bytes") < 1 << 47, "{mode}: {process:#}");
    }
    for seed in 1..=20 {
        let (_, output) = heap(&[], Command::new(&hostile).arg("noise").args(offsets(seed)));
        assert_eq!(output.status.code(), Some(0), "{seed}: {}", text(&output.stderr));
        assert_eq!(text(&output.stdout), "done\n", "{seed}");
    }
}

/// Peak memory of vmaudit (getrusage(2), of a child): a target of 1 MiB that points to the same frames again and again.
#[test]
fn forged_tables_take_no_more_than_real_ones() {
    if skip_without_root("forged_tables_take_no_more_than_real_ones") {
        return;
    }
    let hostile = program("heap_hostile");
    for mode in ["blocks", "stacks"] {
        let mut measured = Command::new("bash");
        let script =
            r#"exec 3>&1; "$0" heap --as-root --report /dev/null -- "$@" >/dev/null 2>&1 & wait $!; exit $?"#;
        measured.arg("-c").arg(script).arg(vmaudit()).arg(&hostile).arg(mode).args(offsets(0));
        let most = peak_of(&mut measured);
        assert!(most < 400 * MIB, "{mode}: {} MiB", most / MIB);
    }
}

/// The most that a process that the command waits for had in memory.
fn peak_of(command: &mut Command) -> u64 {
    let script = "import resource,subprocess,sys; subprocess.run(sys.argv[1:],check=True); \
                  print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)";
    let mut python = Command::new(PYTHON);
    python.arg("-c").arg(script).arg(command.get_program()).args(command.get_args());
    let output = watchdog::output(&mut python);
    let said = text(&output.stdout);
    let last = said.lines().last().unwrap_or_else(|| panic!("{}", text(&output.stderr)));
    last.parse::<u64>().expect("KiB") << 10
}

/// A running vmaudit and a program that it counts.
struct Counted {
    vmaudit: Guard,
    pid: u32,
}

impl Counted {
    fn start() -> Counted {
        let mut heap = Command::new(vmaudit());
        heap.args(["heap", "--as-root", "--report", "/dev/null", "--", "sh", "-c", "echo $$; read line"]);
        let child = heap.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut vmaudit = Guard(child.expect("vmaudit starts"));
        let out = vmaudit.0.stdout.take().expect("piped");
        let line = BufReader::new(out).lines().next().expect("a line").expect("text");
        Counted { vmaudit, pid: line.trim().parse().expect("a number") }
    }
}

fn mappings(pid: u32) -> Vec<String> {
    let smaps = fs::read_to_string(format!("/proc/{pid}/smaps")).expect("smaps");
    let (mut out, mut own) = (Vec::new(), None);
    for line in smaps.lines() {
        if line.split_whitespace().next().is_some_and(|word| word.contains('-') && !word.ends_with(':')) {
            own = (line.contains("memfd:vmaudit-heap") || line.contains("[anon:vmaudit-heap]"))
                .then(|| line.to_owned());
        } else if let (Some(name), Some(flags)) = (&own, line.strip_prefix("VmFlags:")) {
            out.push(format!("{name} ::{flags} "));
        }
    }
    out
}

/// No name leads to vmaudit: neither one of the abstract namespace, nor a file.
#[test]
fn the_socket_has_no_name() {
    let counted = Counted::start();
    let table = fs::read_to_string("/proc/net/unix").expect("/proc");
    let own: Vec<String> = fs::read_dir(format!("/proc/{}/fd", counted.vmaudit.0.id()))
        .expect("its descriptors")
        .filter_map(|entry| fs::read_link(entry.expect("an entry").path()).ok())
        .filter_map(|link| Some(link.to_str()?.strip_prefix("socket:[")?.trim_end_matches(']').to_owned()))
        .collect();
    let fields = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let sockets: Vec<_> = fields
        .filter(|fields| fields.get(6).is_some_and(|inode| own.contains(&(*inode).to_owned())))
        .collect();
    assert!(!sockets.is_empty(), "{table}");
    let is_reachable = |name: &&str| {
        name.starts_with('@') || fs::metadata(name).is_ok_and(|file| file.file_type().is_socket())
    };
    let reachable: Vec<&str> =
        sockets.iter().filter_map(|fields| fields.get(7).copied()).filter(is_reachable).collect();
    assert!(reachable.is_empty(), "{reachable:?}");
    drop(counted);
}

/// Another user finds no way in; root's own processes, which may look into vmaudit, do not know what the command's environment says.
#[test]
fn who_was_not_started_by_the_command_is_not_let_in() {
    if skip_without_root("who_was_not_started_by_the_command_is_not_let_in") {
        return;
    }
    let counted = Counted::start();
    let script = format!(
        "import os,socket,struct,sys\n\
         n=0\n\
         for fd in range(0,200):\n\
         \x20s=socket.socket(socket.AF_UNIX,socket.SOCK_SEQPACKET); s.settimeout(5)\n\
         \x20try: s.connect('/proc/{}/fd/%d'%fd)\n\
         \x20except OSError: continue\n\
         \x20s.send(struct.pack('<QIIQ',{},0,0,0)+b'0'*32)\n\
         \x20try: d=s.recv(64)\n\
         \x20except OSError: d=b''\n\
         \x20n+=1; print('answer',d)\n\
         print('connected',n)\n",
        counted.vmaudit.0.id(),
        layout::MAGIC
    );
    let mut other = as_nobody(&[]);
    let output = watchdog::output(other.args([PYTHON, "-c", &script]));
    assert_eq!(text(&output.stdout), "connected 0\n", "{}", text(&output.stderr));
    let output = watchdog::output(Command::new(PYTHON).args(["-c", &script]));
    assert_eq!(text(&output.stdout), "answer b''\nconnected 1\n", "{}", text(&output.stderr));
}

/// A socket of another user's at the place that the environment names is not spoken to: nothing that it offers is mapped.
#[test]
fn a_socket_of_another_user_is_not_believed() {
    let name = "a_socket_of_another_user_is_not_believed";
    if skip_without_root(name) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).expect("chmod");
    let own = tempfile::tempdir().expect("a folder");
    let library = armed_library(own.path());
    let socket = folder.path().join("s");
    let script = format!(
        "import socket,sys\n\
         l=socket.socket(socket.AF_UNIX,socket.SOCK_SEQPACKET); l.bind({socket:?}); l.listen(5); print('ready',flush=True)\n\
         c,_=l.accept(); c.settimeout(5); print('said',c.recv(64),flush=True)\n"
    );
    let mut server = as_nobody(&[]);
    server.args([PYTHON, "-c", &script]).stdout(Stdio::piped());
    let mut server = Guard(server.spawn().expect("python3"));
    let mut said = BufReader::new(server.0.stdout.take().expect("piped")).lines();
    assert_eq!(said.next().expect("a line").expect("text"), "ready");
    let way = format!("{}:{}", "0".repeat(layout::TOKEN), socket.display());
    let mut victim = Command::new("grep");
    victim
        .args(["-c", "vmaudit-heap ", "/proc/self/maps"])
        .env("LD_PRELOAD", &library)
        .env(layout::VARIABLE, way);
    let output = watchdog::output(&mut victim);
    assert_eq!(text(&output.stdout), "0\n", "{}", text(&output.stderr));
    // It was connected to, and left without a word.
    assert_eq!(said.next().expect("a line").expect("text"), "said b''");
    server.0.wait().expect("waits");
}

fn armed_library(folder: &Path) -> PathBuf {
    let own = folder.join("library");
    fs::create_dir(&own).expect("a folder");
    fs::set_permissions(&own, fs::Permissions::from_mode(0o755)).expect("chmod");
    let armed = watchdog::output(Command::new(vmaudit()).arg("heap").arg(format!("--arm={}", own.display())));
    let said = text(&armed.stdout);
    let path = said.trim().strip_prefix("LD_PRELOAD=").unwrap_or_else(|| panic!("{}", text(&armed.stderr)));
    path.into()
}

/// What counting takes is small at first, in no core dump and in no child, and not locked.
#[test]
fn counting_takes_little_and_hides_it_from_dumps_and_children() {
    let counted = Counted::start();
    let own = mappings(counted.pid);
    assert!(own.len() >= 3, "{own:#?}");
    for mapping in &own {
        assert!(mapping.contains(" dd "), "dumped: {mapping}");
        assert!(!mapping.contains(" lo "), "locked: {mapping}");
        // The doorbell, one page, is what a child has.
        let is_page = || {
            let range =
                mapping.split_whitespace().next().and_then(|range| range.split_once('-')).expect("a range");
            let [from, to] = [range.0, range.1].map(|at| u64::from_str_radix(at, 16).expect("an address"));
            to - from == 4096
        };
        assert!(mapping.contains(" dc ") || is_page(), "in children: {mapping}");
    }
    let status = |pid: u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("status");
        let line = status.lines().find_map(|line| line.strip_prefix("VmSize:")).expect("VmSize").to_owned();
        line.split_whitespace().next().expect("KiB").parse::<u64>().expect("KiB") << 10
    };
    let mut plain = Obedient::spawn(Command::new("sh").args(["-c", "echo ready; read line"]));
    assert_eq!(plain.answer(), "ready");
    let more = status(counted.pid).saturating_sub(status(plain.program.0.id()));
    assert!(more < 8 * MIB, "{more} bytes of VIRT more");
}

/// Limits that a program sets itself, locks and crashes are those of a program that is not counted.
#[test]
fn limits_locks_and_crashes_are_as_without() {
    let (bash, python) = (Path::new("/bin/bash"), Path::new(PYTHON));
    if !bash.exists() || !python.exists() {
        return skip("limits_locks_and_crashes_are_as_without", "no bash or python3");
    }
    let limited = ["-c", "ulimit -v 400000; x=$(seq 300000); echo ${#x}"];
    let python_limited = [
        "-c",
        "import resource; resource.setrlimit(resource.RLIMIT_AS,(1<<29,1<<29)); x=[str(i) for i in range(100000)]; print(len(x))",
    ];
    for (program, args) in [(bash, &limited[..]), (python, &python_limited[..])] {
        let alone = watchdog::output(Command::new(program).args(args));
        let (report, output) = heap(&[], Command::new(program).args(args));
        assert_eq!(output.stdout, alone.stdout, "{}", text(&output.stderr));
        assert_eq!(output.status.code(), alone.status.code());
        let counted =
            list(&report, "processes").iter().map(|each| number(&each["totals"], "allocations")).max();
        assert!(counted.is_some_and(|counted| counted > 100), "{report:#}");
        let full = list(&report, "processes")
            .iter()
            .any(|each| each["gaps"].to_string().contains("tables are full"));
        assert!(!full, "{report:#}");
    }
    // MCL_CURRENT and MCL_FUTURE.
    let lock = "import ctypes; libc=ctypes.CDLL(None,use_errno=True); r=libc.mlockall(3); x=[bytes(100) for i in range(20000)]; \
                print(r, [l for l in open('/proc/self/status') if l.startswith('VmLck')][0].split()[1])";
    let locked = |output: &Output| {
        let said = text(&output.stdout);
        let mut words =
            said.split_whitespace().map(|word| word.parse::<u64>().unwrap_or_else(|_| panic!("{said}")));
        (words.next(), words.next().expect("KiB") << 10)
    };
    let alone = locked(&watchdog::output(Command::new(python).args(["-c", lock])));
    let (_, output) = heap(&[], Command::new(python).args(["-c", lock]));
    let counted = locked(&output);
    assert_eq!(counted.0, alone.0, "{}", text(&output.stderr));
    assert!(counted.1 < alone.1 + 32 * MIB, "{counted:?} {alone:?}");
}

/// A child of fork that can neither see vmaudit nor its own /proc, and is another user by then, is counted all the same.
#[test]
fn children_that_have_changed_their_root_and_user_are_counted() {
    let name = "children_that_have_changed_their_root_and_user_are_counted";
    if skip_without_root(name) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (report, output) = heap(&[], Command::new(program("heap_jailed")).arg(folder.path()));
    let said = text(&output.stderr);
    let child: u64 = text(&output.stdout).trim().parse().unwrap_or_else(|_| panic!("{said}"));
    let found = list(&report, "processes").iter().find(|process| number(process, "pid") == child);
    let process = found.unwrap_or_else(|| panic!("{child}: {said} {report:#}"));
    assert!(!process["gaps"].to_string().contains("without a stack"), "{process:#}");
    assert_eq!(
        (&process["forked"], number(&process["totals"], "outstanding_bytes")),
        (&Value::Bool(true), 10_000)
    );
}

/// Under Valgrind nothing is counted, which is said, and its program runs as it does alone.
#[test]
fn what_translates_code_is_left_alone() {
    if !Path::new("/usr/bin/valgrind").exists() {
        return skip("what_translates_code_is_left_alone", "no valgrind");
    }
    let command = ["valgrind", "-q", "echo", "hello"];
    let alone = watchdog::output(Command::new(command[0]).args(&command[1..]));
    let mut heap = Command::new(vmaudit());
    let output =
        watchdog::output(heap.args(["heap", "--as-root", "--method", "preload", "--"]).args(command));
    let said = text(&output.stderr);
    assert!(output.stdout.starts_with(&alone.stdout), "{said}");
    assert!(said.contains("Valgrind translates the program's code"), "{said}");
    assert!(!said.contains("statically linked"), "{said}");
}

/// Two vmaudits want to count in one process: the second one is told, and takes nothing from the first.
#[test]
fn of_two_vmaudits_one_counts_and_the_other_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let library = armed_library(folder.path());
    let mut target =
        Obedient::spawn(Command::new(program("heap_truth")).arg("obey").env("LD_PRELOAD", &library));
    target.answer();
    let pid: u32 = target.answer().split(' ').next().expect("a number").parse().expect("a number");
    let first = Watching::of(pid, &[]);
    target.order("a 1000");
    let mut second = Command::new(vmaudit());
    let second = watchdog::output(second.args(["heap", "-p", &pid.to_string(), "--duration", "1"]));
    let said = text(&second.stderr);
    assert_eq!(second.status.code(), Some(2), "{said}");
    assert!(said.contains(&format!("process {pid} counts for vmaudit ")), "{said}");
    target.order("a 1000");
    let report = first.stop();
    assert_eq!(sum(&rows_of(&report, "obey"), "blocks"), 2, "{report:#}");
    // What was mapped for it is gone with its next call.
    target.order("a 1000");
    assert_eq!(mappings(pid), Vec::<String>::new());
}

/// The library that a program was armed with does not count the same calls once more.
#[test]
fn an_armed_environment_is_counted_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let library = armed_library(folder.path());
    let mut twice = Command::new(vmaudit());
    let file = folder.path().join("report.json");
    twice
        .args(["heap", "--as-root", "-f", "json", "--report"])
        .arg(&file)
        .arg("--")
        .arg(program("heap_truth"));
    let output = watchdog::output(twice.env("LD_PRELOAD", &library));
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&fs::read(&file).expect("a report")).expect("JSON");
    let said = text(&output.stdout);
    let words: Vec<u64> =
        said.lines().last().expect("a line").split(' ').map(|w| w.parse().expect("a number")).collect();
    let process = list(&report, "processes").iter().find(|process| number(process, "pid") == words[0]);
    assert!(number(&process.expect("the program")["totals"], "outstanding_bytes") >= words[1]);
    // Both in one program, however that came about: the first one counts.
    let both = folder.path().join("both");
    fs::create_dir(&both).expect("a folder");
    symlink(&library, both.join("second.so")).expect("a link");
    let copy = both.join("copy.so");
    fs::copy(&library, &copy).expect("a copy");
    let mut preload = library.clone().into_os_string();
    preload.push(":");
    preload.push(&copy);
    let (report, output) =
        heap(&[], Command::new("env").arg("sh").arg("-c").arg("true").env("LD_PRELOAD", &preload));
    assert_eq!(output.status.code(), Some(0), "{}: {report:#}", text(&output.stderr));
}

//! `vmaudit snapshot -p PID` of real processes: what is read, as whom, and which numbers are refused.

use crate::support::report::number;
use crate::support::{AuditReport, program, skip, vmaudit};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};

/// A child that waits for its standard input to end.
struct Waiting(Child);

/// Polls, but not for ever.
fn until(reached: impl Fn() -> bool) {
    for _ in 0..1_000_000 {
        if reached() {
            return;
        }
        std::thread::yield_now();
    }
    panic!("it never came to that");
}

impl Waiting {
    fn pid(&self) -> i32 {
        self.0.id() as i32
    }

    /// After a line on its standard output.
    fn start(command: &mut Command) -> Waiting {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().expect("a pipe")).read_line(&mut line).expect("a line");
        Waiting(child)
    }

    /// Once all threads wait in read(2): a running one shows no stack pointer.
    fn settled(self) -> Waiting {
        let tasks = format!("/proc/{}/task", self.pid());
        let waits = |task: std::fs::DirEntry| {
            let text = std::fs::read_to_string(task.path().join("syscall")).unwrap_or_default();
            text.starts_with("0 ")
        };
        until(|| std::fs::read_dir(&tasks).expect("threads").flatten().all(waits));
        self
    }

    fn shell(script: &str) -> Waiting {
        Waiting::start(Command::new("sh").args(["-c", script]))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn snapshot(args: &[&str]) -> Output {
    Command::new(vmaudit()).arg("snapshot").args(args).output().expect("vmaudit starts")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

const READY: &str = "echo ready; read line";

#[test]
fn totals_are_those_of_smaps() {
    let target = Waiting::shell(READY);
    let pid = target.pid().to_string();
    let output = snapshot(&["-p", &pid, "-f", "json"]);
    let report = AuditReport::parse(&output.stdout);
    let process = &report.processes()[0];
    let smaps = std::fs::read_to_string(format!("/proc/{pid}/smaps")).expect("smaps");
    let vsyscall = smaps.contains("[vsyscall]");
    let size: u64 = smaps
        .lines()
        .filter_map(|line| line.strip_prefix("Size:"))
        .map(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().expect("kB") * 1024)
        .sum();
    assert_eq!(number(&process["totals"], "virt"), size - if vsyscall { 4096 } else { 0 });
    let coverage = &process["coverage"];
    assert_eq!(number(coverage, "traced") + number(coverage, "unknown"), 0);
    assert!(number(coverage, "preexisting") > 0 && number(coverage, "kernel") > 0);
    assert_eq!(process["snapshot"], "live");
}

#[test]
fn arenas_and_stacks_of_living_threads() {
    let target = Waiting::start(&mut Command::new(program("snapshot_threads"))).settled();
    let pid = target.pid().to_string();
    let output = snapshot(&["-p", &pid, "-f", "json"]);
    let report = AuditReport::parse(&output.stdout);
    let process = &report.processes()[0];
    let row = |id: &str| {
        let rows = process["categories"].as_array().expect("rows");
        rows.iter()
            .find(|row| row["id"] == id)
            .map_or((0, 0), |row| (number(row, "regions"), number(row, "virt")))
    };
    assert_eq!(row("glibc-arena"), (3, 3 * (64 << 20)));
    assert_eq!(row("thread-stack").0, 3);
    let regions = process["regions"].as_array().expect("regions");
    let evidence = |category: &str| {
        let mine = regions.iter().filter(|r| r["category"] == category && r["part"] != "guard");
        mine.map(|r| r["evidence"].as_str().expect("text").to_owned()).collect::<Vec<_>>()
    };
    assert!(evidence("glibc-arena").iter().any(|e| e == "header"), "heap headers are read");
    assert!(evidence("thread-stack").iter().all(|e| e == "thread"), "stack pointers are read");
    let text = String::from_utf8(snapshot(&["-p", &pid]).stdout).expect("text");
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains(&format!("vmaudit attach -p {pid}")) && text.contains("4 threads"), "{text}");
    assert!(!text.contains("backend") && !text.contains("events"), "{text}");
}

#[test]
fn several_processes_twice_and_a_thread_number() {
    let (one, two) = (Waiting::shell(READY), Waiting::start(&mut Command::new(program("snapshot_threads"))));
    let tid = std::fs::read_dir(format!("/proc/{}/task", two.pid()))
        .expect("threads")
        .filter_map(|task| task.expect("entry").file_name().to_string_lossy().parse::<i32>().ok())
        .max()
        .expect("a thread");
    let list = format!("{},{},{}", one.pid(), one.pid(), tid);
    let output = snapshot(&["-p", &list, "-p", &two.pid().to_string(), "-f", "json"]);
    let report = AuditReport::parse(&output.stdout);
    let pids: Vec<i64> = report.processes().iter().map(|p| p["pid"].as_i64().expect("a number")).collect();
    assert_eq!(pids, [i64::from(one.pid()), i64::from(two.pid())]);
    assert!(stderr(&output).contains(&format!("{tid} is a thread of process {}", two.pid())));
}

#[test]
fn one_that_cannot_be_read_does_not_hide_the_others() {
    let target = Waiting::shell(READY);
    let output = snapshot(&["-p", "2147483647", &target.pid().to_string(), "-f", "json"]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(AuditReport::parse(&output.stdout).processes().len(), 1);
    assert!(stderr(&output).contains("there is no process 2147483647"));
    let none = snapshot(&["-p", "2147483647"]);
    assert_eq!(none.status.code(), Some(125));
    assert!(none.stdout.is_empty());
}

#[test]
fn a_zombie_and_a_thread_of_the_kernel_have_nothing_mapped() {
    let mut zombie = Command::new("true").stdout(Stdio::piped()).spawn().expect("true");
    let mut pipe = zombie.stdout.take().expect("a pipe");
    pipe.read_to_end(&mut Vec::new()).expect("its end");
    // the pipe is closed a little before the process is a zombie
    let state = || std::fs::read_to_string(format!("/proc/{}/stat", zombie.id())).expect("stat");
    until(|| state().contains(") Z "));
    let output = snapshot(&["-p", &zombie.id().to_string()]);
    assert_eq!(output.status.code(), Some(125));
    assert!(stderr(&output).contains("zombie"), "{}", stderr(&output));
    zombie.wait().expect("it has ended");
    match std::fs::read_to_string("/proc/2/comm") {
        Ok(name) if name.trim() == "kthreadd" => {
            let output = snapshot(&["-p", "2"]);
            assert_eq!(output.status.code(), Some(125));
            assert!(stderr(&output).contains("thread of the kernel"), "{}", stderr(&output));
        }
        _ => skip("a_thread_of_the_kernel", "none can be seen in this PID namespace"),
    }
}

#[test]
fn a_process_whose_first_thread_has_exited() {
    let target = Waiting::start(Command::new(program("snapshot_threads")).arg("leaderless"));
    let stat = || std::fs::read_to_string(format!("/proc/{}/stat", target.pid())).expect("stat");
    until(|| stat().contains(") Z "));
    let output = snapshot(&["-p", &target.pid().to_string(), "-f", "json"]);
    let report = AuditReport::parse(&output.stdout);
    assert!(number(&report.processes()[0]["totals"], "virt") > 3 * (64 << 20), "{}", stderr(&output));
}

/// An ordinary user: reads own processes, and gets advice about others'.
#[test]
fn as_an_ordinary_user() {
    if !nix::unistd::geteuid().is_root() {
        return skip("as_an_ordinary_user", "only root can become one");
    }
    const NOBODY: u32 = 65534;
    // a place from which anybody may execute it
    let folder = tempfile::tempdir_in("/tmp").expect("a folder");
    let binary = folder.path().join("vmaudit");
    std::fs::copy(vmaudit(), &binary).expect("a copy");
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path(), open).expect("permissions");
    let own = Waiting::start(Command::new("sh").args(["-c", READY]).uid(NOBODY).gid(NOBODY));
    let other = Waiting::shell(READY);
    let as_nobody = |pid: i32| {
        let mut command = Command::new(&binary);
        command.args(["snapshot", "-f", "json", "-p", &pid.to_string()]).uid(NOBODY).gid(NOBODY);
        command.output().expect("vmaudit starts")
    };
    let output = as_nobody(own.pid());
    let report = AuditReport::parse(&output.stdout);
    assert!(number(&report.processes()[0]["totals"], "rss") > 0, "{}", stderr(&output));
    let refused = as_nobody(other.pid());
    assert_eq!(refused.status.code(), Some(125));
    let text = stderr(&refused);
    assert!(text.contains("permission denied") && text.contains("belongs to root"), "{text}");
    assert!(text.contains(&format!("sudo vmaudit snapshot -f json -p {}", other.pid())), "{text}");
    // Tracing takes more than that, also of own processes: refused before anything is started.
    for command in ["attach", "events"] {
        for (pid, why) in [(own.pid(), "CAP_BPF"), (other.pid(), "permission denied")] {
            let mut run = Command::new(&binary);
            run.args([command, "-p", &pid.to_string()]).uid(NOBODY).gid(NOBODY);
            let refused = run.output().expect("vmaudit starts");
            let text = stderr(&refused);
            assert_eq!(refused.status.code(), Some(125), "{text}");
            assert!(text.contains(why) && text.contains("sudo vmaudit"), "{command}: {text}");
        }
    }
}

//! Nobody but who is counted has breakpoints, and what translates a program's code (it would translate them, too, and end
//! with SIGTRAP) lives: beside each kind of probe, and among the children of what is counted. All that is probed here is a
//! copy of libc, which no other process on this machine maps.

use crate::support::breakpoints::changed_bytes;
use crate::support::container::Talk;
use crate::support::report::list;
use crate::support::unprivileged::{finish, while_watching};
use crate::support::{skip, skip_this, skip_without_bpf, vmaudit};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const LIBC: &str = "/lib/x86_64-linux-gnu/libc.so.6";
const QEMU: &[&str] = &["qemu-x86_64"];
const TRANSLATORS: [&[&str]; 3] = [QEMU, &["valgrind", "-q", "--tool=none"], &["valgrind", "-q"]];

/// A folder with the copy.
struct Copy(tempfile::TempDir);

impl Copy {
    /// None, with a SKIP line, where there is no such libc, or nothing can be probed.
    fn new() -> Option<Copy> {
        let test = std::thread::current().name().unwrap_or("bystanders").to_owned();
        if skip_without_bpf(&test) {
            return None;
        }
        if !Path::new(LIBC).exists() {
            skip(&test, &format!("no {LIBC}"));
            return None;
        }
        let folder = tempfile::tempdir().expect("a temporary folder");
        fs::copy(LIBC, folder.path().join("libc.so.6")).expect("a copy");
        Some(Copy(folder))
    }

    fn file(&self) -> PathBuf {
        self.0.path().join("libc.so.6")
    }

    /// A command that uses the copy, with all that it starts.
    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", self.0.path());
        command
    }

    /// A shell that executes each line that it gets, and then repeats it.
    fn shell(&self) -> Talk {
        Talk::start(self.command("sh").args(["-c", SHELL])).expect("a shell")
    }

    /// Those that are installed, each once.
    fn translators_live(&self, beside: &str) {
        for translator in TRANSLATORS {
            let mut run = self.command(translator[0]);
            let run = run.args(&translator[1..]).arg("/bin/ls").arg(self.0.path()).output();
            match run {
                Err(_) => skip_this(&format!("no {} (apt-get install qemu-user valgrind)", translator[0])),
                Ok(output) => {
                    let said = String::from_utf8_lossy(&output.stderr);
                    assert_eq!(output.status.code(), Some(0), "{translator:?} beside {beside}: {said}");
                }
            }
        }
    }

    /// While `vmaudit` watches a shell: that one has breakpoints, another has none.
    fn watched(&self, kind: &[&str], way: &str) {
        let (mut target, other) = (self.shell(), self.shell());
        let beside = format!("{kind:?}, {way}");
        let mut run = Command::new(vmaudit());
        let report = self.0.path().join("report");
        run.env("VMAUDIT_UPROBES", way).args(kind).args(["-f", "json", "--report"]).arg(&report);
        run.args(["-p", &pid_of(&target).to_string()]);
        let (_, said) = while_watching(&mut run, |_| {
            assert_ne!(changed_bytes(pid_of(&target), &self.file()), 0, "{beside}: nothing is probed");
            assert_eq!(changed_bytes(pid_of(&other), &self.file()), 0, "{beside}: others have breakpoints");
            self.translators_live(&beside);
            target.send(":");
        });
        let counted = calls(&fs::read(&report).expect("a report"));
        assert_ne!(counted, 0, "{beside}: nothing is counted: {said}");
    }
}

const SHELL: &str = "echo READY; while read line; do eval \"$line\" >&2; echo \"$line\"; done";

/// What a report of `heap` or `probe` has counted.
fn calls(report: &[u8]) -> u64 {
    let report: Value = serde_json::from_slice(report).expect("JSON");
    let of_process = |process: &Value| process["totals"]["allocations"].as_u64().unwrap_or_default();
    report["calls"].as_u64().unwrap_or_else(|| list(&report, "processes").iter().map(of_process).sum())
}

fn pid_of(talk: &Talk) -> u32 {
    talk.client.0.id()
}

#[test]
fn translators_live_beside_the_heap_of_a_process() {
    let Some(copy) = Copy::new() else { return };
    for way in ["best", "multi", "single"] {
        copy.watched(&["heap"], way);
    }
    copy.watched(&["heap", "--no-follow-forks"], "best");
    copy.watched(&["heap", "--combined"], "best");
}

#[test]
fn translators_live_beside_probes_of_a_process() {
    let Some(copy) = Copy::new() else { return };
    let probe = ["probe", "--lib", "libc.so.6", "--match", "^(malloc|free|read)$"];
    for options in [&[][..], &["--no-follow-forks"], &["--way", "single"]] {
        copy.watched(&[&probe[..], options].concat(), "best");
    }
}

#[test]
fn translators_live_beside_a_probed_command() {
    let Some(copy) = Copy::new() else { return };
    let file = copy.file();
    let probe = ["probe", "--lib", file.to_str().expect("UTF-8"), "--match", "^(malloc|free|read)$"];
    let stacks = [&probe[..], &["--stacks"]].concat();
    for kind in [&["heap", "--method", "uprobes"][..], &["heap", "--combined"], &probe, &stacks] {
        let other = copy.shell();
        let report = copy.0.path().join("report");
        let mut run = Command::new(vmaudit());
        run.args(kind).args(["-f", "json", "--report"]).arg(&report).args(["--", "env"]);
        run.arg(format!("LD_LIBRARY_PATH={}", copy.0.path().display())).args(["sh", "-c", SHELL]);
        let mut command = Talk::start(&mut run).unwrap_or_else(|said| panic!("{kind:?}: {said}"));
        assert_eq!(changed_bytes(pid_of(&other), &file), 0, "{kind:?}: others have breakpoints");
        copy.translators_live(&format!("{kind:?}"));
        command.send(":");
        let output = command.end();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{kind:?}: {said}");
        let counted = calls(&fs::read(&report).expect("a report"));
        assert_ne!(counted, 0, "{kind:?}: nothing is counted: {said}");
    }
}

/// The other half of the tests above: their way of trying is good.
#[test]
fn all_processes_have_breakpoints_on_request_alone() {
    let Some(copy) = Copy::new() else { return };
    let probe = ["probe", "--lib", "libc.so.6", "--match", "^(malloc|free|read)$"];
    for kind in [&["heap"][..], &probe] {
        let (target, other) = (copy.shell(), copy.shell());
        let mut run = Command::new(vmaudit());
        run.args(kind).args(["--all-processes", "--report", "/dev/null", "-p", &pid_of(&target).to_string()]);
        let (_, said) = while_watching(&mut run, |_| {
            assert_ne!(changed_bytes(pid_of(&other), &copy.file()), 0, "{kind:?}");
            match copy.command(QEMU[0]).args(["/bin/ls", "/"]).stdout(Stdio::null()).status() {
                Err(_) => skip_this("no qemu-x86_64 (apt-get install qemu-user)"),
                Ok(status) => assert_eq!(status.signal(), Some(libc::SIGTRAP), "{kind:?}: {status}"),
            }
        });
        assert!(said.contains("every process of this machine that maps these files"), "{said}");
    }
}

#[test]
fn what_translates_code_is_refused_by_name() {
    let Some(copy) = Copy::new() else { return };
    let Ok(emulated) = Talk::start(copy.command(QEMU[0]).args(["/bin/sh", "-c", SHELL])) else {
        return skip_this("no qemu-x86_64 (apt-get install qemu-user)");
    };
    let script = copy.0.path().join("script");
    fs::write(&script, "#!/usr/bin/qemu-x86_64\n").expect("written");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("chmod");
    let pid = pid_of(&emulated).to_string();
    let probe = ["probe", "--lib", LIBC, "--match", "^malloc$"];
    let of_process =
        [&["heap", "-p", &pid][..], &["probe", "--lib", "libc.so.6", "--match", "^malloc$", "-p", &pid]];
    let script = script.to_str().expect("UTF-8");
    let commands =
        [&["/usr/bin/qemu-x86_64", "/bin/true"][..], &["/usr/bin/valgrind", "-q", "/bin/true"], &[script]];
    let of_command = commands.iter().flat_map(|command| {
        [&["heap", "--method", "uprobes"][..], &probe].map(|kind| [kind, &["--"], command].concat())
    });
    let all: Vec<Vec<&str>> = of_process.iter().map(|words| words.to_vec()).chain(of_command).collect();
    for words in all {
        if words.contains(&"/usr/bin/valgrind") && !Path::new("/usr/bin/valgrind").exists() {
            skip_this("no valgrind");
            continue;
        }
        let (output, said) = finish(Command::new(vmaudit()).args(&words));
        assert_eq!(output.status.code(), Some(2), "{words:?}: {said}");
        assert!(said.contains("translates the code of a program"), "{words:?}: {said}");
    }
}

/// Not probed, and said; the others are counted.
#[test]
fn translators_among_the_children_of_a_command_live() {
    let Some(copy) = Copy::new() else { return };
    let script = "qemu-x86_64 /bin/ls / >/dev/null || exit 3; valgrind -q /bin/ls / >/dev/null || exit 4; /bin/ls / >/dev/null";
    for tool in ["/usr/bin/qemu-x86_64", "/usr/bin/valgrind"] {
        if !Path::new(tool).exists() {
            return skip_this("no qemu-x86_64 or no valgrind (apt-get install qemu-user valgrind)");
        }
    }
    let file = copy.file();
    let probe = ["probe", "--lib", file.to_str().expect("UTF-8"), "--match", "^malloc$"];
    for (kind, is_heap) in
        [(&["heap", "--method", "uprobes"][..], true), (&["heap", "--combined"], true), (&probe, false)]
    {
        let mut run = Command::new(vmaudit());
        run.args(kind).args(["-f", "json", "--", "env"]);
        run.arg(format!("LD_LIBRARY_PATH={}", copy.0.path().display())).args(["sh", "-c", script]);
        let (output, said) = finish(&mut run);
        assert_eq!(output.status.code(), Some(0), "{kind:?}: {said}");
        for name in ["qemu-x86_64", "valgrind"] {
            let line =
                |line: &&str| line.contains(name) && line.contains("not probed, because it translates");
            assert!(said.lines().find(line).is_some(), "{kind:?}, {name}: {said}");
        }
        if !is_heap {
            continue;
        }
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let processes = list(&report, "processes");
        let named = |name: &'static str| processes.iter().filter(move |process| process["comm"] == name);
        for emulator in named("qemu-x86_64") {
            assert_eq!(emulator["totals"]["allocations"], 0, "{emulator}");
            assert!(emulator["gaps"].to_string().contains("not probed"), "{emulator}");
        }
        assert!(named("ls").any(|ls| ls["totals"]["allocations"].as_u64() > Some(0)), "{report}");
    }
}

/// Of a process that ran already, a child has probes only when it runs: its report says from when on.
#[test]
fn the_children_of_a_running_process_say_from_when_on_they_are_counted() {
    let Some(copy) = Copy::new() else { return };
    let mut shell = copy.shell();
    let mut run = Command::new(vmaudit());
    let report = copy.0.path().join("report");
    run.args(["heap", "-f", "json", "-p", &pid_of(&shell).to_string(), "--report"]).arg(&report);
    // The child executes nothing.
    while_watching(&mut run, |_| shell.send("(read inner; :) </dev/null; :"));
    let report: Value = serde_json::from_slice(&fs::read(&report).expect("a report")).expect("JSON");
    let child = |process: &&Value| process["pid"].as_u64() != Some(u64::from(pid_of(&shell)));
    let processes = list(&report, "processes");
    let child = processes.iter().find(child).unwrap_or_else(|| panic!("no child: {report}"));
    let gaps = child["gaps"].to_string();
    assert!(
        gaps.contains("had probes from then on") || gaps.contains("ended before it had probes"),
        "{child}"
    );
}

//! SIGTERM, SIGINT and SIGHUP while a command is launched and while a report is made: they end with a report.

use crate::support::{Guard, skip_without_bpf, vmaudit};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{ChildStderr, Command, Stdio};

/// vmaudit in a folder of its own, with what it says.
struct Session {
    folder: tempfile::TempDir,
    vmaudit: Guard,
    said: BufReader<ChildStderr>,
}

impl Session {
    /// `words` with `--report report` behind the first of them; `make` puts something there before.
    fn start(words: &[&str], make: impl FnOnce(&Path)) -> Session {
        let folder = tempfile::tempdir().expect("a temporary folder");
        make(&folder.path().join("report"));
        let (first, rest) = words.split_at(1);
        let mut command = Command::new(vmaudit());
        command.args(first).args(["-f", "json", "--report", "report"]).args(rest).current_dir(folder.path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut vmaudit = Guard(command.spawn().expect("it starts"));
        let said = BufReader::new(vmaudit.0.stderr.take().expect("piped"));
        Session { folder, vmaudit, said }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn proc(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{name}", self.vmaudit.0.id()))
    }

    /// Until signals are held back: from then on none of them ends vmaudit. A state is waited for, not a
    /// time; vmaudit's end ends it, too.
    fn until_it_listens(&mut self) {
        while !self.blocks(libc::SIGTERM) && self.is_running() {
            std::thread::yield_now();
        }
    }

    fn blocks(&self, signal: i32) -> bool {
        let status = fs::read_to_string(self.proc("status")).unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
        let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
        mask >> (signal - 1) & 1 == 1
    }

    /// Until there is a thread for requests: the command has ended, and the report is being made.
    fn until_it_reports(&mut self) {
        let names = |session: &Session| {
            let tasks = fs::read_dir(session.proc("task")).into_iter().flatten().flatten();
            let names = tasks.map(|task| fs::read_to_string(task.path().join("comm")).unwrap_or_default());
            names.collect::<Vec<_>>()
        };
        while !names(self).iter().any(|name| name.trim_end() == "requests") && self.is_running() {
            std::thread::yield_now();
        }
    }

    fn is_running(&mut self) -> bool {
        matches!(self.vmaudit.0.try_wait(), Ok(None))
    }

    /// The next line that has this in it.
    fn until_it_says(&mut self, text: &str) -> String {
        let mut all = String::new();
        loop {
            let mut line = String::new();
            let read = self.said.read_line(&mut line).expect("text");
            assert!(read > 0, "it never said {text:?}, but:\n{all}");
            all += &line;
            if line.contains(text) {
                return line;
            }
        }
    }

    /// Exit code, and what else it said.
    fn end(mut self) -> (Option<i32>, String, tempfile::TempDir) {
        let mut rest = String::new();
        self.said.read_to_string(&mut rest).expect("text");
        let status = self.vmaudit.0.wait().expect("a child");
        (status.code(), rest, self.folder)
    }
}

fn report(folder: &tempfile::TempDir) -> Value {
    let text = fs::read(folder.path().join("report")).expect("a report");
    // events -f json has a line for each event.
    let first = serde_json::Deserializer::from_slice(&text).into_iter::<Value>().next();
    first.map_or(Value::Null, |value| value.expect("JSON"))
}

/// Makes a mark, and would take long.
const COMMAND: &[&str] = &["--", "/bin/sh", "-c", "echo started > started; sleep 1000"];

fn with(words: &[&'static str], rest: &[&'static str]) -> Vec<&'static str> {
    [words, rest].concat()
}

#[test]
fn a_signal_to_stop_before_the_command_runs_does_not_start_it() {
    let mut all = vec![
        (with(&["run", "--as-root", "--backend", "notify"], COMMAND), libc::SIGTERM),
        (with(&["run", "--as-root"], COMMAND), libc::SIGINT),
        (with(&["run", "--as-root"], COMMAND), libc::SIGHUP),
        (with(&["events", "--as-root"], COMMAND), libc::SIGTERM),
    ];
    if !skip_without_bpf("heap and probe, stopped by a signal") {
        all.extend([
            (with(&["run", "--as-root", "-o", "rec"], COMMAND), libc::SIGTERM),
            (with(&["heap", "--as-root"], COMMAND), libc::SIGTERM),
            (
                with(&["probe", "--as-root", "--lib", "libc.so.6", "--match", "^malloc$"], COMMAND),
                libc::SIGTERM,
            ),
            (
                with(
                    &["probe", "--as-root", "--stacks", "--lib", "libc.so.6", "--match", "^malloc$"],
                    COMMAND,
                ),
                libc::SIGINT,
            ),
        ]);
    }
    for (words, signal) in all {
        let mut session = Session::start(&words, |_| {});
        session.until_it_listens();
        session.vmaudit.signal(signal);
        let (code, said, folder) = session.end();
        assert_eq!(code, Some(128 + signal), "{words:?}: {said}");
        report(&folder);
        // It may have been started just before.
        let started = folder.path().join("started").exists();
        assert!(started || said.contains("it is not started"), "{words:?}: {said}");
        assert!(!said.contains("panicked"), "{said}");
    }
}

#[test]
fn a_signal_to_stop_while_attaching_gives_a_report() {
    let name = "a_signal_to_stop_while_attaching_gives_a_report";
    if skip_without_bpf(name) {
        return;
    }
    let idle = Command::new("/bin/sleep").arg("1000").spawn().expect("it starts");
    let pid = idle.id().to_string();
    let _idle = Guard(idle);
    for words in [
        &["attach", "-p", &pid][..],
        &["heap", "-p", &pid],
        &["events", "-p", &pid],
        &["probe", "--lib", "libc.so.6", "--match", "^malloc$", "-p", &pid],
        &["probe", "--stacks", "--lib", "libc.so.6", "--match", "^malloc$", "-p", &pid],
        // No other process calls it.
        &["probe", "--all-processes", "--lib", "libc.so.6", "--match", "^fmtmsg$"],
    ] {
        let mut session = Session::start(words, |_| {});
        session.until_it_listens();
        session.vmaudit.signal(libc::SIGTERM);
        let (code, said, folder) = session.end();
        assert_eq!(code, Some(0), "{words:?}: {said}");
        report(&folder);
    }
}

fn fifo(path: &Path) {
    nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
}

const ENDS: &[&str] = &["--", "/bin/sh", "-c", "exit 7"];

/// Each command at the moment at which its report is to be written, and has no reader yet.
fn reporting(each: impl Fn(Session, &[&str], i32)) {
    let idle = Command::new("/bin/sleep").arg("1000").spawn().expect("it starts");
    let pid = idle.id().to_string();
    let _idle = Guard(idle);
    let attach: &[&str] = &["attach", "-p", &pid, "--duration", "0.01"];
    let watch: &[&str] = &["heap", "-p", &pid, "--duration", "0.01"];
    let mut all = vec![(with(&["run", "--as-root", "--backend", "notify"], ENDS), 7)];
    all.push((with(&["compare", "-n", "1", "--env", "A=1"], ENDS), 0));
    if !skip_without_bpf("half of the commands that report") {
        all.extend([
            (with(&["run", "--as-root"], ENDS), 7),
            (with(&["heap", "--as-root"], ENDS), 7),
            (with(&["probe", "--as-root", "--lib", "libc.so.6", "--match", "^malloc$"], ENDS), 7),
        ]);
        for words in [attach, watch] {
            let mut session = Session::start(words, fifo);
            session.until_it_reports();
            each(session, words, 0);
        }
    }
    for (words, code) in all {
        let mut session = Session::start(&words, fifo);
        session.until_it_reports();
        each(session, &words, code);
    }
}

#[test]
fn a_request_while_the_report_is_made_does_not_lose_it() {
    reporting(|mut session, words, expected| {
        session.vmaudit.signal(libc::SIGTERM);
        session.until_it_says("SIGTERM: the report is being made");
        let text = fs::read(session.path("report")).expect("the report");
        let (code, said, _) = session.end();
        assert_eq!(code, Some(expected), "{words:?}: {said}");
        let report: Value = serde_json::from_slice(&text).expect("JSON");
        assert!(report.is_object(), "{words:?}");
    });
}

#[test]
fn a_second_request_ends_it() {
    reporting(|mut session, words, _| {
        session.vmaudit.signal(libc::SIGINT);
        session.until_it_says("SIGINT: the report is being made (again: end without it)");
        session.vmaudit.signal(libc::SIGTERM);
        session.until_it_says("SIGTERM: ended without a report");
        let (code, said, _) = session.end();
        assert_eq!(code, Some(128 + libc::SIGTERM), "{words:?}: {said}");
    });
}

/// During the run the first one is the command's, as before; the report says how that ended.
#[test]
fn a_request_during_the_run_is_passed_on() {
    let script = "trap 'exit 5' TERM; echo > ready; while :; do sleep 0.01; done";
    let words = ["run", "--as-root", "--", "/bin/sh", "-c", script];
    let mut session = Session::start(&words, |_| {});
    while !session.path("ready").exists() && session.is_running() {
        std::thread::yield_now();
    }
    session.vmaudit.signal(libc::SIGTERM);
    session.until_it_says("SIGTERM: passed on to the command");
    let (code, said, folder) = session.end();
    assert_eq!(code, Some(5), "{said}");
    assert_eq!(report(&folder)["processes"][0]["exit_code"], 5);
}

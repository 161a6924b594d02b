//! A forked process plays vmaudit, so that it can be single-threaded, signalled and killed.
//! It and its target write lines to one pipe, which the test reads; the target reads another.

use crate::support::{program, skip_this};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, dup2_stdin, dup2_stdout, fork, pipe};
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use vmaudit::launch::{HeldExit, Launch, LaunchConfig, Running, TargetEvent};

/// False, with a SKIP line, where a test cannot show anything because it is not run by root.
pub fn is_root() -> bool {
    let root = nix::unistd::Uid::effective().is_root();
    if !root {
        skip_this("needs root");
    }
    root
}

/// The program with all the modes.
pub fn modes() -> &'static str {
    static PATH: OnceLock<String> = OnceLock::new();
    PATH.get_or_init(|| program("target_modes").to_string_lossy().into_owned())
}

pub fn argv(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}

/// Holds exits, as root.
pub fn config(words: &[&str]) -> LaunchConfig {
    LaunchConfig { argv: argv(words), hold_exits: true, as_root: true, ..LaunchConfig::default() }
}

pub fn start(config: LaunchConfig) -> Running {
    Launch::prepare(config).expect("prepare").go().expect("go")
}

/// Runs the target to the end of its command; writes a line for everything that happens.
pub fn follow(mut running: Running) {
    loop {
        match running.poll(None).expect("poll") {
            TargetEvent::HeldExit(held) => {
                report_held(&running, &held);
                running.release(held).expect("release");
            }
            TargetEvent::ChildExited(status) => {
                return report(&format!("ended {status:?} {}", status.exit_code()));
            }
            other => report(&format!("{other:?}")),
        }
    }
}

pub fn report_held(running: &Running, held: &HeldExit) {
    let main = held.pid == running.pid();
    let who = if main { "main" } else { "other" };
    let leader = held.pid == held.tid;
    assert!(running.is_held(held));
    assert!(std::fs::read_to_string(format!("/proc/{}/maps", held.tid)).expect("maps").contains("[stack]"));
    report(&format!("held {who} {:?} status {} leader {leader}", held.kind, held.status));
}

/// One write, so that lines of several processes do not mix.
pub fn report(line: &str) {
    nix::unistd::write(std::io::stdout(), format!("{line}\n").as_bytes()).expect("the test reads");
}

/// One at a time: a fork inherits the pipes of all tests, and orphans come to this process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

pub struct Player {
    pub pid: Pid,
    lines: BufReader<File>,
    /// The target's standard input.
    words: File,
    _alone: MutexGuard<'static, ()>,
}

/// Forks a process that plays `role`. Orphans of it become children of the test.
pub fn play(role: impl FnOnce()) -> Player {
    let guard = alone();
    modes();
    nix::sys::prctl::set_child_subreaper(true).expect("subreaper");
    let (read, write) = pipe().expect("pipe");
    let (stdin, words) = pipe().expect("pipe");
    // SAFETY: the child plays its role and leaves with _exit.
    match unsafe { fork() }.expect("fork") {
        ForkResult::Parent { child } => Player {
            pid: child,
            lines: BufReader::new(File::from(read)),
            words: File::from(words),
            _alone: guard,
        },
        ForkResult::Child => {
            dup2_stdout(&write).expect("dup2");
            dup2_stdin(&stdin).expect("dup2");
            drop((read, write, stdin, words));
            // If the test fails, no process is left to wait for.
            let _ = nix::sys::prctl::set_pdeathsig(Signal::SIGKILL);
            // The usual hook takes a lock that another test's thread may have held at the fork.
            std::panic::set_hook(Box::new(|panic| {
                report(&format!("PANIC {}", panic.to_string().replace('\n', " ")));
            }));
            let outcome = catch_unwind(AssertUnwindSafe(role));
            // SAFETY: ends this process without running the test harness' exit handlers.
            unsafe { libc::_exit(i32::from(outcome.is_err())) }
        }
    }
}

impl Player {
    /// The next line, waiting for it; empty at the end of everything.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("read");
        assert!(!line.starts_with("PANIC"), "{line}");
        line.trim_end().to_owned()
    }

    /// The number behind `word` in the next line.
    pub fn number(&mut self, word: &str) -> i32 {
        let line = self.line();
        let rest = line.strip_prefix(word).unwrap_or_else(|| panic!("{line:?} is no {word:?}"));
        rest.split_whitespace().next().and_then(|number| number.parse().ok()).expect("a number")
    }

    /// Lets a target that waits on stdin go on.
    pub fn word(&mut self) {
        self.words.write_all(b"w").expect("write");
    }

    /// All lines until the player and whatever holds its output have ended.
    pub fn rest(&mut self) -> Vec<String> {
        let lines = std::iter::from_fn(|| Some(self.line()).filter(|line| !line.is_empty())).collect();
        self.wait();
        lines
    }

    pub fn wait(&self) -> WaitStatus {
        waitpid(self.pid, None).expect("wait for the player")
    }

    pub fn kill(&self, signal: Signal) {
        kill(self.pid, signal).expect("kill");
    }
}

/// How an orphan ended that this process has inherited.
pub fn end_of(pid: i32) -> WaitStatus {
    waitpid(Pid::from_raw(pid), None).expect("wait for an orphan")
}

/// The keeper of the calling player, if it has not been replaced: the first child it forked.
pub fn keeper() -> i32 {
    children()[0]
}

/// The children of the calling player, in the order in which they were forked.
pub fn children() -> Vec<i32> {
    let own = std::process::id();
    let list = std::fs::read_to_string(format!("/proc/{own}/task/{own}/children")).expect("children");
    list.split_whitespace().map(|pid| pid.parse().expect("a pid")).collect()
}

/// The guard that the keeper has forked; waits for it.
pub fn guard_of(keeper: i32) -> i32 {
    loop {
        let list = std::fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children"));
        let list = list.expect("a living keeper");
        if let Some(guard) = list.split_whitespace().map(|pid| pid.parse().expect("a pid")).find(is_guard) {
            return guard;
        }
        std::thread::yield_now();
    }
}

/// By its name, and not as a zombie.
fn is_guard(pid: &i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.contains("(exit-guard)") && !stat.contains("(exit-guard) Z")
}

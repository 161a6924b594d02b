//! Which processes get probes: those that are counted, and of these none whose program translates code.

pub mod hold;
mod program;

use crate::app::error::AppError;
use crate::attribution::translators;
use crate::capture::members::{Entry, Members};
use crate::capture::newcomers::Newcomer;
use crate::launch::Process;
use crate::model::Pid;
use crate::model::Tid;
use crate::procfs::parse_maps;
use crate::rights::{Use, viewer, with_lent};
use crate::session::say::say;
use crate::sys::clock::monotonic_ns;
use program::Program;
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The processes that are counted by probes; usable from any thread.
pub struct ProbedProcesses {
    members: Arc<Members>,
    /// The only one, where those that it starts are not counted.
    only: Option<Pid>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Processes that were examined, also those that have ended.
    known: HashSet<Pid>,
    /// Processes that translate code.
    translators: HashMap<Pid, Translator>,
    /// What was said of them: some execute several programs that do, one after the other.
    said: HashSet<(Pid, &'static str)>,
    /// Processes that ran before they had probes.
    late: HashMap<Pid, Late>,
}

#[derive(Clone, Copy)]
struct Translator {
    what: &'static str,
    /// It is a library in a program that does not translate anything itself.
    is_library: bool,
}

/// From when on a process has probes that ran without, on the clock of events.
#[derive(Clone, Copy)]
enum Late {
    Since {
        begun_ns: u64,
        at_ns: u64,
    },
    /// It ended without.
    Never,
}

/// What a process does when it gets its probes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Doing {
    /// It stands still, and has run nothing.
    Held,
    /// It runs since then.
    RunsSince(u64),
}

impl ProbedProcesses {
    pub fn new(members: &Arc<Members>, only: Option<Pid>) -> Arc<ProbedProcesses> {
        Arc::new(ProbedProcesses { members: Arc::clone(members), only, state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_counted(&self, pid: Pid) -> bool {
        self.only.is_none_or(|only| only == pid)
    }

    /// The command, before it runs: `file` is what it will execute.
    ///
    /// # Errors
    /// Where that translates code.
    pub fn admit_command(&self, pid: Pid, file: Option<&Path>) -> Result<(), AppError> {
        if let Some(Program::Translator(what)) = file.map(|file| program::of_file(file, Path::new("/"))) {
            let name = file.map(|file| file.display().to_string()).unwrap_or_default();
            return Err(AppError::Usage(format!("{name}: {}", refusal(what))));
        }
        self.enter(pid, Doing::Held);
        Ok(())
    }

    /// Processes that run already.
    ///
    /// # Errors
    /// Where all of them translate code; some are left out, and that is said.
    pub fn admit(&self, processes: &[Process]) -> Result<(), AppError> {
        let (mut last, mut refused) = (None, 0);
        for process in processes {
            let pid = process.pid();
            let library = || mapped_translator(pid).map(|what| Translator { what, is_library: true });
            let Some(found) = program_of(pid).flatten().or_else(library) else {
                self.give_probes(pid);
                continue;
            };
            refused += 1;
            let why = format!("{} (pid {pid}): {}", process.name(), refusal(found.what));
            self.state().translators.insert(pid, found);
            if let Some(former) = last.replace(why) {
                say(former);
            }
        }
        match last {
            Some(why) if refused == processes.len() => Err(AppError::Usage(why)),
            Some(why) => {
                say(why);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// What the kernel reported of a process, while it runs on.
    pub fn seen(&self, newcomer: Newcomer) {
        match newcomer {
            Newcomer::Forked { pid, .. } | Newcomer::Executed { pid, .. } if !self.is_counted(pid) => {}
            Newcomer::Forked { pid, parent, time_ns } => {
                let (inherited, is_new) = {
                    let mut state = self.state();
                    (state.translators.get(&parent).copied(), state.known.insert(pid))
                };
                match inherited {
                    Some(found) => drop(self.state().translators.insert(pid, found)),
                    None if !self.examine(pid, time_ns) && is_new => {
                        self.state().late.insert(pid, Late::Never);
                    }
                    None => {}
                }
            }
            Newcomer::Executed { pid, time_ns } => drop(self.examine(pid, time_ns)),
        }
    }

    /// By the program that it runs now; it may execute another one any time. False where that may not be read, or it is gone.
    fn examine(&self, pid: Pid, time_ns: u64) -> bool {
        let program = program_of(pid);
        match program {
            Some(Some(found)) => {
                // It runs already: others wait for their turn behind this.
                self.members.begin_to_remove(pid);
                self.refuse(pid, found, &name_of(pid));
            }
            Some(None) => {
                self.enter(pid, Doing::RunsSince(time_ns));
                // What it executed while it got its links may have been reported, and taken in, before they were there.
                if let Some(Some(found)) = program_of(pid) {
                    self.members.begin_to_remove(pid);
                    self.refuse(pid, found, &name_of(pid));
                }
            }
            None => self.members.begin_to_remove(pid),
        }
        program.is_some()
    }

    /// The same, when it is read from the ring of all events: only of those that began before newcomers were reported.
    pub fn seen_later(&self, newcomer: Newcomer) {
        let (Newcomer::Forked { pid, .. } | Newcomer::Executed { pid, .. }) = newcomer;
        let is_known = self.state().known.contains(&pid);
        if !is_known {
            self.seen(newcomer);
        }
    }

    /// A task that stands still at the first system calls of a new process or program, before any other code of its own; or
    /// at those of a new thread.
    fn begins(&self, tid: Tid) {
        if !self.is_counted(tid) {
            return;
        }
        match program_of(tid) {
            Some(Some(found)) => self.refuse(process_of(tid), found, &name_of(tid)),
            // A thread's number is no process'.
            Some(None) => self.enter(tid, Doing::Held),
            None => {}
        }
    }

    fn enter(&self, pid: Pid, doing: Doing) {
        let entry = self.give_probes(pid);
        let mut state = self.state();
        state.known.insert(pid);
        match (entry, doing) {
            (Entry::New | Entry::Known, Doing::Held) => {
                state.translators.remove(&pid);
                state.late.remove(&pid);
            }
            (Entry::New, Doing::RunsSince(begun_ns)) => {
                state.translators.remove(&pid);
                state.late.insert(pid, Late::Since { begun_ns, at_ns: monotonic_ns() });
            }
            (Entry::Gone, Doing::RunsSince(_)) => drop(state.late.insert(pid, Late::Never)),
            (Entry::Known, Doing::RunsSince(_)) | (Entry::Gone, Doing::Held) => {}
        }
    }

    fn give_probes(&self, pid: Pid) -> Entry {
        with_lent(Use::Placing, || self.members.enter(pid))
    }

    /// A task that stands still before it executes the program at `path`, with `root` as its root.
    fn executes(&self, tid: Tid, path: &Path, root: &Path) {
        let pid = process_of(tid);
        let program = program::of_file(path, root);
        if !self.is_counted(pid) || program == Program::Missing {
            return;
        }
        let translates = self.state().translators.contains_key(&pid);
        match program {
            Program::Translator(what) => {
                self.refuse(pid, Translator { what, is_library: false }, &hold::base_name(path));
            }
            // The kernel's links are the first thread's, and another one that executes takes that one's place.
            Program::Native if pid == tid && !translates => self.enter(pid, Doing::Held),
            // It enters when it is known what runs (`begins`, `maps`).
            _ => self.members.remove(pid),
        }
    }

    /// A task that stands still before it maps code of a file with this name.
    fn maps(&self, tid: Tid, name: &str) {
        if let Some(what) = translators::of_library(name) {
            let pid = process_of(tid);
            if self.is_counted(pid) {
                self.refuse(pid, Translator { what, is_library: true }, &name_of(pid));
            }
        } else if !self.members.has(tid) && process_of(tid) == tid {
            let is_library = self.state().translators.get(&tid).is_some_and(|found| found.is_library);
            if !is_library {
                self.begins(tid);
            }
        }
    }

    fn refuse(&self, pid: Pid, found: Translator, name: &str) {
        self.members.remove(pid);
        let is_new = {
            let mut state = self.state();
            state.translators.insert(pid, found);
            state.said.insert((pid, found.what))
        };
        if is_new {
            say(format_args!("{name} (pid {pid}): {}", refusal(found.what)));
        }
    }

    /// What is not counted of a process because it had no probes, in words. `since_ns` is when it, or its program, began.
    pub fn gap(&self, pid: Pid, since_ns: u64) -> Option<String> {
        let state = self.state();
        if let Some(found) = state.translators.get(&pid) {
            return Some(refusal(found.what));
        }
        match *state.late.get(&pid)? {
            Late::Never => {
                Some("it ended before it had probes: nothing that it allocated is counted".to_owned())
            }
            Late::Since { at_ns, .. } if at_ns > since_ns => Some(format!(
                "its first {:.1} ms are not counted: it had probes from then on",
                (at_ns - since_ns) as f64 / 1e6
            )),
            Late::Since { .. } => None,
        }
    }

    /// The same of all that began meanwhile.
    pub fn all_gaps(&self) -> Option<String> {
        let state = self.state();
        let gap = |late: &Late| match *late {
            Late::Since { begun_ns, at_ns } => Some(at_ns.saturating_sub(begun_ns)),
            Late::Never => None,
        };
        let longest = state.late.values().filter_map(gap).max().unwrap_or_default();
        let never = state.late.values().filter(|late| gap(late).is_none()).count();
        (!state.late.is_empty()).then(|| {
            format!(
                "{} processes that began meanwhile had probes only from some time on, at most {:.1} ms after they began; \
                 {never} of them ended before: their calls until then are not counted (--all-processes)",
                state.late.len(),
                longest as f64 / 1e6
            )
        })
    }

    /// Whether a process never had probes.
    pub fn had_none(&self, pid: Pid) -> bool {
        let state = self.state();
        state.translators.contains_key(&pid) || matches!(state.late.get(&pid), Some(Late::Never))
    }
}

/// Why there are no probes in it.
fn refusal(what: &str) -> String {
    format!(
        "not probed, because it translates the code of a program and runs that ({what}): a probe's breakpoint would be \
         translated, too, and end it (SIGTRAP). Nothing that it allocates is counted"
    )
}

/// Whether the program that a process runs translates code; None where that may not be read.
fn program_of(pid: Pid) -> Option<Option<Translator>> {
    let exe = std::fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    let what = program::translator(&hold::base_name(&exe));
    Some(what.map(|what| Translator { what, is_library: false }))
}

/// The same by what it has mapped.
fn mapped_translator(pid: Pid) -> Option<&'static str> {
    let maps = parse_maps(&std::fs::read(format!("/proc/{pid}/maps")).ok()?);
    let mut names = maps
        .mappings
        .iter()
        .filter_map(|mapping| mapping.name.rsplit(|&byte| byte == b'/').next().map(String::from_utf8_lossy));
    names.find_map(|name| translators::of_library(&name))
}

fn name_of(pid: Pid) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end().to_owned()
}

/// The process that a thread belongs to; the number itself where that is not known.
fn process_of(tid: Tid) -> Pid {
    let status = std::fs::read_to_string(format!("/proc/{tid}/status")).unwrap_or_default();
    let pid = status.lines().find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok());
    pid.unwrap_or(tid)
}

/// Says what `--all-processes` does.
///
/// # Errors
/// Where the privileges are lent by vmaudit's file: others would pay for what its user does.
pub fn warn_of_all_processes() -> Result<(), AppError> {
    if viewer().is_some() {
        return Err(AppError::Usage(
            "--all-processes places breakpoints in the processes of all users, and this vmaudit has its privileges from \
             its file (setcap): name a process (-p PID) or a command (-- CMD), or sudo vmaudit …"
                .to_owned(),
        ));
    }
    say(format_args!(
        "--all-processes: every process of this machine that maps these files has the breakpoints, each of its calls \
         costs one, and programs that translate code ({}) end with SIGTRAP",
        translators::EXAMPLES
    ));
    Ok(())
}

//! What was tried of the kernel → which backend works, and what would unlock the next one.

mod advice;
mod commands;
pub use advice::{Advice, Command, advice_for};
pub use commands::CommandVerdict;

use crate::model::{Capability, LoadTrial, Outcome, Privileges, Refusal, Trial};

/// The ways to see an address space, from the one that shows most to the one that shows least.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Rung {
    Bpf,
    Perf,
    Notify,
    Snapshot,
}

impl Rung {
    /// As `--backend` has it.
    pub fn name(self) -> &'static str {
        match self {
            Rung::Bpf => "bpf",
            Rung::Perf => "perf",
            Rung::Notify => "notify",
            Rung::Snapshot => "snapshot",
        }
    }

    /// What it shows.
    pub fn gives(self) -> &'static str {
        match self {
            Rung::Bpf => "every call with its full stack; first touches; running processes",
            Rung::Perf => "every call with its full stack, of commands that vmaudit starts",
            Rung::Notify => "every call, of commands that vmaudit starts; some stacks are incomplete; slower",
            Rung::Snapshot => "what is mapped and resident now; no calls, no stacks",
        }
    }

    /// Whether it sees the calls of a command.
    pub fn traces(self) -> bool {
        self != Rung::Snapshot
    }
}

/// Whose processes can be examined or attached to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    Nobody,
    Own,
    Everybody,
}

/// A rung, tried as a whole.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TriedRung {
    pub rung: Rung,
    /// Why it does not work here.
    pub failure: Option<RungFailure>,
    /// Whose running processes it reaches (`attach`, `snapshot`).
    pub reach: Reach,
}

/// What failed, as far as it decides what the error's number means.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FailedStep {
    #[default]
    Other,
    /// fork(2), or starting a thread.
    NewProcess,
    /// seccomp(2), for a filter with a listener.
    Listener,
    /// A file of another process in /proc.
    ProcFile,
}

/// The error, and its number where the kernel gave one.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RungFailure {
    pub text: String,
    pub errno: Option<i32>,
    pub step: FailedStep,
    /// Where it was an object of BPF programs.
    pub refusal: Option<Refusal>,
}

/// All that `vmaudit doctor` says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Diagnosis {
    pub privileges: Privileges,
    pub trials: Vec<Trial>,
    /// Each program of each command; none where no program can be loaded at all.
    pub loads: Vec<LoadTrial>,
    pub commands: Vec<CommandVerdict>,
    pub rungs: Vec<TriedRung>,
    /// What `--backend auto` takes for `run`.
    pub auto: Option<Rung>,
    /// What would help, the next rung first; empty where nothing is missing.
    pub advice: Vec<Advice>,
}

/// Draws the conclusions. `failures`: each rung that traces, with why it does not work (None: it
/// does).
pub fn diagnose(
    privileges: Privileges,
    (trials, loads): (Vec<Trial>, Vec<LoadTrial>),
    failures: Vec<(Rung, Option<RungFailure>)>,
) -> Diagnosis {
    let reach = reach(&privileges, &trials);
    let mut rungs: Vec<TriedRung> = failures
        .into_iter()
        .map(|(rung, failure)| {
            let attaches = rung == Rung::Bpf && failure.is_none();
            TriedRung { rung, reach: if attaches { reach } else { Reach::Nobody }, failure }
        })
        .collect();
    let smaps = trials.iter().find(|trial| trial.id == "smaps-own").map(|trial| &trial.outcome);
    let failure = match smaps {
        Some(Outcome::Refused { errno, name }) => {
            let text = format!("reading smaps: {name}");
            Some(RungFailure { text, errno: Some(*errno), step: FailedStep::ProcFile, refusal: None })
        }
        _ => None,
    };
    rungs.push(TriedRung { rung: Rung::Snapshot, reach, failure });
    rungs.sort_by_key(|tried| tried.rung);
    let auto = rungs.iter().find(|tried| tried.rung.traces() && tried.failure.is_none());
    let auto = auto.map(|tried| tried.rung);
    let mut advice: Vec<Advice> = rungs
        .iter()
        .rev()
        .filter(|tried| tried.rung.traces() && auto.is_none_or(|auto| tried.rung < auto))
        .filter_map(|tried| Some(advice_for(tried.rung, tried.failure.as_ref()?, &privileges)))
        .collect();
    if auto == Some(Rung::Bpf) {
        let missing = |id: &str| {
            let trial = trials.iter().find(|trial| trial.id == id);
            trial.is_some_and(|trial| matches!(trial.outcome, Outcome::Refused { .. }))
        };
        advice.extend(match () {
            () if reach == Reach::Own => Some(advice::others(&privileges)),
            () if missing("memory-other") || missing("pagemap-other") => {
                Some(advice::all_of_others(&privileges))
            }
            () => None,
        });
    }
    let commands = commands::commands(&privileges, (&rungs, auto), &loads);
    Diagnosis { privileges, trials, loads, commands, rungs, auto, advice }
}

fn reach(privileges: &Privileges, trials: &[Trial]) -> Reach {
    let outcome = |id: &str| trials.iter().find(|trial| trial.id == id).map(|trial| &trial.outcome);
    match outcome("smaps-other") {
        Some(Outcome::Works) => Reach::Everybody,
        // There is no process of another user to try it on.
        Some(Outcome::Absent(_)) if privileges.effective.allows(Capability::SysPtrace) => Reach::Everybody,
        _ if outcome("smaps-own").is_some_and(Outcome::works) => Reach::Own,
        _ => Reach::Nobody,
    }
}

//! The diagnosis as JSON (docs/doctor.md).

use crate::doctor::{Advice, Command, CommandVerdict, Diagnosis, Reach, TriedRung};
use crate::model::{LoadTrial, Missing, Outcome, Privileges, Refusal, Trial, TrialArea};
use crate::render::json::to_json;
use serde::Serialize;

#[derive(Serialize)]
struct Root<'a> {
    schema: u32,
    vmaudit: &'static str,
    machine: Machine<'a>,
    trials: Vec<TrialRow<'a>>,
    programs: Vec<ProgramRow<'a>>,
    backends: Vec<BackendRow<'a>>,
    commands: Vec<VerdictRow<'a>>,
    auto: Option<&'static str>,
    advice: Vec<AdviceRow<'a>>,
}

#[derive(Serialize)]
struct Machine<'a> {
    kernel: &'a str,
    arch: &'static str,
    uid: u32,
    capabilities: Vec<&'static str>,
    first_user_namespace: bool,
    first_pid_namespace: bool,
    seccomp_filter: bool,
    no_new_privs: bool,
    perf_event_paranoid: Option<i32>,
    lockdown: Option<&'a str>,
}

#[derive(Serialize)]
struct TrialRow<'a> {
    area: &'static str,
    id: &'static str,
    what: &'static str,
    result: &'static str,
    errno: Option<i32>,
    errno_name: Option<&'a str>,
    value: Option<&'a str>,
    detail: Option<&'a str>,
}

#[derive(Serialize)]
struct ProgramRow<'a> {
    command: &'static str,
    object: &'static str,
    way: Option<&'static str>,
    /// Null: what was refused is no program.
    program: Option<&'a str>,
    result: &'static str,
    error: Option<String>,
    errno: Option<i32>,
    missing: Option<&'a str>,
    verifier: &'a [String],
}

#[derive(Serialize)]
struct VerdictRow<'a> {
    name: &'static str,
    works: bool,
    how: Option<&'a str>,
    why: Option<&'a str>,
}

#[derive(Serialize)]
struct BackendRow<'a> {
    name: &'static str,
    works: bool,
    reach: &'static str,
    error: Option<&'a str>,
    errno: Option<i32>,
}

#[derive(Serialize)]
struct AdviceRow<'a> {
    unlocks: &'static str,
    why: &'a str,
    commands: Vec<CommandRow<'a>>,
}

#[derive(Serialize)]
struct CommandRow<'a> {
    when: &'static str,
    command: &'a str,
}

/// Pretty-printed, with a final newline.
///
/// # Errors
/// None in practice: it holds nothing that JSON cannot say.
pub fn doctor_to_json(diagnosis: &Diagnosis) -> Result<String, serde_json::Error> {
    let root = Root {
        schema: 1,
        vmaudit: env!("CARGO_PKG_VERSION"),
        machine: machine(&diagnosis.privileges),
        trials: diagnosis.trials.iter().map(trial).collect(),
        programs: diagnosis.loads.iter().flat_map(programs).collect(),
        commands: diagnosis.commands.iter().map(verdict).collect(),
        backends: diagnosis.rungs.iter().map(backend).collect(),
        auto: diagnosis.auto.map(|rung| rung.name()),
        advice: diagnosis.advice.iter().map(advice).collect(),
    };
    to_json(&root)
}

fn machine(privileges: &Privileges) -> Machine<'_> {
    Machine {
        kernel: &privileges.kernel,
        arch: privileges.arch,
        uid: privileges.uid,
        capabilities: privileges.effective.names(),
        first_user_namespace: privileges.first_user_namespace,
        first_pid_namespace: privileges.first_pid_namespace,
        seccomp_filter: privileges.seccomp_filter,
        no_new_privs: privileges.no_new_privs,
        perf_event_paranoid: privileges.perf_event_paranoid,
        lockdown: privileges.lockdown.as_deref(),
    }
}

fn trial(trial: &Trial) -> TrialRow<'_> {
    let area = match trial.area {
        TrialArea::Bpf => "bpf",
        TrialArea::Perf => "perf",
        TrialArea::Seccomp => "seccomp",
        TrialArea::Reading => "reading",
        TrialArea::Starting => "starting",
        TrialArea::Engines => "engines",
    };
    let detail = Some(trial.detail.as_str()).filter(|detail| !detail.is_empty());
    let row = TrialRow {
        area,
        id: trial.id,
        what: trial.what,
        result: "works",
        errno: None,
        errno_name: None,
        value: None,
        detail,
    };
    match &trial.outcome {
        Outcome::Works => row,
        Outcome::Value(value) => TrialRow { result: "value", value: Some(value), ..row },
        Outcome::Refused { errno, name } => {
            TrialRow { result: "refused", errno: Some(*errno), errno_name: Some(name), ..row }
        }
        Outcome::Absent(why) => TrialRow { result: "absent", detail: Some(why), ..row },
    }
}

fn programs(load: &LoadTrial) -> Vec<ProgramRow<'_>> {
    let row = |program, result, error, refusal: Option<&'_ Refusal>| ProgramRow {
        command: load.command,
        object: load.object,
        way: Some(load.way).filter(|way| !way.is_empty()),
        program,
        result,
        error,
        errno: refusal.and_then(|refusal| refusal.errno),
        missing: None,
        verifier: &[],
    };
    let mut rows: Vec<ProgramRow<'_>> = Vec::new();
    for program in &load.programs {
        let name = Some(program.name.as_str());
        rows.push(match &program.refusal {
            None => row(name, "loaded", None, None),
            Some(refusal) => ProgramRow {
                missing: refusal.missing.as_ref().map(Missing::name),
                verifier: &refusal.verifier,
                ..row(name, "refused", Some(refusal.to_string()), Some(refusal))
            },
        });
    }
    if let Some((text, refusal)) = &load.failure {
        rows.push(row(None, "refused", Some(text.clone()), refusal.as_deref()));
    }
    rows
}

fn verdict(command: &CommandVerdict) -> VerdictRow<'_> {
    let (how, why) = (command.outcome.as_ref().ok(), command.outcome.as_ref().err());
    VerdictRow {
        name: command.name,
        works: how.is_some(),
        how: how.map(String::as_str),
        why: why.map(String::as_str),
    }
}

fn backend(tried: &TriedRung) -> BackendRow<'_> {
    BackendRow {
        name: tried.rung.name(),
        works: tried.failure.is_none(),
        reach: match tried.reach {
            Reach::Nobody => "none",
            Reach::Own => "own",
            Reach::Everybody => "all",
        },
        error: tried.failure.as_ref().map(|failure| failure.text.as_str()),
        errno: tried.failure.as_ref().and_then(|failure| failure.errno),
    }
}

fn advice(advice: &Advice) -> AdviceRow<'_> {
    let commands = advice.commands.iter();
    let commands = commands.map(|Command { when, command }| CommandRow { when, command }).collect();
    AdviceRow { unlocks: advice.unlocks, why: &advice.why, commands }
}

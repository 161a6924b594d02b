//! `vmaudit doctor`: what this user may do on this machine, tried.

use crate::app::error::AppError;
use crate::app::output;
use crate::capture::trial::load_everything;
use crate::cli::{DoctorArgs, PlainFormat};
use crate::doctor::{Rung, RungFailure, diagnose};
use crate::launch::NotificationTrial;
use crate::model::{Outcome, Trial, TrialArea};
use crate::probe;
use crate::render::{doctor_to_json, doctor_to_text};
use crate::rights::{Use, with_lent};
use crate::session::tracer::choose::{CANDIDATES, Candidate};
use nix::errno::Errno;
use std::io;

/// What the exit code says where no backend can trace.
const NO: u8 = 1;

/// Tries everything; returns 0 when `run` would work.
pub fn doctor(args: &DoctorArgs) -> Result<u8, AppError> {
    let mut trials = probe::all();
    trials.extend(seccomp());
    // Each area keeps its order.
    trials.sort_by_key(|trial| trial.area);
    let loads = match outcome(&trials, "bpf-load").is_some_and(Outcome::works) {
        true => with_lent(Use::Tracing, load_everything),
        false => Vec::new(),
    };
    let failures = CANDIDATES.iter().map(|each| (each.rung, attempt(each, &trials))).collect();
    let diagnosis = diagnose(probe::privileges(), (trials, loads), failures);
    let text = match args.format {
        PlainFormat::Text => doctor_to_text(&diagnosis, args.verbose, output::color(&io::stdout())),
        PlainFormat::Json => doctor_to_json(&diagnosis)?,
    };
    output::print(text.as_bytes())?;
    Ok(if diagnosis.auto.is_some() { 0 } else { NO })
}

fn outcome<'a>(trials: &'a [Trial], id: &str) -> Option<&'a Outcome> {
    trials.iter().find(|trial| trial.id == id).map(|trial| &trial.outcome)
}

/// Tries a backend as a whole. Except perf where the ids of tracepoints cannot be read: finding hundreds of
/// them by trial costs the kernel seconds, and one that opens is enough.
fn attempt(candidate: &Candidate, trials: &[Trial]) -> Option<RungFailure> {
    let outcome = |id: &str| outcome(trials, id);
    let numbered = outcome("tracefs").is_some_and(Outcome::works);
    match outcome("perf-tracepoint") {
        Some(Outcome::Works) if candidate.rung == Rung::Perf && !numbered => None,
        Some(Outcome::Refused { errno, name }) if candidate.rung == Rung::Perf => Some(RungFailure {
            text: format!("perf_event_open: {name}"),
            errno: Some(*errno),
            ..RungFailure::default()
        }),
        _ => candidate.attempt(),
    }
}

/// A call held and continued, and what can be read meanwhile.
fn seccomp() -> Vec<Trial> {
    let tried = NotificationTrial::run();
    let held = match tried {
        Ok(NotificationTrial { held: Some(why), .. }) | Err(why) => refused(why.errno),
        Ok(_) => Outcome::Works,
    };
    let detail = match tried {
        Ok(NotificationTrial { held: None, wait_killable: false, .. }) => {
            "signals restart held calls (before Linux 5.19)"
        }
        Ok(NotificationTrial { held: None, no_new_privs: true, .. }) => {
            "with no_new_privs: setuid programs gain nothing"
        }
        _ => "",
    };
    let read = |what: fn(&NotificationTrial) -> Option<Errno>| match &tried {
        Ok(trial) if trial.held.is_none() => what(trial).map_or(Outcome::Works, refused),
        _ => Outcome::Absent("no call could be held".to_owned()),
    };
    let trial = |id, what, outcome, detail: &str, without| Trial {
        area: TrialArea::Seccomp,
        id,
        what,
        outcome,
        detail: detail.to_owned(),
        without,
    };
    let no_notify = "no notify backend";
    vec![
        trial(
            "seccomp-notify",
            "holding a call (user notification)",
            held,
            detail,
            "no notify backend; the state of a process at its exit is not seen",
        ),
        trial("held-place", "where it was made (/proc/TID/syscall)", read(|t| t.place), "", no_notify),
        trial("held-stack", "its stack (memory of a held thread)", read(|t| t.stack), "", no_notify),
    ]
}

fn refused(errno: Errno) -> Outcome {
    Outcome::Refused { errno: errno as i32, name: format!("{errno:?}") }
}

//! Which backend: the requested one, or the best that works.

use super::remedy::{SEE_DOCTOR, failure, hint, remedy, verifier_lines};
use super::{Tracer, TracerOptions};
use crate::capture::CaptureConfig;
use crate::capture::nothing::Nothing;
use crate::doctor::{Rung, RungFailure, advice_for};
use crate::launch::Prepared;
use crate::model::Pid;
use crate::probe;
use crate::rights::viewer;
use crate::session::error::SessionError;
use crate::session::say::say;
use crate::session::targets::pidfd;
use crate::session::tracer;
use std::os::fd::AsFd;

/// A backend that may be taken.
pub struct Candidate {
    pub rung: Rung,
    /// It can trace processes that run already, and page faults.
    attaches: bool,
    start: fn(&TracerOptions) -> Result<Tracer, SessionError>,
}

/// All there are, the best first.
pub const CANDIDATES: &[Candidate] = &[
    Candidate { rung: Rung::Bpf, attaches: true, start: tracer::bpf },
    Candidate { rung: Rung::Perf, attaches: false, start: tracer::perf },
    Candidate { rung: Rung::Notify, attaches: false, start: tracer::notify },
];

impl Candidate {
    /// Starts it on a child that does nothing, and ends it again: why it does not work here, or
    /// None.
    pub fn attempt(&self) -> Option<RungFailure> {
        const SMALL: u32 = 1 << 20;
        let capture = CaptureConfig {
            stack_bytes: 4096,
            ring_bytes: SMALL,
            spill_bytes: SMALL,
            queue_bytes: SMALL,
            running_targets: self.attaches,
            ..CaptureConfig::default()
        };
        let options = TracerOptions { capture, ..TracerOptions::default() };
        let attempt = || {
            let child = probe::Quiet::start()
                .map_err(|errno| SessionError::System { operation: tracer::FORKING, source: errno.into() })?;
            let tracer = (self.start)(&options)?;
            let added = add(&tracer, child.pid());
            // Closing what it opened takes the kernel long; the child would live on with it.
            drop(child);
            if viewer().is_none() {
                tracer.detach_in_background();
            }
            // Else immediately: the children of later attempts, which the user may inspect, would inherit it.
            added
        };
        attempt().err().map(|error: SessionError| failure(&error))
    }

    /// What it cannot do of what is requested.
    fn lacks(&self, options: &TracerOptions) -> Option<&'static str> {
        match options.capture {
            _ if self.attaches => None,
            CaptureConfig { running_targets: true, .. } => Some("running processes"),
            CaptureConfig { touch: Some(_), .. } => Some("page faults (--touch)"),
            CaptureConfig { entering: Some(_), .. } => Some("what a container's engine starts for a command"),
            _ => None,
        }
    }
}

/// A backend for a command that is about to start, which it has marked.
///
/// # Errors
/// When none works: why, and what would help.
pub fn for_command(options: &TracerOptions, prepared: &mut Prepared) -> Result<Tracer, SessionError> {
    let pid = prepared.pid();
    choose(options, |tracer| {
        add(tracer, pid)?;
        tracer.prepare(prepared)
    })
}

/// A backend for processes that run already.
///
/// # Errors
/// As [`for_command`].
pub fn for_running(options: &TracerOptions) -> Result<Tracer, SessionError> {
    choose(options, |_| Ok(()))
}

fn add(tracer: &Tracer, pid: Pid) -> Result<(), SessionError> {
    tracer.add_target(pid, pidfd(pid)?.as_fd())
}

fn choose(
    options: &TracerOptions,
    mut make_ready: impl FnMut(&Tracer) -> Result<(), SessionError>,
) -> Result<Tracer, SessionError> {
    let only = options.only;
    let mut failures = Vec::new();
    for candidate in CANDIDATES.iter().filter(|each| only.is_none_or(|only| each.rung == only)) {
        match candidate.lacks(options) {
            Some(what) if only.is_some() => return Err(cannot_see(candidate.rung, what)),
            Some(_) => continue,
            None => {}
        }
        let started = (candidate.start)(options).and_then(|tracer| make_ready(&tracer).map(|()| tracer));
        match started {
            Ok(tracer) => {
                if options.verbose || !options.is_optional {
                    report_choice(candidate.rung, &failures, options.verbose);
                }
                return Ok(tracer);
            }
            // The command line itself is what does not go together.
            Err(error @ SessionError::Launch(_)) if only.is_some() => return Err(error),
            Err(error) => failures.push((candidate.rung, failure(&error))),
        }
    }
    if options.is_optional {
        let nothing = Nothing::new().map_err(|errno| SessionError::System {
            operation: "making an event descriptor",
            source: errno.into(),
        })?;
        return Ok(Tracer::Nothing(nothing));
    }
    Err(none_works(&failures, options.verbose))
}

fn cannot_see(rung: Rung, what: &str) -> SessionError {
    SessionError::Usage(format!(
        "the backend {} follows commands that vmaudit starts and their calls; {what} need --backend bpf \
         (root, or CAP_BPF and CAP_PERFMON)",
        rung.name()
    ))
}

fn none_works(failures: &[(Rung, RungFailure)], verbose: bool) -> SessionError {
    let privileges = probe::privileges();
    let each = |(rung, failure): &(Rung, RungFailure)| {
        let (name, text) = (rung.name(), &failure.text);
        let seen = if verbose { verifier_lines(failure) } else { String::new() };
        format!("the backend {name} cannot work here: {text}\n{}{seen}", remedy(*rung, failure, &privileges))
    };
    let text: Vec<String> = failures.iter().map(each).collect();
    SessionError::Backend(format!("{}\n{SEE_DOCTOR}", text.join("\n")))
}

/// One line, where it is not the best one; with `-v` also what was refused.
fn report_choice(taken: Rung, failures: &[(Rung, RungFailure)], verbose: bool) {
    if let Some((rung, failure)) = failures.last() {
        let advice = advice_for(*rung, failure, &probe::privileges());
        let (taken, better) = (taken.name(), rung.name());
        let seen =
            if verbose { format!("\n{}{}", failure.text, verifier_lines(failure)) } else { String::new() };
        say(format_args!("backend {taken}, because {better} does not work: {}{seen}", hint(&advice)));
    }
}

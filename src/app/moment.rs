//! `report REC --at SECS`: what a recording says of a moment. The calls until then are told to the
//! ledger, which knows every byte of VIRT; what was resident is known only where a process was held
//! at its exit by then, because nobody looked at just that moment.

use super::error::AppError;
use super::replay::{Replay, time_of};
use crate::model::{Step, VmOp};
use crate::report::Report;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// Why there is no report of a moment.
#[derive(thiserror::Error, Debug)]
pub enum MomentError {
    #[error("{}: nothing was recorded", path.display())]
    Empty { path: PathBuf },
    #[error(
        "{}: the recording ends after {end:.3} s, there is no moment at {asked} s (times count from the first \
         call of the command)", path.display()
    )]
    TooLate { path: PathBuf, asked: f64, end: f64 },
    #[error("{}: no process was alive at {asked} s", path.display())]
    NobodyAlive { path: PathBuf, asked: f64 },
}

/// From the first call to the end of a recording, CLOCK_MONOTONIC.
#[derive(Clone, Copy, Debug)]
struct Span {
    began_ns: u64,
    ended_ns: u64,
}

/// The report of the moment `seconds` after the first call (the `t_ns` of a timeline), of the
/// processes that were alive then.
///
/// # Errors
/// When the recording is damaged, or ends before.
pub fn report_at(path: &Path, seconds: f64) -> Result<Report, AppError> {
    let mut replay = Replay::open(path)?;
    let span = told_until(&mut replay, seconds)?.ok_or_else(|| MomentError::Empty { path: path.into() })?;
    let end = (span.ended_ns - span.began_ns) as f64 / 1e9;
    // What is printed with milliseconds may be typed.
    if seconds > end + 0.0005 {
        return Err(MomentError::TooLate { path: path.into(), asked: seconds, end }.into());
    }
    let at_ns = span.began_ns.saturating_add(nanos(seconds));
    replay.audits.as_of(at_ns, &replay.pipeline);
    let (report, _) = replay.report();
    if report.processes.is_empty() {
        return Err(MomentError::NobodyAlive { path: path.into(), asked: seconds }.into());
    }
    Ok(report)
}

/// The last moment of the main process, or the last of the recording if it lived on: seconds after
/// the first call.
///
/// # Errors
/// When the recording is damaged, or empty.
pub fn last_moment(path: &Path) -> Result<f64, AppError> {
    let mut replay = Replay::open(path)?;
    let main = replay.meta().main;
    let (mut began_ns, mut before_ns, mut end_ns) = (None, 0, None);
    replay.run(&mut |step, _| {
        began_ns.get_or_insert(begin_of(step));
        match step {
            Step::Event(event) if event.task.pid == main => {
                if let VmOp::Exit { group_dead: true, .. } = event.op {
                    end_ns = Some(before_ns);
                }
            }
            _ => {}
        }
        before_ns = before_ns.max(time_of(step));
        ControlFlow::Continue(())
    })?;
    let began_ns = began_ns.ok_or_else(|| MomentError::Empty { path: path.into() })?;
    Ok(end_ns.unwrap_or(before_ns).saturating_sub(began_ns) as f64 / 1e9)
}

/// Tells the ledger what happened until then. None where nothing was recorded.
fn told_until(replay: &mut Replay, seconds: f64) -> Result<Option<Span>, AppError> {
    let mut span: Option<Span> = None;
    let mut went_on = false;
    replay.run(&mut |step, _| {
        let time = time_of(step);
        let span = span.get_or_insert(Span { began_ns: begin_of(step), ended_ns: time });
        if time > span.began_ns.saturating_add(nanos(seconds)) {
            span.ended_ns = span.ended_ns.max(time);
            went_on = true;
            return ControlFlow::Break(());
        }
        span.ended_ns = span.ended_ns.max(time);
        ControlFlow::Continue(())
    })?;
    if let (Some(span), false, Some(end)) = (&mut span, went_on, replay.ended_ns()) {
        span.ended_ns = span.ended_ns.max(end);
    }
    Ok(span)
}

/// As [`crate::ledger::AddressSpaces::began_ns`].
fn begin_of(step: &Step) -> u64 {
    match step {
        Step::Found { seen, .. } => seen.begun_ns,
        _ => time_of(step),
    }
}

pub fn nanos(seconds: f64) -> u64 {
    // A float too large for the type becomes its largest value.
    (seconds * 1e9).round() as u64
}

//! `report REC --at SECS`: what a recording says of a moment. The calls until then are replayed into the
//! ledger, which knows every byte of VIRT; what was resident is known only where a process was held at its
//! exit by then, because there is no snapshot of just that moment.

use super::error::{AppError, MomentError};
use super::recorded::report_of;
use super::rule_files::rules;
use crate::cli::Moment;
use crate::model::{Step, TimeZero, VmOp};
use crate::report::Report;
use crate::session::replay::{Replay, time_of};
use crate::store::Recording;
use std::ops::ControlFlow;
use std::path::Path;

/// What is printed with milliseconds may be typed.
const PRECISION_NS: u64 = 500_000;

/// The time that a moment is, in nanoseconds since [`TimeZero`].
///
/// # Errors
/// When the recording is damaged, or has no such moment.
pub fn since_zero(path: &Path, moment: Moment) -> Result<u64, AppError> {
    match moment {
        Moment::Seconds(seconds) => Ok(nanos(seconds)),
        Moment::Peak => {
            let report = report_of(Recording::open(path)?, false)?;
            let peak = report.processes.first().and_then(|process| process.peak.as_ref());
            Ok(peak.ok_or_else(|| MomentError::NoPeak { path: path.into() })?.t_ns)
        }
    }
}

/// The report of a moment, in nanoseconds since [`TimeZero`] (the `t_ns` of a timeline), of the
/// processes that were alive then.
///
/// # Errors
/// When the recording is damaged, or ends before.
pub fn report_at(path: &Path, t_ns: u64) -> Result<Report, AppError> {
    let mut replay = Replay::open(path)?;
    replay.pipeline.rules = rules();
    let requested = t_ns as f64 / 1e9;
    let span = replay_until(&mut replay, t_ns)?.ok_or_else(|| MomentError::Empty { path: path.into() })?;
    let seconds = |time_ns: u64| time_ns.saturating_sub(span.zero_ns) as f64 / 1e9;
    // What vmaudit itself took until its end says nothing of the program.
    let ended = replay.all_ended_ns().map(seconds);
    let nobody = || AppError::from(MomentError::NobodyAlive { path: path.into(), requested, ended });
    if t_ns > span.ended_ns.saturating_sub(span.zero_ns).saturating_add(PRECISION_NS) {
        let end = seconds(span.ended_ns);
        let late = || MomentError::TooLate { path: path.into(), requested, end }.into();
        return Err(if ended.is_some() { nobody() } else { late() });
    }
    replay.as_of(span.zero_ns.saturating_add(t_ns))?;
    let (mut report, _) = replay.report();
    report.at_ns = Some(t_ns);
    if report.processes.is_empty() { Err(nobody()) } else { Ok(report) }
}

/// The last moment of the main process, or the last of the recording if it lived on, in nanoseconds
/// since [`TimeZero`].
///
/// # Errors
/// When the recording is damaged, or empty.
pub fn last_moment(path: &Path) -> Result<u64, AppError> {
    let mut replay = Replay::open(path)?;
    let main = replay.meta().main;
    let (mut zero, mut before_ns, mut end_ns) = (TimeZero::default(), None, None);
    replay.run(&mut |step, _| {
        zero.see(step);
        if let Step::Event(event) = step
            && event.task.pid == main
            && matches!(event.op, VmOp::Exit { group_dead: true, .. })
        {
            end_ns = before_ns;
        }
        before_ns = before_ns.max(Some(time_of(step)));
        ControlFlow::Continue(())
    })?;
    let end_ns = end_ns.or(before_ns).ok_or_else(|| MomentError::Empty { path: path.into() })?;
    Ok(end_ns.saturating_sub(zero.ns()))
}

/// From time zero to the last step replayed, CLOCK_MONOTONIC.
#[derive(Clone, Copy, Debug)]
struct Span {
    zero_ns: u64,
    ended_ns: u64,
}

/// Replays what happened until then. None where nothing was recorded.
fn replay_until(replay: &mut Replay, t_ns: u64) -> Result<Option<Span>, AppError> {
    let (mut zero, mut ended_ns, mut went_on) = (TimeZero::default(), None, false);
    replay.run(&mut |step, _| {
        zero.see(step);
        let time = time_of(step);
        ended_ns = ended_ns.max(Some(time));
        // What was there when tracing began was there from the beginning.
        let later = zero.known_ns().is_some_and(|zero_ns| time > zero_ns.saturating_add(t_ns));
        went_on = later && !matches!(step, Step::Found { .. });
        if went_on { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    if let (false, Some(end)) = (went_on, replay.ended_ns()) {
        ended_ns = ended_ns.map(|time| time.max(end));
    }
    Ok(ended_ns.map(|ended_ns| Span { zero_ns: zero.ns(), ended_ns }))
}

fn nanos(seconds: f64) -> u64 {
    // A float too large for the type becomes its largest value.
    (seconds * 1e9).round() as u64
}

//! Counting without stacks: the kernel's side does it all, and vmaudit sleeps.

use super::select::Selection;
use super::{Counted, detach, hold_calls, mark, place, processes, reach, start, way};
use crate::app::code_files::CodeFile;
use crate::app::conclude::say_lost_tasks;
use crate::app::error::AppError;
use crate::app::probed::ProbedProcesses;
use crate::app::probed::hold::{self, HELD_CALLS};
use crate::capture::uprobe::CounterConfig;
use crate::cli::ProbeArgs;
use crate::launch::{Attached, Launch, LaunchConfig, Prepared, Process, Running};
use crate::model::Pid;
use crate::session::SessionError;
use crate::session::engine::End;
use crate::session::reporting;
use crate::session::say::say;
use crate::session::targets::pidfd;
use crate::session::watched::{Launched, SessionEvent, Watched};
use crate::sys::poll;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub fn count(args: &ProbeArgs, file: &CodeFile, selection: &Selection) -> Result<Counted, AppError> {
    let mut prepared = (!args.command.is_empty()).then(|| Launch::prepare(launch(args))).transpose()?;
    // Before anything is loaded: a request to stop ends with a result from here on.
    let attached = match &prepared {
        Some(_) => None,
        None => Some(Attached::new(args.pid.map(Process::find).transpose()?.into_iter().collect())?),
    };
    let process = attached.as_ref().and_then(|attached| attached.processes().first());
    let config = CounterConfig {
        functions: selection.functions.len(),
        only_marked: prepared.is_some() || process.is_some(),
        follow_forks: !args.no_follow_forks,
        reach: reach(args),
        stacks: None,
        way: way(args),
    };
    let counter = start(&config, args.verbose)?;
    let main = prepared.as_ref().map(Prepared::pid).or(process.map(Process::pid));
    let (processes, newcomers) = processes(args, &counter, main)?;
    if let Some(prepared) = &mut prepared {
        mark(&counter, (prepared.pid(), pidfd(prepared.pid())?.as_fd()), true)?;
        processes.admit_command(prepared.pid(), prepared.file().as_deref())?;
        hold_calls(prepared);
    }
    if let Some(attached) = attached.as_ref().filter(|_| process.is_some()) {
        processes.admit(attached.processes())?;
    }
    if let Some(process) = process {
        mark(&counter, (process.pid(), process.as_fd()), false)?;
    }
    let placed = place(&counter, (file, selection), args.verbose)?;
    let begun = Instant::now();
    let of_process = process.map(|process| format!("{} (pid {})", process.name(), process.pid()));
    let (of, end) = match (prepared, attached) {
        (Some(prepared), _) => {
            let mut running = prepared.go()?;
            serve(&mut running, &processes)?;
            running.notes().iter().for_each(say);
            let of = of_command(args, running.pid());
            (of, watch(Launched::new(running, "start it without vmaudit"), args)?)
        }
        (None, attached) => {
            let of = of_process.unwrap_or_else(|| "all processes".to_owned());
            say(format_args!("counting the calls of {of}; Ctrl-C ends it"));
            let attached = attached.map_or_else(|| Attached::new(Vec::new()), Ok)?;
            (of, watch(attached, args)?)
        }
    };
    let took = begun.elapsed();
    let calls = counter.counts()?;
    say_lost_tasks(counter.lost_tasks());
    let missed = counter.missed_tasks();
    if missed > 0 {
        say(format_args!("up to {missed} new threads or processes were perhaps not followed"));
    }
    let way = counter.way();
    drop(newcomers);
    detach(counter, args.verbose);
    let (exit_code, gap) = (end.exit_code(), processes.all_gaps());
    Ok(Counted { calls, of, placed, way, took, stacks: None, gap, exit_code })
}

/// Exits are held because whoever answers calls answers them, too; they go on at once.
pub fn launch(args: &ProbeArgs) -> LaunchConfig {
    LaunchConfig {
        argv: args.command.clone(),
        as_root: args.as_root,
        hold_exits: true,
        calls: HELD_CALLS,
        ..LaunchConfig::default()
    }
}

/// Answers the command's held calls, if there are any.
pub fn serve(running: &mut Running, processes: &Arc<ProbedProcesses>) -> Result<(), SessionError> {
    let Some(calls) = running.take_calls() else { return Ok(()) };
    hold::serve(calls, Arc::clone(processes), |_, _| {})
        .map_err(|source| SessionError::System { operation: "starting a thread", source })
}

/// Whose calls are counted.
pub fn of_command(args: &ProbeArgs, pid: Pid) -> String {
    let name = args.command.first().map(|name| name.to_string_lossy()).unwrap_or_default();
    format!("{name} (pid {pid}){}", if args.no_follow_forks { "" } else { " and its children" })
}

/// Until the targets have ended, the time is over, or the user requests the result.
fn watch(mut watched: impl Watched, args: &ProbeArgs) -> Result<End, AppError> {
    let end = until_end(&mut watched, args)?;
    reporting::begin(watched.take_requests()?);
    Ok(end)
}

fn until_end(watched: &mut impl Watched, args: &ProbeArgs) -> Result<End, AppError> {
    let limit = args.duration.map(Duration::from_secs_f64);
    let begun = Instant::now();
    loop {
        match watched.next()? {
            SessionEvent::Held(held) => watched.release(held)?,
            SessionEvent::Over(end) => return Ok(end),
            SessionEvent::StopRequested { now: true } => return Ok(End::LeftRunning),
            SessionEvent::StopRequested { now: false } | SessionEvent::Joined(_) => {}
            SessionEvent::Nothing => {
                let left = limit.map(|limit| limit.saturating_sub(begun.elapsed()));
                if left == Some(Duration::ZERO) {
                    return Ok(End::LeftRunning);
                }
                if !watched.has_pending() {
                    poll::wait(&[watched.as_fd()], left);
                }
            }
        }
    }
}

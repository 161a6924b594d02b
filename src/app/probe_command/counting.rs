//! Counting without stacks: the kernel's side does it all, and vmaudit sleeps.

use super::select::Selection;
use super::{Counted, detach, place, way};
use crate::app::code_files::CodeFile;
use crate::app::error::AppError;
use crate::app::run::pidfd;
use crate::app::say::say;
use crate::app::session::End;
use crate::app::watched::{Launched, News, Watched};
use crate::capture::uprobe::{CallCounter, CounterConfig};
use crate::cli::ProbeArgs;
use crate::model::Pid;
use crate::target::{Attached, Launch, LaunchConfig, Process};
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

pub fn count(args: &ProbeArgs, file: &CodeFile, selection: &Selection) -> Result<Counted, AppError> {
    let prepared = (!args.command.is_empty()).then(|| Launch::prepare(launch(args))).transpose()?;
    let process = args.pid.map(Process::find).transpose()?;
    let only = process.as_ref().filter(|_| args.no_follow_forks).map(Process::pid);
    let mut counter = CallCounter::start(&CounterConfig {
        functions: selection.functions.len(),
        only_marked: prepared.is_some() || process.is_some(),
        follow_forks: !args.no_follow_forks,
        stacks: None,
        way: way(args),
    })?;
    if let Some(prepared) = &prepared {
        counter.mark(prepared.pid(), pidfd(prepared.pid())?.as_fd(), true)?;
    }
    if let Some(process) = &process {
        counter.mark(process.pid(), process.as_fd(), false)?;
    }
    let placed = place(&mut counter, (file, selection), only, args.verbose)?;
    let begun = Instant::now();
    let (of, end) = match (prepared, process) {
        (Some(prepared), _) => {
            let running = prepared.go()?;
            running.notes().iter().for_each(say);
            let of = of_command(args, running.pid());
            (of, watch(Launched::new(running, "start it without vmaudit"), args)?)
        }
        (None, Some(process)) => {
            let of = format!("{} (pid {})", process.name(), process.pid());
            say(format_args!("counting calls of {of}; Ctrl-C ends it"));
            (of, watch(Attached::new(vec![process])?, args)?)
        }
        (None, None) => {
            say("counting the calls of all processes; Ctrl-C ends it");
            ("all processes".to_owned(), watch(Attached::new(Vec::new())?, args)?)
        }
    };
    let took = begun.elapsed();
    let calls = counter.counts()?;
    let way = counter.way();
    detach(counter, args.verbose);
    Ok(Counted { calls, of, placed, way, took, stacks: None, exit_code: exit_code(end) })
}

pub fn launch(args: &ProbeArgs) -> LaunchConfig {
    LaunchConfig { argv: args.command.clone(), as_root: args.as_root, ..LaunchConfig::default() }
}

/// Whose calls are counted.
pub fn of_command(args: &ProbeArgs, pid: Pid) -> String {
    let name = args.command.first().map(|name| name.to_string_lossy()).unwrap_or_default();
    format!("{name} (pid {pid}){}", if args.no_follow_forks { "" } else { " and its children" })
}

pub fn exit_code(end: End) -> u8 {
    match end {
        End::Exited(status) => status.exit_code(),
        End::NoneLeft | End::LeftRunning | End::LoadEnded(_) => 0,
    }
}

/// Until the targets have ended, the time is over, or the user wants the result.
fn watch(mut watched: impl Watched, args: &ProbeArgs) -> Result<End, AppError> {
    let limit = args.duration.map(Duration::from_secs_f64);
    let begun = Instant::now();
    loop {
        match watched.next()? {
            News::Held(held) => watched.release(held)?,
            News::Over(end) => return Ok(end),
            News::Asked { stop: true } => return Ok(End::LeftRunning),
            News::Asked { stop: false } | News::Joined(_) => {}
            News::Nothing => {
                let left = limit.map(|limit| limit.saturating_sub(begun.elapsed()));
                if left == Some(Duration::ZERO) {
                    return Ok(End::LeftRunning);
                }
                if !watched.has_heard() {
                    sleep(&watched, left);
                }
            }
        }
    }
}

fn sleep(watched: &impl Watched, left: Option<Duration>) {
    // Rounded up, so that the end of the time is not waited for in many small steps.
    let timeout = left.map_or(-1, |left| i32::try_from(left.as_millis() + 1).unwrap_or(i32::MAX));
    let mut poll = libc::pollfd { fd: watched.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid pollfd. A signal may end it early, which is fine.
    unsafe { libc::poll(&raw mut poll, 1, timeout) };
}

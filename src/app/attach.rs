//! `vmaudit attach`: processes that run already.
//!
//! In this order, so that nothing is missed and nobody is mistaken for another: the processes are
//! held by descriptor; all their threads are marked, so that each call is reported from then on;
//! each is looked at; only then are reports read, and told from those that the look has in it.

use super::asked::{RunOptions, Subject};
use super::audits::Audits;
use super::choose;
use super::conclude::{Gathered, conclude};
use super::contained::{self, Contained, members};
use super::container_view::ContainerView;
use super::error::AppError;
use super::pipeline::Pipeline;
use super::remedy::may_not_be_read;
use super::say::say;
use super::session::Session;
use super::touch;
use super::tracer::{Tracer, TracerOptions};
use super::watched::Watched;
use crate::capture::bpf::{Entering, MarkedThread};
use crate::cli::{AttachArgs, TargetArgs};
use crate::containers::{self, Container, short};
use crate::launch::{Attached, Process};
use crate::model::observation::ThreadObservation;
use crate::model::{Addr, AddrRange, Mapping, MmKey, Observations, Prot, Sharing};
use crate::procfs::{ObserveError, ObserveOptions, observe};
use crate::render::style::clean;
use std::cell::RefCell;
use std::time::{Duration, Instant};

/// How often to look, for the last state of those that end.
const LOOK_PAUSE: Duration = Duration::from_millis(200);

/// Traces running processes; returns vmaudit's exit code.
pub fn attach(args: &AttachArgs) -> Result<u8, AppError> {
    let begun = Instant::now();
    let asked = RunOptions::from(args);
    let wanted = asked.wanted(&[])?;
    let container = container(&args.of)?;
    // Whoever enters a container later belongs to it, as children do.
    let followed = container.as_ref().filter(|_| !args.no_follow_forks);
    let processes = match &container {
        Some(container) => keep(members(container)?, readable)?,
        None => targets(&args.of.pids)?,
    };
    let dump = asked.dump()?;
    let mut attached = Attached::new(processes)?;
    let entering = followed.map(|container| entering(container, false)).transpose()?;
    let tracer =
        choose::for_running(&TracerOptions { running_targets: true, ..asked.tracer_options(entering) })?;
    let loaded = begun.elapsed();
    let threads = match followed {
        Some(container) => contained::mark(container, &mut attached, &tracer)?,
        None => mark(&attached, &tracer)?,
    };
    if args.inside.verbose {
        say(format_args!(
            "backend {}, {} attached after {loaded:.1?}; {} threads marked after {:.1?}",
            tracer.name(),
            tracer.attached(),
            threads.len(),
            begun.elapsed()
        ));
    }
    let command: Vec<_> = std::env::args_os().skip(1).collect();
    let first = attached.processes().first().map_or(0, |process| process.pid());
    let subject = Subject { main: first, command: &command, container: container.as_ref() };
    let pipeline = RefCell::new(asked.pipeline(&tracer, &subject, dump)?);
    let begun_with = begin(&attached, &threads, &mut pipeline.borrow_mut());
    let main = begun_with.inspect_err(|_| pipeline.borrow_mut().abandon_record())?;
    if args.inside.verbose {
        say(format_args!("first look done after {:.1?}", begun.elapsed()));
    }
    let (audits, counters) = {
        let mut reader = tracer.reader(|raw| pipeline.borrow_mut().record(raw))?;
        let every = args.interval.map_or(LOOK_PAUSE, Duration::from_secs_f64);
        let schedule = asked.schedule(every, LOOK_PAUSE);
        let view = container.clone().map(ContainerView::of).unwrap_or_default();
        let audits = match followed {
            Some(container) => {
                let watched = Contained::new(attached, container, &tracer);
                watch(Session::new(watched, &mut *reader, &pipeline, schedule), view)?
            }
            None => watch(Session::new(attached, &mut *reader, &pipeline, schedule), view)?,
        };
        (audits, reader.counters()?)
    };
    let mut pipeline = pipeline.into_inner();
    asked.finish_dump(&mut pipeline)?;
    touch::finish(&mut pipeline, &tracer)?;
    conclude(Gathered { main, audits, counters, pipeline, exit_code: None }, &wanted, args.inside.verbose)?;
    tracer.detach_in_background();
    Ok(0)
}

/// The processes with these numbers, each once, that may be read.
///
/// # Errors
/// When none is left; others that cannot be traced are only told.
pub(super) fn targets(numbers: &[i32]) -> Result<Vec<Process>, AppError> {
    // Before anything is loaded: what may not be read is no target.
    keep(find(numbers)?, readable)
}

/// Programs that are executed in a container are targets.
pub fn entering(container: &Container, from_outside: bool) -> Result<Entering, AppError> {
    Ok(Entering { cgroup: container.key()?, from_outside })
}

/// Until the end, or until the user wants the report.
fn watch<W: Watched>(mut session: Session<'_, '_, W>, view: ContainerView) -> Result<Audits, AppError> {
    session.audits.containers = view;
    // At once: whatever ends from here on has been seen with what is resident.
    session.look_at_all();
    say("Ctrl-C ends tracing and reports; the target goes on");
    session.run()?;
    Ok(std::mem::take(&mut session.audits))
}

/// The container that the user named, if it is one.
pub fn container(of: &TargetArgs) -> Result<Option<Container>, AppError> {
    let by_name = of.container.as_deref().map(containers::by_name);
    let by_path = of.cgroup.as_deref().map(containers::by_cgroup);
    let found = by_name.or(by_path).transpose()?;
    if let Some(found) = &found {
        let engine = found.engine.as_deref().map(|engine| format!("{engine}, ")).unwrap_or_default();
        let id = found.id.as_deref().map(|id| format!("{}, ", short(id))).unwrap_or_default();
        let (name, cgroup) = (clean(&found.name), clean(&found.cgroup()));
        match of.cgroup {
            Some(_) => say(format_args!("cgroup {cgroup}")),
            None => say(format_args!("container {name} ({engine}{id}cgroup {cgroup})")),
        }
    }
    Ok(found)
}

/// The processes that the user named, each once. Of several some may be gone.
fn find(numbers: &[i32]) -> Result<Vec<Process>, AppError> {
    let found = numbers.iter().map(|&number| Process::find(number).map_err(AppError::from));
    let mut processes: Vec<Process> = Vec::new();
    for process in all_or_some(found.collect())? {
        if let Some(tid) = process.found_by_thread() {
            let (pid, name) = (process.pid(), process.name());
            say(format_args!("{tid} is a thread of {pid} ({name}): tracing that process"));
        }
        if processes.iter().all(|known| known.pid() != process.pid()) {
            processes.push(process);
        }
    }
    Ok(processes)
}

pub(super) fn keep(
    processes: Vec<Process>,
    check: impl Fn(&Process) -> Result<(), AppError>,
) -> Result<Vec<Process>, AppError> {
    all_or_some(processes.into_iter().map(|process| check(&process).map(|()| process)).collect())
}

/// One failure of one is an error; of several it is a note, as long as one is left.
fn all_or_some<T>(results: Vec<Result<T, AppError>>) -> Result<Vec<T>, AppError> {
    let several = results.len() > 1;
    let mut good = Vec::with_capacity(results.len());
    for result in results {
        match result {
            Ok(value) => good.push(value),
            Err(error) if several => say(format_args!("{error}")),
            Err(error) => return Err(error),
        }
    }
    if good.is_empty() { Err(AppError::NoTargetLeft) } else { Ok(good) }
}

fn look_error(process: &Process, source: ObserveError) -> AppError {
    let denied = matches!(source, ObserveError::PermissionDenied { .. });
    let remedy = if denied { format!("\n{}", may_not_be_read()) } else { String::new() };
    AppError::Look { pid: process.pid(), name: process.name().to_owned(), source, remedy }
}

/// The only question is whether its memory may be looked at.
pub(super) fn readable(process: &Process) -> Result<(), AppError> {
    let pid = process.pid();
    match std::fs::File::open(format!("/proc/{pid}/maps")) {
        Err(source) if source.kind() == std::io::ErrorKind::PermissionDenied => {
            let (operation, path) = ("open", format!("/proc/{pid}/maps").into());
            Err(look_error(process, ObserveError::PermissionDenied { pid, operation, path, source }))
        }
        // Anything else shows at the look.
        _ => Ok(()),
    }
}

/// Marks all threads of the targets: their calls are reported from then on.
pub(super) fn mark(attached: &Attached, tracer: &Tracer) -> Result<Vec<MarkedThread>, AppError> {
    let targets: Vec<_> =
        attached.processes().iter().map(|process| (process.pid(), process.as_fd())).collect();
    tracer.mark_running(&targets)
}

/// Takes the first look at each process; returns the number of the first that could be looked at.
pub(super) fn begin(
    attached: &Attached,
    threads: &[MarkedThread],
    pipeline: &mut Pipeline,
) -> Result<i32, AppError> {
    let begin_one = |process: &Process, pipeline: &mut Pipeline| {
        let own: Vec<&MarkedThread> = threads.iter().filter(|thread| thread.pid == process.pid()).collect();
        let (mm, seen) = first_look(process, &own)?;
        pipeline.found(mm, &seen);
        let count = own.len();
        let threads = if count == 1 { "1 thread".to_owned() } else { format!("{count} threads") };
        say(format_args!("tracing {} (pid {}, {threads})", process.name(), process.pid()));
        Ok(process.pid())
    };
    let begun = attached.processes().iter().map(|process| begin_one(process, pipeline)).collect();
    let pids = all_or_some(begun)?;
    pids.first().copied().ok_or(AppError::NoTargetLeft)
}

/// The process as it is now that every call of it is reported: mappings and threads.
pub fn first_look(process: &Process, threads: &[&MarkedThread]) -> Result<(MmKey, Observations), AppError> {
    let pid = process.pid();
    let gone = || {
        look_error(
            process,
            ObserveError::Gone { pid, operation: "read", path: format!("/proc/{pid}/maps").into() },
        )
    };
    // The first thread may have exited while others live on: then only their directories show
    // the memory.
    let living = threads.iter().find_map(|thread| Some((thread.tid, thread.mm?, thread.brk)));
    let Some((tid, mm, brk)) = living else {
        let name = process.name().to_owned();
        return Err(match process.has_ended() || !threads.is_empty() {
            true => gone(),
            false => AppError::OtherNamespace { pid, name },
        });
    };
    let options = ObserveOptions::mappings_only();
    // It may be this thread that has just ended.
    let seen = observe(pid, tid, options).or_else(|_| observe(pid, pid, options));
    if process.has_ended() {
        return Err(gone());
    }
    let mut seen = seen.map_err(|source| look_error(process, source))?;
    seen.threads = threads
        .iter()
        .map(|thread| ThreadObservation { tid: thread.tid, comm: thread.comm.clone(), stack_pointer: None })
        .collect();
    if let Some(brk) = brk
        && !seen.mappings.iter().any(|mapping| mapping.is_special("[heap]"))
    {
        seen.mappings.push(empty_heap(brk));
        seen.mappings.sort_by_key(|mapping| mapping.range.start);
    }
    Ok((mm, seen))
}

/// A heap of no bytes tells the ledger where the break is that the first brk will move.
fn empty_heap(brk: Addr) -> Mapping {
    Mapping {
        range: AddrRange::from_len(brk.page_up(), 0),
        prot: Prot::RW,
        sharing: Sharing::Private,
        offset: 0,
        file: None,
        name: b"[heap]".to_vec(),
    }
}

//! `vmaudit probe`: how often the functions of a library are called, all of them at once.

mod counting;
mod select;
mod stacks;

use crate::app::code_files::{self, CodeFile, pattern};
use crate::app::error::AppError;
use crate::app::output::{Destination, Other, Output, program};
use crate::app::probed::{ProbedProcesses, warn_of_all_processes};
use crate::capture::members::Reach;
use crate::capture::newcomers::Watch;
use crate::capture::uprobe::{CallCounter, CounterConfig, CountersPlaced, Way};
use crate::cli::{PlainFormat, ProbeArgs, ProbeWay};
use crate::launch::Prepared;
use crate::model::{Pid, ProbeCost, ProbeSite};
use crate::objects::{ProbedEntry, probe_sites};
use crate::render::probe::{
    CallCounts, FunctionCalls, PlacedCounts, RefusedFunction, StackCounts, calls_to_text,
};
use crate::render::to_json;
use crate::rights::{Use, with_lent};
use crate::session::say::say;
use crate::session::tracer::remedy::explained;
use crate::sys::abi::ENOTSUPP;
use select::{Selected, Selection};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

/// What came of counting.
struct Counted {
    calls: Vec<u64>,
    of: String,
    placed: CountersPlaced,
    way: Way,
    took: Duration,
    /// Stacks and their calls, in the numbering of the selection.
    stacks: Option<StackCounts>,
    /// What is not counted of processes that began meanwhile, in words.
    gap: Option<String>,
    exit_code: u8,
}

/// Counts; returns the exit code.
pub fn probe(args: &ProbeArgs) -> Result<u8, AppError> {
    let filter = pattern(&args.pattern)?;
    let is_named = args.pid.is_some() || !args.command.is_empty();
    if args.stacks && !is_named {
        return Err(AppError::Usage(
            "--stacks needs a process (-p PID) or a command: what is mapped where is followed of those only"
                .to_owned(),
        ));
    }
    let file = file(args)?;
    let selection = Selection::of(&file, &filter);
    if selection.functions.is_empty() {
        return Err(AppError::Usage(selection.why_none(&file, &args.pattern)));
    }
    if !is_named && !args.all_processes && !args.stacks {
        return Err(AppError::Usage(
            "name a process (-p PID) or a command (-- CMD); --all-processes counts the calls of all processes, and puts \
             breakpoints into every one of them that maps the file"
                .to_owned(),
        ));
    }
    let to = destination(args, &file)?;
    if args.all_processes {
        warn_of_all_processes()?;
    }
    let counted = if args.stacks {
        stacks::count(args, &file, &selection)?
    } else {
        counting::count(args, &file, &selection)?
    };
    let exit_code = counted.exit_code;
    let (counts, summary) = report(args, &file, selection, counted);
    let written = match args.format {
        PlainFormat::Text => calls_to_text(&counts, &summary, to.options()),
        PlainFormat::Json => to_json(&counts)?,
    };
    to.put(written.as_bytes())?;
    Ok(exit_code)
}

/// Before anything is started.
fn destination(args: &ProbeArgs, file: &CodeFile) -> Result<Destination, AppError> {
    let mut others = program(&args.command);
    others.push(Other { path: &file.path, what: "the file that is probed" });
    Ok(Destination { output: Output::open(args.report.as_deref(), &others)?, top: args.top })
}

/// The one file whose functions are probed.
fn file(args: &ProbeArgs) -> Result<CodeFile, AppError> {
    let Some(pid) = args.pid else { return code_files::named(&args.lib) };
    let (mut files, failures) = code_files::of_process(pid, Some(&args.lib))?;
    if files.len() > 1 {
        let paths: Vec<_> = files.iter().map(|file| file.path.display().to_string()).collect();
        return Err(AppError::Usage(format!("--lib means several files: {}", paths.join(", "))));
    }
    files.pop().ok_or_else(|| AppError::Usage(failures.join("; ")))
}

fn way(args: &ProbeArgs) -> Option<Way> {
    match args.way {
        ProbeWay::Auto => None,
        ProbeWay::Multi => Some(Way::Multi),
        ProbeWay::Single => Some(Way::Single),
    }
}

fn start(config: &CounterConfig<'_>, verbose: bool) -> Result<CallCounter, AppError> {
    with_lent(Use::Placing, || CallCounter::start(config)).map_err(|error| explained(error, verbose).into())
}

fn reach(args: &ProbeArgs) -> Reach {
    if args.all_processes { Reach::AllProcesses } else { Reach::Members }
}

/// Which processes have the probes. Reports those that begin meanwhile, where they are followed, as long as the second is there.
fn processes(
    args: &ProbeArgs,
    counter: &CallCounter,
    main: Option<Pid>,
) -> Result<(Arc<ProbedProcesses>, Option<Watch>), AppError> {
    let processes = ProbedProcesses::new(counter.members(), main.filter(|_| args.no_follow_forks));
    let told = Arc::clone(&processes);
    let watch = || counter.watch_newcomers(move |newcomer| told.seen(newcomer));
    let followed = main.is_some() && !args.no_follow_forks && !args.all_processes;
    let watch = followed.then(watch).transpose();
    Ok((processes, watch.map_err(|error| explained(error, args.verbose))?))
}

/// Has the calls held that begin processes and programs. Where that cannot be, their first calls are not counted.
fn hold_calls(prepared: &mut Prepared) {
    if let Err(error) = prepared.watch_calls() {
        say(format_args!(
            "{error}\nchildren are probed while they run already: their first calls are missed"
        ));
    }
}

/// As [`CallCounter::mark`].
fn mark(counter: &CallCounter, (pid, pidfd): (Pid, BorrowedFd<'_>), at_exec: bool) -> Result<(), AppError> {
    Ok(with_lent(Use::Placing, || counter.mark(pid, pidfd, at_exec))?)
}

/// Places the probes, and says so.
fn place(
    counter: &CallCounter,
    (file, selection): (&CodeFile, &Selection),
    verbose: bool,
) -> Result<CountersPlaced, AppError> {
    let Some(fd) = file.object.raw_fd() else {
        return Err(AppError::Usage(format!(
            "{}: no file that probes could be placed on",
            file.path.display()
        )));
    };
    // SAFETY: the object keeps its descriptor open, and it is borrowed for longer than this.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let entry = |function: &Selected| ProbedEntry { offset: function.offset, arguments: 0 };
    let entries: Vec<ProbedEntry> = selection.functions.iter().map(entry).collect();
    let sites = probe_sites(&file.object, &entries);
    let offsets: Vec<u64> = entries.iter().zip(&sites).map(|(entry, site)| site.of(entry.offset)).collect();
    let placed = with_lent(Use::Placing, || counter.place(fd, &offsets))?;
    if verbose {
        let is_refused = |index| placed.refused.iter().any(|refused| refused.index == index);
        let stepped = |(index, site): &(usize, &ProbeSite)| {
            site.cost == ProbeCost::SingleStepped && !is_refused(*index)
        };
        say(format_args!(
            "{}: {} functions probed in {:.1?} ({}, {} system calls); {} of them are single-stepped, which takes ten \
             times as long",
            file.path.display(),
            offsets.len() - placed.refused.len(),
            placed.took,
            counter.way().name(),
            placed.calls,
            sites.iter().enumerate().filter(stepped).count()
        ));
    }
    Ok(placed)
}

/// Removes the probes; in the background unless the time is printed.
fn detach(counter: CallCounter, verbose: bool) {
    if verbose {
        say(format_args!("probes taken away in {:.1?}", counter.detach()));
    } else {
        crate::capture::bpf::leave_to_a_child(counter);
    }
}

fn report(
    args: &ProbeArgs,
    file: &CodeFile,
    selection: Selection,
    counted: Counted,
) -> (CallCounts, crate::model::ProbeSummary) {
    let refused = |index: usize| counted.placed.refused.iter().any(|refused| refused.index == index);
    let hex = |number: u64| format!("0x{number:x}");
    let mut functions: Vec<(usize, FunctionCalls)> = selection
        .functions
        .iter()
        .enumerate()
        .filter(|&(index, _)| counted.placed.refused.is_empty() || !refused(index))
        .map(|(index, function)| {
            let calls = counted.calls.get(index).copied().unwrap_or(0);
            let (name, linkage) = (function.name.clone(), function.linkage.clone());
            let row = FunctionCalls {
                name,
                linkage,
                address: hex(function.svma),
                offset: hex(function.offset),
                calls,
            };
            (index, row)
        })
        .collect();
    // By address among equals.
    functions.sort_by_key(|(_, row)| std::cmp::Reverse(row.calls));
    let mut place_of = vec![usize::MAX; selection.functions.len()];
    for (place, (index, _)) in functions.iter().enumerate() {
        if let Some(slot) = place_of.get_mut(*index) {
            *slot = place;
        }
    }
    let stacks = counted.stacks.map(|mut stacks| {
        for each in &mut stacks.distinct {
            each.function = place_of.get(each.function).copied().unwrap_or(usize::MAX);
        }
        stacks
    });
    let functions: Vec<FunctionCalls> = functions.into_iter().map(|(_, row)| row).collect();
    let refused = counted.placed.refused.iter().filter_map(|refused| {
        let function = selection.functions.get(refused.index)?;
        let error = nix::errno::Errno::from_raw(refused.errno);
        let error = if refused.errno == ENOTSUPP { "ENOTSUPP".to_owned() } else { format!("{error:?}") };
        let (name, address) = (function.name.clone(), hex(function.svma));
        Some(RefusedFunction { name, address, errno: refused.errno, error })
    });
    let counts = CallCounts {
        schema: 1,
        file: file.path.to_string_lossy().into_owned(),
        build_id: file.object.build_id().map(str::to_owned),
        pattern: args.pattern.clone(),
        of: counted.of,
        seconds: counted.took.as_secs_f64(),
        placed: PlacedCounts {
            how: counted.way.name(),
            matching: selection.summary.functions,
            probed: functions.len() as u64,
            milliseconds: counted.placed.took.as_secs_f64() * 1e3,
        },
        calls: functions.iter().map(|function| function.calls).sum(),
        functions,
        stacks,
        skipped: selection.summary.skipped.iter().map(|(skip, &count)| (skip.id(), count)).collect(),
        refused: refused.collect(),
        notes: selection.notes.into_iter().chain(counted.gap).collect(),
    };
    (counts, selection.summary)
}

//! `vmaudit report`: the report of a recording.

use crate::app::error::AppError;
use crate::app::error::{DiffError, MomentError};
use crate::app::flame;
use crate::app::heap_diff;
use crate::app::heap_output::{self, HeapOutput};
use crate::app::heap_record::{Shown, heap_of, heap_with, heaps_between};
use crate::app::moment::{last_moment, report_at, since_zero};
use crate::app::output::{Destination, Other, Output, OutputSpec};
use crate::app::recorded::report_of;
use crate::cli::{Format, HeapViewArgs, Moment, Moments, ReportArgs, ReportFormat};
use crate::diff::{HeapSide, Pick};
use crate::heap::{HeapBy, HeapReport};
use crate::render::{growth_to_json, growth_to_text};
use crate::report::Report;
use crate::report::growth::growth as report_growth;
use crate::session::say::say;
use crate::store::Recording;
use std::path::Path;
use std::time::Instant;

/// Findings of a process that are shown.
const TOP: usize = 10;

/// Writes the report; returns vmaudit's exit code.
pub fn report(args: &ReportArgs) -> Result<u8, AppError> {
    let begun = Instant::now();
    let others = [Other { path: &args.recording, what: "the recording that is read" }];
    let output = Output::open(args.report.as_deref(), &others)?;
    let recording = Recording::open(&args.recording)?;
    match recording.meta().heap {
        Some(_) => heap(args, &recording, output)?,
        None => mappings(args, recording, output)?,
    }
    if args.verbose {
        say(format_args!("report made in {:.1?}", begun.elapsed()));
    }
    Ok(0)
}

fn mappings(args: &ReportArgs, recording: Recording, output: Output) -> Result<(), AppError> {
    let usage = |why: &str| AppError::Usage(format!("{}: {why}", args.recording.display()));
    let held = heap_with(&recording)?;
    if args.by.is_some() || args.format == ReportFormat::Heaptrack {
        let held = held.ok_or_else(|| {
            usage("--by and -f heaptrack are for recordings of a heap (heap -o, run --heap -o), this is one of mappings alone")
        })?;
        if args.at.is_some() || args.growth.is_some() {
            return Err(usage("--at and --growth are about mappings here: the heap's report is of the end"));
        }
        return show_heap(args, &output, (&held, &Shown::plain(TOP)));
    }
    let format = args.format.of_mappings().unwrap_or(Format::Text);
    let top = args.top.unwrap_or(TOP);
    let spec = OutputSpec::new(format, args.flame, Destination { output, top })?;
    match (args.growth, args.at) {
        (Some(moments), _) => growth(&args.recording, moments, &spec),
        (None, Some(moment)) => {
            let t_ns = since_zero(&args.recording, moment)?;
            spec.write(&report_at(&args.recording, t_ns)?)
        }
        (None, None) => match (held, format) {
            (Some(held), Format::Text | Format::Json) => {
                spec.write_both(&report_of(recording, args.replay)?, &held)
            }
            (held, _) => {
                if held.is_some() {
                    say("this is what was mapped; with --by outstanding it is who holds the heap");
                }
                spec.write(&report_of(recording, args.replay)?)
            }
        },
    }
}

/// As the run printed it, unless the command line says otherwise.
fn heap(args: &ReportArgs, recording: &Recording, output: Output) -> Result<(), AppError> {
    let usage = |why: String| AppError::Usage(format!("{}: {why}", args.recording.display()));
    if args.replay {
        recording.has_steps()?;
    }
    let at = match args.at {
        Some(Moment::Peak) => {
            return Err(usage("--at peak: --by peak shows the peak of a heap".to_owned()));
        }
        Some(Moment::Seconds(seconds)) => Some(seconds),
        None => None,
    };
    if let Some(moments) = args.growth {
        return heap_growth(args, (recording, moments), output);
    }
    match heap_of(recording, at)? {
        Some((report, shown)) => show_heap(args, &output, (&report, &shown)),
        None => Ok(()),
    }
}

fn show_heap(
    args: &ReportArgs,
    output: &Output,
    (report, shown): (&HeapReport, &Shown),
) -> Result<(), AppError> {
    let usage = |why: String| AppError::Usage(format!("{}: {why}", args.recording.display()));
    args.flame.check_heap().map_err(usage)?;
    heap_output::refuse_terminal(args.format.of_heaps(), output)?;
    let check = |view: HeapViewArgs| view.check(report.combined, report.sampling_bytes.is_some());
    let mut view = shown.view(args.format.of_heaps());
    if let Some(by) = args.by {
        view = HeapViewArgs { by, reverse: false, ..view };
    } else if check(view).is_err() {
        // The run had another format.
        view = HeapViewArgs { by: HeapBy::default(), reverse: false, ..view };
    }
    view.reverse |= args.flame.reverse;
    check(view).map_err(usage)?;
    HeapOutput { view, top: args.top.unwrap_or(shown.top) }.write(output, report)
}

/// What grew and shrank of a heap between two of its reports, by stack.
fn heap_growth(
    args: &ReportArgs,
    (recording, moments): (&Recording, Moments),
    output: Output,
) -> Result<(), AppError> {
    let usage = |why: &str| AppError::Usage(format!("{}: {why}", args.recording.display()));
    if args.by.is_some() {
        return Err(usage("--growth compares two moments by stack: leave --by out"));
    }
    let format = args.format.of_differences().ok_or_else(|| {
        usage("--growth cannot be written in this format: write one of each moment (--at SECS), and compare them")
    })?;
    let seconds = |moment: Option<Moment>| match moment {
        None => Ok(None),
        Some(Moment::Seconds(seconds)) => Ok(Some(seconds)),
        Some(Moment::Peak) => {
            Err(usage("--growth: a heap's peak is between its reports: --by peak shows it"))
        }
    };
    let [(before, from), (after, to)] =
        heaps_between(recording, (seconds(moments.from)?, seconds(moments.to)?))?;
    let named = |at: f64| format!("{at:.3} s");
    let side = |report, at| {
        let side = HeapSide::new(report, (&named(at), "recording"), Pick::All);
        side.map_err(|source| DiffError::HeapSide { path: args.recording.clone(), source })
    };
    let sides = (&side(&before, from)?, &side(&after, to)?);
    let to = Destination { output, top: args.top.unwrap_or(TOP) };
    heap_diff::write(sides, (format, args.flame), &to).map(drop)
}

/// What grew and shrank between two moments.
fn growth(path: &Path, moments: Moments, spec: &OutputSpec) -> Result<(), AppError> {
    let begin = moments.from.map_or(Ok(0), |moment| since_zero(path, moment))?;
    let end = moments.to.map_or_else(|| last_moment(path), |moment| since_zero(path, moment))?;
    if begin > end {
        let seconds = |t_ns: u64| t_ns as f64 / 1e9;
        let why = format!("--growth: {} s is not before {} s", seconds(begin), seconds(end));
        return Err(AppError::Usage(why));
    }
    // Before the first process, and after the last, there is nothing to compare with.
    let at = |t_ns: u64| match report_at(path, t_ns) {
        Err(AppError::Moment(MomentError::NobodyAlive { .. })) => Ok(Report::default()),
        other => other,
    };
    let (before, after) = (at(begin)?, at(end)?);
    let found = report_growth((&before, begin), (&after, end));
    let to = &spec.to;
    match spec.format {
        Format::Text => to.put(growth_to_text(&found, to.options()).as_bytes()),
        Format::Json => to.put(growth_to_json(&found)?.as_bytes()),
        Format::Folded | Format::Svg | Format::Pprof => {
            to.put(&flame::render_growth((&before, &after), spec)?)
        }
        Format::Html => Err(AppError::Usage(
            "--growth shows what changed between two moments, and -f html one report: use -f svg, or --at \
             with -f html"
                .to_owned(),
        )),
    }
}

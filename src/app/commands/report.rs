//! `vmaudit report`: the report of a recording.

use crate::app::error::AppError;
use crate::app::error::MomentError;
use crate::app::flame;
use crate::app::heap_output::{self, HeapOutput};
use crate::app::heap_record::heap_of;
use crate::app::moment::{last_moment, report_at, since_zero};
use crate::app::output::{Destination, Other, Output, OutputSpec};
use crate::app::recorded::report_of;
use crate::cli::{Format, HeapViewArgs, Moment, Moments, ReportArgs};
use crate::heap::HeapBy;
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
        Some(_) => heap(args, &recording, &output)?,
        None => mappings(args, recording, output)?,
    }
    if args.verbose {
        say(format_args!("report made in {:.1?}", begun.elapsed()));
    }
    Ok(0)
}

fn mappings(args: &ReportArgs, recording: Recording, output: Output) -> Result<(), AppError> {
    let usage = |why: &str| AppError::Usage(format!("{}: {why}", args.recording.display()));
    if args.by.is_some() {
        return Err(usage("--by is for recordings of a heap (heap -o), this is one of mappings"));
    }
    let format = args.format.of_mappings();
    let format = format.ok_or_else(|| {
        usage("-f heaptrack is for recordings of a heap (heap -o), this is one of mappings")
    })?;
    let top = args.top.unwrap_or(TOP);
    let wanted = OutputSpec::new(format, args.flame, Destination { output, top })?;
    match (args.growth, args.at) {
        (Some(moments), _) => growth(&args.recording, moments, &wanted),
        (None, Some(moment)) => {
            let t_ns = since_zero(&args.recording, moment)?;
            wanted.write(&report_at(&args.recording, t_ns)?)
        }
        (None, None) => wanted.write(&report_of(recording, args.replay)?),
    }
}

/// As the run printed it, unless the command line says otherwise.
fn heap(args: &ReportArgs, recording: &Recording, output: &Output) -> Result<(), AppError> {
    let usage = |why: String| AppError::Usage(format!("{}: {why}", args.recording.display()));
    if args.replay {
        recording.has_steps()?;
    }
    args.flame.check_heap().map_err(usage)?;
    heap_output::refuse_terminal(args.format.of_heaps(), output)?;
    let at = match args.at {
        Some(Moment::Peak) => {
            return Err(usage("--at peak: --by peak shows the peak of a heap".to_owned()));
        }
        Some(Moment::Seconds(seconds)) => Some(seconds),
        None => None,
    };
    if args.growth.is_some() {
        return Err(usage(
            "--growth is about mappings; a heap's report tells its growth (heap --interval), and vmaudit diff compares two"
                .to_owned(),
        ));
    }
    let Some((report, shown)) = heap_of(recording, at)? else { return Ok(()) };
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
    HeapOutput { view, top: args.top.unwrap_or(shown.top) }.write(output, &report)
}

/// What grew and shrank between two moments.
fn growth(path: &Path, moments: Moments, wanted: &OutputSpec) -> Result<(), AppError> {
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
    let to = &wanted.to;
    match wanted.format {
        Format::Text => to.put(growth_to_text(&found, to.options()).as_bytes()),
        Format::Json => to.put(growth_to_json(&found)?.as_bytes()),
        Format::Folded | Format::Svg | Format::Pprof => {
            to.put(&flame::render_growth((&before, &after), wanted)?)
        }
        Format::Html => Err(AppError::Usage(
            "--growth shows what changed between two moments, and -f html one report: use -f svg, or --at \
             with -f html"
                .to_owned(),
        )),
    }
}

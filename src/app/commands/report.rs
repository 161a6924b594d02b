//! `vmaudit report`: the report of a recording.

use crate::app::error::AppError;
use crate::app::error::MomentError;
use crate::app::flame;
use crate::app::moment::{last_moment, report_at, since_zero};
use crate::app::output::{Destination, Other, Output, OutputSpec};
use crate::app::recorded::report_of;
use crate::cli::{Format, Moments, ReportArgs};
use crate::render::{growth_to_json, growth_to_text};
use crate::report::Report;
use crate::report::growth::growth as report_growth;
use crate::session::say::say;
use crate::store::Recording;
use std::path::Path;
use std::time::Instant;

/// Writes the report; returns vmaudit's exit code.
pub fn report(args: &ReportArgs) -> Result<u8, AppError> {
    let begun = Instant::now();
    let others = [Other { path: &args.recording, what: "the recording that is read" }];
    let output = Output::open(args.to.report.as_deref(), &others)?;
    let wanted = OutputSpec::new(args.to.format, args.flame, Destination { output, top: args.top })?;
    match (args.growth, args.at) {
        (Some(moments), _) => growth(&args.recording, moments, &wanted)?,
        (None, Some(moment)) => {
            let t_ns = since_zero(&args.recording, moment)?;
            wanted.write(&report_at(&args.recording, t_ns)?)?;
        }
        (None, None) => {
            let recording = Recording::open(&args.recording)?;
            wanted.write(&report_of(recording, args.replay)?)?;
        }
    }
    if args.verbose {
        say(format_args!("report made in {:.1?}", begun.elapsed()));
    }
    Ok(0)
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

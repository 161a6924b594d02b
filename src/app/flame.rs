//! `-f folded`, `svg`, `pprof`: the report's stacks, as wide as the selected figure.

use super::error::AppError;
use super::output::OutputSpec;
use crate::cli::{DiffFormat, FlameArgs, Format};
use crate::diff::Side;
use crate::render::{
    FlameError, FlameOptions, FlameSide, FlameSides, Width, diff_to_folded, diff_to_svg, to_folded, to_pprof,
    to_svg,
};
use crate::report::Report;
use crate::report::model::Process;
use crate::session::say::say;

/// The value of a process' report if residency is not known.
const NO_RESIDENCY: &str = "none";

/// A report in one of the formats that show stacks.
///
/// # Errors
/// When the selected figure is not known.
pub fn render(report: &Report, spec: &OutputSpec) -> Result<Vec<u8>, AppError> {
    let whole = report.left_out.map(|_| report.clone().with_stand_ins());
    let report = whole.as_ref().unwrap_or(report);
    let processes: Vec<&Process> = report.processes.iter().collect();
    let known = processes.iter().any(|process| process.residency != NO_RESIDENCY);
    let options = FlameOptions { width: width(spec.flame.width, &processes, known)?, ..options(spec.flame) };
    match spec.format {
        Format::Folded => Ok(to_folded(report, options).into_bytes()),
        Format::Pprof => to_pprof(report, options.width).map_err(|error| FlameError::from(error).into()),
        _ => Ok(to_svg(report, options)?.into_bytes()),
    }
}

/// What changed between two reports.
///
/// # Errors
/// As [`render`].
pub fn render_diff(sides: (&Side<'_>, &Side<'_>), how: (DiffFormat, FlameArgs)) -> Result<Vec<u8>, AppError> {
    let (a, b) = sides;
    let names = side_names(a.source(), b.source());
    let sides = FlameSides { a: FlameSide::of(a, names.0), b: FlameSide::of(b, names.1), same_pids: false };
    two(&sides, how)
}

/// What two files are called: without their folders, where that distinguishes them.
pub fn side_names(a: &str, b: &str) -> (String, String) {
    let base = |path: &str| path.rsplit('/').next().unwrap_or(path).to_owned();
    let (of_a, of_b) = (base(a), base(b));
    if of_a == of_b { (a.to_owned(), b.to_owned()) } else { (of_a, of_b) }
}

/// What changed between two moments.
///
/// # Errors
/// As [`render`], and for a profile.
pub fn render_growth(moments: (&Report, &Report), spec: &OutputSpec) -> Result<Vec<u8>, AppError> {
    let format = match spec.format {
        Format::Folded => DiffFormat::Folded,
        Format::Svg => DiffFormat::Svg,
        _ => {
            let why = "--growth cannot be written as a profile: write one of each moment (--at SECS -f pprof), \
                       and compare them with pprof -diff_base";
            return Err(AppError::Usage(why.to_owned()));
        }
    };
    let side = |report| FlameSide::whole(report, moment(report));
    let sides = FlameSides { a: side(moments.0), b: side(moments.1), same_pids: true };
    two(&sides, (format, spec.flame))
}

/// `1.500 s`
fn moment(report: &Report) -> String {
    report.at_ns.map_or_else(|| "nothing".to_owned(), |at| format!("{:.3} s", at as f64 / 1e9))
}

fn two(sides: &FlameSides<'_>, (format, args): (DiffFormat, FlameArgs)) -> Result<Vec<u8>, AppError> {
    let processes: Vec<&Process> = sides.a.processes.iter().chain(&sides.b.processes).copied().collect();
    // Where one of two sides is not known, nothing can be compared.
    let unknown = |side: &FlameSide<'_>| side.processes.iter().all(|p| p.residency == NO_RESIDENCY);
    let known = !unknown(&sides.a) && !unknown(&sides.b);
    let options = FlameOptions { width: width(args.width, &processes, known)?, ..options(args) };
    match format {
        DiffFormat::Folded => Ok(diff_to_folded(sides, options).into_bytes()),
        _ => Ok(diff_to_svg(sides, options)?.into_bytes()),
    }
}

fn options(args: FlameArgs) -> FlameOptions {
    FlameOptions {
        width: Width::default(),
        reverse: args.reverse,
        inverted: args.inverted,
        threads: args.threads,
        lines: args.lines,
    }
}

/// The requested width, or else the one that answers why VIRT is larger than RSS.
fn width(requested: Option<Width>, of: &[&Process], known: bool) -> Result<Width, AppError> {
    let width = match requested {
        Some(requested) => requested,
        None if known => Width::Unused,
        None => {
            say("it is not known what is in memory here: stacks are as wide as their VIRT");
            Width::Virt
        }
    };
    if width.needs_residency() && !known {
        let why = format!(
            "--width {}: it is not known what is in memory here (a maps file and a moment of a recording do \
             not show it): use --width virt or writable",
            if width == Width::Rss { "rss" } else { "unused" }
        );
        return Err(AppError::Usage(why));
    }
    let unknown = of.iter().filter(|process| process.residency == NO_RESIDENCY).count();
    if width.needs_residency() && unknown > 0 {
        say(format_args!(
            "{unknown} processes are left out, because it is not known what of them is in memory"
        ));
    }
    Ok(width)
}

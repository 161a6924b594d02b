//! `-f folded`, `svg`, `pprof`: the report's stacks, as wide as what is asked for.

use super::error::AppError;
use super::output::Wanted;
use super::say::say;
use crate::cli::{self, DiffFormat, FlameArgs, Format};
use crate::diff::Side;
use crate::render::{FlameOptions, Width, to_folded};
use crate::report::Report;

/// Where a process' report says that nobody knows what of it is in memory.
const NO_RESIDENCY: &str = "none";

/// A report in one of the formats that show stacks.
///
/// # Errors
/// When nothing of what is asked for is known.
pub fn render(report: &Report, wanted: &Wanted<'_>) -> Result<Vec<u8>, AppError> {
    let options = FlameOptions { width: width(wanted.flame.width, &[report])?, ..options(wanted.flame) };
    match wanted.format {
        Format::Folded => Ok(to_folded(report, options).into_bytes()),
        _ => Err(AppError::Usage("this format is not there yet".to_owned())),
    }
}

/// What changed between two reports.
pub fn render_diff(
    _sides: (&Side<'_>, &Side<'_>),
    _how: (DiffFormat, FlameArgs),
) -> Result<Vec<u8>, AppError> {
    Err(AppError::Usage("this format is not there yet".to_owned()))
}

/// What changed between two moments.
pub fn render_growth(_moments: (&Report, &Report), _wanted: &Wanted<'_>) -> Result<Vec<u8>, AppError> {
    Err(AppError::Usage("this format is not there yet".to_owned()))
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

/// The width that is asked for, or else the one that answers why VIRT is larger than RSS.
fn width(asked: Option<cli::Width>, reports: &[&Report]) -> Result<Width, AppError> {
    let processes = || reports.iter().flat_map(|report| &report.processes);
    let unknown = processes().filter(|process| process.residency == NO_RESIDENCY).count();
    let known = processes().count() - unknown;
    let width = match asked {
        Some(cli::Width::Virt) => Width::Virt,
        Some(cli::Width::Writable) => Width::Writable,
        Some(cli::Width::Rss) => Width::Rss,
        Some(cli::Width::Unused) => Width::Unused,
        None if known == 0 => {
            say("it is not known what is in memory here: widths are VIRT");
            Width::Virt
        }
        None => Width::Unused,
    };
    if width.needs_residency() && known == 0 && unknown > 0 {
        let why = format!(
            "--width {}: it is not known what is in memory here (a maps file and a moment of a recording do \
             not tell): use --width virt or writable",
            if width == Width::Rss { "rss" } else { "unused" }
        );
        return Err(AppError::Usage(why));
    }
    if width.needs_residency() && unknown > 0 {
        say(format_args!(
            "{unknown} processes are left out, because it is not known what of them is in memory"
        ));
    }
    Ok(width)
}

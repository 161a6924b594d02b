//! `vmaudit report`.

use super::{DiffFormat, FlameArgs, Format, HeapFormat};
use crate::heap::HeapBy;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

#[derive(Args, Debug)]
pub struct ReportArgs {
    /// A recording made with -o
    #[arg(value_name = "REC")]
    pub recording: PathBuf,

    /// How to write the report
    #[arg(short, long, value_enum, default_value_t = ReportFormat::Text, value_name = "FORMAT")]
    pub format: ReportFormat,

    /// Write the report to FILE instead of standard output
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,

    /// Take the rules in FOLDER, too (docs/rules.md), before all others: where the report is made anew (--replay, --at)
    #[arg(long, value_name = "FOLDER")]
    pub rules: Option<PathBuf>,

    /// Show the N largest findings of a process, and the N largest other processes [default: 10, of a heap as
    /// it was run]
    #[arg(long, value_name = "N")]
    pub top: Option<usize>,

    /// Of a heap (heap -o): what to order by, and to show stacks of [default: as it was run]
    #[arg(long, value_enum, value_name = "WHAT")]
    pub by: Option<HeapBy>,

    /// Make the report anew from the recorded calls, instead of showing the one that the run made
    #[arg(long)]
    pub replay: bool,

    /// Report another moment: VIRT by what was mapped then, by stack
    ///
    /// SECS is counted from the start of the command (of an attached process: of tracing), as the
    /// times in timelines and events are. `peak` is the moment at which the first process had most
    /// mapped. Of a heap: the report of the interval that ended last before SECS.
    #[arg(long, value_name = "SECS|peak", value_parser = moment, conflicts_with_all = ["replay", "growth"])]
    pub at: Option<Moment>,

    /// Show what grew and shrank between two moments (as of --at), by stack
    ///
    /// Either may be left out: 1.5.. is from 1.5 s to the end, ..9 from the beginning to 9 s,
    /// peak.. what went away since the peak. Of a heap: between the reports of the intervals that ended last before.
    #[arg(long, value_name = "FROM..TO", value_parser = span, conflicts_with = "replay")]
    pub growth: Option<Moments>,

    /// Say on standard error how long it took
    #[arg(short, long)]
    pub verbose: bool,

    #[command(flatten)]
    pub flame: FlameArgs,
}

/// How a recording's report is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum ReportFormat {
    /// Tables and findings for people
    Text,
    /// Everything, machine-readable (schema 1)
    Json,
    /// A stack and its bytes a line, for flame graph tools
    Folded,
    /// A flame graph
    Svg,
    /// A profile for pprof and Speedscope, with all widths (docs/flamegraphs.md)
    Pprof,
    /// One file to open in a browser (docs/html.md)
    Html,
    /// Of a heap: a data file for heaptrack_gui and heaptrack_print (FILE.zst), of one process
    Heaptrack,
}

impl ReportFormat {
    /// None for what is of heaps alone.
    pub fn of_mappings(self) -> Option<Format> {
        Some(match self {
            ReportFormat::Text => Format::Text,
            ReportFormat::Json => Format::Json,
            ReportFormat::Folded => Format::Folded,
            ReportFormat::Svg => Format::Svg,
            ReportFormat::Pprof => Format::Pprof,
            ReportFormat::Html => Format::Html,
            ReportFormat::Heaptrack => return None,
        })
    }

    /// None for what shows one report.
    pub fn of_differences(self) -> Option<DiffFormat> {
        Some(match self {
            ReportFormat::Text => DiffFormat::Text,
            ReportFormat::Json => DiffFormat::Json,
            ReportFormat::Folded => DiffFormat::Folded,
            ReportFormat::Svg => DiffFormat::Svg,
            ReportFormat::Html => DiffFormat::Html,
            ReportFormat::Pprof | ReportFormat::Heaptrack => return None,
        })
    }

    pub fn of_heaps(self) -> HeapFormat {
        match self {
            ReportFormat::Text => HeapFormat::Text,
            ReportFormat::Json => HeapFormat::Json,
            ReportFormat::Folded => HeapFormat::Folded,
            ReportFormat::Svg => HeapFormat::Svg,
            ReportFormat::Pprof => HeapFormat::Pprof,
            ReportFormat::Html => HeapFormat::Html,
            ReportFormat::Heaptrack => HeapFormat::Heaptrack,
        }
    }
}

/// A moment of a recording.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Moment {
    /// Since the start of the command, or of tracing.
    Seconds(f64),
    /// When the first process had most mapped.
    Peak,
}

/// Two moments; None for the beginning or the end.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Moments {
    pub from: Option<Moment>,
    pub to: Option<Moment>,
}

fn moment(text: &str) -> Result<Moment, String> {
    if text == "peak" {
        return Ok(Moment::Peak);
    }
    match text.parse::<f64>() {
        Ok(value) if (0.0..=31_536_000.0).contains(&value) => Ok(Moment::Seconds(value)),
        Ok(_) => Err("has to be between 0 and 31536000 seconds".to_owned()),
        Err(_) => Err(format!("`{text}` is neither a number of seconds nor `peak`")),
    }
}

fn span(text: &str) -> Result<Moments, String> {
    let (from, to) = text.split_once("..").ok_or("has to be FROM..TO, as in 1.5..9")?;
    let side = |text: &str| if text.is_empty() { Ok(None) } else { moment(text).map(Some) };
    let moments = Moments { from: side(from)?, to: side(to)? };
    match (moments.from, moments.to) {
        (Some(Moment::Seconds(from)), Some(Moment::Seconds(to))) if from >= to => {
            Err(format!("{from} s is not before {to} s"))
        }
        _ => Ok(moments),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_of_time() {
        let seconds = |value| Some(Moment::Seconds(value));
        assert_eq!(span("1.5..9"), Ok(Moments { from: seconds(1.5), to: seconds(9.0) }));
        assert_eq!(span(".."), Ok(Moments { from: None, to: None }));
        assert_eq!(span("..0.25"), Ok(Moments { from: None, to: seconds(0.25) }));
        assert_eq!(span(".5.."), Ok(Moments { from: seconds(0.5), to: None }));
        assert_eq!(span("peak.."), Ok(Moments { from: Some(Moment::Peak), to: None }));
        assert_eq!(span("1..peak"), Ok(Moments { from: seconds(1.0), to: Some(Moment::Peak) }));
        for wrong in ["", "3", "9..1", "1..1", "a..2", "-1..2", "1..nan", "1..inf", "1...2..", "peaks.."] {
            assert!(span(wrong).is_err(), "{wrong}");
        }
    }
}

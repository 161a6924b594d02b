//! `vmaudit report`.

use super::Format;
use clap::Args;
use std::path::PathBuf;

#[derive(Args, Debug)]
pub struct ReportArgs {
    /// A recording made with -o
    #[arg(value_name = "REC")]
    pub recording: PathBuf,

    /// How to write the report
    #[arg(short, long, value_enum, default_value_t = Format::Text, value_name = "FORMAT")]
    pub format: Format,

    /// Write the report to FILE instead of standard output
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,

    /// Show the N largest findings of a process, and the N largest other processes
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub top: usize,

    /// Make the report anew from the recorded calls, instead of showing the one that the run made
    #[arg(long)]
    pub replay: bool,

    /// Say on standard error how long it took
    #[arg(short, long)]
    pub verbose: bool,
}

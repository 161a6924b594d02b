//! Options that `run` and `attach` have in common, in the groups in which `--help` shows them.

use super::{Backend, Format, RingArgs, TouchArgs};
use clap::Args;
use std::path::PathBuf;

/// How and where a report is written: also for `report` and `snapshot`.
#[derive(Args, Debug)]
pub struct ReportToArgs {
    /// How to write the report
    #[arg(short, long, value_enum, default_value_t = Format::Text, value_name = "FORMAT")]
    pub format: Format,

    /// Write the report to FILE instead of standard output
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,

    /// Take the rules in FOLDER, too (docs/rules.md), before all others
    ///
    /// Those in $XDG_CONFIG_HOME/vmaudit/rules and /etc/vmaudit/rules are taken anyway.
    #[arg(long, value_name = "FOLDER")]
    pub rules: Option<PathBuf>,
}

/// What sees the calls, and where the outcome goes.
#[derive(Args, Debug)]
pub struct AuditArgs {
    #[command(flatten)]
    pub to: ReportToArgs,

    /// Record everything in FILE (SQLite; docs/recording.md), for report, events, explain and diff
    ///
    /// An older recording there is kept as FILE.old; no other file is overwritten.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// How to see the calls
    #[arg(long, value_enum, default_value_t = Backend::Auto, value_name = "BACKEND")]
    pub backend: Backend,
}

/// How much is reported.
#[derive(Args, Debug)]
pub struct DetailArgs {
    /// Show the N largest findings of a process, and the N largest other processes
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub top: usize,

    #[command(flatten)]
    pub touch: TouchArgs,
}

/// For debugging vmaudit itself.
#[derive(Args, Debug)]
pub struct InsideArgs {
    /// Say on standard error what was attached, read and how long it took
    #[arg(short, long)]
    pub verbose: bool,

    #[command(flatten)]
    pub rings: RingArgs,

    /// Write every call with its frames to FILE, one JSON object a line
    #[arg(long, value_name = "FILE", hide = true)]
    pub dump_events: Option<PathBuf>,
}

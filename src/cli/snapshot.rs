//! `vmaudit snapshot`.

use super::{FlameArgs, ReportToArgs, TargetArgs};
use clap::{ArgGroup, Args};
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(group(ArgGroup::new("of").required(true).args(["pids", "container", "cgroup", "smaps"])))]
pub struct SnapshotArgs {
    #[command(flatten)]
    pub of: TargetArgs,

    /// Read a saved /proc/PID/smaps or /proc/PID/maps instead; - is standard input
    #[arg(long, value_name = "FILE")]
    pub smaps: Option<PathBuf>,

    #[command(flatten)]
    pub to: ReportToArgs,

    /// Show the N largest findings of a process, and the N largest other processes
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub top: usize,

    /// Say on standard error what was read and how long it took
    #[arg(short, long)]
    pub verbose: bool,

    #[command(flatten)]
    pub flame: FlameArgs,
}

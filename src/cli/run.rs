//! `vmaudit run`.

use super::{Aslr, Backend, ChangeArgs, FlameArgs, Format, TouchArgs, seconds};
use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(Args, Debug)]
pub struct RunArgs {
    /// How to write the report
    #[arg(short, long, value_enum, default_value_t = Format::Text, value_name = "FORMAT")]
    pub format: Format,

    /// Write the report to FILE instead of standard output
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,

    /// Record everything in FILE (SQLite; docs/recording.md), for report, events, explain and diff
    ///
    /// An older recording there is kept as FILE.old; no other file is overwritten.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// How to see the calls
    #[arg(long, value_enum, default_value_t = Backend::Auto, value_name = "BACKEND")]
    pub backend: Backend,

    /// Address space layout randomisation of the command
    #[arg(long, value_enum, default_value_t = Aslr::Keep, value_name = "MODE")]
    pub aslr: Aslr,

    /// Report after SECS seconds and leave the command running
    #[arg(long, value_name = "SECS", value_parser = seconds)]
    pub duration: Option<f64>,

    /// Run SCRIPT by sh -c while the command runs, report when it ends; the command goes on
    #[arg(long, value_name = "SCRIPT")]
    pub load: Option<OsString>,

    #[command(flatten)]
    pub change: ChangeArgs,

    /// Report a timeline of VIRT and RSS by category, with a look at the processes every SECS seconds
    ///
    /// Without it they are looked at each second all the same, for those that a signal kills, but
    /// only the last look counts.
    #[arg(long, value_name = "SECS", value_parser = seconds)]
    pub interval: Option<f64>,

    /// Copy at most N bytes of each call's user stack
    #[arg(long, value_name = "N", default_value_t = 65_536, value_parser = clap::value_parser!(u64).range(0..=262_144))]
    pub stack_bytes: u64,

    /// Trace the command alone, not the processes that it starts
    #[arg(long)]
    pub no_follow_forks: bool,

    /// Show the N largest findings of a process, and the N largest other processes
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub top: usize,

    #[command(flatten)]
    pub touch: TouchArgs,

    /// Under sudo, run the command as root instead of as the invoking user
    #[arg(long)]
    pub as_root: bool,

    /// Do not hold processes at their exit: for programs with a seccomp listener of their own
    #[arg(long)]
    pub no_exit_hold: bool,

    /// Say on standard error what was attached, read and how long it took
    #[arg(short, long)]
    pub verbose: bool,

    /// Bytes of ring buffer between kernel and vmaudit
    #[arg(long, value_name = "N", default_value_t = 32 << 20, hide_short_help = true)]
    pub ring_bytes: u32,

    /// Bytes of the second ring, for calls without stack while the first is full
    #[arg(long, value_name = "N", default_value_t = 4 << 20, hide_short_help = true)]
    pub spill_bytes: u32,

    /// Write every call with its frames to FILE, one JSON object a line
    #[arg(long, value_name = "FILE", hide = true)]
    pub dump_events: Option<PathBuf>,

    #[command(flatten)]
    pub flame: FlameArgs,

    /// The command and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

//! `vmaudit probe`.

use super::quantity::seconds;
use super::target::pid;
use super::{PlainFormat, StackArgs};
use clap::{Args, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum ProbeWay {
    /// All at once where the kernel can (Linux 6.6), else one by one
    Auto,
    /// All at once
    Multi,
    /// One by one, at most 1000
    Single,
}

#[derive(Args, Debug)]
#[command(
    override_usage = "vmaudit probe [OPTIONS] --lib LIB --match REGEX -- CMD…\n       vmaudit probe [OPTIONS] --lib LIB --match REGEX -p PID\n       vmaudit probe [OPTIONS] --lib LIB --match REGEX --all-processes"
)]
pub struct ProbeArgs {
    /// A library by name (`libc.so.6`), found as ld.so finds it, a program on the PATH, or a path; with -p
    /// one of the process' files
    #[arg(long, value_name = "LIB")]
    pub lib: OsString,

    /// Functions whose name matches, mangled or demangled; `.` is all of them
    #[arg(long = "match", value_name = "REGEX")]
    pub pattern: String,

    /// Count the calls of this process and of those that it starts, until it ends or Ctrl-C
    #[arg(short, long, value_name = "PID", value_parser = pid, allow_negative_numbers = true, conflicts_with = "command")]
    pub pid: Option<i32>,

    /// Place probes in every process of the machine that maps the file; without -p and CMD, count the calls of all of them
    ///
    /// Each call of every other program costs a breakpoint, and programs that translate code (qemu-user, valgrind, DynamoRIO)
    /// end with SIGTRAP. With -p, children are then counted from their first instruction on.
    #[arg(long, conflicts_with = "no_follow_forks")]
    pub all_processes: bool,

    /// Also print the callers: each distinct stack with its calls (with -p or CMD)
    #[arg(long)]
    pub stacks: bool,

    /// How to write the result
    #[arg(short, long, value_enum, default_value_t = PlainFormat::Text, value_name = "FORMAT")]
    pub format: PlainFormat,

    /// Write to FILE instead of standard output
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,

    /// Stop after SECS seconds and leave the command running
    #[arg(long, value_name = "SECS", value_parser = seconds)]
    pub duration: Option<f64>,

    /// Show the N functions called most, and the N stacks; the others are one row
    #[arg(long, value_name = "N", default_value_t = 40)]
    pub top: usize,

    #[command(flatten)]
    pub sample: StackArgs,

    /// Count the command or process alone, not the processes that it starts
    #[arg(long)]
    pub no_follow_forks: bool,

    /// Under sudo, run the command as root instead of as the invoking user
    #[arg(long)]
    pub as_root: bool,

    /// Say on standard error what was attached and how long it took
    #[arg(short, long)]
    pub verbose: bool,

    /// How to place the probes
    #[arg(long, value_enum, default_value_t = ProbeWay::Auto, value_name = "WAY", hide_short_help = true)]
    pub way: ProbeWay,

    /// Bytes of ring buffer for stacks
    #[arg(long, value_name = "N", default_value_t = 28 << 20, hide_short_help = true)]
    pub ring_bytes: u32,

    /// The command and its arguments
    #[arg(last = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

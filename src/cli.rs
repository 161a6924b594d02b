//! The command line, as clap sees it. `--help`, the man page and completions come from here.

use clap::{Args, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;

/// Explain why VIRT is so much larger than RSS, and which call stack asked for it
#[derive(Parser, Debug)]
#[command(name = "vmaudit", version, max_term_width = 100)]
#[command(
    after_help = "EXIT STATUS\n  run: the command's own; 128+N if signal N killed it; 127 not found, 126 not executable;\n  125 if vmaudit itself failed; 2 for an unusable command line."
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Start a command, trace it from its first instruction, report when it ends
    ///
    /// Every call that changes an address space (mmap, munmap, brk, mprotect …) of the command and
    /// its children is recorded with its call stack. The command runs as the invoking user under
    /// sudo. Ctrl-C reaches the command as usual; a second one reports at once.
    Run(RunArgs),
    /// Write the manual page (roff) to standard output
    Man,
    /// Write a completion script to standard output
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Format {
    /// Tables and findings for people
    Text,
    /// Everything, machine-readable (schema 1)
    Json,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Backend {
    /// The best that works here
    Auto,
    /// eBPF: root, or CAP_BPF and CAP_PERFMON
    Bpf,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Aslr {
    /// Leave address space layout randomisation as it is
    Keep,
    /// Switch it off for the command: equal addresses in each run
    Off,
}

#[derive(Args, Debug)]
pub struct RunArgs {
    /// How to write the report
    #[arg(short, long, value_enum, default_value_t = Format::Text, value_name = "FORMAT")]
    pub format: Format,

    /// Write the report to FILE instead of standard output
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,

    /// How to see the calls
    #[arg(long, value_enum, default_value_t = Backend::Auto, value_name = "BACKEND")]
    pub backend: Backend,

    /// Address space layout randomisation of the command
    #[arg(long, value_enum, default_value_t = Aslr::Keep, value_name = "MODE")]
    pub aslr: Aslr,

    /// Report after SECS seconds and leave the command running
    #[arg(long, value_name = "SECS", value_parser = seconds)]
    pub duration: Option<f64>,

    /// Look at the processes every SECS seconds, for those that a signal kills
    #[arg(long, value_name = "SECS", value_parser = seconds, default_value = "1")]
    pub interval: f64,

    /// Copy at most N bytes of each call's user stack
    #[arg(long, value_name = "N", default_value_t = 65_536, value_parser = clap::value_parser!(u64).range(0..=262_144))]
    pub stack_bytes: u64,

    /// Trace the command alone, not the processes that it starts
    #[arg(long)]
    pub no_follow_forks: bool,

    /// Show the N largest findings of a process, and the N largest other processes
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub top: usize,

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

    /// The command and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

/// A number of seconds greater than 0, at most a year.
fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value > 0.0 && value <= 31_536_000.0 => Ok(value),
        Ok(_) => Err("has to be more than 0 and at most 31536000 seconds".to_owned()),
        Err(_) => Err("not a number of seconds".to_owned()),
    }
}

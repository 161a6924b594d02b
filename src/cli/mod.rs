//! The command line, as clap sees it. `--help`, the man page and completions come from here.

mod attach;
mod report;
mod run;
mod snapshot;

pub use attach::AttachArgs;
pub use report::{Moments, ReportArgs};
pub use run::RunArgs;
pub use snapshot::SnapshotArgs;

use clap::{Parser, Subcommand, ValueEnum};

/// Explain why VIRT is so much larger than RSS, and which call stack asked for it
#[derive(Parser, Debug)]
#[command(name = "vmaudit", version, max_term_width = 100)]
#[command(
    after_help = "EXIT STATUS\n  run: the command's own; 128+N if signal N killed it; 127 not found, 126 not executable;\n  attach: 0 once a report is written, however the processes ended;\n  125 if vmaudit itself failed; 2 for an unusable command line."
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
    /// Trace processes that run already, until Ctrl-C or their end
    ///
    /// What they had mapped before is classified by names, headers and shape, and says that no
    /// stack is known; what they map from now on has its stack. The processes are never stopped
    /// and get no signal: Ctrl-C ends vmaudit alone, which then reports.
    Attach(AttachArgs),
    /// Explain running processes as they are now, without tracing
    ///
    /// Needs no privileges for your own processes. What is mapped is classified by names, heap
    /// headers, thread stack pointers and shape; who asked for it, only `run` and `attach` can see.
    /// With --smaps, reads a saved /proc/PID/smaps (or maps) instead.
    Snapshot(SnapshotArgs),
    /// Show the report of a recording
    ///
    /// Byte for byte what the run that made it printed. Of a recording whose vmaudit was killed,
    /// the report is made from what was recorded by then.
    Report(ReportArgs),
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

/// A number of seconds greater than 0, at most a year.
fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value > 0.0 && value <= 31_536_000.0 => Ok(value),
        Ok(_) => Err("has to be more than 0 and at most 31536000 seconds".to_owned()),
        Err(_) => Err("not a number of seconds".to_owned()),
    }
}

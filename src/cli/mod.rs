//! The command line, as clap sees it. `--help`, the man page and completions come from here.

mod attach;
mod audit;
mod change;
mod compare;
mod diff;
mod doctor;
mod events;
mod explain;
mod flame;
mod heap;
mod heap_view;
mod probe;
mod quantity;
mod report;
mod rings;
mod rules;
mod run;
mod snapshot;
mod symbols;
mod target;
mod top;
mod touch;

pub use attach::AttachArgs;
pub use audit::{AuditArgs, DetailArgs, InsideArgs, ReportToArgs};
pub use change::{ChangeArgs, StartArgs};
pub use compare::CompareArgs;
pub use diff::{DiffArgs, PidPair};
pub use doctor::DoctorArgs;
pub use events::{EventsArgs, FilterArgs, LiveArgs};
pub use explain::ExplainArgs;
pub use flame::FlameArgs;
pub use heap::{HeapArgs, Method};
pub use heap_view::{HeapFormat, HeapViewArgs, name};
pub use probe::{ProbeArgs, ProbeWay};
pub use report::{Moment, Moments, ReportArgs, ReportFormat};
pub use rings::{RingArgs, StackArgs};
pub use rules::RulesArgs;
pub use run::RunArgs;
pub use snapshot::SnapshotArgs;
pub use symbols::SymbolsArgs;
pub use target::TargetArgs;
pub use top::TopArgs;
pub use touch::TouchArgs;

use crate::doctor::Rung;
use clap::{Parser, Subcommand, ValueEnum};
use std::path::Path;

/// Explain why VIRT is so much larger than RSS, and which call stack requested it
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
    /// Run a command as it is and changed, and show by cause what the change did
    ///
    /// Both are run N times in turn under audit, in balanced order (A B, B A, …), with no input. The
    /// table shows medians and spreads of VIRT, RSS, page faults, processor and run time. With --advice
    /// the changes are the settings that the report of the first run recommends, and what each promised
    /// is held against what it saved.
    Compare(CompareArgs),
    /// Print every call in order with its stack, as strace -k does: a recording's, a command's, a
    /// process's
    ///
    /// `vmaudit events REC` prints to standard output. `vmaudit events -- CMD` starts CMD and prints
    /// while it runs, to standard error (standard output is the command's) or to `--report FILE`;
    /// the command's exit status becomes vmaudit's. `vmaudit events -p PID` prints what a running
    /// process calls from now on, to standard output, until Ctrl-C or its end.
    Events(Box<EventsArgs>),
    /// Print the life of an address: which calls mapped, protected, purged, unmapped and reused it
    ///
    /// From a recording: each step with its time, thread, call and stack, then what is there in the
    /// end. Of a running process (-p PID): what is there now; the past needs a recording.
    Explain(ExplainArgs),
    /// Trace processes that run already, until Ctrl-C or their end
    ///
    /// What they had mapped before is classified by names, headers and shape, and says that no
    /// stack is known; what they map from now on has its stack. The processes are never stopped
    /// and get no signal: Ctrl-C ends vmaudit alone, which then reports.
    Attach(AttachArgs),
    /// Which stacks hold what an allocator handed out: outstanding bytes by call stack
    ///
    /// A command is counted by a preloaded library, where that is possible; programs that run (-p) by uprobes
    /// on malloc, free, operator new, jemalloc's, tcmalloc's, mimalloc's functions and, with --allocator, on
    /// those of a program's own allocator. Of a command every allocation is seen; of a running process those
    /// from now on, and frees of what was allocated before are counted separately. The exit status is the
    /// command's; 0 with -p.
    Heap(Box<HeapArgs>),
    /// Explain running processes as they are now, without tracing
    ///
    /// Needs no privileges for your own processes. What is mapped is classified by names, heap headers,
    /// thread stack pointers and shape; which call requested it, only `run` and `attach` can see. With
    /// --smaps, reads a saved /proc/PID/smaps (or maps) instead.
    Snapshot(SnapshotArgs),
    /// Watch processes live: VIRT, RSS, what is unused and why, what grows and which stack requested it
    ///
    /// Of the whole machine, of some processes (-p), or of a container; Enter opens a process, its
    /// categories, their regions and what can be done. Reads /proc only; with -t the processes are
    /// traced as `attach` does, and the newest reservations are shown with their stacks. See
    /// docs/top.md.
    Top(TopArgs),
    /// Compare two recordings, reports or saved smaps files, in any mix
    ///
    /// What is new, gone, grown or shrunk, in VIRT and in RSS, by category and by the call stack that
    /// requested it. Stacks are compared as module + offset, so randomised addresses do not matter.
    Diff(DiffArgs),
    /// List every function of a program or library, and say which cannot be probed and why
    ///
    /// Aliases of one address, functions without code of their own, imports, ifunc resolvers and
    /// linkage stubs are listed with the reason. Symbols come from .symtab, .dynsym, the separate debug
    /// file and .gnu_debugdata; file offsets from the program headers. See docs/symbols.md.
    Symbols(SymbolsArgs),
    /// Count the calls of all functions of a library that match, optionally with stacks
    ///
    /// Of a command and its children, of a running process, or of all processes. Probes (uprobes) are
    /// placed on thousands of functions at once (Linux 6.6, else at most 1000 one by one); those that
    /// cannot be probed are counted by reason. Needs root, or CAP_BPF and CAP_PERFMON.
    Probe(Box<ProbeArgs>),
    /// Show the report of a recording
    ///
    /// Byte for byte what the run that made it printed. Of a recording whose vmaudit was killed,
    /// the report is made from what was recorded by then.
    Report(ReportArgs),
    /// List the rules that are data: what libraries and programs reserve, why, and which setting makes it smaller
    ///
    /// The built-in ones, and those of your own in $XDG_CONFIG_HOME/vmaudit/rules, /etc/vmaudit/rules and
    /// --rules FOLDER (docs/rules.md). With --test, which of them claim which regions of a report.
    Rules(RulesArgs),
    /// Try what this user may do on this machine, and say what to add
    ///
    /// Everything in the table was tried, nothing is guessed from version numbers; nothing on the
    /// machine is changed. Exit status: 0 when `vmaudit run` would work, 1 when it would not.
    Doctor(DoctorArgs),
    /// Write the manual page (roff) to standard output
    Man,
    /// Write a completion script to standard output
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
}

impl Command {
    /// The folder of rules that is named; None for commands that attribute nothing.
    pub fn rules(&self) -> Option<Option<&Path>> {
        let named = match self {
            Command::Run(args) => &args.audit.to.rules,
            Command::Attach(args) => &args.audit.to.rules,
            Command::Snapshot(args) => &args.to.rules,
            Command::Report(args) => &args.rules,
            Command::Compare(args) => &args.rules,
            Command::Rules(args) => &args.rules,
            Command::Explain(_) | Command::Heap(_) | Command::Top(_) | Command::Diff(_) => return Some(None),
            Command::Events(_)
            | Command::Probe(_)
            | Command::Symbols(_)
            | Command::Doctor(_)
            | Command::Man
            | Command::Completions { .. } => return None,
        };
        Some(named.as_deref())
    }
}

/// How a report is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Format {
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
    /// One file to open in a browser: map, table, flame graph (docs/html.md)
    Html,
}

/// How what changed between two reports is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum DiffFormat {
    /// Tables for people
    Text,
    /// Everything, machine-readable
    Json,
    /// A stack and its bytes before and after a line, as difffolded.pl writes them
    Folded,
    /// A differential flame graph: red grew, blue shrank
    Svg,
    /// Of two heaps: one file to open in a browser
    Html,
}

/// How everything else is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum PlainFormat {
    /// For people
    Text,
    /// Everything, machine-readable
    Json,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Backend {
    /// The best that works here
    Auto,
    /// eBPF: root, or CAP_BPF and CAP_PERFMON
    Bpf,
    /// perf tracepoints of a started command: no privileges where perf_event_paranoid is at most 2
    Perf,
    /// seccomp user notification: no privileges, works in a default container; `run` only
    Notify,
}

impl Backend {
    /// The only one that may be taken; None for `auto`.
    pub fn only(self) -> Option<Rung> {
        match self {
            Backend::Auto => None,
            Backend::Bpf => Some(Rung::Bpf),
            Backend::Perf => Some(Rung::Perf),
            Backend::Notify => Some(Rung::Notify),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Aslr {
    /// Leave address space layout randomisation as it is
    Keep,
    /// Switch it off for the command: equal addresses in each run
    Off,
}

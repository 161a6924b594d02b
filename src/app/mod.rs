//! The only place that joins the kernel's side (capture, procfs, target, unwind, symbolize) with
//! the pure core (ledger, attribution, report, render).

mod asked;
mod attach;
mod audits;
mod cgroup_limits;
mod choose;
mod code_files;
mod compare;
mod complete;
mod conclude;
mod contained;
mod container_view;
mod diff;
mod doctor;
mod dump;
mod entering;
mod error;
mod events;
mod explain;
mod flame;
mod from_ledger;
mod heap;
mod live_events;
mod living;
mod load;
mod moment;
mod output;
mod pipeline;
mod probe_command;
mod record;
mod recorded_names;
mod remedy;
pub mod replay;
mod report;
mod reporting;
mod run;
mod saved;
mod say;
mod session;
mod snapshot;
mod symbols;
mod timeline;
mod top;
mod touch;
mod tracer;
mod watched;

pub use error::AppError;
pub use say::say;

use crate::cli::{Cli, Command};
use crate::launch::{behind_sudo, survive_file_limit};
use crate::rights;
use clap::CommandFactory;

/// Does what the command line says.
///
/// # Errors
/// What stopped it; see [`AppError::exit_code`].
pub fn run(cli: Cli) -> Result<u8, AppError> {
    rights::begin()?;
    // Before anything is started or written for somebody.
    behind_sudo()?;
    survive_file_limit().map_err(|errno| AppError::System {
        operation: "ignoring the signal of the limit on file sizes (SIGXFSZ)",
        source: errno.into(),
    })?;
    match cli.command {
        Command::Run(args) => run::run(&args),
        Command::Compare(args) => compare::compare(&args),
        Command::Events(args) => events::events(&args),
        Command::Explain(args) => explain::explain(&args),
        Command::Attach(args) => attach::attach(&args),
        Command::Heap(args) => heap::heap(&args),
        Command::Snapshot(args) => snapshot::snapshot(&args),
        Command::Top(args) => top::top(&args),
        Command::Diff(args) => diff::diff(&args),
        Command::Probe(args) => probe_command::probe(&args),
        Command::Symbols(args) => symbols::symbols(&args),
        Command::Report(args) => report::report(&args),
        Command::Doctor(args) => doctor::doctor(&args),
        Command::Man => {
            output::print(&output::manual().map_err(AppError::Output)?)?;
            Ok(0)
        }
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "vmaudit", &mut script);
            output::print(&script)?;
            Ok(0)
        }
    }
}

//! The only place that joins the kernel's side (capture, procfs, target, unwind, symbolize) with
//! the pure core (ledger, attribution, report, render).

mod code_files;
mod commands;
mod conclude;
mod dump;
mod error;
mod flame;
mod heap;
mod heap_diff;
mod heap_output;
mod heap_record;
mod live_events;
mod moment;
mod options;
mod output;
mod probed;
mod recorded;
mod recorded_names;
mod rule_files;

pub use crate::session::say::say;
pub use error::AppError;

use crate::cli::{Cli, Command};
use crate::launch::{behind_sudo, survive_file_limit};
use crate::rights;
use crate::session::SessionError;
use crate::sys::file::raise_descriptor_limit;
use clap::CommandFactory;

/// Does what the command line says.
///
/// # Errors
/// What stopped it; see [`AppError::exit_code`].
pub fn run(cli: Cli) -> Result<u8, AppError> {
    rights::begin()?;
    // Before anything is started or written for a user.
    behind_sudo()?;
    survive_file_limit().map_err(|errno| SessionError::System {
        operation: "ignoring the signal of the limit on file sizes (SIGXFSZ)",
        source: errno.into(),
    })?;
    raise_descriptor_limit();
    if let Some(folder) = cli.command.rules() {
        rule_files::read(folder)?;
    }
    match cli.command {
        Command::Run(args) => commands::run::run(&args),
        Command::Compare(args) => commands::compare::compare(&args),
        Command::Events(args) => commands::events::events(&args),
        Command::Explain(args) => commands::explain::explain(&args),
        Command::Attach(args) => commands::attach::attach(&args),
        Command::Heap(args) => commands::heap::heap(&args),
        Command::Snapshot(args) => commands::snapshot::snapshot(&args),
        Command::Top(args) => commands::top::top(&args),
        Command::Diff(args) => commands::diff::diff(&args),
        Command::Probe(args) => commands::probe::probe(&args),
        Command::Symbols(args) => commands::symbols::symbols(&args),
        Command::Report(args) => commands::report::report(&args),
        Command::Rules(args) => commands::rules::rules(&args),
        Command::Doctor(args) => commands::doctor::doctor(&args),
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

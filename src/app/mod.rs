//! The only place that joins the kernel's side (capture, procfs, target, unwind, symbolize) with
//! the pure core (ledger, attribution, report, render).

mod attach;
mod audits;
mod complete;
mod conclude;
mod dump;
mod error;
mod from_ledger;
mod living;
mod moment;
mod output;
mod pipeline;
mod record;
mod remedy;
pub mod replay;
mod report;
mod run;
mod saved;
mod say;
mod session;
mod snapshot;
mod timeline;
mod watched;

pub use error::AppError;
pub use say::say;

use crate::cli::{Cli, Command};
use clap::CommandFactory;

/// Does what the command line says.
///
/// # Errors
/// What stopped it; see [`AppError::exit_code`].
pub fn run(cli: Cli) -> Result<u8, AppError> {
    match cli.command {
        Command::Run(args) => run::run(&args),
        Command::Attach(args) => attach::attach(&args),
        Command::Snapshot(args) => snapshot::snapshot(&args),
        Command::Report(args) => report::report(&args),
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

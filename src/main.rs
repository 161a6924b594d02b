//! The command: parses arguments, runs, prints errors, exits. All else is in the library.

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = vmaudit::cli::Cli::parse();
    match vmaudit::app::run(cli) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            vmaudit::app::say(&error);
            ExitCode::from(error.exit_code())
        }
    }
}

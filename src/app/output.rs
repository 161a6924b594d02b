//! Where the report goes, and the manual page.

use super::error::AppError;
use crate::cli::{Cli, Format, RunArgs};
use crate::render::{Color, TextOptions, to_json, to_text};
use crate::report::Report;
use clap::CommandFactory;
use std::fs;
use std::io::{self, IsTerminal, Write};

/// Renders the report and writes it to `--report` or standard output.
pub fn write(report: &Report, args: &RunArgs) -> Result<(), AppError> {
    let rendered = match args.format {
        Format::Json => to_json(report)?,
        Format::Text => to_text(report, TextOptions { color: report_color(args), top: args.top }),
    };
    match &args.report {
        Some(path) => {
            fs::write(path, rendered).map_err(|source| AppError::Write { path: path.clone(), source })
        }
        None => print(rendered.as_bytes()),
    }
}

/// Writes to standard output.
pub fn print(bytes: &[u8]) -> Result<(), AppError> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        // `vmaudit run … | head` is no failure.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(AppError::Output),
    }
}

fn report_color(args: &RunArgs) -> Color {
    if args.report.is_none() { color(&io::stdout()) } else { Color::Never }
}

/// Colour only on a terminal, and not where NO_COLOR (no-color.org) or TERM=dumb forbid it.
pub fn color(to: &impl IsTerminal) -> Color {
    let forbidden = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
        || std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    if !forbidden && to.is_terminal() { Color::Always } else { Color::Never }
}

/// The manual page of vmaudit and its subcommands, as roff.
pub fn manual() -> io::Result<Vec<u8>> {
    let mut out = Vec::new();
    let mut command = Cli::command();
    command.build();
    clap_mangen::Man::new(command.clone()).render(&mut out)?;
    for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
        clap_mangen::Man::new(sub.clone()).render(&mut out)?;
    }
    Ok(out)
}

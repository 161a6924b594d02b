//! Where the report goes, and the manual page.

use super::error::AppError;
use crate::cli::{Cli, Format};
use crate::render::{Color, TextOptions, to_json, to_text};
use crate::report::Report;
use clap::CommandFactory;
use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::Path;

/// How a report is to be written, and where.
#[derive(Clone, Copy, Debug)]
pub struct Destination<'a> {
    pub format: Format,
    /// `--report`; standard output without.
    pub file: Option<&'a Path>,
    /// `--top`
    pub top: usize,
}

/// Renders the report and writes it.
pub fn write(report: &Report, to: &Destination<'_>) -> Result<(), AppError> {
    let rendered = match to.format {
        Format::Json => to_json(report)?,
        Format::Text => to_text(report, TextOptions { color: color(to), top: to.top }),
    };
    match to.file {
        Some(path) => {
            fs::write(path, rendered).map_err(|source| AppError::Write { path: path.to_owned(), source })
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

/// Colour only on a terminal, and not where NO_COLOR (no-color.org) or TERM=dumb forbid it.
fn color(to: &Destination<'_>) -> Color {
    let forbidden = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
        || std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    if to.file.is_none() && !forbidden && io::stdout().is_terminal() {
        Color::Always
    } else {
        Color::Never
    }
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

//! Where the report goes, and the manual page.

use super::error::AppError;
use crate::cli::{Cli, Format};
use crate::render::{Color, TextOptions, to_html, to_json, to_text};
use crate::report::Report;
use clap::CommandFactory;
use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::Path;

/// Of what is no report.
pub const NO_HTML: &str = "-f html shows one report: this can be had as text or json";

/// Renders the report and writes it.
pub fn write(report: &Report, to: &Destination<'_>) -> Result<(), AppError> {
    if to.format == Format::Html {
        return to.put(&to_html(report)?);
    }
    to.write(|options| to_text(report, options), || to_json(report))
}

/// Where a rendering goes, and how it looks.
#[derive(Clone, Copy, Debug)]
pub struct Destination<'a> {
    pub format: Format,
    /// Standard output, if None.
    pub file: Option<&'a Path>,
    pub top: usize,
}

impl Destination<'_> {
    fn color(&self) -> Color {
        if self.file.is_none() { color(&io::stdout()) } else { Color::Never }
    }

    /// Renders in the format that is wanted, and writes.
    pub fn write(
        &self,
        text: impl FnOnce(TextOptions) -> String,
        json: impl FnOnce() -> Result<String, serde_json::Error>,
    ) -> Result<(), AppError> {
        let rendered = match self.format {
            Format::Json => json()?,
            Format::Text => text(TextOptions { color: self.color(), top: self.top }),
            Format::Html => return Err(AppError::Usage(NO_HTML.to_owned())),
        };
        self.put(&rendered)
    }

    fn put(&self, rendered: &str) -> Result<(), AppError> {
        match self.file {
            Some(path) => fs::write(path, rendered)
                .map_err(|source| AppError::Write { path: path.to_path_buf(), source }),
            None => print(rendered.as_bytes()),
        }
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

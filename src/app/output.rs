//! Where the report goes, and the manual page.

mod conflict;
mod file;

pub use conflict::{Other, check_recording};
pub use file::{Output, Stream};

use super::error::AppError;
use super::flame;
use crate::cli::{Cli, FlameArgs, Format};
use crate::heap::HeapBy;
use crate::heap::HeapReport;
use crate::render::json::ReportWithHeap;
use crate::render::{Color, HeapView, TextOptions, heap_to_text, to_html, to_json, to_text};
use crate::report::Report;
use clap::CommandFactory;
use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A requested report: in which format, and where.
#[derive(Debug)]
pub struct OutputSpec {
    pub format: Format,
    pub flame: FlameArgs,
    pub to: Destination,
}

impl OutputSpec {
    /// # Errors
    /// When the options do not suit the format, or the format not its destination: to be checked before
    /// anything is started.
    pub fn new(format: Format, flame: FlameArgs, to: Destination) -> Result<OutputSpec, AppError> {
        flame.check(format).map_err(AppError::Usage)?;
        if format == Format::Pprof && to.output.is_stdout() && io::stdout().is_terminal() {
            let why =
                "-f pprof is compressed and nothing to read on a terminal: name a file with --report FILE";
            return Err(AppError::Usage(why.to_owned()));
        }
        Ok(OutputSpec { format, flame, to })
    }

    /// Renders the report and writes it.
    pub fn write(&self, report: &Report) -> Result<(), AppError> {
        match self.format {
            Format::Text => self.to.put(to_text(report, self.to.options()).as_bytes()),
            Format::Json => self.to.put(to_json(report)?.as_bytes()),
            Format::Html => self.to.put(to_html(report)?.as_bytes()),
            Format::Folded | Format::Svg | Format::Pprof => self.to.put(&flame::render(report, self)?),
        }
    }

    /// As [`OutputSpec::write`], with the heap's report: text, or else JSON.
    pub fn write_both(&self, report: &Report, heap: &HeapReport) -> Result<(), AppError> {
        match self.format {
            Format::Text => {
                let view = HeapView { by: HeapBy::Outstanding, reverse: false };
                let heap = heap_to_text(heap, view, self.to.options());
                self.to.put(format!("{}\n{heap}", to_text(report, self.to.options())).as_bytes())
            }
            _ => self.to.put(to_json(&ReportWithHeap { report, heap })?.as_bytes()),
        }
    }
}

/// Where a rendering goes, and how long text is.
#[derive(Debug)]
pub struct Destination {
    pub output: Output,
    pub top: usize,
}

impl Destination {
    pub fn options(&self) -> TextOptions {
        let color = if self.output.is_stdout() { color(&io::stdout()) } else { Color::Never };
        TextOptions { color, top: self.top }
    }

    pub fn put(&self, rendered: &[u8]) -> Result<(), AppError> {
        self.output.put(rendered)
    }
}

/// The file of a command that names it with its folder; others are searched for in PATH.
pub fn program(command: &[OsString]) -> Vec<Other<'_>> {
    let named = command.first().map(Path::new).filter(|path| path.as_os_str().as_bytes().contains(&b'/'));
    named.map(|path| Other { path, what: "the program that is started" }).into_iter().collect()
}

/// Writes to standard output.
pub fn print(bytes: &[u8]) -> Result<(), AppError> {
    print_by(|out| out.write_all(bytes))
}

/// The same, bit by bit.
pub fn print_by(write: impl Fn(&mut dyn Write) -> io::Result<()>) -> Result<(), AppError> {
    // Not by lines, as the standard library's own buffer.
    let mut out = io::BufWriter::new(io::stdout().lock());
    match write(&mut out).and_then(|()| out.flush()) {
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

/// Of what is printed there, in full.
pub fn text_options(to: &impl IsTerminal) -> TextOptions {
    TextOptions { color: color(to), top: usize::MAX }
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

//! A heap's report in each of its formats: of a run, or of a recording.

use super::error::AppError;
use super::output::{self, Output};
use crate::cli::{HeapFormat, HeapViewArgs};
use crate::heap::report::HeapReport;
use crate::render::json::write_heap_json;
use crate::render::{
    Color, FlameError, HeapView, TextOptions, clean, heap_to_folded, heap_to_heaptrack, heap_to_html,
    heap_to_pprof, heap_to_svg, heap_to_text,
};
use crate::session::say::say;
use std::io::{self, IsTerminal};

/// What is shown of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeapOutput {
    pub view: HeapViewArgs,
    pub top: usize,
}

/// # Errors
/// When the output is not readable on a terminal.
pub fn refuse_terminal(format: HeapFormat, to: &Output) -> Result<(), AppError> {
    if format.is_binary() && to.is_stdout() && io::stdout().is_terminal() {
        return Err(AppError::Usage(
            "-f pprof and -f heaptrack are compressed and nothing to read on a terminal: name a file with --report \
             FILE"
            .to_owned(),
        ));
    }
    Ok(())
}

impl HeapOutput {
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, to: &Output, report: &HeapReport) -> Result<(), AppError> {
        let view = HeapView { by: self.view.by, reverse: self.view.reverse };
        let rendered = match self.view.format {
            // It has all stacks in full.
            HeapFormat::Json => {
                return to.put_by(|to| Ok(write_heap_json(report, to)?));
            }
            HeapFormat::Folded => heap_to_folded(report, view).into_bytes(),
            HeapFormat::Svg => heap_to_svg(report, view)?.into_bytes(),
            HeapFormat::Html => heap_to_html(report)?.into_bytes(),
            HeapFormat::Pprof => heap_to_pprof(report, view.by).map_err(FlameError::from)?,
            HeapFormat::Heaptrack => heaptrack(report)?,
            HeapFormat::Text => {
                let color = if to.is_stdout() { output::color(&io::stdout()) } else { Color::Never };
                heap_to_text(report, view, TextOptions { color, top: self.top }).into_bytes()
            }
        };
        to.put(&rendered)
    }
}

/// Of the process that allocated most: heaptrack's files are of one.
fn heaptrack(report: &HeapReport) -> Result<Vec<u8>, AppError> {
    let Some(process) = report.processes.iter().max_by_key(|process| process.totals.allocated_bytes) else {
        return Err(AppError::Usage("-f heaptrack: no process was observed".to_owned()));
    };
    if report.processes.len() > 1 {
        say(format_args!(
            "-f heaptrack holds one process: {} (pid {}), which allocated most of the {}",
            clean(&process.comm),
            process.pid,
            report.processes.len()
        ));
    }
    Ok(heap_to_heaptrack(report, process).map_err(FlameError::from)?)
}

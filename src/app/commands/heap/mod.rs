//! `vmaudit heap`: who holds the memory that an allocator handed out.

mod arenas;
mod combined;
mod contexts;
pub mod hold;
mod peek;
mod preload;
pub mod probes;
mod report;
mod run;
mod runtime;
pub mod watch;

pub use run::heap;

use crate::app::error::AppError;
use crate::app::output::{self, Other, Output};
use crate::cli::{By, HeapArgs, HeapFormat};
use crate::heap::describe::{DEFAULT_ALLOCATORS, built_in, built_in_names, parse};
use crate::heap::report::HeapReport;
use crate::heap::{Description, Filter};
use crate::render::{
    Color, FlameError, HeapBy, HeapView, TextOptions, clean, heap_to_folded, heap_to_heaptrack, heap_to_html,
    heap_to_pprof, heap_to_svg, heap_to_text, to_json,
};
use crate::session::say::say;
use std::io::IsTerminal;
use std::path::Path;
use std::{fs, io};

/// The descriptions that `--allocator` names, or those that need no name.
fn descriptions(args: &HeapArgs) -> Result<Vec<Description>, AppError> {
    let usage = |text: String| AppError::Usage(text);
    let named = |name: &str| match built_in(name) {
        Some(description) => description.map_err(|error| usage(error.to_string())),
        None if name.contains('/') || name.ends_with(".toml") => {
            let text = fs::read_to_string(name)
                .map_err(|error| usage(format!("--allocator {name}: it cannot be read: {error}")))?;
            parse(&text, name).map_err(|error| usage(format!("--allocator {error}")))
        }
        None => {
            let known: Vec<&str> = built_in_names().collect();
            Err(usage(format!(
                "--allocator {name}: known are {}, or a description of your own, FILE.toml",
                known.join(", ")
            )))
        }
    };
    if args.allocators.is_empty() {
        return DEFAULT_ALLOCATORS.iter().map(|name| named(name)).collect();
    }
    args.allocators.iter().map(|name| named(name)).collect()
}

fn filter(args: &HeapArgs) -> Filter {
    Filter {
        older_ns: args.older.map(|age| u64::try_from(age.as_nanos()).unwrap_or(u64::MAX)),
        min_size: args.min_size,
        max_size: args.max_size,
        leaks_only: args.leaks_only,
    }
}

fn output(args: &HeapArgs) -> Result<Output, AppError> {
    let mut others = output::program(&args.command);
    let described = args.allocators.iter().map(Path::new);
    others.extend(described.map(|path| Other { path, what: "the description of an allocator" }));
    if args.format.is_binary() && args.report.is_none() && io::stdout().is_terminal() {
        return Err(AppError::Usage(
            "-f pprof and -f heaptrack are compressed and nothing to read on a terminal: name a file with --report \
             FILE"
            .to_owned(),
        ));
    }
    Output::open(args.report.as_deref(), &others)
}

fn by(by: By) -> HeapBy {
    match by {
        By::Outstanding => HeapBy::Outstanding,
        By::Peak => HeapBy::Peak,
        By::Allocations => HeapBy::Allocations,
        By::Temporary => HeapBy::Temporary,
        By::Module => HeapBy::Module,
        By::Thread => HeapBy::Thread,
        By::Size => HeapBy::Size,
    }
}

fn write(args: &HeapArgs, to: &Output, report: &HeapReport) -> Result<(), AppError> {
    let view = HeapView { by: by(args.by), reverse: args.reverse };
    let rendered = match args.format {
        HeapFormat::Json => to_json(report)?.into_bytes(),
        HeapFormat::Folded => heap_to_folded(report, view).into_bytes(),
        HeapFormat::Svg => heap_to_svg(report, view)?.into_bytes(),
        HeapFormat::Html => heap_to_html(report)?.into_bytes(),
        HeapFormat::Pprof => heap_to_pprof(report, view.by).map_err(FlameError::from)?,
        HeapFormat::Heaptrack => heaptrack(report)?,
        HeapFormat::Text => {
            let color = if to.is_stdout() { output::color(&io::stdout()) } else { Color::Never };
            heap_to_text(report, view, TextOptions { color, top: args.top }).into_bytes()
        }
    };
    to.put(&rendered)
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

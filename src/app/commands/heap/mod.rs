//! `vmaudit heap`: which stacks hold the memory that an allocator handed out.

mod arenas;
mod combined;
mod contexts;
mod preload;
pub mod probes;
mod report;
mod run;
mod runtime;
mod traced;
pub mod watch;
mod whose;

pub use run::heap;

use crate::app::error::AppError;
use crate::app::heap::default_descriptions;
use crate::app::heap_output::{self, HeapOutput};
use crate::app::heap_record::HeapRecord;
use crate::app::output::{self, Other, Output};
use crate::cli::{HeapArgs, HeapViewArgs};
use crate::heap::describe::{built_in, built_in_names, parse};
use crate::heap::report::{HeapProcess, HeapReport};
use crate::heap::{Description, Filter};
use crate::model::Pid;
use crate::session::engine::End;
use crate::session::say::say;
use crate::session::snapshots::SnapshotError;
use crate::session::snapshots::living::{Living, LivingError};
use crate::sys::untrusted_open::read_up_to;
use std::fs::File;
use std::io;
use std::path::Path;

/// Bytes of a description of an allocator; the built-in ones have some KiB.
const LONGEST_DESCRIPTION: u64 = 1 << 20;

/// The descriptions that `--allocator` names, or those that need no name.
fn descriptions(args: &HeapArgs) -> Result<Vec<Description>, AppError> {
    let usage = |text: String| AppError::Usage(text);
    let named = |name: &str| match built_in(name) {
        Some(description) => description.map_err(|error| usage(error.to_string())),
        None if name.contains('/') || name.ends_with(".toml") => {
            let text = File::open(name).and_then(|file| read_up_to(file, LONGEST_DESCRIPTION));
            let text = text.and_then(|text| String::from_utf8(text).map_err(io::Error::other));
            let text =
                text.map_err(|error| usage(format!("--allocator {name}: it cannot be read: {error}")))?;
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
        return default_descriptions().map_err(AppError::Usage);
    }
    args.allocators.iter().map(|name| named(name)).collect()
}

/// Adds to a report what is read of each running process. One that cannot be read is reported; where none
/// can, that is the failure.
fn of_living(
    pids: &[Pid],
    report: &mut HeapReport,
    mut read: impl FnMut(&Living, &mut HeapReport) -> Result<HeapProcess, LivingError>,
) -> Result<(), AppError> {
    let mut failed = None;
    for living in Living::open_each(pids) {
        match living.and_then(|living| read(&living, report)) {
            Ok(process) => report.processes.push(process),
            Err(error) => {
                if let Some(error) = failed.replace(error) {
                    say(error);
                }
            }
        }
    }
    match failed {
        Some(error) if report.processes.is_empty() => return Err(SnapshotError::from(error).into()),
        Some(error) => say(error),
        None => {}
    }
    Ok(())
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
    if let Some(recording) = &args.output {
        output::check_recording(args.report.as_deref(), recording)?;
    }
    let to = Output::open(args.report.as_deref(), &others)?;
    heap_output::refuse_terminal(args.format, &to)?;
    Ok(to)
}

fn write(args: &HeapArgs, to: &Output, report: &HeapReport) -> Result<(), AppError> {
    let view = HeapViewArgs { by: args.by, format: args.format, reverse: args.reverse };
    HeapOutput { view, top: args.top }.write(to, report)
}

/// Writes a report to its destination: that of an interval, or with `end` the last one.
fn put(
    (args, to, record): (&HeapArgs, &Output, Option<&HeapRecord>),
    report: &HeapReport,
    end: Option<&End>,
) -> Result<(), AppError> {
    let written = match end.is_some() || !args.format.is_document() {
        true => write(args, to, report),
        false => Ok(()),
    };
    let recorded = match (record, end) {
        (Some(record), Some(end)) => record.finish(report, Some(end)),
        (Some(record), None) => record.moment(report),
        (None, _) => Ok(()),
    };
    written.and(recorded)
}

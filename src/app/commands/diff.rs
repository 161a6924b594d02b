//! `vmaudit diff`: whatever the two files are, each becomes a report, and the reports are compared.

use crate::app::error::{AppError, DiffError};
use crate::app::flame;
use crate::app::heap_diff;
use crate::app::heap_record::heap_of;
use crate::app::output::{Destination, Other, Output};
use crate::app::recorded::report_of as report_of_recording;
use crate::app::rule_files::rules;
use crate::cli::{DiffArgs, DiffFormat, PidPair};
use crate::diff::{By, HeapSide, Options, Pick, Side, compare};
use crate::heap::report::HeapReport;
use crate::render::{diff_to_text, to_json};
use crate::report::Report;
use crate::session::snapshots::{report_of, saved_snapshot_in};
use crate::store::Recording;
use serde_json::Value;
use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _};
use std::path::Path;

/// The longest report that is read: one of 65,000 mappings has 40 MiB.
const MAX_REPORT: u64 = 1 << 30;
/// How a recording (an SQLite database) begins.
const SQLITE: &[u8] = b"SQLite format 3\0";

/// Does `vmaudit diff`; returns the exit code.
pub fn diff(args: &DiffArgs) -> Result<u8, AppError> {
    args.flame.check_diff(args.format).map_err(AppError::Usage)?;
    if is_stdin(&args.a) && is_stdin(&args.b) {
        return Err(DiffError::BothStdin.into());
    }
    let read = |path| Other { path, what: "one of the two that are compared" };
    let output = Output::open(args.report.as_deref(), &[read(&args.a), read(&args.b)])?;
    let to = Destination { output, top: args.top };
    let equal = match (load(&args.a)?, load(&args.b)?) {
        (Loaded::Mappings(a), Loaded::Mappings(b)) => mappings(args, (&a, &b), &to)?,
        (Loaded::Heap(a), Loaded::Heap(b)) => heaps(args, (&a, &b), &to)?,
        (Loaded::Heap(_), Loaded::Mappings(_)) => return Err(mixed(&args.a, &args.b)),
        (Loaded::Mappings(_), Loaded::Heap(_)) => return Err(mixed(&args.b, &args.a)),
    };
    Ok(u8::from(args.exit_code && !equal))
}

fn mixed(heap: &Path, mappings: &Path) -> AppError {
    let (heap, mappings) = (heap.to_owned(), mappings.to_owned());
    DiffError::Mixed { heap, mappings }.into()
}

/// Which processes of A and of B.
fn picks(args: &DiffArgs) -> (Pick, Pick) {
    let pids = args.pid.unwrap_or(PidPair { a: None, b: None });
    let pick = |pid: Option<i32>| match pid {
        _ if args.all => Pick::All,
        Some(pid) => Pick::Pid(pid),
        None => Pick::Main,
    };
    (pick(pids.a), pick(pids.b))
}

/// Whether nothing differs.
fn mappings(
    args: &DiffArgs,
    (a, b): (&Read<Report>, &Read<Report>),
    to: &Destination,
) -> Result<bool, AppError> {
    let side = |path: &Path, read| -> Result<Side<'_>, DiffError> {
        let (Read { report, kind }, pick): (&Read<Report>, Pick) = read;
        let side = Side::new(report, (&name(path), kind), pick);
        side.map_err(|source| DiffError::Side { path: path.to_owned(), source })
    };
    let (of_a, of_b) = picks(args);
    let (a, b) = (side(&args.a, (a, of_a))?, side(&args.b, (b, of_b))?);
    let result = compare(&a, &b, Options { by: args.by.unwrap_or_default() });
    match args.format {
        DiffFormat::Text => to.put(diff_to_text(&result, to.options()).as_bytes())?,
        DiffFormat::Json => to.put(to_json(&result)?.as_bytes())?,
        DiffFormat::Folded | DiffFormat::Svg => {
            to.put(&flame::render_diff((&a, &b), (args.format, args.flame))?)?
        }
        DiffFormat::Html => {
            let why = "-f html is for two heaps: -f svg draws what changed between mappings";
            return Err(AppError::Usage(why.to_owned()));
        }
    }
    Ok(result.equal)
}

/// Whether nothing differs.
fn heaps(
    args: &DiffArgs,
    (a, b): (&Read<HeapReport>, &Read<HeapReport>),
    to: &Destination,
) -> Result<bool, AppError> {
    if !matches!(args.by, None | Some(By::Stack)) {
        return Err(AppError::Usage("two heaps are compared by stack: leave --by out".to_owned()));
    }
    let side = |path: &Path, read| -> Result<HeapSide<'_>, DiffError> {
        let (Read { report, kind }, pick): (&Read<HeapReport>, Pick) = read;
        let side = HeapSide::new(report, (&name(path), kind), pick);
        side.map_err(|source| DiffError::HeapSide { path: path.to_owned(), source })
    };
    let (of_a, of_b) = picks(args);
    let (a, b) = (side(&args.a, (a, of_a))?, side(&args.b, (b, of_b))?);
    heap_diff::write((&a, &b), (args.format, args.flame), to)
}

/// A file as a report.
enum Loaded {
    Mappings(Read<Report>),
    Heap(Read<HeapReport>),
}

/// And what kind of file it was.
struct Read<R> {
    report: R,
    kind: &'static str,
}

fn name(path: &Path) -> Cow<'_, str> {
    if is_stdin(path) { "standard input".into() } else { path.to_string_lossy() }
}

fn is_stdin(path: &Path) -> bool {
    path == Path::new("-")
}

/// Reads a recording, a JSON report, or a saved smaps or maps file, distinguished by their first bytes.
///
/// # Errors
/// When it is none of these, or damaged.
fn load(path: &Path) -> Result<Loaded, AppError> {
    let open = |source| DiffError::Open { path: path.to_owned(), source };
    if is_stdin(path) {
        return load_from(path, BufReader::with_capacity(64 << 10, io::stdin().lock()));
    }
    let file = File::open(path).map_err(open)?;
    load_from(path, BufReader::with_capacity(64 << 10, file))
}

fn load_from(path: &Path, mut source: impl BufRead) -> Result<Loaded, AppError> {
    let open = |source| DiffError::Open { path: path.to_owned(), source };
    let first = source.fill_buf().map_err(open)?;
    if first.starts_with(SQLITE) {
        return load_recording(path);
    }
    if first.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{') {
        return Ok(load_report(path, source)?);
    }
    let snapshot = saved_snapshot_in(&path.to_string_lossy(), source).map_err(DiffError::from)?;
    Ok(Loaded::Mappings(Read { report: report_of(&[snapshot], rules()), kind: "smaps" }))
}

/// A recording as the report that its run printed.
fn load_recording(path: &Path) -> Result<Loaded, AppError> {
    if is_stdin(path) {
        return Err(DiffError::RecordingFromPipe.into());
    }
    let (recording, kind) = (Recording::open(path)?, "recording");
    if let Some((report, _)) = heap_of(&recording, None)? {
        return Ok(Loaded::Heap(Read { report, kind }));
    }
    let report = report_of_recording(recording, false)?;
    Ok(Loaded::Mappings(Read { report: report.with_stand_ins(), kind }))
}

fn load_report(path: &Path, source: impl io::Read) -> Result<Loaded, DiffError> {
    let mut bytes = Vec::new();
    let open = |source| DiffError::Open { path: path.to_owned(), source };
    source.take(MAX_REPORT + 1).read_to_end(&mut bytes).map_err(open)?;
    let not_a_report = |why| DiffError::NotAReport { path: path.to_owned(), why };
    if bytes.len() as u64 > MAX_REPORT {
        return Err(not_a_report("longer than 1 GiB: no report of vmaudit is that long"));
    }
    let json = |source| DiffError::Json { path: path.to_owned(), source };
    let head: Head = serde_json::from_slice(&bytes).map_err(json)?;
    if head.kind.as_deref() == Some("diff") {
        return Err(not_a_report("this is a comparison: compare the reports that it was made of"));
    }
    if head.schema.is_none() {
        return Err(not_a_report("JSON, but no report of vmaudit: it has no \"schema\""));
    }
    let kind = "report";
    if head.command == "heap" {
        let report = HeapReport::from_json(&bytes).map_err(json)?;
        return Ok(Loaded::Heap(Read { report, kind }));
    }
    let report = Report::from_json(&bytes).map_err(json)?;
    Ok(Loaded::Mappings(Read { report: report.with_stand_ins(), kind }))
}

/// What distinguishes a report from other JSON.
#[derive(serde::Deserialize)]
struct Head {
    #[serde(default)]
    kind: Option<String>,
    #[serde(default)]
    schema: Option<u64>,
    /// `heap`.
    #[serde(default)]
    command: Value,
}

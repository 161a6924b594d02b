//! `vmaudit diff`: whatever the two files are, each becomes a report, and the reports are compared.

use crate::app::error::{AppError, DiffError};
use crate::app::flame;
use crate::app::output::{Destination, Other, Output};
use crate::app::recorded::report_of as report_of_recording;
use crate::cli::{DiffArgs, DiffFormat, GroupBy, PidPair};
use crate::diff::{By, Options, Pick, Side, compare};
use crate::render::{diff_to_text, to_json};
use crate::report::Report;
use crate::session::snapshots::{report_of, saved_snapshot_in};
use crate::store::Recording;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
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
    let (a, b) = (load(&args.a)?, load(&args.b)?);
    let pids = args.pid.unwrap_or(PidPair { a: None, b: None });
    let pick = |pid: Option<i32>| match pid {
        _ if args.all => Pick::All,
        Some(pid) => Pick::Pid(pid),
        None => Pick::Main,
    };
    let (a, b) = (side(&args.a, &a, pick(pids.a))?, side(&args.b, &b, pick(pids.b))?);
    let by = match args.by {
        GroupBy::Category => By::Category,
        GroupBy::Stack => By::Stack,
        GroupBy::Finding => By::Finding,
        GroupBy::Address => By::Address,
    };
    let result = compare(&a, &b, Options { by });
    let to = Destination { output, top: args.top };
    match args.format {
        DiffFormat::Text => to.put(diff_to_text(&result, to.options()).as_bytes())?,
        DiffFormat::Json => to.put(to_json(&result)?.as_bytes())?,
        DiffFormat::Folded | DiffFormat::Svg => {
            to.put(&flame::render_diff((&a, &b), (args.format, args.flame))?)?
        }
    }
    Ok(u8::from(args.exit_code && !result.equal))
}

/// A file as a report, and what kind of file it was.
pub struct Loaded {
    pub report: Report,
    pub kind: &'static str,
}

fn side<'a>(path: &Path, loaded: &'a Loaded, pick: Pick) -> Result<Side<'a>, DiffError> {
    let name = if is_stdin(path) { "standard input".into() } else { path.to_string_lossy() };
    let side = Side::new(&loaded.report, (&name, loaded.kind), pick);
    side.map_err(|source| DiffError::Side { path: path.to_owned(), source })
}

fn is_stdin(path: &Path) -> bool {
    path == Path::new("-")
}

/// Reads a recording, a JSON report, or a saved smaps or maps file, told apart by their first bytes.
///
/// # Errors
/// When it is none of these, or damaged.
pub fn load(path: &Path) -> Result<Loaded, AppError> {
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
    Ok(Loaded { report: report_of(&[snapshot]), kind: "smaps" })
}

/// A recording as the report that its run printed.
fn load_recording(path: &Path) -> Result<Loaded, AppError> {
    if is_stdin(path) {
        return Err(DiffError::RecordingFromPipe.into());
    }
    let report = report_of_recording(Recording::open(path)?, false)?;
    Ok(Loaded { report: report.with_stand_ins(), kind: "recording" })
}

fn load_report(path: &Path, source: impl Read) -> Result<Loaded, DiffError> {
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
    let report = Report::from_json(&bytes).map_err(json)?;
    Ok(Loaded { report: report.with_stand_ins(), kind: "report" })
}

/// What tells a report from other JSON.
#[derive(serde::Deserialize)]
struct Head {
    #[serde(default)]
    kind: Option<String>,
    #[serde(default)]
    schema: Option<u64>,
}

//! `heap -f pprof`: a heap profile, with the names of values that Go's and gperftools' profiles have.

use super::code::Code;
use super::compressed;
use super::proto::{Label, Profile, Sample};
use crate::heap::HeapBy;
use crate::heap::report::{FROM_RUNTIME, HeapProcess, HeapReport};
use crate::model::number::signed;
use crate::render::heap::whole::{Whole, wholes};
use crate::render::heap::{function, no_stack};
use std::collections::HashSet;

type Value = (&'static str, &'static str, fn(&Whole) -> u64);

/// The value types, in the order of a sample's values. Those of what is outstanding obey the report's filter.
const VALUES: [Value; 7] = [
    ("alloc_objects", "count", |all| all.site.allocations),
    ("alloc_space", "bytes", |all| all.site.allocated_bytes),
    ("inuse_objects", "count", |all| all.row.amount.blocks),
    ("inuse_space", "bytes", |all| all.row.amount.bytes),
    ("peak_objects", "count", |all| all.site.peak_blocks.unwrap_or(0)),
    ("peak_space", "bytes", |all| all.site.peak_bytes.unwrap_or(0)),
    ("temporary_objects", "count", |all| all.site.temporary.unwrap_or(0)),
];

/// The heap as a profile (profile.proto, compressed with gzip); `by` is what pprof shows by default.
///
/// # Errors
/// None in practice: it is written to memory.
pub fn heap_to_pprof(report: &HeapReport, by: HeapBy) -> std::io::Result<Vec<u8>> {
    compressed(&profile(report, by))
}

fn profile(report: &HeapReport, by: HeapBy) -> Profile {
    let program = report.processes.first().map(|process| process.exe.as_str());
    let files = report.processes.iter().map(|process| process.exe.as_str());
    let mut code = Code::new(&report.stacks, program, files);
    let values = values(report);
    let mut sample = Vec::new();
    for process in &report.processes {
        for whole in wholes(process) {
            let location_id = locations(report, process, &whole, &mut code);
            let mut label = |key: &str, text: &str| Label {
                key: code.strings.number(key),
                str: code.strings.number(text),
            };
            let label = vec![label("pid", &process.pid.to_string()), label("comm", &process.comm)];
            let value = values.iter().map(|(_, _, of)| signed(of(&whole))).collect();
            sample.push(Sample { location_id, value, label });
        }
    }
    let sample_type = values.iter().map(|(name, unit, _)| code.kind((name, unit))).collect();
    // The bytes between two samples; 1: every allocation is there.
    let period_type = Some(code.kind(("space", "bytes")));
    let period = report.sampling_bytes.map_or(1, signed);
    let default = match by {
        HeapBy::Peak => "peak_space",
        HeapBy::Allocations => "alloc_objects",
        HeapBy::Temporary => "temporary_objects",
        _ => "inuse_space",
    };
    let is_there = values.iter().any(|(name, ..)| *name == default);
    let default_sample_type = code.strings.number(if is_there { default } else { "inuse_space" });
    let comment = comments(report).iter().map(|text| code.strings.number(text)).collect();
    let watched = report.processes.first().and_then(|process| process.watched_ns).unwrap_or(0);
    Profile {
        sample_type,
        sample,
        duration_nanos: signed(watched),
        period_type,
        period,
        comment,
        default_sample_type,
        ..code.into_profile()
    }
}

/// Those that are known of some process.
fn values(report: &HeapReport) -> Vec<Value> {
    let known = |of: fn(&HeapProcess) -> bool| report.processes.iter().any(of);
    let peak =
        known(|p| p.totals.peak_bytes.is_some() && p.sites.iter().any(|site| site.peak_bytes.is_some()));
    let temporary = known(|p| p.totals.temporary.is_some());
    let unknown: HashSet<&str> = [("peak", peak), ("temporary", temporary)]
        .iter()
        .filter(|(_, is)| !is)
        .map(|(name, _)| *name)
        .collect();
    let is_known = |(name, ..): &Value| !unknown.iter().any(|start| name.starts_with(start));
    VALUES.into_iter().filter(is_known).collect()
}

/// The allocator's function, its callers, and with several processes the process.
fn locations(report: &HeapReport, process: &HeapProcess, whole: &Whole, code: &mut Code<'_>) -> Vec<u64> {
    let mut out = vec![code.note(&function(report, &whole.row))];
    match code.stack(whole.row.stack) {
        Some((stack, locations)) => {
            out.extend(locations);
            if stack.completeness != "complete" {
                out.push(code.note(&format!("[{} stack]", stack.completeness)));
            }
        }
        None => out.push(code.note(&format!("[{}]", no_stack(&whole.row)))),
    }
    if report.processes.len() > 1 {
        out.push(code.note(&format!("{}-{}", process.comm, process.pid)));
    }
    out
}

/// What a profile has no field for.
fn comments(report: &HeapReport) -> Vec<String> {
    let how = match report.backend == FROM_RUNTIME {
        true => "as the runtime itself has it".to_owned(),
        false => format!(
            "counted by {}, {} events seen, {} lost",
            report.backend, report.events.seen, report.events.lost
        ),
    };
    let mut out = vec![format!("vmaudit {}: heap by call stack, {how}", env!("CARGO_PKG_VERSION"))];
    for p in report.processes.iter().take(16) {
        let t = p.totals;
        out.push(format!(
            "{} (pid {}): outstanding {} bytes in {} blocks, allocated {} bytes by {} calls; {}",
            p.comm,
            p.pid,
            t.outstanding_bytes,
            t.outstanding_blocks,
            t.allocated_bytes,
            t.allocations,
            p.cmdline.join(" ")
        ));
        let records = p.runtimes.iter();
        out.extend(
            records.filter_map(|record| Some(format!("{}: {}", record.runtime, record.what.as_ref()?))),
        );
    }
    out
}

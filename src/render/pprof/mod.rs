//! `-f pprof`: a profile that pprof and Speedscope read, with every width as a value type.

mod code;
pub(super) mod heap;
pub mod proto;

use super::folded::report::{Bytes, NO_RESIDENCY, SNAPSHOT, Width, ending, no_call};
use crate::model::number::signed;
use crate::report::model::{Process, Region, Report};
use code::Code;
use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;
use proto::{Label, Profile, Sample};
use std::collections::{HashMap, HashSet};
use std::io::Write;

/// The value types, in the order of a sample's values.
const VALUES: [(&str, &str); 6] = [
    ("virt", "bytes"),
    ("writable", "bytes"),
    ("rss", "bytes"),
    ("unused", "bytes"),
    ("swap", "bytes"),
    ("regions", "count"),
];
/// Those that are not known without residency.
const NEED_RESIDENCY: [&str; 3] = ["rss", "unused", "swap"];

/// The report as a profile (profile.proto, compressed with gzip); pprof shows `first` by default.
///
/// # Errors
/// None in practice: it is written to memory.
pub fn to_pprof(report: &Report, first: Width) -> std::io::Result<Vec<u8>> {
    compressed(&profile(report, first))
}

fn compressed(profile: &Profile) -> std::io::Result<Vec<u8>> {
    let mut out = GzEncoder::new(Vec::new(), Compression::default());
    out.write_all(&profile.encode_to_vec())?;
    out.finish()
}

/// The bytes of a sample and how many things they are.
type Sum = (Bytes, u64);

fn profile(report: &Report, first: Width) -> Profile {
    let program = report.processes.first().map(|process| process.exe.as_str());
    let regions = report.processes.iter().flat_map(|process| &process.regions);
    let mut code = Code::new(&report.stacks, program, regions.filter_map(|region| region.path.as_deref()));
    let mut order: Vec<(Vec<u64>, Vec<Label>)> = Vec::new();
    let mut sums: HashMap<(Vec<u64>, Vec<Label>), (usize, Sum)> = HashMap::new();
    for process in &report.processes {
        let names: HashMap<&str, &str> =
            process.categories.iter().map(|row| (row.id.as_str(), row.name.as_str())).collect();
        let mut things: HashSet<(&str, u64)> = HashSet::new();
        for region in &process.regions {
            let name = names.get(region.category.as_str()).copied().unwrap_or(&region.category);
            let mut stack = vec![code.note(&format!("[{}]", plain(name)))];
            callers(report, region, &mut code, &mut stack);
            if report.processes.len() > 1 {
                stack.push(code.note(&format!("{}-{}", process.comm, process.pid)));
            }
            let key = (stack, labels(process, region, &mut code));
            let next = order.len();
            let (_, sum) = sums.entry(key).or_insert_with_key(|key| {
                order.push(key.clone());
                (next, Sum::default())
            });
            sum.0 += Bytes::of(region);
            // An arena with its used and its reserved part is one thing, as in the report's tables.
            sum.1 += u64::from(things.insert((&region.category, region.instance)));
        }
    }
    let values = values(report);
    let sample_type = values.iter().map(|value| code.kind(*value)).collect();
    let default = match first {
        Width::Virt => "virt",
        Width::Writable => "writable",
        Width::Rss => "rss",
        Width::Unused => "unused",
    };
    let default = if values.iter().any(|(name, _)| *name == default) { default } else { "virt" };
    let default_sample_type = code.strings.number(default);
    let comment = comments(report).iter().map(|text| code.strings.number(text)).collect();
    let sample = order
        .into_iter()
        .map(|key| {
            let (_, sum) = sums.get(&key).copied().unwrap_or_default();
            let value = values.iter().map(|(name, _)| value(name, &sum)).collect();
            Sample { location_id: key.0, value, label: key.1 }
        })
        .collect();
    let wall_ns = report.processes.first().and_then(|process| process.wall_ns).unwrap_or(0);
    Profile {
        sample_type,
        sample,
        duration_nanos: signed(wall_ns),
        comment,
        default_sample_type,
        ..code.into_profile()
    }
}

/// Without words in parentheses, which pprof takes for a function's arguments and leaves out.
fn plain(name: &str) -> &str {
    name.split_once(" (").map_or(name, |(head, _)| head)
}

/// The value types that are known.
fn values(report: &Report) -> Vec<(&'static str, &'static str)> {
    let known = report.processes.iter().any(|process| process.residency != NO_RESIDENCY);
    VALUES.into_iter().filter(|(name, _)| known || !NEED_RESIDENCY.contains(name)).collect()
}

fn value(name: &str, (bytes, things): &Sum) -> i64 {
    signed(match name {
        "virt" => bytes.virt,
        "writable" => bytes.writable,
        "rss" => bytes.rss,
        "unused" => bytes.unused,
        "swap" => bytes.swap,
        _ => *things,
    })
}

/// The stack that requested it, innermost first, or why that is not known.
fn callers(report: &Report, region: &Region, code: &mut Code<'_>, out: &mut Vec<u64>) {
    let Some(origin) = &region.origin else {
        if report.backend != SNAPSHOT {
            out.push(code.note(no_call(region)));
        }
        return;
    };
    match code.stack(origin.stack) {
        Some((stack, locations)) => {
            out.extend(locations);
            out.extend(ending(stack).map(|note| code.note(&note)));
        }
        None => out.push(code.note(&format!("[{}: its stack was lost]", origin.op))),
    }
    if origin.inherited_from.is_some() {
        out.push(code.note("[inherited by fork]"));
    }
}

fn labels(process: &Process, region: &Region, code: &mut Code<'_>) -> Vec<Label> {
    let mut labels = Vec::new();
    let mut add = |key: &str, text: &str| {
        if !text.is_empty() {
            labels.push(Label { key: code.strings.number(key), str: code.strings.number(text) });
        }
    };
    add("category", &region.category);
    add("part", &region.part);
    add("path", region.path.as_deref().unwrap_or_default());
    add("prot", &region.prot);
    add("evidence", &region.evidence);
    add("doubt", region.doubt.as_deref().unwrap_or_default());
    add("pid", &process.pid.to_string());
    add("comm", &process.comm);
    match &region.origin {
        Some(origin) => {
            add("call", &origin.op);
            add("tid", &origin.tid.to_string());
            add("thread", &origin.comm);
        }
        None => add("call", region.without_call.as_deref().unwrap_or_default()),
    }
    labels
}

/// What a profile has no field for.
fn comments(report: &Report) -> Vec<String> {
    let events = report.events;
    let mut out = vec![format!(
        "vmaudit {}: address space by call stack, backend {}, {} events seen, {} lost",
        env!("CARGO_PKG_VERSION"),
        report.backend,
        events.seen,
        events.lost
    )];
    for process in report.processes.iter().take(16) {
        let t = process.totals;
        out.push(format!(
            "{} (pid {}): virt {} rss {} swap {} unused {} bytes; {}",
            process.comm,
            process.pid,
            t.virt,
            t.rss,
            t.swap,
            t.unused,
            process.cmdline.join(" ")
        ));
    }
    out
}

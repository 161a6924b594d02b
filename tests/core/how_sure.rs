//! How sure is a classification, by category? docs/evidence.md answers with tables over the
//! captures; this test makes them again. To write them anew after a rule has changed, on purpose:
//! `VMAUDIT_WRITE_DOCS=1 cargo test --test core how_sure`, and read the difference.

use crate::captures::recorded::{fixture, snapshot_only, traced};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;
use vmaudit::attribution::{Attributed, Piece};
use vmaudit::model::AddrRange;

const BEGIN: &str = "<!-- made by tests/core/how_sure.rs -->";

/// (capture, phase) of every snapshot, and whether its trace is there, too.
fn snapshots() -> Vec<(String, String, bool)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/captures");
    let names: BTreeSet<String> = std::fs::read_dir(dir)
        .expect("fixtures")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("plain names"))
        .collect();
    let split = |file: &String| {
        let (name, phase) = file.strip_suffix(".smaps")?.split_once('.')?;
        Some((name.to_string(), phase.to_string(), names.contains(&format!("{name}.strace"))))
    };
    names.iter().filter_map(split).collect()
}

fn kib(bytes: u64) -> String {
    (bytes >> 10).to_string()
}

/// `stack 99 %, shape 1 %`: what the bytes rest on, the most first.
fn shares(by: &BTreeMap<&'static str, u64>) -> String {
    let total: u64 = by.values().sum();
    let mut parts: Vec<_> = by.iter().filter(|(_, bytes)| **bytes > 0).collect();
    parts.sort_by_key(|(name, bytes)| (std::cmp::Reverse(**bytes), **name));
    if let [(name, _)] = parts.as_slice() {
        return (*name).to_string();
    }
    let share = |bytes: u64| match bytes as f64 * 100.0 / total as f64 {
        few if few < 0.1 => "< 0.1".to_string(),
        most if most > 99.9 => "> 99.9".to_string(),
        some => format!("{some:.1}"),
    };
    let texts: Vec<_> = parts.iter().map(|(name, bytes)| format!("{name} {} %", share(**bytes))).collect();
    texts.join(", ")
}

fn overlap(a: &Piece, b: &Piece) -> u64 {
    AddrRange { start: a.range.start.max(b.range.start), end: a.range.end.min(b.range.end) }.len()
}

/// What the trace proves, and what the snapshot alone made of the same bytes.
#[derive(Default)]
struct Row {
    virt: u64,
    captures: BTreeSet<String>,
    traced: BTreeMap<&'static str, u64>,
    alone: BTreeMap<&'static str, u64>,
    taken_for: BTreeMap<&'static str, u64>,
}

fn compare(rows: &mut BTreeMap<&'static str, Row>, name: &str, truth: &Attributed, alone: &Attributed) {
    for piece in &truth.pieces {
        let row = rows.entry(piece.category.id).or_default();
        row.virt += piece.range.len();
        row.captures.insert(name.to_string());
        *row.traced.entry(piece.evidence.as_str()).or_default() += piece.range.len();
        let from = alone.pieces.partition_point(|p| p.range.end <= piece.range.start);
        for other in alone.pieces[from..].iter().take_while(|p| p.range.start < piece.range.end) {
            let bytes = overlap(piece, other);
            let same = other.category.id == piece.category.id;
            let (into, key) = match same {
                true => (&mut row.alone, other.evidence.as_str()),
                false => (&mut row.taken_for, other.category.id),
            };
            *into.entry(key).or_default() += bytes;
        }
    }
}

fn tables() -> String {
    let mut rows = BTreeMap::new();
    let mut all: BTreeMap<&'static str, Row> = BTreeMap::new();
    let mut out = crate::sentences::table();
    let mut unknown = Vec::new();
    for (name, phase, has_trace) in snapshots() {
        let alone = snapshot_only(&name, &phase, &[]);
        if has_trace {
            compare(&mut rows, &name, &traced(&name, &phase), &alone);
        }
        for piece in &alone.pieces {
            let row = all.entry(piece.category.id).or_default();
            row.virt += piece.range.len();
            row.captures.insert(name.clone());
            *row.alone.entry(piece.evidence.as_str()).or_default() += piece.range.len();
        }
        let pieces = alone.pieces.iter().filter(|p| p.category.id == "unknown");
        let bytes: u64 = pieces.map(|p| p.range.len()).sum();
        if bytes > 0 {
            unknown.push((name, phase, bytes, alone.totals.virt));
        }
    }
    let _ = writeln!(
        out,
        "\n## With the trace, and the same bytes without it\n\nVIRT in KiB over {} snapshots that have their \
         whole trace. What the trace proves is taken as true.\n\n| category | VIRT | captures | traced, by \
         | snapshot alone: same category | by | taken for |\n|---|---:|---:|---|---:|---|---|",
        snapshots().iter().filter(|(_, _, traced)| *traced).count()
    );
    for (id, row) in &rows {
        let same: u64 = row.alone.values().sum();
        let taken: Vec<_> = row.taken_for.iter().map(|(id, bytes)| format!("{id} {}", kib(*bytes))).collect();
        let _ = writeln!(
            out,
            "| `{id}` | {} | {} | {} | {} | {} | {} |",
            kib(row.virt),
            row.captures.len(),
            shares(&row.traced),
            kib(same),
            shares(&row.alone),
            if taken.is_empty() { "–".to_string() } else { taken.join(", ") }
        );
    }
    let _ = writeln!(
        out,
        "\n## Snapshots alone\n\nAll {} snapshots: smaps and nothing else (a live snapshot also has heap \
         headers, stack pointers and what the files contain).\n\n| category | VIRT | captures | by \
         |\n|---|---:|---:|---|",
        snapshots().len()
    );
    for (id, row) in &all {
        let _ =
            writeln!(out, "| `{id}` | {} | {} | {} |", kib(row.virt), row.captures.len(), shares(&row.alone));
    }
    let _ = writeln!(out, "\nUnknown remain:\n\n| capture | unknown | of VIRT |\n|---|---:|---:|");
    for (name, phase, bytes, virt) in unknown {
        let _ = writeln!(out, "| {name}, {phase} | {} | {} |", kib(bytes), kib(virt));
    }
    out
}

#[test]
fn the_table_of_evidence_is_true() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/evidence.md");
    let text = std::fs::read_to_string(&path).expect("docs/evidence.md");
    let (head, written) = text.split_once(BEGIN).expect("the mark after which the tables are");
    let made = tables();
    if std::env::var_os("VMAUDIT_WRITE_DOCS").is_some() {
        std::fs::write(&path, format!("{head}{BEGIN}\n{made}")).expect("writes");
        return;
    }
    assert_eq!(written.trim(), made.trim(), "docs/evidence.md differs: see the head of this file");
}

/// The bar, whatever the tables say: a snapshot may not know, but it must not be wrong.
#[test]
fn a_snapshot_is_seldom_wrong() {
    let mut rows = BTreeMap::new();
    for (name, phase, _) in snapshots().into_iter().filter(|(_, _, has_trace)| *has_trace) {
        compare(&mut rows, &name, &traced(&name, &phase), &snapshot_only(&name, &phase, &[]));
    }
    let total: u64 = rows.values().map(|row: &Row| row.virt).sum();
    let wrong: u64 = rows
        .values()
        .flat_map(|row| &row.taken_for)
        .filter(|(id, _)| **id != "unknown")
        .map(|(_, bytes)| bytes)
        .sum();
    assert!(total > 1 << 30, "{total}: the captures are there");
    assert!(wrong * 1000 <= total, "{wrong} bytes of {total} were taken for something else");
    assert!(!fixture("arenas4.strace").is_empty());
}

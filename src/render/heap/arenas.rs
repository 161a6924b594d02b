//! The allocator's arenas: a table of them, their resident bytes, and the stacks that hold what stays.

use super::extents::extents;
use super::parts::{PartTable, line};
use super::segments::segments;
use super::tables::amount;
use super::who;
use crate::heap::fragmentation::{Arena, Fragmentation, Holder, Pages, Trim, total};
use crate::heap::report::{HeapProcess, HeapReport};
use crate::render::style::{Tone, clean};
use crate::render::text::{TextOptions, WIDTH, duration, labelled, note};
use crate::report::units::{size, thousands};
use std::cmp::Reverse;

pub(super) fn arenas(report: &HeapReport, p: &HeapProcess, options: TextOptions, out: &mut String) {
    let unread = p.fragmentation.iter().flat_map(|found| &found.unread);
    let unread: Vec<String> =
        unread.map(|found| format!("{}: {}", clean(&found.allocator), clean(&found.why))).collect();
    let has_none = p.fragmentation.as_ref().is_none_or(Fragmentation::is_empty);
    if has_none && !unread.is_empty() {
        unread.iter().for_each(|text| labelled("why", Tone::Dim, text, options, out));
        return;
    }
    unread.iter().for_each(|text| note(text, options, out));
    let Some(found) = p.fragmentation.as_ref().filter(|found| !found.is_empty()) else {
        let why = "no arena was found in its memory: it has another allocator than those that can be \
                   read, or malloc was never called";
        labelled("why", Tone::Dim, why, options, out);
        return;
    };
    for (at, heap) in found.extents.iter().enumerate() {
        if at > 0 {
            out.push('\n');
        }
        extents(heap, options, out);
    }
    for (at, heap) in found.segments.iter().enumerate() {
        if at > 0 || !found.extents.is_empty() {
            out.push('\n');
        }
        segments(heap, options, out);
    }
    if found.arenas.is_empty() {
        let took = format!("  read in {}", milliseconds(found.took_ns));
        *out += &format!("{}\n", options.color.paint(Tone::Dim, &took));
        return;
    }
    if !found.extents.is_empty() || !found.segments.is_empty() {
        out.push('\n');
    }
    table(found, options, out);
    for arena in found.arenas.iter().filter(|arena| arena.why.is_some()).take(DOUBTS) {
        let why = arena.why.as_deref().unwrap_or_default();
        note(&format!("arena {}: {}", name(found, arena), clean(why)), options, out);
    }
    out.push('\n');
    match (found.total.pages, found.total.trim) {
        (Some(pages), Some(trim)) => in_memory(found, (pages, trim), options, out),
        _ => note(
            "which pages are in memory could not be read: what could be given back is not known",
            options,
            out,
        ),
    }
    holders(report, p, found, options, out);
}

/// Arenas whose doubts are printed.
const DOUBTS: usize = 3;

/// `main`, or its number in the allocator's list.
fn name(found: &Fragmentation, arena: &Arena) -> String {
    let at = found.arenas.iter().position(|each| each.address == arena.address);
    if arena.main { "main".to_owned() } else { at.map_or_else(String::new, |at| format!("#{at}")) }
}

fn table(found: &Fragmentation, options: TextOptions, out: &mut String) {
    let row = |name: &str, threads: &str, cells: &[String]| line(&format!("{name:<10}{threads:>8}"), cells);
    let head = ["mapped", "in use", "cached", "free", "top", "resident", "to trim"];
    let mut parts: Vec<&Arena> = found.arenas.iter().collect();
    parts.sort_by_key(|arena| (Reverse(arena.mapped), arena.address));
    let table = PartTable {
        head: row("arena", "threads", &head.map(str::to_owned)),
        parts,
        total: &found.total,
        name: &|arena| name(found, arena),
        row: &|name, arena| {
            let unknown = || "?".to_owned();
            let cells = [
                size(arena.mapped),
                size(arena.in_use),
                size(arena.thread_caches + arena.fast),
                size(arena.free),
                size(arena.top),
                arena.pages.map_or_else(unknown, |pages| size(pages.resident)),
                arena.trim.map_or_else(unknown, |trim| size(trim.sum())),
            ];
            row(name, &arena.threads.map(thousands).unwrap_or_default(), &cells)
        },
        sum: &|arenas| total(&arenas.iter().map(|&arena| arena.clone()).collect::<Vec<_>>()),
    };
    table.write(options, out);
}

/// What is in memory, and why it stays there.
fn in_memory(found: &Fragmentation, (pages, trim): (Pages, Trim), options: TextOptions, out: &mut String) {
    let mut line = |bytes: u64, name: &str, why: &str, tone: Option<Tone>| {
        amount((bytes, name, why), tone, options, out);
    };
    let all = &found.total;
    line(pages.resident, "resident", &format!("of {} in arenas", size(all.read)), Some(Tone::Heading));
    let mut held = format!("{} blocks", thousands(all.in_use_blocks));
    if let Some(known) = all.known {
        let of = match known.blocks < all.in_use_blocks {
            true => format!("of {} blocks that are known: ", thousands(known.blocks)),
            false => String::new(),
        };
        held += &format!("; {of}{} requested, {} rounding", size(known.asked), size(known.rounding));
    }
    line(pages.used, "in use", &held, None);
    let trimmed = match (trim.inside, trim.top) {
        (inside, 0) if inside > 0 => "whole free pages between blocks".to_owned(),
        (0, _) => "the top of the main heap".to_owned(),
        (inside, top) => {
            format!("{} between blocks, {} at the top of the main heap", size(inside), size(top))
        }
    };
    line(trim.sum(), "malloc_trim(0) frees", &trimmed, Some(Tone::Key));
    let sparse = match pages.sparse_pages {
        0 => String::new(),
        count => format!(
            "; {} of these pages are at most a quarter in use: {} of blocks hold {}",
            thousands(count),
            size(pages.sparse_used),
            size((count * crate::model::PAGE).saturating_sub(pages.sparse_used))
        ),
    };
    line(pages.beside, "free next to blocks", &format!("on the same pages{sparse}"), None);
    let whole = "whole pages that trimming leaves: around blocks in threads' caches, tops of other arenas";
    line(pages.whole, "free, stays", whole, None);
    line(pages.swapped, "swapped out", "moved to swap by the kernel", None);
    line(pages.absent, "not in memory", "given back, or never touched", None);
    let mapped = &found.mapped_blocks;
    let resident = mapped.resident.map(|resident| format!(", {} resident", size(resident)));
    let mut own =
        format!("{} with mappings of their own{}", thousands(mapped.blocks), resident.unwrap_or_default());
    if let Some(known) = mapped.known {
        own += &format!("; {} requested, {} rounding", size(known.asked), size(known.rounding));
    }
    line(mapped.bytes, "large blocks", &own, None);
    let took = format!("  read in {}", milliseconds(found.took_ns));
    *out += &format!("{}\n", options.color.paint(Tone::Dim, &took));
}

/// `3.2 ms`, from a tenth of a second on as everywhere.
fn milliseconds(ns: u64) -> String {
    if ns < 100_000_000 { format!("{}.{} ms", ns / 1_000_000, ns / 100_000 % 10) } else { duration(ns) }
}

/// The stacks whose blocks keep pages.
fn holders(
    report: &HeapReport,
    p: &HeapProcess,
    found: &Fragmentation,
    options: TextOptions,
    out: &mut String,
) {
    if found.holders.is_empty() {
        return;
    }
    out.push('\n');
    let line =
        |[kept, pages, blocks, used]: [&str; 4]| format!("   {kept:>13}{pages:>11}{blocks:>11}{used:>12}  ");
    let head = line(["keeps", "pages", "blocks", "of"]) + "on pages that are at most a quarter in use";
    *out += &format!("{}\n", options.color.paint(Tone::Dim, &head));
    let (shown, rest) = found.holders.split_at(options.top.min(found.holders.len()));
    let figures = |holder: &Holder| {
        let Holder { kept, pages, blocks, used, .. } = *holder;
        line([&size(kept), &thousands(pages), &thousands(blocks), &size(used)])
    };
    for holder in shown {
        let figures = figures(holder);
        let row = holder.row.and_then(|row| p.rows.get(usize::try_from(row).ok()?));
        let columns = WIDTH.saturating_sub(figures.chars().count());
        let text =
            row.map_or_else(|| "what the filter leaves out".to_owned(), |row| who(report, row, columns));
        *out += &format!("{figures}{text}\n");
    }
    if !rest.is_empty() {
        let sum = rest.iter().fold(Holder::default(), |sum, each| Holder {
            row: None,
            kept: sum.kept + each.kept,
            pages: sum.pages + each.pages,
            blocks: sum.blocks + each.blocks,
            used: sum.used + each.used,
        });
        let plural = if rest.len() == 1 { "" } else { "s" };
        let text = format!("{}{} other stack{plural}", figures(&sum), thousands(rest.len() as u64));
        *out += &format!("{}\n", options.color.paint(Tone::Dim, &text));
    }
}

//! Allocators that keep segments: a table of whose they are, and what is in memory of them.

use super::parts::{PartTable, line};
use super::tables::amount;
use crate::heap::segments::{SegmentHeap, Segments};
use crate::heap::sums::Sums;
use crate::render::style::{Tone, clean};
use crate::render::text::{TextOptions, note};
use crate::report::units::{size, thousands};
use std::cmp::Reverse;

pub(super) fn segments(found: &Segments, options: TextOptions, out: &mut String) {
    table(found, options, out);
    if found.doubtful > 0 {
        let text = format!(
            "{} segments changed while they were read, or are in swap: they are in no figure",
            thousands(found.doubtful)
        );
        note(&text, options, out);
    }
    out.push('\n');
    in_memory(found, options, out);
}

fn name(heap: &SegmentHeap) -> String {
    match (heap.owner.as_deref(), heap.thread) {
        (_, Some(thread)) => format!("thread {thread:#x}"),
        (Some("ended"), _) => "of ended threads".to_owned(),
        (Some("large"), _) => "large, of no thread".to_owned(),
        _ => "given back, kept".to_owned(),
    }
}

fn table(found: &Segments, options: TextOptions, out: &mut String) {
    let row = |name: &str, segments: &str, cells: &[String]| line(&format!("{name:<23}{segments:>9}"), cells);
    let head = ["mapped", "committed", "in use", "inside", "free", "of it RSS"];
    let mut parts: Vec<&SegmentHeap> = found.heaps.iter().collect();
    parts.sort_by_key(|heap| (Reverse(heap.mapped), heap.thread));
    let table = PartTable {
        head: row(&clean(&found.allocator), "segments", &head.map(str::to_owned)),
        parts,
        total: &found.total,
        name: &name,
        row: &|name, h| {
            let cells = [h.mapped, h.committed, h.used, h.inside, h.free, h.free_resident];
            row(name, &thousands(h.segments), &cells.map(size))
        },
        sum: &|heaps| SegmentHeap::sum(heaps.iter().copied()),
    };
    table.write(options, out);
}

fn in_memory(found: &Segments, options: TextOptions, out: &mut String) {
    let all = &found.total;
    let mut line = |bytes: u64, name: &str, why: &str, tone: Option<Tone>| {
        amount((bytes, name, why), tone, options, out);
    };
    let resident = all.resident + all.free_resident + all.own_resident;
    line(resident, "resident", &format!("of {} in segments", size(all.mapped)), Some(Tone::Heading));
    line(all.resident, "pages", &format!("of {} in pages with blocks", size(all.pages)), None);
    let blocks = |count: u64| format!("{} blocks", thousands(count));
    let used = format!("{}, by what can be used of them", blocks(all.used_blocks));
    line(all.used, "  in use", &used, None);
    let returned =
        format!("{} that other threads freed; the thread takes them back later", blocks(all.returned_blocks));
    line(all.returned, "  to be taken back", &returned, None);
    line(all.inside, "  free inside", "space for more blocks of the pages' sizes: purging leaves it", None);
    line(all.padding, "  padding", "what no block can use", None);
    let free = format!("of slices without blocks: {}", clean(&found.purged));
    line(all.free_resident, "free", &free, Some(Tone::Key));
    line(all.own_resident, "own", "headers of segments", None);
    let absent = all.mapped - resident.min(all.mapped);
    line(absent, "not in memory", "purged, or never touched", None);
}

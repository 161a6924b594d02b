//! Allocators that keep segments: a table of whose they are, and what is in memory of them.

use super::tables::amount;
use crate::heap::segments::{SegmentHeap, Segments};
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
    let line = |name: &str, segments: &str, cells: [&str; 6]| {
        let cells: String = cells.iter().map(|cell| format!("{cell:>11}")).collect();
        format!("  {name:<23}{segments:>9}{cells}")
    };
    let head = ["mapped", "committed", "in use", "inside", "free", "of it RSS"];
    let head = line(&clean(&found.allocator), "segments", head);
    *out += &format!("{}\n", options.color.paint(Tone::Dim, &head));
    let row = |name: &str, heap: &SegmentHeap| {
        let cells = [heap.mapped, heap.committed, heap.used, heap.inside, heap.free, heap.free_resident];
        line(name, &thousands(heap.segments), cells.map(size).each_ref().map(String::as_str))
    };
    let mut sorted: Vec<&SegmentHeap> = found.heaps.iter().collect();
    sorted.sort_by_key(|heap| (Reverse(heap.mapped), heap.thread));
    let (shown, rest) = sorted.split_at(options.top.min(sorted.len()));
    for heap in shown {
        *out += &format!("{}\n", row(&name(heap), heap));
    }
    if !rest.is_empty() {
        let sum = rest.iter().fold(SegmentHeap::default(), |sum, each| sum.plus(each));
        let text = row(&format!("{} others", rest.len()), &sum);
        *out += &format!("{}\n", options.color.paint(Tone::Dim, &text));
    }
    if found.heaps.len() > 1 {
        *out += &format!("{}\n", options.color.paint(Tone::Heading, &row("total", &found.total)));
    }
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

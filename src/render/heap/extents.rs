//! Allocators that keep extents: a table of their arenas, and what is in memory of them.

use super::parts::{PartTable, line};
use super::tables::amount;
use crate::heap::extents::{ExtentArena, ExtentHeap};
use crate::heap::sums::Sums;
use crate::render::style::{Tone, clean};
use crate::render::text::{TextOptions, note};
use crate::report::units::{size, thousands};
use std::cmp::Reverse;

pub(super) fn extents(heap: &ExtentHeap, options: TextOptions, out: &mut String) {
    table(heap, options, out);
    if heap.doubtful > 0 {
        let text = format!(
            "{} extents changed while they were read, or their descriptions are in swap: they are in no figure",
            thousands(heap.doubtful)
        );
        note(&text, options, out);
    }
    if let Some(profile) = &heap.profile {
        note(&clean(profile), options, out);
    }
    out.push('\n');
    in_memory(&heap.total, options, out);
}

fn table(heap: &ExtentHeap, options: TextOptions, out: &mut String) {
    let row = |name: &str, cells: &[String]| line(&format!("{name:<18}"), cells);
    let head = ["mapped", "in use", "inside", "dirty", "muzzy", "retained", "to purge"];
    let mut parts: Vec<&ExtentArena> = heap.arenas.iter().collect();
    parts.sort_by_key(|arena| (Reverse(arena.mapped), arena.number));
    let table = PartTable {
        head: row(&clean(&heap.allocator), &head.map(str::to_owned)),
        parts,
        total: &heap.total,
        name: &|arena| format!("arena {}", arena.number),
        row: &|name, a| {
            let used = a.small + a.large;
            row(name, &[a.mapped, used, a.inside, a.dirty, a.muzzy, a.retained, a.purge].map(size))
        },
        sum: &|arenas| ExtentArena::sum(arenas.iter().copied()),
    };
    table.write(options, out);
}

fn in_memory(all: &ExtentArena, options: TextOptions, out: &mut String) {
    let mut line = |bytes: u64, name: &str, why: &str, tone: Option<Tone>| {
        amount((bytes, name, why), tone, options, out);
    };
    let resident = all.resident + all.purge + all.retained_resident;
    line(resident, "resident", &format!("of {} in extents", size(all.mapped)), Some(Tone::Heading));
    let active = format!("of {} in extents with blocks (active)", size(all.active));
    line(all.resident, "active", &active, None);
    let blocks = |count: u64| format!("{} blocks", thousands(count));
    let small =
        format!("{}, those included that threads keep for their next calls", blocks(all.small_blocks));
    line(all.small, "  small blocks", &small, None);
    line(
        all.large,
        "  large blocks",
        &format!("{}, by what can be used of them", blocks(all.large_blocks)),
        None,
    );
    line(all.inside, "  free inside", "free next to small blocks of the same size: purging leaves it", None);
    line(all.padding, "  padding", "of large blocks: a page more than they need", None);
    let purge =
        "resident pages of dirty and muzzy extents: arena.4096.purge gives them back now, time does (decay)";
    line(all.purge, "purging frees", purge, Some(Tone::Key));
    line(all.retained_resident, "retained, in memory", "touched since it was given back", None);
    line(
        all.mapped - resident.min(all.mapped),
        "not in memory",
        "given back (retained), or never touched",
        None,
    );
}

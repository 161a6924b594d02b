//! The tree from pages to extents: where its root is, and what it leads to.

use super::super::super::peek::Peek;
use super::record::{Entry, range};
use crate::model::arenas::Surroundings;
use crate::model::observation::Residency;
use crate::model::{Addr, AddrRange, Mapping, PAGE, Sharing};

/// Entries of the root, and of a leaf.
const ENTRIES: u64 = 1 << 18;
const TABLE: u64 = ENTRIES * 8;
/// Pages that a leaf is about.
const COVERED: u64 = ENTRIES * PAGE;
/// Records are aligned to lines of the cache: what is below are flags. Above are the size class, and the sign.
const RECORD: u64 = 0xffff_ffff_ffc0;
/// Variables of a file.
const MAX_VARIABLES: u64 = 1 << 30;

pub struct Root {
    pub at: Addr,
    /// The file whose variable it is.
    pub file: Vec<u8>,
}

/// Variables of files: their data, and the anonymous memory that follows (`.bss`), where the root fits in.
fn variables<'a>(process: &Surroundings<'a>) -> Vec<(&'a Mapping, AddrRange)> {
    // Without randomised addresses the heap follows the program's variables.
    let writable = |m: &Mapping| {
        m.prot.write && m.sharing == Sharing::Private && (m.file.is_some() || m.name.is_empty())
    };
    let mut found: Vec<(&Mapping, AddrRange)> = Vec::new();
    for mapping in process.mappings.iter().filter(|m| writable(m)) {
        match found.last_mut() {
            Some((of, range))
                if range.end == mapping.range.start
                    && (mapping.file.is_none() || mapping.name == of.name) =>
            {
                range.end = mapping.range.end;
            }
            _ if mapping.file.is_some() => found.push((mapping, mapping.range)),
            _ => {}
        }
    }
    found.retain(|(_, range)| (TABLE..=MAX_VARIABLES).contains(&range.len()));
    found
}

/// Pages of a range that are in memory.
fn resident(residency: &Residency, range: AddrRange) -> impl Iterator<Item = Addr> {
    residency.resident_in(range).flat_map(|run| (run.start.0..run.end.0).step_by(PAGE as usize).map(Addr))
}

/// Words of a table that are not 0: place and word.
fn words(residency: &Residency, table: AddrRange, peek: &mut Peek<'_, '_>) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    let pages = AddrRange { start: table.start.page_down(), end: table.end.page_up() };
    for page in resident(residency, pages) {
        let Some(words) = peek.words(page.0, (PAGE / 8) as usize) else { continue };
        let places = (page.0..).step_by(8).zip(words);
        found.extend(places.filter(|&(at, word)| word != 0 && table.contains(Addr(at))));
    }
    found
}

/// Roots among the variables of files of which `is_one` says that they hold a copy of the allocator.
pub fn roots(
    process: &Surroundings<'_>,
    peek: &mut Peek<'_, '_>,
    is_one: impl Fn(&[u8], &mut Peek<'_, '_>) -> bool,
) -> Vec<Root> {
    let mut found: Vec<Root> = Vec::new();
    for (mapping, range) in variables(process) {
        if !is_one(&mapping.name, peek) {
            continue;
        }
        for (place, leaf) in words(process.residency, range, peek) {
            if found.last().is_some_and(|root| AddrRange::from_len(root.at, TABLE).contains(Addr(place))) {
                continue;
            }
            if !is_table(process, leaf) {
                continue;
            }
            let root = first_extent(process.residency, leaf, peek)
                .and_then(|extent| place.checked_sub(extent.start.0 / COVERED * 8));
            if let Some(at) =
                root.map(Addr).filter(|&at| range.contains_range(AddrRange::from_len(at, TABLE)))
            {
                found.push(Root { at, file: mapping.name.clone() });
            }
        }
    }
    found
}

/// A table lies in anonymous memory as a whole; neighbours may have other names and flags.
fn is_table(process: &Surroundings<'_>, at: u64) -> bool {
    let Some(end) = at.checked_add(TABLE).filter(|_| at.is_multiple_of(64)) else { return false };
    let first = process.mappings.partition_point(|m| m.range.end <= Addr(at));
    let mut reached = at;
    for mapping in process.mappings.get(first..).unwrap_or_default() {
        if mapping.range.start.0 > reached || mapping.file.is_some() || !mapping.prot.write {
            return false;
        }
        reached = mapping.range.end.0;
        if reached >= end {
            return true;
        }
    }
    false
}

/// Entries examined of what may be a leaf.
const TRIED: usize = 64;

/// The first extent of what may be a leaf that begins at the page which leads to it.
fn first_extent(residency: &Residency, leaf: u64, peek: &mut Peek<'_, '_>) -> Option<AddrRange> {
    let table = AddrRange::from_len(Addr(leaf), TABLE);
    let mut tried = 0;
    for page in resident(residency, AddrRange { start: table.start.page_down(), end: table.end.page_up() }) {
        let page = AddrRange { start: page, end: page.saturating_add(PAGE) }.intersect(table);
        for (place, word) in words(residency, page, peek) {
            let record = peek.words(word & RECORD, 3).filter(|_| word & RECORD != 0);
            let found = record.as_ref().and_then(|record| range(record.first_chunk()?));
            let number = (place - leaf) / 8;
            if let Some(found) = found.filter(|range| range.start.0 / PAGE % ENTRIES == number) {
                return Some(found);
            }
            tried += 1;
            if tried == TRIED {
                return None;
            }
        }
    }
    None
}

impl Root {
    /// Of each extent the entry of its first page, by address; and how many tables or records are in swap.
    pub fn entries(&self, residency: &Residency, peek: &mut Peek<'_, '_>) -> (Vec<Entry>, u64) {
        let (mut found, mut missing) = (Vec::new(), 0);
        let mut end = Addr(0);
        for (place, leaf) in words(residency, AddrRange::from_len(self.at, TABLE), peek) {
            let start = (place - self.at.0) / 8 * COVERED;
            let table = AddrRange::from_len(Addr(leaf), TABLE);
            missing += u64::from(residency.swapped.iter().any(|run| run.overlaps(table)));
            for (entry, word) in words(residency, table, peek) {
                let page = Addr(start + (entry - leaf) / 8 * PAGE);
                // The last page of an extent leads to it, too, and each of one with small blocks.
                if page < end || word & RECORD == 0 {
                    continue;
                }
                let record = peek.words(word & RECORD, 3);
                let Some(&record) = record.as_ref().and_then(|record| record.first_chunk()) else {
                    missing += 1;
                    continue;
                };
                end = range(&record).filter(|range| range.start == page).map_or(end, |range| range.end);
                found.push(Entry { page, leaf: word, record });
            }
        }
        (found, missing)
    }
}

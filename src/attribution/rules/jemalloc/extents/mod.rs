//! jemalloc's extents, read from the tree that leads from each page to its extent, while the process runs.
//!
//! Source: jemalloc 5.0 to 5.3.1, include/jemalloc/internal/rtree.h, extent_structs.h (to 5.2), edata.h (from 5.3).
//! With 48 bits of addresses and pages of 4 KiB the tree has two levels of 2^18 entries each; its root is a variable:
//!
//! ```text
//! root[address >> 30] ──► leaf[address >> 12 & 0x3ffff] = size class << 48 | extent | flags
//! extent: bits, address, size | serial number
//! ```
//!
//! Nothing is taken on trust: the root is found by leaves whose extents lie at the place that leads to them; each extent's
//! size class, slab and state are in the leaf and in its own record, and have to be the same; extents may not
//! overlap; blocks have to fit into theirs.

mod classes;
mod profile;
mod record;
mod tree;

use super::super::peek::Peek;
use crate::model::arenas::extents::{ExtentArena, ExtentHeap, Extents};
use crate::model::arenas::{ArenasRead, ReadMemory, Surroundings};
use crate::model::observation::Residency;
use crate::model::{Addr, AddrRange, Mapping, Sharing};
use record::{Extent, Layout, State, pad};
use std::collections::BTreeMap;
use tree::roots;

/// Constants of a file that are searched for the version.
const LONGEST_CONSTANTS: u64 = 64 << 20;

/// See [`crate::model::arenas`].
pub fn read(process: &Surroundings<'_>, memory: &mut ReadMemory<'_>) -> ArenasRead {
    let exact = process.residency.is_page_exact();
    let mut out = ArenasRead { knows_pages: exact, ..ArenasRead::default() };
    if !exact {
        // Which pages of the tree were ever touched is not known: reading all of it would touch them.
        return out;
    }
    let mut peek = Peek::new(memory);
    for root in roots(process, &mut peek, |file, peek| version(process, file, peek).is_some()) {
        let (found, missing) = root.entries(process.residency, &mut peek);
        // All of one layout: the other one has other bits in the same places.
        let of = |layout: Layout| {
            let pad = pad(layout, &found);
            let extents: Vec<Extent> = found.iter().filter_map(|entry| layout.extent(entry, pad)).collect();
            (extents.len(), extents)
        };
        let (count, extents) =
            [Layout::V53, Layout::V52].map(of).into_iter().max_by_key(|of| of.0).unwrap_or_default();
        // Some may change meanwhile.
        if count == 0 || (found.len() - count) * 50 > found.len() {
            continue;
        }
        let Some(version) = version(process, &root.file, &mut peek) else { continue };
        let mut heap = ExtentHeap { version, root: root.at, ..ExtentHeap::default() };
        heap.profile = profile::requested(process.variables);
        heap.doubtful = (found.len() - count) as u64 + missing;
        heap.arenas = sums(&extents, process.residency, &mut heap.doubtful);
        out.extents.push(heap);
    }
    out
}

fn sums(extents: &[Extent], residency: &Residency, doubtful: &mut u64) -> Vec<ExtentArena> {
    let mut arenas: BTreeMap<u32, ExtentArena> = BTreeMap::new();
    let mut end = Addr(0);
    for extent in extents {
        if extent.range.start < end {
            *doubtful += 1;
            continue;
        }
        end = extent.range.end;
        let arena = arenas.entry(extent.arena).or_default();
        arena.number = extent.arena;
        let of = match extent.state {
            State::Active => &mut arena.active,
            State::Dirty => &mut arena.dirty,
            State::Muzzy => &mut arena.muzzy,
            State::Retained => &mut arena.retained,
        };
        add(of, extent.range, residency);
        if extent.state == State::Active {
            let blocks = extent.blocks;
            let in_use = if blocks.is_slab { &mut arena.small } else { &mut arena.large };
            in_use.bytes += blocks.used * blocks.size;
            in_use.count += blocks.used;
            arena.inside.bytes += blocks.free * blocks.size;
            arena.inside.count += blocks.free;
            arena.padding += extent.range.len() - (blocks.used + blocks.free) * blocks.size;
        }
    }
    arenas.into_values().collect()
}

fn add(to: &mut Extents, range: AddrRange, residency: &Residency) {
    to.extents.add(range.len());
    to.resident += residency.resident_in(range).map(|run| run.len()).sum::<u64>();
}

/// `jemalloc 5.3.0`, of the file whose variable the root is: what it returns for `mallctl("version")`.
fn version(process: &Surroundings<'_>, file: &[u8], peek: &mut Peek<'_, '_>) -> Option<String> {
    let constants = |m: &&Mapping| {
        m.name == file
            && m.sharing == Sharing::Private
            && !m.prot.write
            && m.prot.read
            && m.range.len() <= LONGEST_CONSTANTS
    };
    let found = process.mappings.iter().filter(constants).find_map(|mapping| {
        let bytes = peek.bytes(mapping.range.start.0, mapping.range.len() as usize)?;
        version_in(&bytes)
    });
    found.filter(|version| version.starts_with("5.")).map(|version| format!("jemalloc {version}"))
}

/// `5.3.0-0-g54eaed1d8b56b1aa528be3bdd1877e59c56fa90c`, a string of its own.
fn version_in(bytes: &[u8]) -> Option<String> {
    let marks = bytes.windows(4).enumerate().filter(|(_, window)| window.starts_with(b"-g"));
    for (at, _) in marks {
        let from = bytes[..at].iter().rposition(|&byte| byte == 0)? + 1;
        let text = std::str::from_utf8(bytes.get(from..at)?).unwrap_or_default();
        let (version, distance) = text.rsplit_once('-').unwrap_or_default();
        let hash = bytes.get(at + 2..at + 43).unwrap_or_default();
        let is_hash = hash.len() == 41 && hash[40] == 0 && hash[..40].iter().all(u8::is_ascii_hexdigit);
        let numbers = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if is_hash && numbers(distance) && version.split('.').count() == 3 && version.split('.').all(numbers)
        {
            return Some(version.to_owned());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::version_in;

    #[test]
    fn versions() {
        let file = b"\0x-g\0 5.2.1-0-g\0\x005.3.0-0-g54eaed1d8b56b1aa528be3bdd1877e59c56fa90c\0";
        assert_eq!(version_in(file).as_deref(), Some("5.3.0"));
        assert_eq!(version_in(&file[..60]), None);
        assert_eq!(version_in(b"\0a5.3.0-0-g54eaed1d8b56b1aa528be3bdd1877e59c56fa90c\0"), None);
    }
}

//! V8 as maps shows it. Node.js 20 (no pointer compression) and Chromium, Linux x86-64:
//!
//! ```text
//! 0x1ebed0b8…   rw-p  256 KiB               a page of the JavaScript heap; they lie anywhere
//! 0x7f8ce8…     rw-p, ---p, rwxp, ---p …    code range, 512 MiB, one an isolate
//!               r-xp  /usr/bin/node         in it: a second copy of the built-in functions, where the range is
//!                                           not within 2 GiB of the program
//! 0x7fbafc…     ---p 2 GiB, rw-p, ---p      a WebAssembly memory: 2 GiB of guard below, 8 GiB above
//! 0x3ec0…       ---p, rw-p, ---p  > 1 TiB   Chromium: the sandbox with the heap's cage of 4 GiB
//! 0x55c2ab…     rwxp  512 MiB               and its code range, near the program
//! 0x7f9bec…     rwxp, r-xp deno, rwxp       Deno: a code range that is opened whole, with the copy in it, and with
//!                                           ---p below and above where it is not at a multiple of 256 KiB
//! 0x1664000…    ---p, rw-p, ---p  16 GiB    and cppgc's cage, at a multiple of its size
//! ```
//!
//! All of Node's has MADV_DONTFORK (`dc`) and NORESERVE (`nr`), Deno's heap pages the first only; the sandbox has `nr`
//! and `dd`.

use super::{BUILTINS, CAGE, CODE_RANGE, CPPGC, HEAP, MARK, RESERVED, V8, WASM, WASM_GUARD};
use crate::attribution::category::{Claim, Evidence, Instance, Merge};
use crate::attribution::footprint::{difference, overlapping};
use crate::attribution::rules::World;
use crate::attribution::rules::runs::{extent, runs};
use crate::attribution::world::Surveyed;
use crate::model::{Addr, AddrRange, Mapping, Sharing};

/// CodeRange::kMaximalCodeRangeSize on x86-64.
const CODE_RANGE_SIZE: u64 = 512 << 20;
const MIN_CODE_RANGE: u64 = 64 << 20;
/// Of what lies below the generated code, each.
const MAX_HEAD: u64 = 64 << 10;
/// wasm::kFullGuardSize64 and kNegativeGuardSize of the versions seen (BackingStore::TryAllocateAndPartiallyCommitMemory).
const WASM_BELOW: u64 = 2 << 30;
const WASM_ABOVE: u64 = 8 << 30;
/// Of pages of the heap, and what large objects begin at (kPageSizeBits of src/common/globals.h).
const PAGE_ALIGNMENT: u64 = 256 << 10;
/// kCagedHeapMaxReservationSize and its alignment (include/cppgc/internal/api-constants.h).
const CPPGC_CAGE: u64 = 16 << 30;
/// Of which more is reserved than opened, at least: one reservation of many.
const MIN_RESERVED: u64 = 64 << 20;
/// Sandbox::kSandboxSize; it lies in the cage with its guards.
const SANDBOX: u64 = 1 << 40;

fn is_anonymous(mapping: &Mapping) -> bool {
    let named = mapping.name.is_empty() || mapping.name.starts_with(b"[anon:v8");
    mapping.file.is_none() && named && mapping.sharing == Sharing::Private
}

fn is_code(mapping: &Mapping) -> bool {
    is_anonymous(mapping) && mapping.prot.write && mapping.prot.exec
}

pub(super) fn survey(world: &World<'_>) -> Vec<Surveyed> {
    let flags = |m: &Mapping, expected: &[&str]| {
        let detail = world.detail_of(m)?;
        Some(expected.iter().all(|flag| detail.flags.has(flag)))
    };
    let mut found = code_ranges(world);
    found.extend(without_copies(world, &found));
    if found.is_empty() {
        return found;
    }
    found.sort_by_key(|s| s.range);
    let dontfork = |m: &Mapping| {
        let own = is_anonymous(m) && flags(m, &["dc"]).unwrap_or(false);
        own && (flags(m, &["nr"]) == Some(true) || m.range.start.is_aligned(PAGE_ALIGNMENT))
    };
    // a guard may have merged with the end of a code range
    let taken: Vec<AddrRange> = found.iter().map(|s| s.range).collect();
    let mut left = Vec::new();
    for mapping in world.mappings().iter().filter(|m| dontfork(m)) {
        let whole = [mapping.range];
        let parts = difference(&whole, &taken, mapping.range);
        left.extend(parts.into_iter().map(|range| Mapping { range, ..mapping.clone() }));
    }
    for run in runs(&left, |_| true) {
        let memories = wasm(run);
        let (part, start) = (kind_of_run(run), extent(run).start);
        for mapping in run {
            match overlapping(&memories, mapping.range) {
                [] if part != HEAP => found.push(surveyed(mapping.range, part, start)),
                [] => found.push(surveyed(mapping.range, HEAP, mapping.range.start)),
                memories => found.extend(wasm_parts(mapping, memories)),
            }
        }
    }
    let sandbox = |m: &Mapping| is_anonymous(m) && !m.prot.exec && flags(m, &["nr"]).unwrap_or(true);
    for run in runs(world.mappings(), sandbox).into_iter().filter(|run| extent(run).len() >= SANDBOX) {
        found.extend(run.iter().map(|m| surveyed(m.range, CAGE, extent(run).start)));
    }
    found.sort_by_key(|s| s.range);
    found
}

/// What neighbours are that lie in no WebAssembly memory: pages of the heap, unless most of them was only reserved.
fn kind_of_run(run: &[Mapping]) -> &'static str {
    let range = extent(run);
    let reserved: u64 = run.iter().filter(|m| m.prot.is_none()).map(|m| m.range.len()).sum();
    match range.len() {
        CPPGC_CAGE if range.start.is_aligned(CPPGC_CAGE) => CPPGC,
        len if len >= MIN_RESERVED && reserved > len / 2 => RESERVED,
        _ => HEAP,
    }
}

fn surveyed(range: AddrRange, part: &'static str, instance: Addr) -> Surveyed {
    let claim = Claim::new(V8, Evidence::Shape, part).instance(Instance::At(instance));
    Surveyed { range, claim: claim.merge(Merge::ByKind(super::kind(part))) }
}

fn overlapping_known(known: &[Surveyed], range: AddrRange) -> &[Surveyed] {
    let from = known.partition_point(|s| s.range.end <= range.start);
    let to = known.partition_point(|s| s.range.start < range.end);
    known.get(from..to).unwrap_or_default()
}

/// Generated code within one large range; if it contains a copy of the program's own code it is certainly
/// V8's, and one whole writable and executable mapping of the full size is, too.
fn code_ranges(world: &World<'_>) -> Vec<Surveyed> {
    let mut found = Vec::new();
    let part_of = |m: &Mapping| is_anonymous(m) || (m.file.is_some() && m.prot.exec && world.is_image(m));
    for run in runs(world.mappings(), part_of) {
        for (at, _) in run.iter().enumerate().filter(|(_, m)| m.file.is_some()) {
            if let Some(range) = opened_whole(run, at) {
                let part = |m: &Mapping| if m.file.is_some() { BUILTINS } else { CODE_RANGE };
                let inside = run.iter().filter(|m| m.range.overlaps(range));
                found.extend(inside.map(|m| surveyed(m.range.intersect(range), part(m), range.start)));
                continue;
            }
            let below = run[..at].iter().rev().take_while(|m| is_anonymous(m)).count();
            // what is reserved above it is the range's end: others may follow
            let above = run.get(at + 1).filter(|m| is_anonymous(m) && m.prot.is_none());
            let Some(end) = above.map(|m| m.range.end) else { continue };
            if let Some(start) = start_of_code_range(&run[at - below..at]) {
                let end = Addr(end.0.min(start.0 + CODE_RANGE_SIZE));
                let first = run.partition_point(|m| m.range.start < start);
                let inside = run[first..].iter().take_while(|m| m.range.start < end);
                found.extend(inside.map(|m| {
                    let range = m.range.intersect(AddrRange { start, end });
                    surveyed(range, if m.file.is_some() { BUILTINS } else { CODE_RANGE }, start)
                }));
            }
        }
    }
    let whole = |m: &&Mapping| is_code(m) && m.range.len() == CODE_RANGE_SIZE;
    if found.is_empty() {
        let all = world.mappings().iter().filter(whole);
        found.extend(all.map(|m| surveyed(m.range, CODE_RANGE, m.range.start)));
    }
    found
}

/// The copy with what is writable and executable below and above it, if that is a code range of the full size. The
/// kernel reserves it anywhere and V8 opens whole pages of its heap: as much as one of them is left over, divided between
/// both ends, of which one may have merged with what somebody else reserved next to it.
fn opened_whole(run: &[Mapping], copy: usize) -> Option<AddrRange> {
    let first = copy.checked_sub(1)?;
    let inside = run.get(first..copy + 2)?;
    let range = extent(inside);
    let opened = inside.first().is_some_and(is_code) && inside.last().is_some_and(is_code);
    let left = CODE_RANGE_SIZE.checked_sub(range.len()).filter(|left| *left <= PAGE_ALIGNMENT)?;
    if !opened
        || (left > 0 && !(range.start.is_aligned(PAGE_ALIGNMENT) && range.end.is_aligned(PAGE_ALIGNMENT)))
    {
        return None;
    }
    let reserved = |m: Option<&Mapping>| m.filter(|m| m.prot.is_none()).map_or(0, |m| m.range.len());
    let below = reserved(first.checked_sub(1).and_then(|at| run.get(at)));
    let above = reserved(run.get(copy + 2));
    let head = match (below, above) {
        (below, above) if below + above < left => return None,
        (below, _) if below <= left => below,
        (_, above) if above <= left => left - above,
        // where one ends and the other begins is not known
        _ => return Some(range),
    };
    let start = Addr(range.start.0.checked_sub(head)?);
    Some(AddrRange { start, end: start.saturating_add(CODE_RANGE_SIZE) })
}

/// Within 2 GiB of the program (V8 requests that, and address randomisation often grants it: `CodeRange`,
/// src/heap/code-range.cc) generated code reaches the program's own built-in functions, and no copy of them
/// shows whose range it is. Then it has the full size, and the program has to be known to hold V8.
fn without_copies(world: &World<'_>, known: &[Surveyed]) -> Vec<Surveyed> {
    let mut found = Vec::new();
    if !world.has_mark(MARK) {
        return found;
    }
    let forked = |m: &Mapping| world.detail_of(m).is_some_and(|detail| !detail.flags.has("dc"));
    let is_unknown = |m: &Mapping| overlapping_known(known, m.range).is_empty();
    for run in runs(world.mappings(), |m| is_anonymous(m) && !forked(m) && is_unknown(m)) {
        let mut after = Addr(0);
        for first in (0..run.len()).filter(|&at| is_code(&run[at])) {
            let start = head(&run[..first]).unwrap_or(run[first].range.start);
            let range = AddrRange { start, end: start.saturating_add(CODE_RANGE_SIZE) };
            let last = run.iter().find(|m| m.range.start < range.end && range.end <= m.range.end);
            if start < after || !last.is_some_and(|m| m.prot.is_none() && m.range.len() >= MIN_CODE_RANGE) {
                continue;
            }
            after = range.end;
            let inside = run.iter().filter(|m| m.range.overlaps(range));
            found.extend(inside.map(|m| surveyed(m.range.intersect(range), CODE_RANGE, start)));
        }
    }
    found
}

/// Where the range begins: with two short mappings below the first generated code.
fn start_of_code_range(below: &[Mapping]) -> Option<Addr> {
    below.last().filter(|m| m.prot.is_none() && m.range.len() >= MIN_CODE_RANGE)?;
    let starts = below
        .iter()
        .enumerate()
        .filter(|(_, m)| is_code(m))
        .map(|(first, code)| head(&below[..first]).unwrap_or(code.range.start));
    let end = below.last().map(|m| m.range.end)?;
    starts.into_iter().find(|start| end.0 - start.0 <= CODE_RANGE_SIZE)
}

/// Where the two short mappings begin that end where generated code does.
fn head(below: &[Mapping]) -> Option<Addr> {
    let short = below.iter().rev().take(2).take_while(|m| m.range.len() <= MAX_HEAD);
    short.last().map(|m| m.range.start)
}

/// The reservations of WebAssembly memories in a run of neighbours: each begins 2 GiB below what
/// is committed of it, and the guards of neighbours are one mapping.
fn wasm(run: &[Mapping]) -> Vec<AddrRange> {
    let range = extent(run);
    let mut found: Vec<AddrRange> = Vec::new();
    let opened = run.iter().filter(|m| !m.prot.is_none()).map(|m| m.range.start.0);
    for start in opened {
        let memory = AddrRange {
            start: Addr(start.saturating_sub(WASM_BELOW)),
            end: Addr(start.saturating_add(WASM_ABOVE)),
        };
        let fits = range.contains_range(memory) && found.last().is_none_or(|last| last.end <= memory.start);
        if fits {
            found.push(memory);
        }
    }
    found
}

fn wasm_parts(mapping: &Mapping, memories: &[AddrRange]) -> Vec<Surveyed> {
    let part = if mapping.prot.is_none() { WASM_GUARD } else { WASM };
    memories.iter().map(|memory| surveyed(mapping.range.intersect(*memory), part, memory.start)).collect()
}

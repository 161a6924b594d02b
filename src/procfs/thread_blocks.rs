//! The C library's blocks for threads: which stack is whose, and which one a thread has left.
//!
//! Where the stack pointer is says little: a thread may run on a fibre's, a coroutine's, a signal handler's
//! stack. glibc keeps its block for a thread (`struct pthread`, nptl/descr.h) at the top of the thread's own
//! stack, with the head of its robust list in it, whose address the kernel reports. It stays there when the
//! thread has ended, for the next one: it begins with its own address, as the psABI requires of what %fs
//! points at, and has it once more at 16.

use super::memory;
use super::process_dir::ProcessDir;
use super::stack_lists::read_stack_lists;
use crate::model::observation::{Residency, ResidencySource, ThreadBlocks, ThreadObservation};
use crate::model::{Addr, AddrRange, Mapping, PAGE, Tid, VmaDetails};
use crate::sys::task::robust_list;

/// How far below the top of a stack its block is searched for: static TLS lies above it.
const REACH: u64 = 64 << 10;
/// Pages that are read at most.
const MAX_PAGES: usize = 1 << 14;
/// Alignment of the block.
const ALIGN: usize = 64;

pub(super) fn read_thread_blocks(
    dir: &ProcessDir,
    tid: Tid,
    threads: &[ThreadObservation],
    (mappings, residency, details): (&[Mapping], &Residency, &VmaDetails),
) -> ThreadBlocks {
    let living = living_blocks(threads);
    let lists = read_stack_lists(dir, (dir.pid(), tid), &living);
    let mut out = ThreadBlocks { living, lists, ..ThreadBlocks::default() };
    let exact = matches!(residency.source, ResidencySource::PagemapScan | ResidencySource::Pagemap);
    let mut heads: Vec<Addr> = out.living.iter().map(|(_, head)| *head).collect();
    heads.sort_unstable();
    let tops = stack_tops(mappings, details);
    let left = tops.into_iter().filter(|top| !is_taken(top, &heads));
    let pages: Vec<Addr> = left.flat_map(|top| touched_pages(top, residency)).take(MAX_PAGES).collect();
    if !exact || pages.len() == MAX_PAGES {
        return out;
    }
    let Ok(read) = memory::read_pieces::<{ PAGE as usize }>(dir, tid, &pages) else { return out };
    let found = pages.iter().zip(&read).filter_map(|(page, bytes)| block_in(*page, bytes.as_ref()?));
    out.ended = found.collect();
    out.ended.sort_unstable();
    out.searched = true;
    out
}

/// In the block for each living thread.
pub(super) fn living_blocks(threads: &[ThreadObservation]) -> Vec<(Tid, Addr)> {
    threads.iter().filter_map(|thread| Some((thread.tid, Addr(robust_list(thread.tid)?)))).collect()
}

/// What may be stacks, without their guards: with a guard below, or mapped as a stack.
fn stack_tops(mappings: &[Mapping], details: &VmaDetails) -> Vec<AddrRange> {
    let mut tops = Vec::new();
    for (at, mapping) in mappings.iter().enumerate().filter(|(_, m)| m.is_unnamed_memory()) {
        // guards that maps does not show part neighbouring stacks
        let inside = overlapping(&details.guards, mapping.range);
        let below = at.checked_sub(1).and_then(|below| mappings.get(below));
        let guarded = below.is_some_and(|b| b.prot.is_none() && b.range.end == mapping.range.start);
        // MAP_STACK (include/linux/mman.h, `calc_vm_flag_bits`)
        let flagged = || details.at(mapping.range.start).is_some_and(|detail| detail.flags.has("nh"));
        if inside.is_empty() && !guarded && !flagged() {
            continue;
        }
        let mut start = mapping.range.start;
        for guard in inside {
            tops.push(AddrRange::new(start.0, guard.start.0));
            start = guard.end;
        }
        tops.push(AddrRange::new(start.0, mapping.range.end.0));
    }
    tops.retain(|range| !range.is_empty());
    tops
}

/// Of sorted, disjoint ranges.
fn overlapping(sorted: &[AddrRange], range: AddrRange) -> &[AddrRange] {
    let rest = &sorted[sorted.partition_point(|each| each.end <= range.start)..];
    &rest[..rest.partition_point(|each| each.start < range.end)]
}

/// A living thread's own.
fn is_taken(stack: &AddrRange, heads: &[Addr]) -> bool {
    let first = heads.partition_point(|head| *head < stack.start);
    heads.get(first).is_some_and(|head| stack.contains(*head))
}

/// The touched pages near the top: the block is in one of them. Swapped ones are not read.
fn touched_pages(stack: AddrRange, residency: &Residency) -> Vec<Addr> {
    let start = stack.end.0.saturating_sub(REACH).max(stack.start.0);
    let resident = &residency.resident;
    let first = resident.partition_point(|run| run.end.0 <= start);
    let runs = resident[first..].iter().take_while(|run| run.start < stack.end);
    let runs = runs.map(|run| run.intersect(AddrRange::new(start, stack.end.0)));
    runs.flat_map(|run| (run.start.0..run.end.0).step_by(PAGE as usize).map(Addr)).collect()
}

/// Where a page holds such a block.
fn block_in(page: Addr, bytes: &[u8; PAGE as usize]) -> Option<Addr> {
    let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let at = (0..bytes.len()).step_by(ALIGN).find(|&at| {
        let own = Some(page.0 + at as u64);
        word(at) == own && word(at + 16) == own
    })?;
    Some(page.saturating_add(at as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::procfs::{ObserveOptions, observe};
    use std::sync::mpsc;

    #[test]
    fn a_block_begins_with_its_own_address() {
        const AT: u64 = 0x7f00_0000_1000;
        let mut bytes = [0; PAGE as usize];
        let mut put = |at: usize, value: u64| {
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
            block_in(Addr(AT), &bytes)
        };
        assert_eq!(put(0x40, AT + 0x40), None);
        assert_eq!(put(0x58, AT + 0x48), None, "not aligned, and other words");
        assert_eq!(put(0x50, AT + 0x40), Some(Addr(AT + 0x40)));
        assert_eq!(put(0x40, AT), None);
    }

    #[test]
    fn stacks_are_parted_by_guards_that_maps_does_not_show() {
        let maps = b"7f0000000000-7f0000009000 rw-p 00000000 00:00 0\n7f0000009000-7f000000a000 ---p 00000000 00:00 0\n";
        let mappings = crate::procfs::parse_maps(maps).mappings;
        let guard = |n: u64| AddrRange::new(0x7f00_0000_0000 + n * 0x1000, 0x7f00_0000_1000 + n * 0x1000);
        let mut details = VmaDetails { vmas: Vec::new(), guards: vec![guard(0), guard(4)] };
        let tops = stack_tops(&mappings, &details);
        let ends: Vec<(u64, u64)> = tops.iter().map(|t| (t.start.0 & 0xffff, t.end.0 & 0xffff)).collect();
        assert_eq!(ends, [(0x1000, 0x4000), (0x5000, 0x9000)]);
        details.guards.clear();
        assert_eq!(stack_tops(&mappings, &details), [], "no guard below, no flag");
    }

    fn place() -> Addr {
        let here = 0u8;
        Addr((&raw const here).addr() as u64)
    }

    fn own_tid() -> Tid {
        nix::unistd::gettid().as_raw()
    }

    /// The stack that a thread has left, and that of one that lives on, of this process.
    #[test]
    fn of_this_process() {
        let pid = std::process::id() as Tid;
        let thread = || {
            let (to_main, from_thread) = mpsc::channel();
            let (let_go, wait) = mpsc::channel::<()>();
            let thread = std::thread::spawn(move || {
                to_main.send((own_tid(), place())).expect("the receiver lives");
                wait.recv().unwrap_or_default();
            });
            (thread, let_go, from_thread.recv().expect("it speaks"))
        };
        // both at once: one would take the stack that the other has left
        let (living, let_go, (tid, at)) = thread();
        let (other, end, (_, ended)) = thread();
        drop(end);
        other.join().expect("it ends");
        let seen = observe(
            pid,
            pid,
            ObserveOptions {
                headers: crate::attribution::rules::heap_headers(),
                ..ObserveOptions::default()
            },
        );
        drop(let_go);
        living.join().expect("it ends");
        let seen = seen.expect("own process");
        if !seen.thread_blocks.searched {
            crate::skip::skip_this("pagemap cannot be read here");
            return;
        }
        let found = seen.thread_blocks.living.iter().find(|(other, _)| *other == tid).expect("its block");
        assert!(found.1 > at && found.1.0 - at.0 < 4 << 20, "{:?} above {at}", found.1);
        let above = |block: &Addr| *block > ended && block.0 - ended.0 < 4 << 20;
        assert!(seen.thread_blocks.ended.iter().any(above), "{:?}", seen.thread_blocks);
    }
}

//! glibc's own lists of stacks: whether it mapped a thread's stack or was given it, and what became of one whose thread
//! has ended. They are rings of `list_t` in the blocks for threads (`struct pthread`, nptl/descr.h), each with a head among
//! the loader's data (sysdeps/generic/ldsodefs.h, since glibc 2.34):
//!
//! ```text
//! _dl_stack_used           mapped by pthread_create; a thread stays until it has ended and was joined, or is detached
//! _dl_stack_user           the first thread, and those that were given a stack (pthread_attr_setstack)
//! _dl_stack_cache          kept for the next threads
//! _dl_stack_cache_actsize  bytes of these
//! ```
//!
//! The first thread's block leads to the second ring. That the others are its head's neighbours is proven by their being
//! rings of such blocks, and by the sum behind them; else nothing is said.

use super::memory;
use super::process_dir::ProcessDir;
use crate::model::observation::{GivenStack, StackLists};
use crate::model::{Addr, AddrRange, PAGE, Tid};

/// Of `list` in a block on x86-64, behind the thread's control block; from there to what else is read. The distances
/// between the fields have been the same since the lists are where they are.
const LIST: u64 = 0x2c0;
const TID: u64 = 0x10;
const ROBUST_HEAD: u64 = 0x20;
const CANCELHANDLING: u64 = 0x48;
/// EXITING_BITMASK: set when its function has returned, and not before a thread has begun.
const EXITING: u64 = 1 << 4;
/// Between heads of lists.
const HEAD: u64 = 16;
/// More threads than that are not looked at.
const MAX_BLOCKS: usize = 1 << 16;
/// Where a block holds `stackblock`, `stackblock_size` (which versions place differently), and how much is read there.
const STACK_BLOCK: u64 = 0x600;
const STACK_BLOCK_LEN: usize = 0x140;
/// PTHREAD_STACK_MIN.
const MIN_STACK: u64 = 16 << 10;
/// Above a block lie its rest and what aligns it.
const MAX_ABOVE: u64 = 2 * PAGE;

struct Block {
    at: Addr,
    /// 0 when the kernel has let go of it (CLONE_CHILD_CLEARTID).
    tid: u32,
    exiting: bool,
}

/// The head of a ring, and its blocks.
struct Ring {
    head: Addr,
    blocks: Vec<Block>,
}

struct Reader<'a> {
    dir: &'a ProcessDir,
    tid: Tid,
}

/// The robust list of a living thread is in its block.
fn block_of(robust_head: Addr) -> Option<Addr> {
    robust_head.0.checked_sub(ROBUST_HEAD + LIST).map(Addr)
}

pub(super) fn read_stack_lists(
    dir: &ProcessDir,
    (pid, tid): (Tid, Tid),
    living: &[(Tid, Addr)],
) -> Option<StackLists> {
    if !cfg!(target_arch = "x86_64") {
        return None;
    }
    let reader = Reader { dir, tid };
    let blocks: Vec<(Tid, Addr)> =
        living.iter().filter_map(|&(tid, head)| Some((tid, block_of(head)?))).collect();
    let owner = |block: &Block| blocks.iter().find(|(_, at)| *at == block.at).map(|(tid, _)| *tid);
    let (_, first) = blocks.iter().find(|(tid, _)| *tid == pid)?;
    let user = reader.ring(first.saturating_add(LIST))?;
    let used = reader.ring_of(user.head.0.checked_sub(HEAD)?)?;
    let cache = reader.ring_of(user.head.0.checked_add(HEAD)?)?;
    let sum = reader.words([user.head.0.checked_add(2 * HEAD)?])?[0]?;
    if !sum.is_multiple_of(PAGE) || (sum == 0) != cache.blocks.is_empty() {
        return None;
    }
    let given = user.blocks.iter().filter(|block| block.at != *first);
    let given = given.map(|block| GivenStack {
        tid: owner(block),
        block: block.at,
        stack: reader.stack_of(block.at),
    });
    let mut out = StackLists { given: given.collect(), ..StackLists::default() };
    let left = used.blocks.iter().filter(|block| block.tid == 0 && block.exiting && owner(block).is_none());
    out.unjoined.extend(left.map(|block| block.at));
    out.cached.extend(cache.blocks.iter().map(|block| block.at));
    out.given.sort_unstable_by_key(|given| given.block);
    out.unjoined.sort_unstable();
    out.cached.sort_unstable();
    Some(out)
}

impl Reader<'_> {
    fn words<const N: usize>(&self, at: [u64; N]) -> Option<[Option<u64>; N]> {
        let read = memory::read_pieces::<8>(self.dir, self.tid, &at.map(Addr)).ok()?;
        let words: Vec<Option<u64>> = read.into_iter().map(|word| word.map(u64::from_le_bytes)).collect();
        words.try_into().ok()
    }

    fn ring_of(&self, head: u64) -> Option<Ring> {
        self.ring(Addr(head)).filter(|ring| ring.head.0 == head)
    }

    /// All of the ring that `start` is in, where each is the next one's previous, and one is no block.
    fn ring(&self, start: Addr) -> Option<Ring> {
        let (mut head, mut blocks) = (None, Vec::new());
        let (mut at, mut before, mut last) = (start, None, None);
        while before.is_none() || at != start {
            let own = at.0.checked_sub(LIST)?;
            let field = |offset: u64| at.0.saturating_add(offset);
            let [next, back, own_word, tid, exiting] =
                self.words([field(0), field(8), own, field(TID), field(CANCELHANDLING)])?;
            match before {
                None => last = back,
                Some(Addr(before)) if back != Some(before) => return None,
                Some(_) => {}
            }
            // the thread's control block begins with its own address
            if own_word == Some(own) {
                blocks.push(Block { at: Addr(own), tid: tid? as u32, exiting: exiting? & EXITING != 0 });
            } else if head.replace(at).is_some() {
                return None;
            }
            if blocks.len() > MAX_BLOCKS {
                return None;
            }
            (before, at) = (Some(at), Addr(next?));
        }
        Some(Ring { head: head?, blocks }).filter(|_| before.map(|at| at.0) == last)
    }

    /// `stackblock` and `stackblock_size` are the two words that enclose the block, a little above it.
    fn stack_of(&self, block: Addr) -> Option<AddrRange> {
        let at = block.saturating_add(STACK_BLOCK);
        let read = memory::read_pieces::<STACK_BLOCK_LEN>(self.dir, self.tid, &[at]).ok()?;
        stack_in(block, read.first()?.as_ref()?)
    }
}

fn stack_in(block: Addr, bytes: &[u8]) -> Option<AddrRange> {
    let words = bytes.chunks_exact(8).map(|word| word.try_into().map(u64::from_le_bytes));
    let words: Vec<u64> = words.collect::<Result<_, _>>().ok()?;
    let mut found = words.windows(2).filter_map(|pair| {
        let end = pair[0].checked_add(pair[1])?;
        let encloses =
            pair[1] >= MIN_STACK && pair[0] < block.0 && block.0 < end && end - block.0 <= MAX_ABOVE;
        encloses.then(|| AddrRange::new(pair[0], end))
    });
    found.next().filter(|_| found.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::procfs::thread_blocks::living_blocks;
    use crate::procfs::threads::read_threads;
    use std::ffi::c_void;
    use std::sync::mpsc::{Receiver, Sender, channel};

    #[test]
    fn a_stack_encloses_its_block() {
        const AT: u64 = 0x7f00_0010_0000;
        let words = |all: &[u64]| all.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        let block = Addr(AT - 0x940);
        let whole = [0, AT - 0x4_0000, 0x4_0000, 0, 0];
        assert_eq!(stack_in(block, &words(&whole)), Some(AddrRange::new(AT - 0x4_0000, AT)));
        assert_eq!(stack_in(block, &words(&[AT - 0x4_0000, 0x8_0000])), None, "ends far above");
        assert_eq!(stack_in(block, &words(&[AT, 0x4_0000, 0])), None);
    }

    struct Asked {
        here: Sender<u64>,
        wait: Receiver<()>,
    }

    extern "C" fn work(asked: *mut c_void) -> *mut c_void {
        // SAFETY: the pointer is of the box that the thread was given.
        let asked = unsafe { Box::from_raw(asked.cast::<Asked>()) };
        // SAFETY: returns a number.
        asked.here.send(unsafe { libc::pthread_self() }).expect("the receiver lives");
        asked.wait.recv().unwrap_or_default();
        std::ptr::null_mut()
    }

    /// Starts a thread, on `stack` if there is one; returns its block as it says itself.
    fn start(stack: Option<AddrRange>) -> (libc::pthread_t, Sender<()>) {
        let (here, place) = channel();
        let (let_go, wait) = channel();
        let asked = Box::into_raw(Box::new(Asked { here, wait })).cast::<c_void>();
        // SAFETY: the attributes are initialised before use, and the stack is memory of this test's own.
        let thread = unsafe {
            let mut attributes = std::mem::zeroed();
            libc::pthread_attr_init(&raw mut attributes);
            if let Some(stack) = stack {
                let at = std::ptr::with_exposed_provenance_mut(stack.start.0 as usize);
                assert_eq!(libc::pthread_attr_setstack(&raw mut attributes, at, stack.len() as usize), 0);
            }
            let mut thread = 0;
            assert_eq!(libc::pthread_create(&raw mut thread, &raw const attributes, work, asked), 0);
            thread
        };
        assert_eq!(place.recv().expect("it speaks"), thread);
        (thread, let_go)
    }

    fn join(thread: libc::pthread_t) {
        // SAFETY: a thread that nobody else joins.
        assert_eq!(unsafe { libc::pthread_join(thread, std::ptr::null_mut()) }, 0);
    }

    fn lists() -> Option<StackLists> {
        let pid = std::process::id() as Tid;
        let dir = ProcessDir::open(pid, pid).expect("own directory");
        let threads = read_threads(&dir, &mut Vec::new());
        read_stack_lists(&dir, (pid, pid), &living_blocks(&threads))
    }

    /// Of threads of this process: on a stack of their own, joined, and not joined.
    #[test]
    fn of_this_process() {
        let memory = vec![0_u8; 1 << 20];
        let from = (memory.as_ptr().expose_provenance() as u64).next_multiple_of(PAGE);
        let given = AddrRange::new(from, from + (1 << 19));
        let (own, go_own) = start(Some(given));
        let (joined, go_joined) = start(None);
        let (unjoined, go_unjoined) = start(None);
        drop((go_joined, go_unjoined));
        join(joined);
        // its block is the C library's until it is joined; the kernel's last word is its thread number
        let mut seen = lists();
        while seen.as_ref().is_some_and(|seen| !seen.unjoined.contains(&Addr(unjoined))) {
            std::thread::yield_now();
            seen = lists();
        }
        let Some(seen) = seen else {
            crate::skip::skip_this("another C library, or its memory cannot be read");
            join(unjoined);
            drop(go_own);
            join(own);
            return;
        };
        let mine = seen.given.iter().find(|each| each.block == Addr(own)).expect("a stack of its own");
        assert_eq!((mine.stack, mine.tid.is_some()), (Some(given), true));
        assert!(seen.cached.contains(&Addr(joined)), "{seen:?}");
        join(unjoined);
        drop(go_own);
        join(own);
        drop(memory);
    }
}

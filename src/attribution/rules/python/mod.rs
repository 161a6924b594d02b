//! CPython's object arenas (Objects/obmalloc.c): 1 MiB from 3.10, 256 KiB before.

mod frames;
mod lines;

use super::{Advice, Claim, Group, OwnBlocks, Rule, Subject, World};
use crate::attribution::callpath::Line;
use crate::attribution::category::{Category, CategoryInfo, Evidence, Instance, Merge};
use crate::attribution::code::{Code, Role};
use crate::ledger::Region;
use crate::model::headers::{Headers, POOL_HEADER, PoolHeaders};
use crate::model::observation::BlockKind;
use crate::model::path::base_name_lossy;
use crate::model::stack::Interpreter;
use crate::model::{Addr, AddrRange, Prot};

pub const ARENA: Category = Category(&CategoryInfo {
    id: "python-arena",
    color: 0x837325,
    name: "Python object arenas",
    one: "Python object arena",
    many: "Python object arenas",
});

/// ARENA_SIZE: 1 MiB from 3.10, 256 KiB before.
const ARENAS: [u64; 2] = [1 << 20, 256 << 10];
/// With their pools: POOL_SIZE.
const SIZES: [(u64, u64); 2] = [(1 << 20, 16 << 10), (256 << 10, 4 << 10)];
/// Of blocks; larger ones than CLASSES of that (512 bytes) are malloc's.
const ALIGNMENT: u64 = 16;
const CLASSES: u64 = 32;
/// What holds objects.
const ARENA_PART: &str = "arena";
/// DATA_STACK_CHUNK_SIZE
const FRAMES: u64 = 16 << 10;

pub struct PythonRule;

fn is_python(module: &str) -> bool {
    module.starts_with("python3") || module.starts_with("libpython3")
}

impl Rule for PythonRule {
    fn id(&self) -> &'static str {
        "python"
    }

    fn categories(&self) -> &'static [Category] {
        &[ARENA]
    }

    fn code(&self) -> Code {
        Code {
            role: Role::Runtime,
            modules: &["python3", "libpython3"],
            // The import system: the importing code is further out.
            own_sources: &["<frozen importlib"],
            ..Code::NONE
        }
    }

    fn interpreter(&self) -> Option<Interpreter> {
        Some(frames::INTERPRETER)
    }

    fn knows(&self, line: &Line) -> bool {
        line.is(&["_PyObject_ArenaMmap", "_PyMem_ArenaAlloc"]) || is_python(&line.module)
    }

    fn by_stack(&self, subject: &Subject<'_>, _world: &World<'_>, at: usize) -> Option<Claim> {
        let (path, call) = (subject.path?, subject.call?);
        if !subject.is_private_anonymous() || at != path.caller() {
            return None;
        }
        let named = path.lines.get(at)?.is(&["_PyObject_ArenaMmap", "_PyMem_ArenaAlloc"]);
        // 3.11's chunks of Python frames come from the same function (Python/pystate.c, push_chunk)
        let part = if call.len == FRAMES { "stack of Python frames" } else { ARENA_PART };
        // stripped: the interpreter's own mmap of one of the sizes
        let fits = ARENAS.contains(&call.len) || call.len == FRAMES;
        let unnamed = path.lines.get(at)?.function.is_none();
        (named || (fits && unnamed))
            .then(|| Claim::new(ARENA, Evidence::Stack, part).merge(Merge::ByCaller(at)))
    }

    fn own_blocks(&self) -> Option<OwnBlocks> {
        Some(OwnBlocks {
            category: ARENA.id,
            part: ARENA_PART,
            what: "Python keeps objects of up to 512 bytes in arenas of its own",
            counted_by: "PYTHONMALLOC=malloc",
        })
    }

    fn headers(&self) -> &'static [Headers] {
        &[Headers::Pools(PoolHeaders {
            in_process: |mappings| {
                mappings.iter().any(|m| m.prot.exec && is_python(&base_name_lossy(&m.name)))
            },
            may_hold: |mapping| mapping.prot == Prot::RW && mapping.is_plain_anonymous(),
            sizes: &SIZES,
            is_pool,
        })]
    }

    fn by_header(&self, subject: &Subject<'_>, world: &World<'_>) -> Option<Claim> {
        let arena = world.block_at(subject.range.start, BlockKind::PoolArena)?;
        let inside = subject.is_private_anonymous() && arena.contains_range(subject.range);
        let claim = Claim::new(ARENA, Evidence::Header, ARENA_PART).merge(Merge::ByCategory);
        inside.then(|| claim.instance(Instance::At(arena.start)))
    }

    fn cuts(&self, region: &Region, world: &World<'_>) -> Vec<Addr> {
        let arenas = world.blocks_in(region.range, BlockKind::PoolArena);
        arenas.flat_map(|arena| [arena.start, arena.end]).collect()
    }

    fn advise(&self, _group: &Group<'_>, _world: &World<'_>) -> Advice {
        Advice::why(
            "Python keeps small objects in arenas of 1 MiB (256 KiB before 3.10) and unmaps an arena when its \
             last object is gone; what is unused here waits for the next objects",
        )
            .wont(
                "PYTHONMALLOC=malloc",
                "moves small objects into glibc's heap: as much VIRT, given back later",
            )
            .wont("gc.collect()", "frees cycles; an arena goes only when all of it is free")
            .wont(
                "MALLOC_ARENA_MAX",
                "is about glibc's arenas, which Python's threads have, too, but not these",
            )
    }
}

/// `struct pool_header` (Objects/obmalloc.c, from 3.12 on Include/internal/pycore_obmalloc.h): how many blocks are in
/// use, the first free one, two pools in a list, the arena's number, the class of sizes, where the next block that
/// was never used begins and where the last one does. Freed pools keep it.
fn is_pool(header: &[u8; POOL_HEADER], at: Addr, pool: u64) -> bool {
    let words = header.as_chunks::<8>().0;
    let word = |n: usize| words.get(n).map_or(0, |bytes| u64::from_ne_bytes(*bytes));
    let (count, free) = (word(0) & u64::from(u32::MAX), word(1));
    let (class, next, last) = (word(4) >> 32, word(5) & u64::from(u32::MAX), word(5) >> 32);
    let size = (class + 1) * ALIGNMENT;
    let first = POOL_HEADER as u64;
    let inside = AddrRange::from_len(at, pool);
    class < CLASSES
        && last == pool - size
        && next.checked_sub(first).is_some_and(|used| used.is_multiple_of(size))
        && next <= last + size
        && count <= (pool - first) / size
        && (free == 0 || inside.contains(Addr(free)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Addr = Addr(0x7f10_0000_4000);

    fn header(count: u64, free: u64, class: u64, next: u64, last: u64) -> [u8; POOL_HEADER] {
        let words = [count, free, AT.0, AT.0, class << 32 | 7, last << 32 | next];
        let mut bytes = [0; POOL_HEADER];
        for (chunk, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *chunk = word.to_ne_bytes();
        }
        bytes
    }

    #[test]
    fn only_pools_headers_are_pools() {
        let pool = 16 << 10;
        // 64 bytes each
        assert!(is_pool(&header(255, 0, 3, 48 + 255 * 64, pool - 64), AT, pool));
        assert!(is_pool(&header(1, AT.0 + 112, 3, 48 + 2 * 64, pool - 64), AT, pool));
        assert!(!is_pool(&header(1, AT.0 + 112, 3, 48 + 2 * 64, pool - 64), AT, 4096));
        for other in [
            [0; POOL_HEADER],
            header(256, 0, 3, 48 + 2 * 64, pool - 64),
            header(1, AT.0 + pool, 3, 48 + 2 * 64, pool - 64),
            header(1, AT.0 + 112, 3, 48 + 65, pool - 64),
            header(1, AT.0 + 112, 32, 48, pool - 33 * 16),
        ] {
            assert!(!is_pool(&other, AT, pool), "{other:x?}");
        }
    }

    #[test]
    fn interpreters_by_their_names() {
        assert!(["python3.11", "python3", "libpython3.13.so.1.0"].iter().all(|file| is_python(file)));
        assert!(!["pythonic3.11", "python2.7", "libpython2.7.so.1.0"].iter().any(|file| is_python(file)));
    }
}

//! CPython's object arenas (Objects/obmalloc.c): 1 MiB from 3.10, 256 KiB before.

use super::{Advice, Claim, Group, Rule, Subject, World};
use crate::attribution::callpath::Line;
use crate::attribution::category::{Category, Evidence, Merge};

pub const ARENA: Category = Category {
    id: "python-arena",
    name: "Python object arenas",
    one: "Python object arena",
    many: "Python object arenas",
};

/// ARENA_SIZE: 1 MiB from 3.10, 256 KiB before.
const ARENAS: [u64; 2] = [1 << 20, 256 << 10];
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
        let part = if call.len == FRAMES { "stack of Python frames" } else { "arena" };
        // stripped: the interpreter's own mmap of one of the sizes
        let fits = ARENAS.contains(&call.len) || call.len == FRAMES;
        let unnamed = path.lines.get(at)?.function.is_none();
        (named || (fits && unnamed))
            .then(|| Claim::new(ARENA, Evidence::Stack, part).merge(Merge::ByCaller(at)))
    }

    fn advise(&self, _group: &Group<'_>, _world: &World<'_>) -> Advice {
        Advice::why(
            "Python keeps small objects in arenas of 1 MiB and unmaps an arena when its last object is gone",
        )
    }
}

//! CPython's object arenas (Objects/obmalloc.c): 1 MiB from 3.10, 256 KiB before.

use super::{Advice, Claim, Group, Rule, Subject, World};
use crate::attribution::callpath::Line;
use crate::attribution::category::{Category, Evidence, Merge};
use crate::attribution::code::{Code, Role};
use crate::model::Prot;

pub const ARENA: Category = Category {
    id: "python-arena",
    color: 0x837325,
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

    fn code(&self) -> Code {
        Code { role: Role::Runtime, modules: &["python3", "libpython3"], ..Code::NONE }
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

    /// Blocks of malloc's with a mapping of their own never are whole mebibytes (their header makes
    /// them a page longer), arenas always are. What else maps so in such a process is taken for one.
    fn by_shape(&self, subject: &Subject<'_>, world: &World<'_>) -> Option<Claim> {
        let vma = subject.mapping.filter(|vma| subject.record.is_none() && vma.range == subject.range)?;
        let plain = subject.is_private_anonymous() && vma.prot == Prot::RW && vma.name.is_empty();
        // without VmFlags a thread's stack looks the same
        let unflagged =
            subject.detail.is_some() && !["nr", "nh", "hg", "dc"].iter().any(|flag| subject.has_flag(flag));
        let fits = plain && unflagged && vma.range.len().is_multiple_of(ARENAS[0]);
        let has_python = || world.has_file(has_arenas_of_1_mib);
        (fits && world.fact("has Python's arenas of 1 MiB", has_python))
            .then(|| Claim::new(ARENA, Evidence::Shape, "arena").merge(Merge::ByCategory))
    }

    fn advise(&self, group: &Group<'_>, _world: &World<'_>) -> Advice {
        let mut advice = Advice::why(
            "Python keeps small objects in arenas of 1 MiB (256 KiB before 3.10) and unmaps an arena when its \
             last object is gone; what is unused here waits for the next objects",
        );
        if group.path.is_none() {
            advice.why += "; without a stack they are told by their size only: whole mebibytes";
        }
        advice
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

/// Is this the interpreter (or its library), 3.10 or newer?
fn has_arenas_of_1_mib(file: &str) -> bool {
    let version = file.strip_prefix("libpython3.").or_else(|| file.strip_prefix("python3."));
    let digits = version.map(|v| v.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default());
    digits.and_then(|digits| digits.parse::<u32>().ok()).is_some_and(|minor| minor >= 10)
}

#[cfg(test)]
mod tests {
    use super::has_arenas_of_1_mib;

    #[test]
    fn interpreters_by_their_names() {
        let new = ["python3.11", "python3.10d", "libpython3.13.so.1.0"];
        assert!(new.iter().all(|file| has_arenas_of_1_mib(file)));
        let others = ["python3.9", "python3", "libpython3.8.so.1.0", "pythonic3.11", "python2.7"];
        assert!(!others.iter().any(|file| has_arenas_of_1_mib(file)));
    }
}

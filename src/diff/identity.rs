//! When are two stacks of different runs the same? Module by module: with the same build id, frames are the
//! same at the same file offset, wherever the module was mapped. With another build of a module, offsets mean
//! nothing, and functions are compared by name. Where one side's build is stripped and the other's is not,
//! only the names that it kept distinguish functions.

use crate::report::PerFrame;
use crate::report::model::{Frame, Role, Stack};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// Frames outside all modules: their addresses are absolute.
const NOWHERE: &str = "[unknown]";

/// How frames of a module are compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Compared {
    ByOffset,
    ByName,
}

/// What makes a frame itself.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum FrameKey {
    Offset {
        module: String,
        build_id: Option<String>,
        offset: String,
    },
    Function {
        module: String,
        name: String,
    },
    /// Functions of another build that have no name: any number of them, one after the other.
    Unnamed {
        module: String,
    },
}

/// A stack of either side: equal for equal stacks.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct StackKey(Box<[u32]>);

/// The stacks of a report.
pub(super) struct OfSide<'a> {
    pub stacks: &'a [Stack],
    /// Absolute addresses of it mean nothing elsewhere.
    pub is_randomised: bool,
}

/// Both sides' stacks, ready to be compared.
pub(super) struct Stacks<'r> {
    modules: HashMap<String, Compared>,
    frames: HashMap<FrameKey, u32>,
    /// Of frames outside and inside of an allocator: the number, and whether one after the other are one.
    numbers: [PerFrame<'r, Option<(u32, bool)>>; 2],
    /// Absolute addresses mean the same on both sides.
    same_addresses: bool,
    /// Of modules that are compared by name, where only one side has functions without one: the
    /// names that it has.
    kept_names: HashMap<String, BTreeSet<String>>,
    /// Modules of which the sides have different builds.
    pub other_builds: Vec<String>,
    /// Modules in both without a build id in either.
    pub unproven: Vec<String>,
}

impl<'r> Stacks<'r> {
    pub fn new(a: &OfSide<'r>, b: &OfSide<'r>) -> Stacks<'r> {
        let (of_a, of_b) = (builds(a), builds(b));
        let mut result = Stacks {
            modules: HashMap::new(),
            frames: HashMap::new(),
            numbers: Default::default(),
            kept_names: HashMap::new(),
            same_addresses: !a.is_randomised && !b.is_randomised,
            other_builds: Vec::new(),
            unproven: Vec::new(),
        };
        for (name, ids) in &of_a {
            let Some(other) = of_b.get(name).filter(|_| *name != NOWHERE) else { continue };
            if ids.is_disjoint(other) {
                result.modules.insert((*name).to_owned(), Compared::ByName);
                result.other_builds.push((*name).to_owned());
                let (of_a, of_b) = (Names::of(a, name), Names::of(b, name));
                let stripped = match (of_a.unnamed, of_b.unnamed) {
                    (true, false) => of_a,
                    (false, true) => of_b,
                    _ => continue,
                };
                let kept = stripped.names.into_iter().map(str::to_owned).collect();
                result.kept_names.insert((*name).to_owned(), kept);
            } else if ids.contains(&None) && other.contains(&None) && !name.starts_with('[') {
                result.unproven.push((*name).to_owned());
            }
        }
        result
    }

    /// The key of a stack from its line `from` outwards.
    pub fn key(&mut self, stack: &'r Stack, from: usize) -> StackKey {
        let mut keys: Vec<u32> = Vec::with_capacity(stack.frames.len());
        // Which functions were inlined depends on debug files, which a side may not have; what they
        // were inlined into is always there, with the same offset.
        let skipped = from.min(stack.frames.len());
        let end = stack.frames.len() - start(stack);
        let entry = stack.frames.iter().rposition(|frame| frame.role == Role::Allocator).unwrap_or(0);
        let compared = stack.frames.get(..end).unwrap_or_default().iter().enumerate().skip(skipped);
        for (at, frame) in compared.filter(|(_, frame)| !frame.inlined) {
            let Some((number, collapses)) = self.number(frame, at < entry) else { continue };
            if !(collapses && keys.last() == Some(&number)) {
                keys.push(number);
            }
        }
        StackKey(keys.into())
    }

    /// The number of a frame's key, and whether it is one of functions without a name.
    fn number(&mut self, frame: &'r Frame, in_allocator: bool) -> Option<(u32, bool)> {
        let place = usize::from(in_allocator);
        if let Some(known) = self.numbers[place].get(frame) {
            return *known;
        }
        let key = self.frame_key(frame, in_allocator);
        let next = self.frames.len() as u32;
        let found = key.map(|key| {
            let collapses = matches!(key, FrameKey::Unnamed { .. });
            (*self.frames.entry(key).or_insert(next), collapses)
        });
        self.numbers[place].note(frame, found);
        found
    }

    /// True where a function with this name would have it on both sides.
    fn names_function(&self, module: &str, name: &str) -> bool {
        self.kept_names.get(module).is_none_or(|kept| kept.contains(name))
    }

    /// Inside an allocator, which of a function's calls it was may be luck: glibc maps the rest of an arena's heap
    /// where the first part did not end at a multiple of 64 MiB, and both parts elsewhere (`alloc_new_heap`).
    fn frame_key(&self, frame: &Frame, in_allocator: bool) -> Option<FrameKey> {
        let module = frame.module.clone();
        if module == NOWHERE && !self.same_addresses {
            return Some(FrameKey::Unnamed { module });
        }
        if let Some(name) = frame.symbol.as_ref().filter(|_| frame.managed) {
            return Some(FrameKey::Function { module, name: name.clone() });
        }
        let own = frame.symbol.as_ref().filter(|_| in_allocator && frame.role != Role::Wrapper);
        if let Some(name) = own.filter(|name| self.names_function(&module, name)) {
            return Some(FrameKey::Function { module, name: name.clone() });
        }
        Some(match self.modules.get(&module).copied().unwrap_or(Compared::ByOffset) {
            Compared::ByOffset => {
                let (build_id, offset) = (frame.build_id.clone(), frame.offset.clone());
                FrameKey::Offset { module, build_id, offset }
            }
            Compared::ByName => match frame.symbol.as_ref().filter(|name| self.names_function(&module, name))
            {
                Some(name) => FrameKey::Function { module, name: name.clone() },
                None => FrameKey::Unnamed { module },
            },
        })
    }
}

/// How many of a stack's outermost frames only show how the thread was created: a container's seccomp profile
/// hides clone3, and glibc falls back to clone. Nothing else returns into these functions. Where they have no
/// names, a complete stack's outermost frame is one of them if the next one lies in the same module, without
/// a name, too: `start_thread`.
fn start(stack: &Stack) -> usize {
    let of_start = |frame: &&Arc<Frame>| frame.role == Role::Start;
    let named = stack.frames.iter().rev().take_while(of_start).count();
    match stack.frames.as_slice() {
        _ if named > 0 => named,
        [.., next, last] if stack.completeness == "complete" => {
            let alike = next.module == last.module && next.symbol.is_none() && last.symbol.is_none();
            usize::from(alike && last.module != NOWHERE)
        }
        _ => 0,
    }
}

/// What the functions of a module are called in a side's stacks.
#[derive(Default)]
struct Names<'a> {
    names: BTreeSet<&'a str>,
    /// Some have no name.
    unnamed: bool,
}

impl<'a> Names<'a> {
    fn of(side: &OfSide<'a>, module: &str) -> Names<'a> {
        let mut found = Names::default();
        let frames = distinct(side.stacks);
        for frame in frames.filter(|frame| !frame.inlined && frame.module == module) {
            match frame.symbol.as_deref() {
                Some(name) => _ = found.names.insert(name),
                None => found.unnamed = true,
            }
        }
        found
    }
}

/// The frames of stacks, those that they share once.
fn distinct(stacks: &[Stack]) -> impl Iterator<Item = &Frame> {
    let mut seen = PerFrame::default();
    let frames = stacks.iter().flat_map(|stack| &stack.frames).map(Arc::as_ref);
    frames.filter(move |frame| {
        let is_new = seen.get(frame).is_none();
        if is_new {
            seen.note(frame, ());
        }
        is_new
    })
}

/// Build ids by module name.
fn builds<'a>(side: &OfSide<'a>) -> BTreeMap<&'a str, BTreeSet<Option<&'a str>>> {
    let mut found: BTreeMap<&str, BTreeSet<Option<&str>>> = BTreeMap::new();
    for frame in distinct(side.stacks) {
        found.entry(&frame.module).or_default().insert(frame.build_id.as_deref());
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diff::side::Side;
    use crate::diff::{By, Options, Pick, compare};
    use crate::report::model::{Origin, Process, Region, Report, Totals};

    fn frame(module: &str, build_id: &str, offset: u64, symbol: Option<&str>) -> Frame {
        Frame {
            module: module.to_owned(),
            build_id: Some(build_id.to_owned()).filter(|id| !id.is_empty()),
            offset: format!("{offset:#x}"),
            symbol: symbol.map(str::to_owned),
            ..Frame::default()
        }
    }

    /// One page, mapped by a call with this stack.
    fn report(frames: Vec<Frame>) -> Report {
        let region = Region {
            start: "0x1000".to_owned(),
            end: "0x2000".to_owned(),
            prot: "rw-p".to_owned(),
            category: "app-mmap".to_owned(),
            virt: 4096,
            origin: Some(Origin { stack: Some(0), ..Origin::default() }),
            ..Region::default()
        };
        let totals = Totals { virt: 4096, writable: 4096, ..Totals::default() };
        let process = Process { totals, regions: vec![region], aslr: true, ..Process::default() };
        let stack = Stack {
            frames: frames.into_iter().map(Arc::new).collect(),
            completeness: "complete".into(),
            ..Stack::default()
        };
        Report { schema: 1, processes: vec![process], stacks: vec![stack], ..Report::default() }
    }

    /// Whether the two stacks are taken to be the same, and what is said about it.
    fn matched(a: Vec<Frame>, b: Vec<Frame>) -> (bool, String) {
        let (a, b) = (report(a), report(b));
        let side = |report, name| Side::new(report, (name, "report"), Pick::Main).expect("sound");
        let diff = compare(&side(&a, "a"), &side(&b, "b"), Options { by: By::Stack });
        (diff.changes.is_empty(), diff.notes.join("\n"))
    }

    #[test]
    fn the_same_build_is_compared_by_offset() {
        let stack = |offset| vec![frame("libc.so.6", "aa", offset, Some("mmap")), frame("p", "bb", 7, None)];
        assert_eq!(matched(stack(16), stack(16)), (true, String::new()));
        assert!(!matched(stack(16), stack(17)).0, "another place in the same function");
    }

    #[test]
    fn inlining_that_only_one_side_knows_does_not_matter() {
        let real = frame("p", "bb", 7, Some("outer"));
        let inlined = Frame { inlined: true, ..frame("p", "bb", 7, Some("inner")) };
        assert!(matched(vec![inlined, real], vec![frame("p", "bb", 7, None)]).0);
    }

    #[test]
    fn another_build_is_compared_by_function_and_named() {
        let stack = |build: &str, shift: u64, function: &str, unnamed: u64| {
            let mut frames = vec![frame("libc.so.6", build, 16 + shift, Some("mmap"))];
            frames.extend((0..unnamed).map(|i| frame("libc.so.6", build, 100 + i + shift, None)));
            frames.push(frame("libc.so.6", build, 200 + shift, Some(function)));
            frames.push(frame("p", "bb", 7, Some("main")));
            frames
        };
        let (same, notes) = matched(stack("aa", 0, "malloc", 2), stack("cc", 99, "malloc", 3));
        assert!(same && notes.contains("of another build in B than in A: libc.so.6"), "{notes}");
        assert!(!matched(stack("aa", 0, "malloc", 2), stack("cc", 99, "calloc", 2)).0);
    }

    #[test]
    fn a_stripped_build_is_compared_by_the_names_that_it_kept() {
        let stack = |build: &str, names: [Option<&str>; 3]| -> Vec<Frame> {
            names.iter().zip([16, 32, 48]).map(|(name, at)| frame("p", build, at, *name)).collect()
        };
        let named = stack("aa", [Some("grow"), Some("exported"), Some("main")]);
        let stripped = stack("bb", [None, Some("exported"), None]);
        assert!(matched(named.clone(), stripped.clone()).0 && matched(stripped, named.clone()).0);
        let elsewhere = stack("bb", [None, Some("another"), None]);
        assert!(!matched(named.clone(), elsewhere.clone()).0, "a name that the unstripped would have");
        let both = stack("aa", [None, Some("exported"), None]);
        assert!(!matched(both, elsewhere).0, "both are stripped: exported names decide");
        let other = stack("bb", [Some("grow"), Some("another"), Some("main")]);
        assert!(!matched(named, other).0);
    }

    /// Of two mappings in a thread, one on a host, one where seccomp hides clone3; Debian 12.
    #[test]
    fn how_a_thread_was_started_is_forgiven() {
        let start =
            |offset, name: &str| Frame { role: Role::Start, ..frame("libc.so.6", "aa", offset, Some(name)) };
        let stack = |worker, clone: (u64, &str)| {
            let worker = frame("p", "bb", worker, Some("worker"));
            vec![worker, start(0x891c3, "start_thread"), start(clone.0, clone.1)]
        };
        let (clone3, clone) = ((0x10985b, "clone3"), (0x109733, "__clone"));
        assert!(matched(stack(7, clone3), stack(7, clone)).0);
        assert!(!matched(stack(7, clone3), stack(8, clone)).0);
        let stripped = |worker, clone| {
            let worker = frame("p", "bb", worker, None);
            vec![worker, frame("libc.so.6", "aa", 0x891c3, None), frame("libc.so.6", "aa", clone, None)]
        };
        assert!(matched(stripped(7, clone3.0), stripped(7, clone.0)).0);
        assert!(!matched(stripped(7, clone3.0), stripped(8, clone.0)).0);
        let alone = |at| vec![frame("libc.so.6", "aa", at, None)];
        assert!(!matched(alone(7), alone(8)).0);
    }

    #[test]
    fn inside_an_allocator_functions_are_compared() {
        let stack = |at, caller| {
            let entry = Frame { role: Role::Allocator, ..frame("libc.so.6", "aa", 0x90, Some("malloc")) };
            vec![frame("libc.so.6", "aa", at, Some("grow")), entry, frame("p", "bb", caller, Some("main"))]
        };
        assert!(matched(stack(0x10, 7), stack(0x20, 7)).0);
        assert!(!matched(stack(0x10, 7), stack(0x10, 8)).0, "another place in the program");
    }

    #[test]
    fn without_build_ids_offsets_are_compared_but_it_is_said() {
        let (same, notes) = matched(vec![frame("p", "", 7, None)], vec![frame("p", "", 7, None)]);
        assert!(same && notes.contains("without a build id"), "{notes}");
    }

    #[test]
    fn code_outside_all_modules_is_anywhere() {
        let stack = |at| vec![frame(NOWHERE, "", at, None), frame("p", "bb", 7, None)];
        assert!(matched(stack(0x7f00), stack(0x5500)).0, "a JIT's code, at random addresses");
    }
}

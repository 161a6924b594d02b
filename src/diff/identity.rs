//! When are two stacks of different runs the same? Module by module: with the same build id,
//! frames are the same at the same file offset, wherever the module was mapped. With another build
//! of a module, offsets mean nothing, and functions are compared by name.

use super::side::Side;
use crate::report::model::{Frame, Stack};
use std::collections::{BTreeMap, BTreeSet, HashMap};

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

/// Both sides' stacks, ready to be compared.
pub(super) struct Stacks {
    modules: HashMap<String, Compared>,
    frames: HashMap<FrameKey, u32>,
    /// Absolute addresses mean the same on both sides.
    same_addresses: bool,
    /// Modules of which the sides have different builds.
    pub other_builds: Vec<String>,
    /// Modules in both without a build id in either.
    pub unproven: Vec<String>,
}

impl Stacks {
    pub fn new(a: &Side<'_>, b: &Side<'_>) -> Stacks {
        let (of_a, of_b) = (builds(a), builds(b));
        let mut result = Stacks {
            modules: HashMap::new(),
            frames: HashMap::new(),
            same_addresses: !a.facts.aslr && !b.facts.aslr,
            other_builds: Vec::new(),
            unproven: Vec::new(),
        };
        for (name, ids) in &of_a {
            let Some(other) = of_b.get(name).filter(|_| *name != NOWHERE) else { continue };
            if ids.is_disjoint(other) {
                result.modules.insert((*name).to_owned(), Compared::ByName);
                result.other_builds.push((*name).to_owned());
            } else if ids.contains(&None) && other.contains(&None) && !name.starts_with('[') {
                result.unproven.push((*name).to_owned());
            }
        }
        result
    }

    /// The key of a stack from its line `from` outwards.
    pub fn key(&mut self, stack: &Stack, from: usize) -> StackKey {
        let mut keys: Vec<u32> = Vec::with_capacity(stack.frames.len());
        // Which functions were inlined depends on debug files, which a side may not have; what they
        // were inlined into is always there, with the same offset.
        let skipped = from.min(stack.frames.len());
        for frame in stack.frames[skipped..].iter().filter(|frame| !frame.inlined) {
            let Some(key) = self.frame_key(frame) else { continue };
            let collapses = matches!(key, FrameKey::Unnamed { .. });
            let next = self.frames.len() as u32;
            let number = *self.frames.entry(key).or_insert(next);
            if !(collapses && keys.last() == Some(&number)) {
                keys.push(number);
            }
        }
        StackKey(keys.into())
    }

    fn frame_key(&self, frame: &Frame) -> Option<FrameKey> {
        let module = frame.module.clone();
        if module == NOWHERE && !self.same_addresses {
            return Some(FrameKey::Unnamed { module });
        }
        Some(match self.modules.get(&module).copied().unwrap_or(Compared::ByOffset) {
            Compared::ByOffset => {
                let (build_id, offset) = (frame.build_id.clone(), frame.offset.clone());
                FrameKey::Offset { module, build_id, offset }
            }
            Compared::ByName => match &frame.symbol {
                Some(name) => FrameKey::Function { module, name: name.clone() },
                None => FrameKey::Unnamed { module },
            },
        })
    }
}

/// Build ids by module name.
fn builds<'a>(side: &Side<'a>) -> BTreeMap<&'a str, BTreeSet<Option<&'a str>>> {
    let mut found: BTreeMap<&str, BTreeSet<Option<&str>>> = BTreeMap::new();
    for frame in side.report.stacks.iter().flat_map(|stack| &stack.frames) {
        found.entry(&frame.module).or_default().insert(frame.build_id.as_deref());
    }
    found
}

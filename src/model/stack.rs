//! Call stacks, normalised to module + file offset, and their interning.

use super::hash::{BuildIntHasher, IntMap};
use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, Hasher};

mod code;
mod generated;
mod index;
mod left;
mod managed;
mod packed;

pub use code::{CodeAt, CodeFrame, CodeTables, FindCodeTables, GeneratedFunction};
pub use generated::GENERATED;
use generated::GeneratedNames;
use index::NumberIndex;
pub use left::{FindLeftStacks, FoundRuntime, LeftStackLayout, Running};
pub use managed::{
    CodeFile, FoundInterpreter, Interpreter, InterpreterLayout, ManagedCode, ManagedEnd, ManagedFrame,
    ManagedFrames, NotReadable, SourcePlace,
};
pub use packed::FrameNumbers;
use packed::PackedStacks;

/// Index into [`StackTable::modules`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ModuleId(pub u32);

/// Index into [`StackTable::stack`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StackId(pub u32);

/// An executable file (or the vdso) that frames refer to.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ModuleInfo {
    /// Path as mapped, any bytes; `[vdso]` for the vdso.
    pub path: Vec<u8>,
    pub major: u32,
    pub minor: u32,
    pub inode: u64,
    /// GNU build id, hex, when the file has one and could be read.
    pub build_id: Option<String>,
}

impl ModuleInfo {
    /// Last path component, without " (deleted)"; lossy for display.
    pub fn short_name(&self) -> String {
        let path = self.path.strip_suffix(b" (deleted)").unwrap_or(&self.path);
        let base = path.rsplit(|&b| b == b'/').next().unwrap_or(path);
        String::from_utf8_lossy(base).into_owned()
    }
}

/// What a frame's address is: the next instruction to run, or where a call returns to (the calling
/// instruction is found one byte before it).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum FrameKind {
    InstructionPointer,
    ReturnAddress,
    /// A return address found by scanning the stack: likely, not proven.
    Guess,
    /// A function of a managed language: the module is its source file, the address its number in
    /// [`StackTable::place`].
    Managed,
}

/// One frame. With a module, `address` is the *file offset* of the address in that module
/// (for the vdso: the offset in its image; of managed frames, see there); without one it is the absolute address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Frame {
    pub module: Option<ModuleId>,
    pub address: u64,
    pub kind: FrameKind,
}

/// Whether the outermost frame is the program's (or thread's) entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Completeness {
    /// Reached `_start`, `clone`, or another root without a caller.
    Complete,
    /// The copied stack bytes end before the root.
    Truncated,
    /// No unwind data for a frame, or it made no sense.
    Incomplete,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Stack {
    /// Innermost first.
    pub frames: Vec<Frame>,
    pub completeness: Completeness,
}

/// Of the numbers of a stack's frames.
fn hash_of(numbers: impl Iterator<Item = u32>, completeness: Completeness) -> u64 {
    let mut hasher = BuildIntHasher.build_hasher();
    numbers.for_each(|number| hasher.write_u32(number));
    completeness.hash(&mut hasher);
    hasher.finish()
}

/// Each distinct module and stack once.
#[derive(Default, Debug)]
pub struct StackTable {
    modules: Vec<ModuleInfo>,
    module_ids: HashMap<ModuleInfo, ModuleId>,
    /// Each distinct frame once: deep stacks share most of theirs, and a frame is six times as large as its
    /// number.
    frames: Vec<Frame>,
    frame_ids: IntMap<Frame, u32>,
    stacks: PackedStacks,
    by_hash: NumberIndex,
    /// The numbers of the frames of a stack that is searched for.
    scratch: Vec<u32>,
    generated: GeneratedNames,
    /// What managed frames are shown as.
    places: Vec<SourcePlace>,
    place_ids: HashMap<SourcePlace, u64>,
}

impl StackTable {
    pub fn intern_module(&mut self, info: ModuleInfo) -> ModuleId {
        if let Some(&id) = self.module_ids.get(&info) {
            return id;
        }
        let id = ModuleId(self.modules.len() as u32);
        self.modules.push(info.clone());
        self.module_ids.insert(info, id);
        id
    }

    /// The frame of a managed function at that place.
    pub fn managed_frame(&mut self, place: SourcePlace) -> Frame {
        let path = place.file.clone().into_bytes();
        let module = self.intern_module(ModuleInfo { path, major: 0, minor: 0, inode: 0, build_id: None });
        let places = &mut self.places;
        let address = *self.place_ids.entry(place).or_insert_with_key(|place| {
            places.push(place.clone());
            places.len() as u64 - 1
        });
        Frame { module: Some(module), address, kind: FrameKind::Managed }
    }

    /// Of a managed frame that this table made; None for others, and for those of a recording, which has their names.
    pub fn place(&self, frame: &Frame) -> Option<&SourcePlace> {
        (frame.kind == FrameKind::Managed).then(|| self.places.get(frame.address as usize)).flatten()
    }

    pub fn intern(&mut self, stack: &Stack) -> StackId {
        self.intern_frames(&stack.frames, stack.completeness)
    }

    /// The number of a stack, a new one if it was not seen before. Frames innermost first.
    pub fn intern_frames(&mut self, frames: &[Frame], completeness: Completeness) -> StackId {
        let mut numbers = std::mem::take(&mut self.scratch);
        numbers.clear();
        numbers.extend(frames.iter().map(|&frame| self.frame_number(frame)));
        let id = self.intern_numbers(&numbers, completeness);
        self.scratch = numbers;
        id
    }

    /// The index of a frame in [`StackTable::frames`], a new one if it was not seen before.
    pub fn frame_number(&mut self, frame: Frame) -> u32 {
        let known = &mut self.frames;
        *self.frame_ids.entry(frame).or_insert_with(|| {
            known.push(frame);
            (known.len() - 1) as u32
        })
    }

    /// Does as [`StackTable::intern_frames`], by the numbers of [`StackTable::frame_number`].
    pub fn intern_numbers(&mut self, numbers: &[u32], completeness: Completeness) -> StackId {
        let hash = hash_of(numbers.iter().copied(), completeness);
        let stacks = &mut self.stacks;
        let is_same = |&stack: &u32| {
            let (kept, ending) = stacks.get(stack as usize);
            ending == completeness && kept.len() == numbers.len() && kept.eq(numbers.iter().copied())
        };
        if let Some(known) = self.by_hash.candidates(hash).find(is_same) {
            return StackId(known);
        }
        let id = StackId(stacks.len() as u32);
        stacks.push(numbers.iter().copied(), completeness);
        self.by_hash.insert((id.0, hash), |stack| {
            let (numbers, completeness) = stacks.get(stack as usize);
            hash_of(numbers, completeness)
        });
        id
    }

    /// A copy, put together from its frames.
    pub fn stack(&self, id: StackId) -> Stack {
        let (numbers, completeness) = self.frame_numbers(id);
        Stack { frames: numbers.map(|number| self.frames[number as usize]).collect(), completeness }
    }

    /// Each distinct frame once, in order of first use.
    pub fn frames(&self) -> &[Frame] {
        &self.frames
    }

    /// A stack as indices into [`StackTable::frames`], innermost first.
    pub fn frame_numbers(&self, id: StackId) -> (FrameNumbers<'_>, Completeness) {
        self.stacks.get(id.0 as usize)
    }

    /// A table with the same modules and frames under the same numbers, in which each frame is a
    /// stack of its own; and those stacks.
    pub fn frame_by_frame(&self) -> (StackTable, Vec<StackId>) {
        let mut table = StackTable::default();
        for module in &self.modules {
            table.intern_module(module.clone());
        }
        let alone = |frame: &Frame| table.intern_frames(&[*frame], Completeness::Complete);
        let ids = self.frames.iter().map(alone).collect();
        table.generated = self.generated.clone();
        table.places.clone_from(&self.places);
        (table, ids)
    }

    pub fn module(&self, id: ModuleId) -> &ModuleInfo {
        &self.modules[id.0 as usize]
    }

    pub fn modules(&self) -> &[ModuleInfo] {
        &self.modules
    }

    pub fn len(&self) -> usize {
        self.stacks.len()
    }

    pub fn is_empty(&self) -> bool {
        self.stacks.len() == 0
    }
}

//! Call stacks from captured registers and stack bytes, by the unwind tables of the files that
//! were mapped at that time, at once normalised to module + file offset.
//!
//! Reads DWARF call frame information with gimli. All callee-saved registers are followed, so
//! that signal frames, realigned stacks and glibc's lazy binding unwind too; and nothing falls
//! back silently to frame pointers where tables were expected to be: a frame is proven, or it is
//! marked as a guess.
//!
//! What is absent here: events, the ledger, names. The coordinator hands in mappings and bytes.

mod cache;
mod calls;
mod generated;
mod go;
mod left;
mod memo;
mod plain;
mod registers;
mod rule;
mod search;
mod space;
mod trace;
mod v8;
mod walk;

pub use generated::{ReadCode, SeenCode};
pub use memo::{Repeated, pointers, returns};
pub use plain::PlainStep;
pub use space::{ExecMapping, Modules, SpaceState};
pub use walk::MAX_FRAMES;

use crate::model::hash::IntMap;
use crate::model::stack::{CodeTables, GeneratedFunction};
use crate::model::{
    Addr, Completeness, Frame, FrameKind, MmKey, ModuleId, ModuleInfo, Pid, Stack, StackId, StackSample,
    StackTable,
};
use crate::objects::variables::{exported, variable};
use crate::objects::{FileCache, FileKey, Object, OpenRequest};
use registers::StackBytes;
use space::{MappedModule, Space};
use std::collections::HashMap;
use std::sync::Arc;
use walk::{Scratch, Walk};

/// A frame in code that was made at run time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GeneratedFrame {
    pub frame: Frame,
    /// As far as a runtime reports it.
    pub code: Option<SeenCode>,
}

/// A part of a file that is mapped.
#[derive(Clone, Copy)]
pub struct CodeFileAt<'a> {
    pub key: FileKey,
    pub start: Addr,
    pub offset: u64,
    pub object: &'a Arc<Object>,
}

/// Unwinds the stacks of any number of address spaces.
pub struct Unwinder {
    files: FileCache,
    spaces: IntMap<MmKey, Space>,
    scratch: Scratch,
    last_space: u64,
    memo: memo::Memo,
    frames: Vec<Frame>,
    in_generated: Vec<GeneratedFrame>,
    /// The module of generated code, by address space.
    generated: IntMap<MmKey, ModuleId>,
    last_generated: u64,
    /// Which files export which of the queried variables.
    exports: HashMap<(FileKey, &'static str), bool>,
}

impl Default for Unwinder {
    fn default() -> Unwinder {
        Unwinder::new(FileCache::default())
    }
}

impl Unwinder {
    pub fn new(files: FileCache) -> Unwinder {
        Unwinder {
            files,
            spaces: IntMap::default(),
            scratch: Scratch::default(),
            last_space: 0,
            memo: memo::Memo::default(),
            frames: Vec::new(),
            in_generated: Vec::new(),
            generated: IntMap::default(),
            last_generated: 0,
            exports: HashMap::default(),
        }
    }

    /// How code that was made at run time is read. Without it, no return address in such code is proven.
    pub fn read_code_with(&mut self, read: ReadCode) {
        self.scratch.generated.read_with(read);
    }

    /// A process that is in the address space now: one that shared it may execute another program by then.
    pub fn read_code_of(&mut self, mm: MmKey, pid: Pid) {
        if let Some(space) = self.spaces.get_mut(&mm) {
            space.pid = pid;
        }
    }

    /// The frames in generated code of the stack that was unwound last.
    pub fn generated_frames(&self) -> &[GeneratedFrame] {
        &self.in_generated
    }

    /// A runtime's tables of the code in a process; None: it has none any more.
    pub fn set_code_tables(&mut self, pid: Pid, tables: Option<Box<dyn CodeTables>>) {
        self.scratch.generated.set_tables(pid, tables);
    }

    pub fn has_code_tables(&self, pid: Pid) -> bool {
        self.scratch.generated.has_tables(pid)
    }

    /// What code in a process is called, as its runtime's tables have it now.
    pub fn name_code(&self, pid: Pid, code: SeenCode) -> Option<GeneratedFunction> {
        self.scratch.generated.name(pid, code)
    }

    /// Where a variable is that a file of the address space has in its tables of symbols.
    pub fn variable(&self, mm: MmKey, name: &str) -> Option<Addr> {
        let placed = self.spaces.get(&mm)?.placed.iter();
        let mut found = placed.filter_map(|placed| {
            let at = variable(placed.object.as_ref()?, name.as_bytes())?;
            let bias = placed.range.start.0.wrapping_sub(placed.svma(placed.range.start.0)?);
            Some(Addr(at.wrapping_add(bias)))
        });
        found.next()
    }

    /// Whether a file of the address space exports a variable. Each file is read once.
    pub fn is_exported(&mut self, mm: MmKey, name: &'static str) -> bool {
        let Some(space) = self.spaces.get(&mm) else { return false };
        space.placed.iter().any(|placed| {
            let (Some(key), Some(object)) = (placed.key, &placed.object) else { return false };
            let known = self.exports.entry((key, name));
            *known.or_insert_with(|| exported(object, name.as_bytes()).is_some())
        })
    }

    /// Other code is at an address of generated code: frames in it are other ones from now on.
    pub fn renew_generated(&mut self, mm: MmKey, table: &mut StackTable) {
        let module = self.new_generated(mm, table);
        if let Some(space) = self.spaces.get_mut(&mm) {
            let renewed = space.placed.iter().cloned().map(|placed| match placed.is_generated() {
                true => MappedModule { module: Some(module), ..placed },
                false => placed,
            });
            space.placed = renewed.collect();
            self.last_space += 1;
            space.id = self.last_space;
        }
    }

    fn new_generated(&mut self, mm: MmKey, table: &mut StackTable) -> ModuleId {
        self.last_generated += 1;
        let module = table.intern_module(ModuleInfo::generated(self.last_generated));
        self.generated.insert(mm, module);
        module
    }

    /// The files opened for unwinding: names come from the same ones.
    pub fn files_mut(&mut self) -> &mut FileCache {
        &mut self.files
    }

    /// True when the mappings of this generation were already handed in.
    pub fn is_current(&self, mm: MmKey, generation: u64) -> bool {
        self.spaces.get(&mm).is_some_and(|space| space.generation == generation)
    }

    /// Returns what an address space has mapped, as it was handed in last.
    pub fn modules(&self, mm: MmKey) -> Option<Modules> {
        self.spaces.get(&mm).map(Space::modules)
    }

    /// Replaces the executable mappings of an address space. New files are opened now (they may
    /// be gone when the next stack comes) and interned in `table` with their build id. False where one that
    /// was there is not any more: an equal stack may be another one now.
    pub fn set_modules<'m>(
        &mut self,
        state: SpaceState,
        mappings: impl IntoIterator<Item = ExecMapping<'m>>,
        table: &mut StackTable,
    ) -> bool {
        let mut mappings: Vec<ExecMapping<'m>> = mappings.into_iter().collect();
        mappings.sort_unstable_by_key(|m| m.range);
        let known = self.spaces.remove(&state.mm);
        let old: &[MappedModule] = known.as_ref().map_or(&[], |space| &space.placed);
        let unchanged = old.len() == mappings.len() && old.iter().zip(&mappings).all(|(p, m)| p.is_same(m));
        let all_stay = unchanged || old.iter().all(|p| mappings.iter().any(|m| p.is_same(m)));
        let space = match known {
            Some(space) if unchanged => Space { generation: state.generation, pid: state.pid, ..space },
            _ => {
                let mut before = old.iter().peekable();
                let mut placed = Vec::with_capacity(mappings.len());
                for mapping in &mappings {
                    while before.next_if(|p| p.range.start < mapping.range.start).is_some() {}
                    let same = before.peek().filter(|p| p.is_same(mapping));
                    placed.push(match same {
                        Some(same) => MappedModule::clone(same),
                        None => self.place(mapping, state, table),
                    });
                }
                self.last_space += 1;
                Space {
                    id: self.last_space,
                    generation: state.generation,
                    pid: state.pid,
                    placed: placed.into(),
                }
            }
        };
        self.spaces.insert(state.mm, space);
        all_stay
    }

    fn place(
        &mut self,
        mapping: &ExecMapping<'_>,
        state: SpaceState,
        table: &mut StackTable,
    ) -> MappedModule {
        let mut placed = MappedModule {
            range: mapping.range,
            offset: mapping.offset,
            key: mapping.file.map(FileKey::from),
            module: None,
            object: None,
        };
        if let Some(file) = mapping.file {
            let request = OpenRequest { file, range: mapping.range, pid: Some(state.pid), build_id: None };
            placed.object = self.files.open(&request).ok();
            let build_id = placed.object.as_ref().and_then(|o| o.build_id().map(str::to_owned));
            placed.module = Some(intern(table, file, build_id));
        } else {
            let known = self.generated.get(&state.mm).copied();
            placed.module = Some(known.unwrap_or_else(|| self.new_generated(state.mm, table)));
        }
        placed
    }

    /// The child has the parent's mappings, until `set_modules` says otherwise.
    pub fn fork(&mut self, parent: MmKey, child: MmKey) {
        if let Some(space) = self.spaces.get(&parent).cloned() {
            self.spaces.insert(child, space);
        }
        // What the child makes is not what the parent makes at the same address.
        self.generated.remove(&child);
    }

    /// The address space is gone. Files stay open.
    pub fn forget(&mut self, mm: MmKey) {
        self.spaces.remove(&mm);
        self.generated.remove(&mm);
    }

    /// Replaces `frames` by the captured stack's, innermost first. Nothing is allocated but what
    /// `frames` needs to grow.
    pub fn unwind_into(
        &mut self,
        mm: MmKey,
        captured: &StackSample<'_>,
        frames: &mut Vec<Frame>,
    ) -> Completeness {
        frames.clear();
        let Some(space) = self.spaces.get(&mm) else {
            let kind = match captured.returned {
                true => FrameKind::ReturnAddress,
                false => FrameKind::InstructionPointer,
            };
            frames.push(Frame { module: None, address: captured.ip, kind });
            return Completeness::Incomplete;
        };
        let stack = StackBytes::of(captured);
        let completeness =
            Walk { space, scratch: &mut self.scratch, stack, left: captured.left, frames: &mut *frames }
                .run(captured);
        if captured.returned
            && let Some(innermost) = frames.first_mut()
        {
            innermost.kind = FrameKind::ReturnAddress;
        }
        completeness
    }

    /// The captured stack's number in `table`, and how far it goes. A stack like one that was
    /// walked before is recognised by its return addresses.
    pub fn unwind_interned(
        &mut self,
        mm: MmKey,
        captured: &StackSample<'_>,
        table: &mut StackTable,
    ) -> (StackId, Completeness) {
        let space = self.spaces.get(&mm).map_or(0, |space| space.id);
        self.in_generated.clear();
        if let Some(known) = self.memo.find(space, captured) {
            return (known, Completeness::Complete);
        }
        let mut frames = std::mem::take(&mut self.frames);
        let completeness = self.unwind_into(mm, captured, &mut frames);
        // What an interpreter runs is at an address, too.
        for &(index, code) in &self.scratch.generated.seen {
            if let (SeenCode::Interpreted { function, instruction }, Some(frame)) =
                (code, frames.get_mut(index))
                && frame.kind == FrameKind::ReturnAddress
            {
                frame.address = if instruction == 0 { function } else { instruction };
                frame.kind = FrameKind::InstructionPointer;
            }
        }
        let stack = table.intern_frames(&frames, completeness);
        if let Some(&generated) = self.generated.get(&mm) {
            let seen = &self.scratch.generated.seen;
            let code_of = |index| seen.iter().find(|(of, _)| *of == index).map(|(_, code)| *code);
            let all = frames.iter().enumerate().filter(|(_, frame)| frame.module == Some(generated));
            self.in_generated
                .extend(all.map(|(index, frame)| GeneratedFrame { frame: *frame, code: code_of(index) }));
        }
        self.frames = frames;
        if space != 0 && memo::is_worth(completeness) {
            self.memo.remember(space, captured, &self.scratch.trace, stack);
        }
        (stack, completeness)
    }

    /// As [`Unwinder::unwind_interned`]; also the stack pointer of each frame.
    pub fn unwind_with_pointers(
        &mut self,
        mm: MmKey,
        captured: &StackSample<'_>,
        table: &mut StackTable,
    ) -> (StackId, Completeness, Vec<u64>) {
        self.scratch.pointers = Some(Vec::with_capacity(32));
        let (stack, completeness) = self.unwind_interned(mm, captured, table);
        let pointers = self.scratch.pointers.take().unwrap_or_default();
        // Nothing was walked.
        let pointers = if pointers.is_empty() { self.memo.pointers(captured.sp) } else { pointers };
        (stack, completeness, pointers)
    }

    /// The files with code that are mapped: which they are, where a part of each is, from which offset on.
    pub fn code_files(&self, mm: MmKey) -> impl Iterator<Item = CodeFileAt<'_>> {
        let placed = self.spaces.get(&mm).map_or(&[][..], |space| &space.placed);
        placed.iter().filter_map(|placed| {
            Some(CodeFileAt {
                key: placed.key?,
                start: placed.range.start,
                offset: placed.offset,
                object: placed.object.as_ref()?,
            })
        })
    }

    /// The address spaces that this knows.
    pub fn spaces(&self) -> impl Iterator<Item = MmKey> {
        self.spaces.keys().copied()
    }

    /// The stack that was just recognised, if it was: it may well come again.
    pub fn repeated(&mut self) -> Option<Repeated<'_>> {
        self.memo.repeated()
    }

    /// As [`Unwinder::unwind_into`], as a stack of its own.
    pub fn unwind(&mut self, mm: MmKey, captured: &StackSample<'_>) -> Stack {
        let mut frames = Vec::with_capacity(32);
        let completeness = self.unwind_into(mm, captured, &mut frames);
        Stack { frames, completeness }
    }
}

fn intern(table: &mut StackTable, file: &crate::model::FileRef, build_id: Option<String>) -> ModuleId {
    table.intern_module(ModuleInfo {
        path: file.path.clone(),
        major: file.major,
        minor: file.minor,
        inode: file.inode,
        build_id,
    })
}

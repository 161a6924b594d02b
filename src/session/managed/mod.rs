//! Frames of managed languages, inserted into the unwound stacks; and the files that have an interpreter,
//! which are published to the backend.

mod expect;

pub use expect::expect;

use crate::attribution::rules::{interpreters, left_stacks};
use crate::capture::{InterpreterFile, Interpreters};
use crate::model::hash::IntMap;
use crate::model::stack::{
    CodeFile, FindLeftStacks, FoundInterpreter, FoundRuntime, ManagedCode, ManagedEnd, ManagedFrames,
    NotReadable,
};
use crate::model::{Completeness, Frame, MmKey, SourcePlace, StackId, StackTable};
use crate::objects::patterns::code_like;
use crate::objects::variables::exported;
use crate::objects::{FileKey, Object};
use crate::sys::clock::monotonic_ns;
use crate::unwind::Unwinder;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The kernel's side sees a mapping and stamps its record at times that are no further apart, ns.
const STAMPED_WITHIN: u64 = 100_000_000;

/// A file that was published to the backend.
struct Published {
    file: InterpreterFile,
    number: u64,
    since_ns: u64,
}

/// What was found in a file.
enum Found {
    Nothing,
    /// A runtime whose frames are not read: why.
    Refused {
        why: String,
        is_interpreter: bool,
    },
    Published(Published),
}

/// What is shown where frames were left out.
const CUT: &str = "[more frames, which were not copied]";

/// The same, as a frame.
pub fn cut(stacks: &mut StackTable) -> Frame {
    stacks.managed_frame(SourcePlace { function: CUT.to_owned(), file: String::new(), line: None })
}

/// The interpreter that a file has, if its frames are read, or why not.
pub fn interpreter_in(object: &Object) -> Option<Result<FoundInterpreter, NotReadable>> {
    let exports = Exports(object);
    interpreters().find_map(|interpreter| (interpreter.find)(&exports))
}

/// What an interpreter shows of code that runs at a place in it; None: nothing.
pub fn place(code: &ManagedCode, at: u64) -> Option<SourcePlace> {
    interpreters().find_map(|interpreter| (interpreter.place)(code, at))
}

#[derive(Default)]
pub struct Managed {
    backend: Option<Box<dyn Interpreters>>,
    /// Of all files with code that were seen.
    files: HashMap<FileKey, Found>,
    /// By number and place; None: it is not shown.
    frames: HashMap<(u64, u64), Option<Frame>>,
    left_stacks: Vec<FindLeftStacks>,
    /// Why there are no frames: sentences.
    refused: BTreeSet<String>,
    broken: u64,
    misplaced: u64,
}

/// A stack as it was walked.
pub struct Walked<'a> {
    pub stack: StackId,
    /// Of each frame.
    pub pointers: &'a [u64],
}

impl Managed {
    pub fn of(backend: Box<dyn Interpreters>) -> Managed {
        Managed { backend: Some(backend), left_stacks: left_stacks().collect(), ..Managed::default() }
    }

    /// A file that will probably be executed.
    pub fn expect(&mut self, key: FileKey, object: &Object) {
        self.examine(key, object);
    }

    /// The code that is mapped has changed, as a record of `time_ns` shows; 0: it was mapped before all records.
    pub fn refresh(&mut self, mm: MmKey, time_ns: u64, unwinder: &Unwinder) {
        if self.backend.is_none() {
            return;
        }
        let mut is_new = false;
        for file in unwinder.code_files(mm) {
            is_new |= self.examine(file.key, file.object);
        }
        match is_new {
            // Others may have had it before.
            true => unwinder.spaces().for_each(|mm| self.publish_mappings(mm, 0, unwinder)),
            false => self.publish_mappings(mm, time_ns, unwinder),
        }
    }

    /// True where a new one was published to the backend.
    fn examine(&mut self, key: FileKey, object: &Object) -> bool {
        let Some(backend) = &mut self.backend else { return false };
        if self.files.contains_key(&key) {
            return false;
        }
        let interpreter = interpreter_in(object);
        let is_interpreter = interpreter.is_some();
        let found = match interpreter {
            Some(found) => Some(found.map(FoundRuntime::Interpreter)),
            None => {
                let found = self.left_stacks.iter().find_map(|find| find(&Exports(object)));
                found.map(|found| found.map(FoundRuntime::LeavesStacks))
            }
        };
        let code = object.layout().segments.iter().find(|segment| segment.exec);
        let found = match (found, code) {
            (Some(Ok(found)), Some(code)) => {
                let FileKey { major, minor, inode } = key;
                let code = (code.vaddr, code.offset);
                let file = InterpreterFile { major, minor, inode, code, found };
                let number = backend.publish(&file);
                match number {
                    Some(number) => Found::Published(Published { file, number, since_ns: monotonic_ns() }),
                    None => {
                        let why = "there are more files with an interpreter or of Go programs than there is space for";
                        Found::Refused { why: why.to_owned(), is_interpreter }
                    }
                }
            }
            (Some(Err(why)), _) => Found::Refused { why: why.0, is_interpreter },
            _ => Found::Nothing,
        };
        let is_new = matches!(found, Found::Published(_));
        self.files.insert(key, found);
        is_new
    }

    /// Reports mappings of an interpreter that were made before its file was published.
    fn publish_mappings(&mut self, mm: MmKey, time_ns: u64, unwinder: &Unwinder) {
        let Some(backend) = &mut self.backend else { return };
        let (mut chosen, mut interpreted): (Option<(u64, &Published)>, bool) = (None, false);
        for file in unwinder.code_files(mm) {
            let published = match self.files.get(&file.key) {
                Some(Found::Published(published)) => published,
                Some(Found::Refused { why, .. }) => {
                    self.refused.insert(why.clone());
                    continue;
                }
                _ => continue,
            };
            let is_interpreter = matches!(published.file.found, FoundRuntime::Interpreter(_));
            interpreted |= is_interpreter;
            let Some(address) = file.object.layout().svma_of(file.offset) else { continue };
            if file.offset == published.file.code_offset() && time_ns < published.since_ns + STAMPED_WITHIN {
                let runtime = published.file.found.address().wrapping_sub(address).wrapping_add(file.start.0);
                if is_interpreter || chosen.is_none() {
                    chosen = Some((runtime, published));
                }
            }
        }
        // An interpreter comes first: a library in its process may be of Go.
        let is_first = |found: &FoundRuntime| !interpreted || matches!(found, FoundRuntime::Interpreter(_));
        if let Some((runtime, published)) = chosen.filter(|(_, published)| is_first(&published.file.found)) {
            backend.is_mapped(mm, runtime, published.number);
        }
    }

    /// The stack with its managed frames where they belong.
    pub fn compose(
        &mut self,
        walked: &Walked<'_>,
        managed: &ManagedFrames,
        codes: &IntMap<u64, ManagedCode>,
        stacks: &mut StackTable,
    ) -> StackId {
        let is_known = managed.frames.iter().all(|frame| codes.contains_key(&frame.code));
        if managed.end == ManagedEnd::Broken || !is_known {
            self.broken += 1;
            return walked.stack;
        }
        let native = stacks.stack(walked.stack);
        // By the native frame that they come before.
        let mut runs: BTreeMap<usize, Vec<(u64, Vec<Frame>)>> = BTreeMap::new();
        let mut run = Vec::new();
        for (at, frame) in managed.frames.iter().enumerate() {
            run.extend(self.frame(frame.code, frame.at, codes, stacks));
            let Some(under) = frame.under else { continue };
            if at + 1 == managed.frames.len() && managed.end == ManagedEnd::Cut {
                run.push(cut(stacks));
            }
            let Some(before) = position(walked.pointers, native.completeness, under) else {
                self.misplaced += 1;
                return walked.stack;
            };
            runs.entry(before).or_default().push((under, std::mem::take(&mut run)));
        }
        let mut frames = Vec::with_capacity(native.frames.len() + managed.frames.len());
        for at in 0..=native.frames.len() {
            let mut here = runs.remove(&at).unwrap_or_default();
            here.sort_by_key(|&(under, _)| under);
            frames.extend(here.into_iter().flat_map(|(_, run)| run));
            frames.extend(native.frames.get(at));
        }
        stacks.intern_frames(&frames, native.completeness)
    }

    /// None where it is not shown.
    fn frame(
        &mut self,
        code: u64,
        at: u64,
        codes: &IntMap<u64, ManagedCode>,
        stacks: &mut StackTable,
    ) -> Option<Frame> {
        *self.frames.entry((code, at)).or_insert_with(|| {
            let place = place(codes.get(&code)?, at)?;
            Some(stacks.managed_frame(place))
        })
    }

    /// Whether the frames of the interpreter in a file are read, or why not. None: it has none.
    pub fn interpreter_of(&self, file: FileKey) -> Option<Result<(), &str>> {
        match self.files.get(&file)? {
            Found::Published(Published { file: InterpreterFile { found, .. }, .. }) => {
                matches!(found, FoundRuntime::Interpreter(_)).then_some(Ok(()))
            }
            Found::Refused { why, is_interpreter: true } => Some(Err(why)),
            Found::Refused { .. } | Found::Nothing => None,
        }
    }

    /// What the reader of a report has to know: sentences.
    pub fn notes(&self) -> Vec<String> {
        self.refused.iter().cloned().chain(self.missing()).collect()
    }

    /// How many stacks are without the frames of an interpreter whose frames are read, and why.
    pub fn missing(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let lost = self.backend.as_ref().map_or(0, |backend| backend.lost());
        for (count, why) in [
            (lost, "were not copied: there was no space"),
            (self.broken, "were not what they should be"),
            (self.misplaced, "belong to another stack"),
        ] {
            if count > 0 {
                notes.push(format!("{count} stacks are without the interpreter's frames, which {why}"));
            }
        }
        notes
    }
}

/// Before which frame of a stack something belongs that lies in the memory of that frame. None: it lies in none.
fn position(pointers: &[u64], completeness: Completeness, under: u64) -> Option<usize> {
    let after = pointers.partition_point(|&pointer| pointer <= under);
    match completeness {
        // Where the outermost frame that was found ends is not known.
        Completeness::Truncated | Completeness::Incomplete if after == pointers.len() => Some(after),
        _ => after.checked_sub(1),
    }
}

struct Exports<'a>(&'a Object);

impl CodeFile for Exports<'_> {
    fn has_section(&self, name: &str) -> bool {
        self.0.layout().section(name.as_bytes()).is_some()
    }

    fn code_like(&self, code: &[u8]) -> Vec<u64> {
        code_like(self.0, code)
    }
    fn exported(&self, name: &str) -> Option<u64> {
        exported(self.0, name.as_bytes())
    }

    fn read(&self, address: u64, len: usize) -> Option<Vec<u8>> {
        let offset = self.0.layout().offset_of(address)?;
        let bytes = self.0.read(offset, len as u64).ok()?;
        (bytes.len() == len).then_some(bytes)
    }
}

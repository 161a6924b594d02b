//! Frames of managed languages: what an interpreter runs is on no stack that an unwinder can walk.

/// How a list of managed frames ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ManagedEnd {
    Whole,
    /// There are more, which were not copied.
    Cut,
    /// What came next was not what it should be: none of it is to be believed.
    Broken,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ManagedFrame {
    /// An address on the thread's own stack, in the frame of the function that runs this one and those before it, up
    /// to the last that has one. None: the same as the next one's.
    pub under: Option<u64>,
    /// The number under which was sent what it runs.
    pub code: u64,
    /// Bytes into the instructions.
    pub at: u64,
}

/// The managed frames of a stack, innermost first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ManagedFrames {
    pub frames: Vec<ManagedFrame>,
    pub end: ManagedEnd,
}

/// What a frame of an interpreter runs: a function, a module's or a class' own statements.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ManagedCode {
    pub file: String,
    pub name: String,
    pub first_line: u32,
    /// The interpreter's table of lines, if it was there.
    pub lines: Option<Vec<u8>>,
    /// Where in the instructions the function itself begins, in what the interpreter counts them in.
    pub first_traceable: u32,
}

/// Where a managed frame is in its source: what it is shown as.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct SourcePlace {
    pub function: String,
    pub file: String,
    pub line: Option<u32>,
}

/// What of an interpreter has to be known to read its frames, as offsets in bytes; bpf/vmaudit.h says what each is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct InterpreterLayout {
    pub interpreters: u16,
    pub interpreter_next: u16,
    pub interpreter_threads: u16,
    pub thread_next: u16,
    pub thread_previous: u16,
    pub thread_id: u16,
    pub thread_frame: u16,
    /// Of a run and of the one that encloses it, where runs are listed.
    pub runs: Option<(u16, u16)>,
    pub frame_code: u16,
    pub frame_previous: u16,
    pub frame_instruction: u16,
    pub frame_owner: u16,
    /// Where a frame says that it is the outermost of its run; else a frame of `foreign_owner` follows it.
    pub frame_entry: Option<u16>,
    pub foreign_owner: u16,
    pub code_first_line: u16,
    pub code_names: u16,
    pub code_first_traceable: u16,
    pub code_bytes: u16,
    pub object_type: u16,
    pub object_size: u16,
    pub bytes_data: u16,
    pub text_length: u16,
    pub text_state: u16,
    pub text_ascii: u16,
    pub text_other: u16,
}

/// An interpreter in a file. Virtual addresses as the file states them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FoundInterpreter {
    /// The variable that leads to all the rest.
    pub runtime: u64,
    /// What its code, text and byte strings have for their types.
    pub code_type: u64,
    pub text_type: u64,
    pub bytes_type: u64,
    pub layout: InterpreterLayout,
}

/// A file with code, to be searched for an interpreter or a runtime.
pub trait CodeFile {
    /// Whether it has a section of that name.
    fn has_section(&self, name: &str) -> bool;
    /// The virtual addresses at which its code reads so, in their order.
    fn code_like(&self, code: &[u8]) -> Vec<u64>;
    /// The virtual address of a variable that the file exports.
    fn exported(&self, name: &str) -> Option<u64>;
    /// What the file has for it; None where it has less.
    fn read(&self, address: u64, len: usize) -> Option<Vec<u8>>;
}

/// Why an interpreter's frames are not read: a sentence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NotReadable(pub String);

/// An interpreter whose frames can be read: how a rule describes it.
#[derive(Clone, Copy)]
pub struct Interpreter {
    /// What the programs are called that have it or start it.
    pub programs: &'static [&'static str],
    /// How the names of libraries begin that have it.
    pub libraries: &'static [&'static str],
    /// Where else its programs may be: folders relative to one of PATH and to the user's home. `*` matches
    /// any name.
    pub beside_path: &'static [&'static str],
    pub at_home: &'static [&'static str],
    /// None: it is not in there.
    pub find: fn(&dyn CodeFile) -> Option<Result<FoundInterpreter, NotReadable>>,
    /// What a frame is shown as; None: the interpreter does not count it as running yet.
    pub place: fn(&ManagedCode, at: u64) -> Option<SourcePlace>,
}

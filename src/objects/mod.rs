//! Executable files of the audited processes: opened once, checked to be the file that was
//! mapped, kept open after an unmapping or an exit, and read section by section.
//!
//! `unwind` and `symbolize` share one [`FileCache`], so that a binary that was deleted or
//! replaced while it ran still gives frames and names. Nothing is memory-mapped: a file that its
//! owner truncates under us has to give a short read, not a SIGBUS.

mod budget;
pub mod bytes;
pub mod cache;
pub mod cfi;
pub mod debug_file;
pub mod elf;
pub mod file;
pub mod function_table;
pub mod functions;
pub mod library;
mod linkage;
pub mod marks;
pub mod object;
pub mod open;
mod padding;
pub mod patterns;
pub mod script;
mod served;
pub mod sites;
pub mod starts;
pub mod symbols;
mod symtab;
pub mod variables;

pub use budget::Held;
pub use bytes::ObjectError;
pub use cache::{FileCache, FileKey};
pub use cfi::{Cfi, FdeFacts};
pub use elf::{ElfLayout, Section, Segment};
pub use file::{ElfFile, Stamp};
pub use function_table::GoFunctions;
pub use functions::{DebugFiles, Function, FunctionTable};
pub use marks::{LibcFacts, marks_of};
pub use object::Object;
pub use open::{OpenRequest, Opener, SystemOpener, is_elsewhere, stamp_of_mapped};
pub use sites::{ProbedEntry, probe_sites};
pub use starts::FunctionStarts;
pub use symbols::{FunctionSymbol, FunctionSymbols};

/// The path of the vdso in `FileRef` and `ModuleInfo`.
pub const VDSO_PATH: &[u8] = b"[vdso]";

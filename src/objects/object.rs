//! A file, and what is read of it on first use: unwind tables, symbols, starts of functions.

use super::bytes::ObjectError;
use super::cfi::Cfi;
use super::file::ElfFile;
use super::function_table::GoFunctions;
use super::linkage::Linkage;
use super::padding::{self, CallingFunction};
use super::starts::{FunctionStarts, MAX_BODY, jumps_into};
use super::symbols::FunctionSymbols;
use std::borrow::Cow;
use std::fs::File;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// An opened executable file.
pub struct Object {
    serial: u64,
    file: ElfFile,
    cfi: OnceLock<Arc<Cfi>>,
    starts: OnceLock<FunctionStarts>,
    padded: OnceLock<bool>,
    symbols: OnceLock<FunctionSymbols>,
    linkage: OnceLock<Linkage>,
    go_functions: OnceLock<Option<GoFunctions>>,
}

impl Deref for Object {
    type Target = ElfFile;

    fn deref(&self) -> &ElfFile {
        &self.file
    }
}

impl Object {
    /// Takes over an open file and parses its headers.
    ///
    /// # Errors
    /// As [`ElfLayout::parse`].
    pub fn from_file(file: File) -> Result<Object, ObjectError> {
        Ok(Object::new(ElfFile::open(file)?))
    }

    /// From an image in memory (the vdso, tests).
    ///
    /// # Errors
    /// As [`ElfLayout::parse`].
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Object, ObjectError> {
        Ok(Object::new(ElfFile::from_bytes(bytes)?))
    }

    /// From the bytes of a file that cannot be read later.
    ///
    /// # Errors
    /// As [`ElfFile::open`], and `OverBudget`.
    pub(super) fn from_whole_file(bytes: Vec<u8>) -> Result<Object, ObjectError> {
        Ok(Object::new(ElfFile::from_whole_file(bytes)?))
    }

    fn new(file: ElfFile) -> Object {
        static SERIAL: AtomicU64 = AtomicU64::new(1);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        Object {
            serial,
            file,
            cfi: OnceLock::new(),
            starts: OnceLock::new(),
            padded: OnceLock::new(),
            symbols: OnceLock::new(),
            linkage: OnceLock::new(),
            go_functions: OnceLock::new(),
        }
    }

    /// Marks a file of another mount namespace.
    pub(super) fn marked_elsewhere(mut self) -> Object {
        self.file.elsewhere = true;
        self
    }

    /// A number that no other object of this process ever has: a key for caches.
    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// Unwind tables, read at the first call and kept. Empty where the file has none.
    pub fn cfi(&self) -> &Arc<Cfi> {
        self.cfi.get_or_init(|| Arc::new(Cfi::read(&self.file)))
    }

    /// Starts of functions, for code that no unwind table covers; found at the first call.
    pub fn function_starts(&self) -> &FunctionStarts {
        self.starts.get_or_init(|| FunctionStarts::read(self, self.cfi(), self.function_symbols()))
    }

    /// The file's own function symbols (not those of a debug file); read at the first call.
    pub fn function_symbols(&self) -> &FunctionSymbols {
        self.symbols.get_or_init(|| FunctionSymbols::read([&self.file]))
    }

    /// The table of functions that a Go program has for its own stacks, stripped or not; found at the first call.
    pub fn go_functions(&self) -> Option<&GoFunctions> {
        self.go_functions.get_or_init(|| GoFunctions::find(&self.file)).as_ref()
    }

    /// Name and start of the function at a virtual address: by a symbol of the file, or by the table that a Go program
    /// has.
    pub fn function_named(&self, svma: u64) -> Option<(Cow<'_, [u8]>, u64)> {
        if let Some(symbol) = self.function_symbols().covering(svma) {
            return Some((Cow::Borrowed(symbol.name), symbol.range_start));
        }
        let functions = self.go_functions()?;
        let function = functions.function(&self.file, svma)?;
        let name = functions.name(&self.file, function)?;
        Some((Cow::Owned(name.into_bytes()), function.start))
    }

    /// Which functions calls to other files mean; read at the first call.
    pub fn linkage(&self) -> &Linkage {
        self.linkage.get_or_init(|| Linkage::read(self))
    }

    /// Reads the unwind tables, then closes the file.
    pub fn close_after_tables(&self) {
        self.cfi();
        self.file.close();
    }

    /// The function that an instruction is in, of which the last byte is at a virtual address. Only of a file with
    /// `int3` between its functions.
    pub fn calling_function(&self, svma: u64) -> Option<CallingFunction> {
        self.is_padded().then(|| padding::function_of(self, svma)).flatten()
    }

    fn is_padded(&self) -> bool {
        *self.padded.get_or_init(|| padding::is_padded(self))
    }

    /// The start of the function at a virtual address, for code without unwind information.
    pub fn uncovered_start(&self, svma: u64) -> Option<u64> {
        if self.is_padded() {
            return padding::function_of(self, svma).map(|function| function.start);
        }
        self.function_starts().before(svma)
    }

    fn uncovered_end(&self, start: u64) -> Option<u64> {
        if self.is_padded() {
            padding::end_of(self, start, MAX_BODY)
        } else {
            self.function_starts().after(start)
        }
    }

    /// A call to `target` can have led to `svma`: it is the start of the same function, or of one that
    /// jumps into it (a tail call: `malloc` in musl is a jump). Unwind tables know where functions are;
    /// only where there are none the code is searched for calls.
    pub fn call_leads_to(&self, target: u64, svma: u64) -> bool {
        let covered = |at: u64| self.cfi().bounds(at);
        let start = covered(svma).map(|bounds| bounds.start).or_else(|| self.uncovered_start(svma));
        let Some(start) = start else { return false };
        if start == target {
            return true;
        }
        let end = covered(target).map(|bounds| bounds.end).or_else(|| self.uncovered_end(target));
        jumps_into(self, target..end.unwrap_or(u64::MAX), start..=svma)
    }
}

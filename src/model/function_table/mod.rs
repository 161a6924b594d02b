//! Names, lines and frame sizes of a program's functions, by the tables that Go's linker leaves in each program for the
//! program's own stacks (`pclntab`), stripped or not. The caller reads the bytes: of a file, or of a process.
//!
//! Source: src/runtime/symtab.go, `findfunc`, `pcvalue`, `step`; src/runtime/symtabinl.go, `inlinedCall`.
//!
//! In a stack of the runtime's each address stands for one function, also where that was compiled into its caller: the
//! caller has an address of its own then, at which nothing that was compiled into it stands.

mod described;
#[cfg(test)]
mod tests;
mod values;

pub use described::{Form, Version, WORDS, described, version_in};

use crate::model::{Addr, AddrRange};

/// `_PCDATA_InlTreeIndex`, `_FUNCDATA_InlTree`.
const INLINED_INDEX: u32 = 2;
const INLINED_TREE: u32 = 3;
/// Calls that were compiled into each other at one place.
const DEEPEST: usize = 128;
/// Longest string.
const LONGEST: usize = 4096;

/// Reads bytes by their addresses.
pub trait ReadBytes {
    /// False where not all of them can be read.
    fn fill(&mut self, at: u64, into: &mut [u8]) -> bool;
}

impl<F: FnMut(Addr, &mut [u8]) -> bool> ReadBytes for F {
    fn fill(&mut self, at: u64, into: &mut [u8]) -> bool {
        self(Addr(at), into)
    }
}

/// A table: where it is, and its length as it counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Table {
    pub at: u64,
    pub len: u64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FunctionTable {
    pub form: Form,
    pub names: Table,
    pub units: Table,
    pub files: Table,
    pub values: Table,
    pub functions: Table,
    /// The last entry is the end of the last function.
    pub index: Table,
    pub text: AddrRange,
    /// What the compiler's trees of inlined calls are found by. None: not known of this version.
    pub function_data: Option<u64>,
}

/// A function as the index and its record have it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Function {
    /// Its record's address.
    record: u64,
    /// Addresses of its code.
    pub start: u64,
    pub end: u64,
}

/// A function at a place in the code that is its own or that it was compiled into.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Called {
    pub name: String,
    /// Where it is there.
    pub location: Option<(String, u32)>,
    /// It has no code of its own there.
    pub inlined: bool,
}

impl FunctionTable {
    /// The function whose code is at an address.
    pub fn function(&self, at: u64, bytes: &mut dyn ReadBytes) -> Option<Function> {
        if !self.text.contains(Addr(at)) {
            return None;
        }
        let (mut low, mut high) = (0, self.count());
        while low + 1 < high {
            let middle = low + (high - low) / 2;
            match self.entry(middle, bytes)?.0 <= at {
                true => low = middle,
                false => high = middle,
            }
        }
        let function = self.numbered(low, bytes)?;
        (function.start..function.end).contains(&at).then_some(function)
    }

    /// The first function of that name.
    pub fn by_name(&self, name: &str, bytes: &mut dyn ReadBytes) -> Option<Function> {
        for number in 0..self.count() {
            let (start, record) = self.entry(number, bytes)?;
            let function = Function { record, start, end: start };
            if self.name(function, bytes).as_deref() == Some(name) {
                return self.numbered(number, bytes);
            }
        }
        None
    }

    pub fn name(&self, function: Function, bytes: &mut dyn ReadBytes) -> Option<String> {
        let number = u32_at(bytes, function.record.checked_add(self.form.at(4))?)?;
        self.name_at(number, bytes)
    }

    /// What stands at an address of a function: first what was compiled into the rest, last the function itself. Where
    /// it is not known what was, nothing has a line.
    pub fn calls(&self, function: Function, at: u64, bytes: &mut dyn ReadBytes) -> Option<Vec<Called>> {
        let own = self.name(function, bytes)?;
        let tree = match self.tree(function, bytes) {
            Some(tree) => tree,
            None => return Some(vec![Called { name: own, location: None, inlined: false }]),
        };
        let (mut calls, mut at) = (Vec::new(), at);
        loop {
            let location = self.line(function, at, bytes);
            let inlined = tree.and_then(|tree| self.inlined(tree, (function, at), bytes));
            let Some(inlined) = inlined else {
                calls.push(Called { name: own, location, inlined: false });
                return Some(calls);
            };
            // Damaged, or a circle: what is left is that the code is this function's.
            let Some((name, parent)) = inlined.filter(|_| calls.len() < DEEPEST) else {
                return Some(vec![Called { name: own, location: None, inlined: false }]);
            };
            calls.push(Called { name, location, inlined: true });
            at = function.start.checked_add(u64::from(parent)).filter(|at| *at < function.end)?;
        }
    }

    /// What is on the stack at an address of a function, from the return address on, in bytes.
    pub fn frame_size(&self, function: Function, at: u64, bytes: &mut dyn ReadBytes) -> Option<u32> {
        let table = u32_at(bytes, function.record.checked_add(self.form.at(16))?)?;
        self.value(table, (function, at), bytes)?.try_into().ok()
    }

    fn count(&self) -> u64 {
        self.index.len.saturating_sub(1)
    }

    fn numbered(&self, number: u64, bytes: &mut dyn ReadBytes) -> Option<Function> {
        let (start, record) = self.entry(number, bytes)?;
        let (end, _) = self.entry(number.checked_add(1)?, bytes)?;
        // A record says once more where its function begins.
        let same = match self.form {
            Form::Absolute => u64_at(bytes, record)? == start,
            _ => self.text.start.0.checked_add(u64::from(u32_at(bytes, record)?))? == start,
        };
        same.then_some(Function { record, start, end: end.min(self.text.end.0) })
    }

    /// Of the index: where a function begins, and the address of its record.
    fn entry(&self, number: u64, bytes: &mut dyn ReadBytes) -> Option<(u64, u64)> {
        let word = |bytes: &mut dyn ReadBytes, at| match self.form {
            Form::Absolute => u64_at(bytes, at),
            _ => u32_at(bytes, at).map(u64::from),
        };
        let width = if self.form == Form::Absolute { 8 } else { 4 };
        let at = self.index.at.checked_add(number.checked_mul(2 * width)?)?;
        let (start, record) = (word(bytes, at)?, word(bytes, at.checked_add(width)?)?);
        let start = if self.form == Form::Absolute { start } else { self.text.start.0.checked_add(start)? };
        Some((start, self.functions.at.checked_add(record)?))
    }

    fn name_at(&self, number: u32, bytes: &mut dyn ReadBytes) -> Option<String> {
        text(self.names, u64::from(number), bytes).filter(|name| !name.is_empty())
    }

    /// Where it is said what was compiled into the function; `Some(None)`: nothing was. None: that is not known.
    fn tree(&self, function: Function, bytes: &mut dyn ReadBytes) -> Option<Option<(u32, u64)>> {
        let tables = u32_at(bytes, function.record.checked_add(self.form.at(28))?)?;
        let fixed = function.record.checked_add(self.form.fixed())?;
        let trees = u8_at(bytes, fixed - 1)?;
        if tables <= INLINED_INDEX || u32::from(trees) <= INLINED_TREE {
            return Some(None);
        }
        let index = u32_at(bytes, fixed.checked_add(u64::from(INLINED_INDEX) * 4)?)?;
        let data = fixed.checked_add(u64::from(tables) * 4)?;
        if self.form == Form::Absolute {
            // pointers, aligned
            let slot = data.checked_next_multiple_of(8)?.checked_add(u64::from(INLINED_TREE) * 8)?;
            let tree = u64_at(bytes, slot)?;
            return Some((tree != 0 && index != 0).then_some((index, tree)));
        }
        let tree = u32_at(bytes, data.checked_add(u64::from(INLINED_TREE) * 4)?)?;
        if tree == u32::MAX || index == 0 {
            return Some(None);
        }
        Some(Some((index, self.function_data?.checked_add(u64::from(tree))?)))
    }

    /// What was compiled into the function at that place, and where it was called, from the function's start on.
    /// `Some(None)`: something was, and cannot be read.
    fn inlined(
        &self,
        (index, tree): (u32, u64),
        place: (Function, u64),
        bytes: &mut dyn ReadBytes,
    ) -> Option<Option<(String, u32)>> {
        let number = u64::try_from(self.value(index, place, bytes)?).ok()?;
        let (len, name, parent) = if self.form == Form::WithStartLines { (16, 4, 8) } else { (20, 12, 16) };
        let mut read = || {
            let call = number.checked_mul(len).and_then(|at| tree.checked_add(at))?;
            let name = u32_at(bytes, call.checked_add(name)?)?;
            let parent = u32_at(bytes, call.checked_add(parent)?)?;
            Some((self.name_at(name, bytes)?, parent))
        };
        Some(read())
    }

    fn line(&self, function: Function, at: u64, bytes: &mut dyn ReadBytes) -> Option<(String, u32)> {
        let field = |bytes: &mut dyn ReadBytes, field| {
            u32_at(bytes, function.record.checked_add(self.form.at(field))?)
        };
        let (files, lines, unit) = (field(bytes, 20)?, field(bytes, 24)?, field(bytes, 32)?);
        let file = u64::try_from(self.value(files, (function, at), bytes)?).ok()?;
        let line = u32::try_from(self.value(lines, (function, at), bytes)?).ok().filter(|&line| line != 0)?;
        let entry = u64::from(unit).checked_add(file).filter(|&entry| entry < self.units.len)?;
        let name = u32_at(bytes, self.units.at.checked_add(entry.checked_mul(4)?)?)?;
        Some((text(self.files, u64::from(name), bytes)?, line))
    }
}

fn text(of: Table, number: u64, bytes: &mut dyn ReadBytes) -> Option<String> {
    if number >= of.len {
        return None;
    }
    let mut out = Vec::new();
    let at = of.at.checked_add(number)?;
    loop {
        match u8_at(bytes, at.checked_add(out.len() as u64)?)? {
            0 => return Some(String::from_utf8_lossy(&out).into_owned()),
            byte if out.len() < LONGEST => out.push(byte),
            _ => return None,
        }
    }
}

fn array<const N: usize>(bytes: &mut dyn ReadBytes, at: u64) -> Option<[u8; N]> {
    let mut out = [0; N];
    bytes.fill(at, &mut out).then_some(out)
}

fn u64_at(bytes: &mut dyn ReadBytes, at: u64) -> Option<u64> {
    array(bytes, at).map(u64::from_le_bytes)
}

fn u32_at(bytes: &mut dyn ReadBytes, at: u64) -> Option<u32> {
    array(bytes, at).map(u32::from_le_bytes)
}

fn u8_at(bytes: &mut dyn ReadBytes, at: u64) -> Option<u8> {
    array(bytes, at).map(|[byte]| byte)
}

//! Every function symbol of a file, and whether a probe (uprobe) can be placed on it.
//!
//! Unlike [`FunctionSymbols`](super::FunctionSymbols), which names addresses, nothing is left out: what
//! cannot be probed is listed with the reason. The kernel places uprobes by file and file offset, so
//! that is what each function has.

mod build;
mod code;
mod facts;
mod mini;

pub use build::DebugFiles;
pub use facts::{Function, Note};

use crate::model::{Probe, Skip};

use super::object::Object;
use std::sync::OnceLock;

/// The function symbols of one file, by address; those without one (imports) last, by name.
pub struct FunctionTable {
    functions: Vec<Function>,
    /// The string tables that the names are in.
    strings: Vec<Vec<u8>>,
    /// Parts of the file that could not be read.
    notes: Vec<Note>,
    by_name: OnceLock<Vec<u32>>,
}

impl FunctionTable {
    /// Reads the tables of `object`, of the file in its `.gnu_debugdata`, and of a debug file.
    ///
    /// Never fails: what is damaged is left out, and [`FunctionTable::notes`] says so.
    pub fn read(object: &Object, debug: DebugFiles<'_>) -> FunctionTable {
        build::read(object, debug)
    }

    pub fn functions(&self) -> &[Function] {
        &self.functions
    }

    pub fn notes(&self) -> &[Note] {
        &self.notes
    }

    /// As in the symbol table, without a version. May be empty.
    pub fn name(&self, function: &Function) -> &[u8] {
        let strings = self.strings.get(usize::from(function.strings)).map_or(&[][..], Vec::as_slice);
        let at = function.name_at as usize;
        strings.get(at..at + function.name_len as usize).unwrap_or_default()
    }

    /// All functions of this name, by address.
    pub fn by_name(&self, name: &[u8]) -> impl Iterator<Item = &Function> {
        let order = self.by_name.get_or_init(|| self.order_by_name());
        let of = |index: u32| self.functions.get(index as usize);
        let name_of = |index: u32| of(index).map_or(&[][..], |function| self.name(function));
        let first = order.partition_point(|&index| name_of(index) < name);
        let len = order.get(first..).unwrap_or_default().partition_point(|&index| name_of(index) == name);
        order.get(first..first + len).unwrap_or_default().iter().filter_map(move |&index| of(index))
    }

    /// The function to probe for this one: itself, or, for an alias, the one that names the address.
    /// None where nothing can be probed.
    pub fn probed<'t>(&'t self, function: &'t Function) -> Option<&'t Function> {
        match function.probe {
            Probe::Yes => Some(function),
            Probe::No(Skip::Alias { of }) => self.functions.get(of as usize),
            Probe::No(_) => None,
        }
    }

    fn order_by_name(&self) -> Vec<u32> {
        let mut order: Vec<u32> = (0..self.functions.len() as u32).collect();
        let name = |index: u32| self.functions.get(index as usize).map(|function| self.name(function));
        order.sort_by(|&a, &b| name(a).cmp(&name(b)).then(a.cmp(&b)));
        order
    }
}

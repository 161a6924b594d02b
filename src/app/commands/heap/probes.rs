//! Which functions of which files are probed so far.

use crate::app::heap::resolve::{ProbedFunction, Resolved, Why, resolve};
use crate::capture::heap::{Prober, Request};
use crate::heap::Description;
use crate::heap::report::model;
use crate::model::FileRef;
use crate::objects::{FileKey, Object, ProbedEntry, open, probe_sites};
use crate::rights::{Use, with_lent};
use crate::symbolize::demangle;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// Probes the functions of the selected allocators in each new file, once. Used by the thread that holds
/// mappings of files, and by the one that reads events.
pub struct Probes {
    prober: Arc<Prober>,
    descriptions: Vec<Description>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    seen: HashSet<FileKey>,
    /// By the number that events have.
    functions: Vec<model::Function>,
    files: Vec<Option<FileKey>>,
    /// Files with probes: base name, functions.
    probed: HashMap<FileKey, (String, usize)>,
    /// What the kernel said to probes that it refused.
    refused: Vec<String>,
    notes: Vec<String>,
}

impl Probes {
    pub fn new(prober: Arc<Prober>, descriptions: Vec<Description>) -> Probes {
        Probes { prober, descriptions, state: Mutex::default() }
    }

    /// True where a file has not been examined yet.
    pub fn is_new(&self, file: &FileRef) -> bool {
        !self.state.lock().unwrap_or_else(PoisonError::into_inner).seen.contains(&FileKey::from(file))
    }

    /// A file that is about to be mapped or executed; what is no ELF file has nothing to probe.
    pub fn cover_path(&self, path: &Path, base_name: &str) {
        if let Ok(file) = open::open_regular(path) {
            self.cover_file(file, base_name);
        }
    }

    fn cover_file(&self, file: File, base_name: &str) {
        let Ok(meta) = file.metadata() else { return };
        let key = FileKey::from(&meta);
        // The kernel may report another device number (btrfs): then it is examined twice, and probed once.
        if let Ok(object) = Object::from_file(file) {
            self.cover(key, &object, base_name);
        }
    }

    /// A file that is mapped.
    pub fn cover(&self, key: FileKey, object: &Object, base_name: &str) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if !state.seen.insert(key) {
            return;
        }
        let Resolved { found, left_out } = resolve(object, base_name, &self.descriptions);
        state.note_left_out(base_name, &left_out);
        let Some(fd) = object.raw_fd().filter(|_| !found.is_empty()) else { return };
        // SAFETY: the object keeps its descriptor open during this call.
        let file = unsafe { BorrowedFd::borrow_raw(fd) };
        let entry =
            |each: &ProbedFunction| ProbedEntry { offset: each.offset, arguments: each.function.arguments() };
        let entries: Vec<ProbedEntry> = found.iter().map(entry).collect();
        let sites = probe_sites(object, &entries);
        let functions: Vec<_> = found
            .iter()
            .zip(&sites)
            .map(|(each, site)| (site.of(each.offset), each.function.moved(site)))
            .collect();
        match with_lent(Use::Placing, || self.prober.place(Request { file, functions: &functions })) {
            Ok(placed) => {
                let count = placed.numbers.iter().flatten().count();
                if count > 0 {
                    state.probed.insert(key, (base_name.to_owned(), count));
                }
                for (each, number) in found.iter().zip(&placed.numbers) {
                    match number {
                        Some(number) => state.name(*number, (key, base_name), each),
                        None => state.notes.push(format!("{base_name}: {} is not probed", each.symbol)),
                    }
                }
                let named = found.iter().zip(&sites).map(|(each, site)| format!("{}{site}", each.symbol));
                let mut names: Vec<String> = named.collect();
                names.sort_unstable();
                state.notes.push(format!("{base_name}: probed {}", names.join(", ")));
                if let Some(error) = placed.refused {
                    state.refuse(format!("{base_name}: {error}"));
                }
            }
            Err(error) => state.refuse(format!("{base_name}: {error}")),
        }
    }

    /// By the number that events have.
    pub fn functions(&self) -> Vec<model::Function> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).functions.clone()
    }

    /// A file's base name and how many of its functions are probed; None where none is.
    pub fn probed_in(&self, key: FileKey) -> Option<(String, usize)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).probed.get(&key).cloned()
    }

    /// What the kernel said to probes that it refused.
    pub fn refused(&self) -> Vec<String> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).refused.clone()
    }

    /// The file that a function is in.
    pub fn file_of(&self, number: u32) -> Option<FileKey> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.files.get(number as usize).copied().flatten()
    }

    /// Notes not printed yet: for `-v`.
    pub fn take_notes(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner).notes)
    }
}

impl State {
    fn refuse(&mut self, why: String) {
        self.notes.push(why.clone());
        self.refused.push(why);
    }

    fn name(&mut self, number: u32, (key, module): (FileKey, &str), found: &ProbedFunction) {
        let at = number as usize;
        if self.functions.len() <= at {
            self.functions.resize(at + 1, model::Function::default());
            self.files.resize(at + 1, None);
        }
        if let Some(slot) = self.files.get_mut(at) {
            *slot = Some(key);
        }
        if let Some(slot) = self.functions.get_mut(at) {
            *slot = model::Function {
                name: demangle(&found.symbol),
                module: module.to_owned(),
                allocator: found.allocator.clone(),
            };
        }
    }

    fn note_left_out(&mut self, module: &str, left_out: &[(String, Why)]) {
        let forwarding = left_out.iter().filter(|(_, why)| *why == Why::CallsOne).count();
        if forwarding > 0 {
            self.notes
                .push(format!("{module}: {forwarding} C++ functions are not probed, what they call is"));
        }
        for (symbol, why) in left_out {
            match why {
                Why::CallsOne => {}
                Why::NoVariable(name) => self.notes.push(format!(
                    "{module}: {symbol} is not probed: the variable {name} is not in its symbol table"
                )),
                Why::Skipped(reason) => {
                    self.notes.push(format!("{module}: {symbol} is not probed: {reason}"));
                }
            }
        }
    }
}

//! The table of functions in a Go program's file ([`crate::model::function_table`]): found by its section, or by how it
//! begins, and proven by the linker's description of the program that leads to it.

use super::elf::{Section, Segment};
use super::file::ElfFile;
use crate::model::PAGE;
use crate::model::function_table::{
    Called, Form, Function, FunctionTable, ReadBytes, Version, WORDS, described, version_in,
};
use crate::model::hash::IntMap;
use memchr::memmem;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// In position independent programs `.data.rel.ro.gopclntab`; one that a C linker made has no such section.
const TABLE: &[u8] = b".gopclntab";
const BUILD_INFORMATION: &[u8] = b".go.buildinfo";
/// Of the build information, the version comes first.
const MAX_INFORMATION: u64 = 4096;
/// Tables of relocations that are searched; linkers write two for the loader.
const MOST_TABLES: usize = 16;
/// Elf64_Rela: offset, info, addend.
const RELA: usize = 24;
const SHT_RELA: u32 = 4;
/// System V ABI, x86-64, table 4.9: the addend, moved as the file is.
const R_X86_64_RELATIVE: u64 = 8;
/// Initialised data and relocations of one file that are searched, bytes; dockerd has 30 MB.
const MAX_SEARCHED: u64 = 256 << 20;
/// What is read at a time: whole words and whole relocations.
const CHUNK: u64 = 3 << 19;
/// Places that begin as a table does.
const MAX_HEADERS: usize = 64;
/// Places that point to one.
const MAX_DESCRIPTIONS: usize = 64;
/// Pages of the tables that are kept: 4 MiB.
const MAX_PAGES: usize = 1024;

/// The functions of one file, read when they are needed.
pub struct GoFunctions {
    table: FunctionTable,
    pages: Mutex<Pages>,
}

impl GoFunctions {
    /// None where the file has no such table, or one that is not known or not proven.
    pub fn find(file: &ElfFile) -> Option<GoFunctions> {
        if !file.is_go() {
            return None;
        }
        let version = version(file);
        let mut bytes = Bytes { file, pages: &mut Pages::default() };
        let headers = headers(file);
        let descriptions = descriptions(file, &headers);
        let mut found = descriptions.iter().filter_map(|&(at, header)| {
            let words = words(file, at, header)?;
            described(&words, version.as_ref(), &mut bytes)
        });
        let table = found.next()?;
        Some(GoFunctions { table, pages: Mutex::default() })
    }

    /// The function at a virtual address.
    pub fn function(&self, file: &ElfFile, svma: u64) -> Option<Function> {
        self.read(file, |bytes| self.table.function(svma, bytes))
    }

    pub fn name(&self, file: &ElfFile, function: Function) -> Option<String> {
        self.read(file, |bytes| self.table.name(function, bytes))
    }

    /// See [`FunctionTable::calls`].
    pub fn calls(&self, file: &ElfFile, function: Function, svma: u64) -> Option<Vec<Called>> {
        self.read(file, |bytes| self.table.calls(function, svma, bytes))
    }

    /// Bytes on the stack at a virtual address, up to the return address.
    pub fn frame_size(&self, file: &ElfFile, svma: u64) -> Option<u32> {
        self.read(file, |bytes| {
            let function = self.table.function(svma, bytes)?;
            self.table.frame_size(function, svma, bytes)
        })
    }

    fn read<T>(&self, file: &ElfFile, read: impl FnOnce(&mut Bytes<'_>) -> T) -> T {
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        read(&mut Bytes { file, pages: &mut pages })
    }
}

/// Pages of a file by their offsets; None: it is shorter.
type Pages = IntMap<u64, Option<Box<[u8]>>>;

/// The bytes of a file by their virtual addresses.
struct Bytes<'f> {
    file: &'f ElfFile,
    pages: &'f mut Pages,
}

impl Bytes<'_> {
    fn page(&mut self, offset: u64) -> Option<&[u8]> {
        if self.pages.len() >= MAX_PAGES {
            self.pages.clear();
        }
        let read = || {
            let left = self.file.size()?.checked_sub(offset)?.min(PAGE);
            Some(self.file.read(offset, left).ok()?.into_boxed_slice())
        };
        self.pages.entry(offset).or_insert_with(read).as_deref()
    }
}

impl ReadBytes for Bytes<'_> {
    fn fill(&mut self, at: u64, into: &mut [u8]) -> bool {
        let layout = self.file.layout();
        let (Some(mut offset), Some(end)) = (layout.offset_of(at), layout.segment_end(at)) else {
            return false;
        };
        if end.checked_sub(offset).is_none_or(|left| left < into.len() as u64) {
            return false;
        }
        let mut done = 0;
        while done < into.len() {
            let inside = (offset % PAGE) as usize;
            let Some(bytes) = self.page(offset - inside as u64).and_then(|page| page.get(inside..)) else {
                return false;
            };
            let count = bytes.len().min(into.len() - done);
            if count == 0 {
                return false;
            }
            into[done..done + count].copy_from_slice(&bytes[..count]);
            done += count;
            offset += count as u64;
        }
        true
    }
}

fn version(file: &ElfFile) -> Option<Version> {
    let section = file.layout().section(BUILD_INFORMATION)?;
    version_in(&file.read(section.offset, section.size.min(MAX_INFORMATION)).ok()?)
}

/// Where tables may begin, by their virtual addresses.
fn headers(file: &ElfFile) -> Vec<u64> {
    let layout = file.layout();
    if let Some(section) = layout.sections.iter().find(|section| section.name.ends_with(TABLE)) {
        return vec![section.addr];
    }
    let mut found = Vec::new();
    for segment in layout.segments.iter().filter(|segment| !segment.exec) {
        for form in Form::ALL {
            search(file, segment, &form.word(), &mut |at| {
                found.push(at);
                found.len() < MAX_HEADERS
            });
        }
    }
    found
}

/// Calls `found` with each virtual address, of a multiple of eight, at which a segment reads so, until that is false.
fn search(file: &ElfFile, segment: &Segment, word: &[u8; 8], found: &mut dyn FnMut(u64) -> bool) {
    in_pieces(file, segment.offset, segment.file_size, &mut |at, bytes| {
        let first = segment.vaddr.wrapping_add(at - segment.offset);
        let places = memmem::find_iter(bytes, word).map(|place| first.wrapping_add(place as u64));
        places.filter(|place| place.is_multiple_of(8)).all(&mut *found)
    });
}

/// Calls `take` with pieces (offset, bytes) of a part of a file, one after the other, until that is false; what it
/// returned last, true where the file could not be read on.
fn in_pieces(file: &ElfFile, offset: u64, size: u64, take: &mut dyn FnMut(u64, &[u8]) -> bool) -> bool {
    let size = size.min(MAX_SEARCHED);
    let mut done = 0;
    while done < size {
        let len = CHUNK.min(size - done);
        let Some(at) = offset.checked_add(done) else { return true };
        let Ok(bytes) = file.read(at, len) else { return true };
        if !take(at, &bytes) {
            return false;
        }
        done += len;
    }
    true
}

/// Where a description may be, and which table it leads to. In a position independent program its words are made by
/// relocations.
fn descriptions(file: &ElfFile, headers: &[u64]) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    if headers.is_empty() {
        return found;
    }
    relocations(file, &mut |slot, value| {
        if headers.contains(&value) {
            found.push((slot, value));
        }
        found.len() < MAX_DESCRIPTIONS
    });
    let in_place = if found.is_empty() { headers } else { &[] };
    for &header in in_place {
        for segment in file.layout().segments.iter().filter(|segment| !segment.exec) {
            search(file, segment, &header.to_le_bytes(), &mut |at| {
                found.push((at, header));
                found.len() < MAX_DESCRIPTIONS
            });
        }
    }
    found
}

/// The words of a description: those of the file, and what relocations make of them.
fn words(file: &ElfFile, at: u64, header: u64) -> Option<Vec<u64>> {
    let layout = file.layout();
    let offset = layout.offset_of(at)?;
    let left = layout.segment_end(at)?.checked_sub(offset)?;
    let len = WORDS as u64 * 8;
    let bytes = file.read(offset, len.min(left)).ok()?;
    let mut words: Vec<u64> = bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
    if words.first() != Some(&header) {
        let range: Range<u64> = at..at.checked_add(len)?;
        relocations(file, &mut |slot, value| {
            if range.contains(&slot)
                && let Some(word) = words.get_mut(((slot - at) / 8) as usize)
            {
                *word = value;
            }
            true
        });
    }
    Some(words)
}

/// Calls `take` with each word (address, value) that is only moved as the file is, until that is false.
fn relocations(file: &ElfFile, take: &mut dyn FnMut(u64, u64) -> bool) {
    let mut tables =
        file.layout().sections.iter().filter(|section| section.kind == SHT_RELA).take(MOST_TABLES);
    tables.all(|&Section { offset, size, .. }| {
        in_pieces(file, offset, size, &mut |_, bytes| {
            bytes.as_chunks::<RELA>().0.iter().all(|entry| {
                let [slot, info, addend] = [0, 1, 2].map(|at| u64::from_le_bytes(entry.as_chunks().0[at]));
                info != R_X86_64_RELATIVE || take(slot, addend)
            })
        })
    });
}

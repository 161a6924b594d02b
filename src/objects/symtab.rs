//! Symbol tables as they are in the file: entries with their names and versions, nothing judged.

use super::bytes::ObjectError;
use super::elf::Section;
use super::file::ElfFile;
use goblin::elf::section_header::SHT_DYNSYM;
use goblin::elf::sym::{STB_GLOBAL, STB_WEAK, Sym};
use std::cmp::Reverse;
use std::ops::Range;

/// Bytes of one Elf64_Sym.
pub(super) const SYM: usize = 24;
/// Longest name kept: mangled C++ reaches some kilobytes.
pub(super) const MAX_NAME: usize = 64 << 10;
/// Bytes of names that are read of a table, for each byte of its strings, and besides: linkers let few names share their
/// bytes, and in a forged table each name may be a part of one that is as long as the table.
const NAMES_FACTOR: usize = 8;
const LEAST_NAMES: usize = 1 << 20;
/// More of them in front of a name do not make it worse.
const MAX_UNDERSCORES: usize = 255;

/// Which of several symbols of one address names it; the greatest does. The order of perf(1)
/// (tools/perf/util/symbol.c, `choose_best_symbol`) after one rule of our own, the first:
/// not an old version (`cfree@GLIBC_2.2.5`), not weak, global, fewer leading underscores, longer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Rank {
    pub current_version: bool,
    pub not_weak: bool,
    pub global: bool,
    pub fewer_underscores: Reverse<u8>,
    pub len: u32,
}

/// The names in a string table, as long as that is worth it.
pub(super) struct Names<'s> {
    strings: &'s [u8],
    left: usize,
}

impl<'s> Names<'s> {
    pub(super) fn of(strings: &'s [u8]) -> Names<'s> {
        Names { strings, left: strings.len().saturating_mul(NAMES_FACTOR).saturating_add(LEAST_NAMES) }
    }

    /// The name at an offset; empty where there is none, or a longer one than [`MAX_NAME`]. None from then on when more was
    /// read than a table can be for.
    pub(super) fn at(&mut self, offset: usize) -> Option<&'s [u8]> {
        let tail = self.strings.get(offset..).unwrap_or_default();
        let tail = tail.get(..MAX_NAME + 1).unwrap_or(tail);
        let len = memchr::memchr(0, tail).unwrap_or(tail.len());
        match self.left.checked_sub(len) {
            Some(left) => self.left = left,
            None => {
                self.left = 0;
                return None;
            }
        }
        Some(tail.get(..len).filter(|name| name.len() <= MAX_NAME).unwrap_or_default())
    }
}

/// One entry of a table.
pub(super) struct Entry {
    pub symbol: Sym,
    /// Where its name is in the string table, without a version (`@GLIBC_2.2.5`).
    pub name: Range<usize>,
    /// False for a version that is kept for old programs.
    pub current_version: bool,
}

impl Entry {
    pub(super) fn rank(&self, strings: &[u8]) -> Rank {
        let name = strings.get(self.name.clone()).unwrap_or_default();
        let underscores = name.iter().take(MAX_UNDERSCORES).take_while(|&&b| b == b'_').count();
        Rank {
            current_version: self.current_version,
            not_weak: self.symbol.st_bind() != STB_WEAK,
            global: self.symbol.st_bind() == STB_GLOBAL,
            fewer_underscores: Reverse(underscores as u8),
            len: name.len() as u32,
        }
    }
}

/// A table that was read.
pub(super) struct SymbolTable {
    symbols: Vec<u8>,
    pub strings: Vec<u8>,
    versions: Vec<u8>,
}

/// The string table of a symbol table.
///
/// # Errors
/// When it has none, or it cannot be read.
pub(super) fn strings(file: &ElfFile, table: &Section) -> Result<Vec<u8>, ObjectError> {
    let strings = usize::try_from(table.link).ok().and_then(|link| file.layout().sections.get(link));
    file.section_bytes(strings.ok_or(ObjectError::NoStrings)?)
}

impl SymbolTable {
    /// Reads `.symtab` or `.dynsym` with its strings.
    ///
    /// # Errors
    /// When one of the two cannot be read.
    pub(super) fn read(file: &ElfFile, section: &Section) -> Result<SymbolTable, ObjectError> {
        let strings = strings(file, section)?;
        let symbols = file.section_bytes(section)?;
        let versions = (section.kind == SHT_DYNSYM)
            .then(|| file.layout().section(b".gnu.version"))
            .flatten()
            .and_then(|s| file.section_bytes(s).ok())
            .unwrap_or_default();
        Ok(SymbolTable { symbols, strings, versions })
    }

    /// Each is parsed when its turn comes. The first whose names are too much ends them.
    pub(super) fn entries(&self) -> impl Iterator<Item = Entry> {
        let mut names = Names::of(&self.strings);
        self.symbols.chunks_exact(SYM).enumerate().map_while(move |(index, bytes)| {
            let symbol = parse(bytes)?;
            let (plain, old) = split_version(names.at(symbol.st_name)?);
            // Bit 15 of a version index: hidden, not the default version (LSB, "Symbol Version
            // Table").
            let hidden = self.versions.get(index * 2 + 1).is_some_and(|high| high & 0x80 != 0);
            let name = if plain.is_empty() { 0..0 } else { symbol.st_name..symbol.st_name + plain.len() };
            Some(Entry { symbol, name, current_version: !hidden && !old })
        })
    }
}

/// Elf64_Sym { st_name: u32, st_info: u8, st_other: u8, st_shndx: u16, st_value: u64, st_size: u64 }.
fn parse(bytes: &[u8]) -> Option<Sym> {
    let word = |at: usize| Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
    let (first, [info, other, low, high]) = (word(0)?, *bytes.get(4..)?.first_chunk()?);
    Some(Sym {
        st_name: first as u32 as usize,
        st_info: info,
        st_other: other,
        st_shndx: u16::from_le_bytes([low, high]).into(),
        st_value: word(8)?,
        st_size: word(16)?,
    })
}

/// `name@VERSION` (an old version) and `name@@VERSION` (the default one) in `.symtab`.
fn split_version(name: &[u8]) -> (&[u8], bool) {
    match name.iter().position(|&b| b == b'@') {
        Some(0) | None => (name, false),
        Some(at) => (name.get(..at).unwrap_or_default(), name.get(at + 1) != Some(&b'@')),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_all_of_one_string_end() {
        let strings = [vec![b'x'; MAX_NAME], vec![0]].concat();
        let mut names = Names::of(&strings);
        let read = (0..).map_while(|_| names.at(0)).take(1 << 20).count();
        assert_eq!(read, (NAMES_FACTOR * strings.len() + LEAST_NAMES) / MAX_NAME);
        let long = vec![b'x'; 4 * MAX_NAME];
        let mut names = Names::of(&long);
        assert_eq!((names.at(0), names.at(4 * MAX_NAME)), (Some(&b""[..]), Some(&b""[..])));
    }

    #[test]
    fn versions() {
        assert_eq!(split_version(b"cfree@GLIBC_2.2.5"), (&b"cfree"[..], true));
        assert_eq!(split_version(b"memcpy@@GLIBC_2.14"), (&b"memcpy"[..], false));
        assert_eq!(split_version(b"malloc"), (&b"malloc"[..], false));
    }
}

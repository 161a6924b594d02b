//! Function symbols of a file: `.symtab` and `.dynsym`, by the addresses that they cover.
//!
//! A symbol covers [value, value + size) and nothing else. Symbols of size 0, imports, and
//! anything outside executable sections are left out: naming by the nearest symbol is how
//! `fopen` came to be called `fgets`.

use super::budget::Held;
use super::elf::Section;
use super::file::ElfFile;
use super::symtab::{Rank, SymbolTable};
use goblin::elf::section_header::{SHF_EXECINSTR, SHN_LORESERVE, SHT_DYNSYM, SHT_SYMTAB};
use goblin::elf::sym::{STT_FUNC, STT_GNU_IFUNC, STT_NOTYPE, Sym};
use std::ops::Range;

/// A function symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunctionSymbol<'a> {
    pub range_start: u64,
    pub size: u64,
    /// As in the symbol table, without a version (`@GLIBC_2.2.5`).
    pub name: &'a [u8],
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    start: u64,
    end: u64,
    /// Number of the string table that its name is in.
    strings: u32,
    name_at: u32,
    name_len: u32,
    rank: Rank,
}

/// Function symbols, sorted by start.
#[derive(Default, Debug)]
pub struct FunctionSymbols {
    entries: Vec<Entry>,
    strings: Vec<Vec<u8>>,
    held: Vec<Held>,
    /// For each entry the greatest end up to it: where a search among overlapping ones may stop.
    reach: Vec<u64>,
}

impl FunctionSymbols {
    /// Reads the tables of all the files given (a program and its debug file).
    pub fn read<'o>(files: impl IntoIterator<Item = &'o ElfFile>) -> FunctionSymbols {
        let mut out = FunctionSymbols::default();
        for file in files {
            // No linker writes two of a kind.
            let first = |kind| file.layout().sections.iter().find(|section| section.kind == kind);
            for section in [SHT_SYMTAB, SHT_DYNSYM].into_iter().filter_map(first) {
                // A damaged table is left out; the other one may do.
                let _ = out.add_table(file, section);
            }
        }
        out.entries.sort_by_key(|e| (e.start, std::cmp::Reverse(e.rank)));
        let mut reach = 0;
        out.reach.extend(out.entries.iter().map(|entry| {
            reach = entry.end.max(reach);
            reach
        }));
        out
    }

    fn add_table(&mut self, file: &ElfFile, section: &Section) -> Option<()> {
        let table = SymbolTable::read(file, section).ok()?;
        let strings = u32::try_from(self.strings.len()).ok()?;
        let before = self.entries.len();
        for entry in table.entries() {
            let Some(range) = function_range(&entry.symbol, &file.layout().sections) else { continue };
            if entry.name.is_empty() {
                continue;
            }
            let (start, end, rank) = (range.start, range.end, entry.rank(&table.strings));
            let name_at = u32::try_from(entry.name.start).ok()?;
            self.entries.push(Entry {
                start,
                end,
                strings,
                name_at,
                name_len: entry.name.len() as u32,
                rank,
            });
        }
        let kept =
            table.strings.len() + (self.entries.len() - before) * (size_of::<Entry>() + size_of::<u64>());
        match Held::take(kept as u64) {
            Some(held) => self.held.push(held),
            None => {
                self.entries.truncate(before);
                file.leave_tables_out();
                return None;
            }
        }
        self.strings.push(table.strings);
        Some(())
    }

    /// The symbol that covers a virtual address (as the file states it): the innermost, and among
    /// aliases the best one.
    pub fn covering(&self, svma: u64) -> Option<FunctionSymbol<'_>> {
        let after = self.entries.partition_point(|e| e.start <= svma);
        let mut found: Option<&Entry> = None;
        for (index, entry) in self.entries.iter().enumerate().take(after).rev() {
            if found.is_some_and(|f| f.start != entry.start) || self.reach[index] <= svma {
                break;
            }
            // Entries of one start are sorted best first, and come here last first.
            if svma < entry.end {
                found = Some(entry);
            }
        }
        found.map(|entry| self.symbol(entry))
    }

    /// Where functions start, sorted; aliases repeat.
    pub fn starts(&self) -> impl Iterator<Item = u64> + '_ {
        self.entries.iter().map(|e| e.start)
    }

    /// The function that begins at this address has this name, among others.
    pub fn is_named(&self, start: u64, name: &[u8]) -> bool {
        let first = self.entries.partition_point(|e| e.start < start);
        let here = self.entries.iter().skip(first).take_while(|e| e.start == start);
        here.into_iter().any(|entry| self.symbol(entry).name == name)
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn symbol(&self, entry: &Entry) -> FunctionSymbol<'_> {
        let strings = self.strings.get(entry.strings as usize).map_or(&[][..], Vec::as_slice);
        let at = entry.name_at as usize;
        let name = strings.get(at..at + entry.name_len as usize).unwrap_or_default();
        FunctionSymbol { range_start: entry.start, size: entry.end - entry.start, name }
    }
}

/// The code that a symbol covers; None for anything that is no function of this file.
fn function_range(symbol: &Sym, sections: &[Section]) -> Option<Range<u64>> {
    let function = matches!(symbol.st_type(), STT_FUNC | STT_GNU_IFUNC | STT_NOTYPE);
    if !function || symbol.st_size == 0 || symbol.st_shndx as u32 >= SHN_LORESERVE {
        return None;
    }
    let section = sections.get(symbol.st_shndx).filter(|_| symbol.st_shndx != 0)?;
    if section.flags & u64::from(SHF_EXECINSTR) == 0 {
        return None;
    }
    Some(symbol.st_value..symbol.st_value.checked_add(symbol.st_size)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbols(list: &[(u64, u64, &str)]) -> FunctionSymbols {
        let mut out = FunctionSymbols { strings: vec![Vec::new()], ..FunctionSymbols::default() };
        for &(start, size, name) in list {
            let name_at = out.strings[0].len() as u32;
            out.strings[0].extend_from_slice(name.as_bytes());
            let rank = Rank {
                current_version: true,
                not_weak: true,
                global: true,
                fewer_underscores: std::cmp::Reverse(name.chars().take_while(|&c| c == '_').count() as u8),
                len: name.len() as u32,
            };
            let (end, name_len) = (start + size, name.len() as u32);
            out.entries.push(Entry { start, end, strings: 0, name_at, name_len, rank });
        }
        out.entries.sort_by_key(|e| (e.start, std::cmp::Reverse(e.rank)));
        let mut reach = 0;
        out.reach = out
            .entries
            .iter()
            .map(|e| {
                reach = e.end.max(reach);
                reach
            })
            .collect();
        out
    }

    fn name(symbols: &FunctionSymbols, at: u64) -> Option<String> {
        symbols.covering(at).map(|s| String::from_utf8_lossy(s.name).into_owned())
    }

    #[test]
    fn a_symbol_covers_its_size_and_nothing_else() {
        let s = symbols(&[(0x100, 0x10, "a"), (0x200, 0x10, "b")]);
        assert_eq!(name(&s, 0xff), None);
        assert_eq!(name(&s, 0x100).as_deref(), Some("a"));
        assert_eq!(name(&s, 0x10f).as_deref(), Some("a"));
        assert_eq!(name(&s, 0x110), None);
        assert_eq!(name(&s, 0x20f).as_deref(), Some("b"));
        assert_eq!(name(&s, 0x210), None);
    }

    #[test]
    fn inner_symbols_win_and_outer_ones_go_on_behind_them() {
        let s = symbols(&[(0x100, 0x100, "outer"), (0x140, 0x10, "inner")]);
        assert_eq!(name(&s, 0x145).as_deref(), Some("inner"));
        assert_eq!(name(&s, 0x150).as_deref(), Some("outer"));
        assert_eq!(name(&s, 0x200), None);
    }

    #[test]
    fn aliases_fewer_underscores_then_longer() {
        let s = symbols(&[(0, 8, "__mmap"), (0, 8, "mmap"), (0, 8, "mmap64"), (0, 8, "__libc_mmap")]);
        assert_eq!(name(&s, 4).as_deref(), Some("mmap64"));
    }
}

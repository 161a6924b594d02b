//! Function symbols of a file: `.symtab` and `.dynsym`, by the addresses that they cover.
//!
//! A symbol covers [value, value + size) and nothing else. Symbols of size 0, imports, and
//! anything outside executable sections are left out: naming by the nearest symbol is how
//! `fopen` came to be called `fgets`.

use super::elf::Section;
use super::file::ElfFile;
use super::symtab::{MAX_NAME, Rank, SymbolTable};
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
    name_at: usize,
    name_len: usize,
    rank: Rank,
}

/// Function symbols, sorted by start.
#[derive(Default, Debug)]
pub struct FunctionSymbols {
    entries: Vec<Entry>,
    names: Vec<u8>,
    /// For each entry the greatest end up to it: where a search among overlapping ones may stop.
    reach: Vec<u64>,
}

impl FunctionSymbols {
    /// Reads the tables of all the files given (a program and its debug file).
    pub fn read<'o>(files: impl IntoIterator<Item = &'o ElfFile>) -> FunctionSymbols {
        let mut out = FunctionSymbols::default();
        for file in files {
            let layout = file.layout();
            for section in layout.sections.iter().filter(|s| matches!(s.kind, SHT_SYMTAB | SHT_DYNSYM)) {
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
        for entry in table.entries() {
            let Some(range) = function_range(entry.symbol, &file.layout().sections) else { continue };
            let plain = table.strings.get(entry.name.clone()).unwrap_or_default();
            if plain.is_empty() || plain.len() > MAX_NAME {
                continue;
            }
            let rank = entry.rank(&table.strings);
            let name_at = self.names.len();
            self.names.extend_from_slice(plain);
            let (start, end) = (range.start, range.end);
            self.entries.push(Entry { start, end, name_at, name_len: plain.len(), rank });
        }
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
        let name = self.names.get(entry.name_at..entry.name_at + entry.name_len).unwrap_or_default();
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
        let mut out = FunctionSymbols::default();
        for &(start, size, name) in list {
            let name_at = out.names.len();
            out.names.extend_from_slice(name.as_bytes());
            let rank = Rank {
                current_version: true,
                not_weak: true,
                global: true,
                fewer_underscores: std::cmp::Reverse(name.chars().take_while(|&c| c == '_').count() as u8),
                len: name.len() as u32,
            };
            out.entries.push(Entry { start, end: start + size, name_at, name_len: name.len(), rank });
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

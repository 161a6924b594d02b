//! Symbol tables as they are in the file: entries with their names and versions, nothing judged.

use super::bytes::ObjectError;
use super::elf::Section;
use super::file::ElfFile;
use goblin::container::{Container, Ctx, Endian};
use goblin::elf::section_header::SHT_DYNSYM;
use goblin::elf::sym::{STB_GLOBAL, STB_WEAK, Sym};
use std::cmp::Reverse;
use std::ops::Range;

/// Bytes of one Elf64_Sym.
pub(super) const SYM: usize = 24;
/// Longest name kept: mangled C++ reaches some kilobytes.
pub(super) const MAX_NAME: usize = 64 << 10;
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

/// One entry of a table.
pub(super) struct Entry<'a> {
    pub symbol: &'a Sym,
    /// Where its name is in the string table, without a version (`@GLIBC_2.2.5`).
    pub name: Range<usize>,
    /// False for a version that is kept for old programs.
    pub current_version: bool,
}

impl Entry<'_> {
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
    symbols: Vec<Sym>,
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
        let bytes = file.section_bytes(section)?;
        let versions = (section.kind == SHT_DYNSYM)
            .then(|| file.layout().section(b".gnu.version"))
            .flatten()
            .and_then(|s| file.section_bytes(s).ok())
            .unwrap_or_default();
        let ctx = Ctx::new(Container::Big, Endian::Little);
        let symbols = Sym::parse(&bytes, 0, bytes.len() / SYM, ctx).map_err(|_| ObjectError::NotElf)?;
        Ok(SymbolTable { symbols, strings, versions })
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = Entry<'_>> {
        self.symbols.iter().enumerate().map(|(index, symbol)| {
            let tail = self.strings.get(symbol.st_name..).unwrap_or_default();
            let whole = tail.split(|&b| b == 0).next().unwrap_or_default();
            let (plain, old) = split_version(whole);
            // Bit 15 of a version index: hidden, not the default version (LSB, "Symbol Version
            // Table").
            let hidden = self.versions.get(index * 2 + 1).is_some_and(|high| high & 0x80 != 0);
            let name = if plain.is_empty() { 0..0 } else { symbol.st_name..symbol.st_name + plain.len() };
            Entry { symbol, name, current_version: !hidden && !old }
        })
    }
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
    fn versions() {
        assert_eq!(split_version(b"cfree@GLIBC_2.2.5"), (&b"cfree"[..], true));
        assert_eq!(split_version(b"memcpy@@GLIBC_2.14"), (&b"memcpy"[..], false));
        assert_eq!(split_version(b"malloc"), (&b"malloc"[..], false));
    }
}

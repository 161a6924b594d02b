//! Which function a call through the procedure linkage table (or the global offset table) means: the
//! relocations say which symbol's address the loader puts into each slot.

use super::file::ElfFile;
use super::symtab::Names;
use std::collections::HashMap;

/// Elf64_Rela: offset, info, addend.
const RELA: usize = 24;
const SHT_RELA: u32 = 4;
/// Elf64_Sym.
const SYM: usize = 24;
// System V ABI, x86-64, table 4.9
const R_X86_64_GLOB_DAT: u32 = 6;
const R_X86_64_JUMP_SLOT: u32 = 7;

/// Tables of relocations that are read; linkers write two for the loader, before all others.
const MOST_TABLES: usize = 16;

/// Slots of the global offset table that hold functions of other files, by virtual address.
#[derive(Default, Debug)]
pub struct Linkage {
    slots: HashMap<u64, Box<[u8]>>,
}

impl Linkage {
    pub fn read(file: &ElfFile) -> Linkage {
        let mut out = Linkage::default();
        for section in file.layout().sections.iter().filter(|s| s.kind == SHT_RELA).take(MOST_TABLES) {
            // A damaged table is left out.
            let _ = out.add(file, section);
        }
        out
    }

    fn add(&mut self, file: &ElfFile, section: &super::elf::Section) -> Option<()> {
        let sections = &file.layout().sections;
        let symbols = sections.get(usize::try_from(section.link).ok()?)?;
        let strings = sections.get(usize::try_from(symbols.link).ok()?)?;
        let relocations = file.section_bytes(section).ok()?;
        let symbols = file.section_bytes(symbols).ok()?;
        let strings = file.section_bytes(strings).ok()?;
        let word = |bytes: &[u8], at: usize| -> Option<u64> {
            Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
        };
        let mut names = Names::of(&strings);
        for relocation in relocations.chunks_exact(RELA) {
            let (slot, info) = (word(relocation, 0)?, word(relocation, 8)?);
            if !matches!(info as u32, R_X86_64_GLOB_DAT | R_X86_64_JUMP_SLOT) {
                continue;
            }
            let symbol = usize::try_from(info >> 32).ok()?.checked_mul(SYM)?;
            let Some(name_at) = word(&symbols, symbol).map(|first| first as u32 as usize) else { continue };
            let name = names.at(name_at)?;
            if !name.is_empty() {
                self.slots.insert(slot, name.into());
            }
        }
        Some(())
    }

    /// The symbol whose address the slot at this virtual address holds.
    pub fn symbol_at(&self, slot: u64) -> Option<&[u8]> {
        self.slots.get(&slot).map(|name| &**name)
    }

    /// A slot that holds the address of this function, by virtual address.
    pub fn slot_of(&self, symbol: &[u8]) -> Option<u64> {
        self.slots.iter().filter(|(_, name)| &***name == symbol).map(|(slot, _)| *slot).min()
    }
}

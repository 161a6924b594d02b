//! Where a file's variables are.

use super::object::Object;
use super::symtab::{SymbolTable, strings};
use goblin::elf::section_header::{SHT_DYNSYM, SHT_SYMTAB};
use goblin::elf::sym::STT_OBJECT;
use memchr::memmem;

/// The virtual address, as the file states it, of a variable by its name in a symbol table; a global
/// one rather than a local one. Damaged tables are left out.
pub fn variable(object: &Object, name: &[u8]) -> Option<u64> {
    find(object, name, &[SHT_DYNSYM, SHT_SYMTAB])
}

/// The same of a variable that the file exports.
pub fn exported(object: &Object, name: &[u8]) -> Option<u64> {
    find(object, name, &[SHT_DYNSYM])
}

fn find(object: &Object, name: &[u8], tables: &[u32]) -> Option<u64> {
    let mut found = None;
    for &kind in tables {
        for section in object.layout().sections.iter().filter(|section| section.kind == kind) {
            // Most files do not have the name, and their strings show it without their symbols.
            if strings(object, section).is_ok_and(|strings| memmem::find(&strings, name).is_none()) {
                continue;
            }
            let Ok(table) = SymbolTable::read(object, section) else { continue };
            let mut here = table.entries().filter(|entry| {
                entry.symbol.st_type() == STT_OBJECT
                    && entry.symbol.st_shndx != 0
                    && table.strings.get(entry.name.clone()) == Some(name)
            });
            let global = |best: Option<(bool, u64)>, global: bool, at: u64| match best {
                Some(best) if best.0 || !global => Some(best),
                _ => Some((global, at)),
            };
            found = here.by_ref().fold(found, |best, entry| {
                global(best, entry.symbol.st_bind() != goblin::elf::sym::STB_LOCAL, entry.symbol.st_value)
            });
        }
    }
    found.map(|(_, at)| at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn variables_of_the_c_library() {
        let path = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/libc.so.6"];
        let Some(path) = path.iter().map(Path::new).find(|path| path.exists()) else {
            crate::skip::skip_this("no libc.so.6");
            return;
        };
        let object = Object::from_file(std::fs::File::open(path).expect("opens")).expect("an ELF file");
        assert!(variable(&object, b"environ").is_some_and(|at| at > 0));
        assert_eq!(variable(&object, b"malloc"), None, "a function");
        assert_eq!(variable(&object, b"no_such_variable"), None);
    }
}

//! Which allocators and runtimes a file was made with, by what stripping leaves: its dynamic symbols,
//! its sections' names, and the strings of its messages.

use super::elf::Section;
use super::object::Object;
use super::symtab::SymbolTable;
use crate::model::Mark;
use goblin::elf::section_header::{SHT_DYNSYM, SHT_NOBITS};
use goblin::elf::sym::{STT_FUNC, STT_GNU_IFUNC};
use regex::bytes::Regex;
use std::collections::BTreeSet;
use std::sync::LazyLock;

/// Constants of one file that are searched at most, bytes. Node's executable has 40 MB of them.
const MAX_SEARCHED: u64 = 128 << 20;
const CHUNK: u64 = 1 << 20;
/// Longer than any string that is searched for, with what stands before and behind it.
const OVERLAP: u64 = 64;

/// What one file holds.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Found {
    /// Sorted, each once.
    pub marks: Vec<Mark>,
    /// The environment variable that jemalloc reads.
    pub jemalloc_setting: Option<String>,
    /// Of glibc's shared object.
    pub glibc: Option<GlibcFacts>,
}

/// What can be told of a libc.so.6.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GlibcFacts {
    pub version: (u32, u32),
    /// Where its own `malloc` is, and where its calls of `malloc` find the function to call, both as
    /// the file states addresses.
    pub malloc: Option<(u64, u64)>,
}

/// Reads the file's dynamic symbols, and where those do not settle it, its constants. Damaged or
/// missing parts are left out.
pub fn marks_of(object: &Object) -> Found {
    let exports = Exports::read(object);
    if exports.is_loader {
        return Found::default();
    }
    if let Some(version) = exports.glibc {
        let slot = object.linkage().slot_of(b"malloc");
        let glibc = Some(GlibcFacts { version, malloc: exports.malloc.zip(slot) });
        return Found { marks: vec![Mark::Glibc], glibc, ..Found::default() };
    }
    let mut marks = BTreeSet::new();
    let mut setting = None;
    if object.layout().sections.iter().any(|s| s.name.ends_with(b".gopclntab")) {
        marks.insert(Mark::Go);
    }
    for (offset, size) in constants(object) {
        search(object, (offset, size), &mut marks, &mut setting);
    }
    if exports.malloc.is_some() && !marks.contains(&Mark::Musl) {
        marks.insert(Mark::ExportsMalloc);
    }
    let jemalloc_setting = setting.filter(|_| marks.contains(&Mark::Jemalloc));
    Found { marks: marks.into_iter().collect(), jemalloc_setting, glibc: None }
}

/// What the dynamic symbols tell.
#[derive(Default)]
struct Exports {
    malloc: Option<u64>,
    glibc: Option<(u32, u32)>,
    /// ld.so: before glibc 2.31 it has a `malloc`, for itself.
    is_loader: bool,
}

impl Exports {
    fn read(object: &Object) -> Exports {
        let mut out = Exports::default();
        for section in object.layout().sections.iter().filter(|s| s.kind == SHT_DYNSYM) {
            let Ok(table) = SymbolTable::read(object, section) else { continue };
            for entry in table.entries().filter(|entry| entry.symbol.st_shndx != 0) {
                let function = matches!(entry.symbol.st_type(), STT_FUNC | STT_GNU_IFUNC);
                match table.strings.get(entry.name.clone()).unwrap_or_default() {
                    b"malloc" if function => out.malloc = Some(entry.symbol.st_value),
                    b"gnu_get_libc_version" => out.glibc = newest_version(&table.strings),
                    b"_rtld_global" => out.is_loader = true,
                    _ => {}
                }
            }
        }
        out
    }
}

/// glibc names the interfaces of each of its versions: the newest `GLIBC_2.N` is its own.
fn newest_version(strings: &[u8]) -> Option<(u32, u32)> {
    let names = strings.split(|&b| b == 0).filter_map(|name| name.strip_prefix(b"GLIBC_"));
    let version = |name: &[u8]| -> Option<(u32, u32)> {
        let (major, rest) = std::str::from_utf8(name).ok()?.split_once('.')?;
        let minor = rest.split('.').next()?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    };
    names.filter_map(version).max()
}

/// Where the file keeps its constants: offset and size. Without section headers, all that is loaded.
fn constants(object: &Object) -> Vec<(u64, u64)> {
    let layout = object.layout();
    let holds_constants = |s: &&Section| {
        let names: [&[u8]; 2] = [b".rodata", b".lrodata"];
        s.kind != SHT_NOBITS && !s.is_compressed() && names.iter().any(|name| s.name.starts_with(name))
    };
    let parts: Vec<(u64, u64)> = match layout.sections.is_empty() {
        false => layout.sections.iter().filter(holds_constants).map(|s| (s.offset, s.size)).collect(),
        true => layout.segments.iter().map(|s| (s.offset, s.file_size)).collect(),
    };
    let mut left = MAX_SEARCHED;
    let bounded = parts.into_iter().map(|(offset, size)| {
        let size = size.min(left);
        left -= size;
        (offset, size)
    });
    bounded.filter(|&(_, size)| size > 0).collect()
}

/// Messages and names of settings that nobody else has (seen in none of the stripped programs that
/// were made without the allocator).
const STRINGS: &[(&str, Mark)] = &[
    ("<jemalloc>", Mark::Jemalloc),
    ("mimalloc: ", Mark::Mimalloc),
    // src/system-alloc.cc, page_heap.cc
    ("TCMALLOC_SKIP_SBRK", Mark::Gperftools),
    ("TCMALLOC_RELEASE_RATE", Mark::Gperftools),
    // tcmalloc/system-alloc.cc: its names for PR_SET_VMA
    ("tcmalloc_region_", Mark::Tcmalloc),
    // malloc/malloc.c, malloc_printerr
    ("malloc(): ", Mark::Glibc),
    // ldso/dynlink.c, for `ldd`
    ("musl libc (", Mark::Musl),
];
/// The end of the variable's name: `--with-jemalloc-prefix` puts something before it.
const SETTING: &str = "MALLOC_CONF\0";

static NEEDLES: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let needles = STRINGS.iter().map(|(needle, _)| *needle).chain([SETTING]);
    Regex::new(&needles.map(regex::escape).collect::<Vec<_>>().join("|")).ok()
});

fn search(object: &Object, part: (u64, u64), marks: &mut BTreeSet<Mark>, setting: &mut Option<String>) {
    let Some(needles) = &*NEEDLES else { return };
    let (mut at, end) = (part.0, part.0.saturating_add(part.1));
    while at < end {
        let len = (end - at).min(CHUNK + OVERLAP);
        let Ok(bytes) = object.read(at, len) else { return };
        for found in needles.find_iter(&bytes) {
            let text = found.as_bytes();
            if text == SETTING.as_bytes() {
                setting.get_or_insert(variable(&bytes[..found.end()]));
            } else if let Some((_, mark)) = STRINGS.iter().find(|(needle, _)| needle.as_bytes() == text) {
                marks.insert(*mark);
            }
        }
        at += CHUNK;
    }
}

/// The variable's whole name, from the bytes up to the zero byte behind it.
fn variable(until: &[u8]) -> String {
    let until = until.strip_suffix(b"\0").unwrap_or(until);
    let part_of_name = |b: &u8| b.is_ascii_uppercase() || b.is_ascii_digit() || *b == b'_';
    let len = until.iter().rev().take(OVERLAP as usize).take_while(|b| part_of_name(b)).count();
    String::from_utf8_lossy(&until[until.len() - len..]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(path: &str) -> Option<Found> {
        let Ok(file) = std::fs::File::open(path) else {
            crate::skip::skip_this(&format!("no {path}"));
            return None;
        };
        Some(marks_of(&Object::from_file(file).expect("an ELF file")))
    }

    #[test]
    fn of_libraries_here() {
        const LIB: &str = "/lib/x86_64-linux-gnu";
        if let Some(found) = of(&format!("{LIB}/libc.so.6")) {
            assert_eq!(found.marks, [Mark::Glibc]);
            let glibc = found.glibc.expect("a version");
            assert!(glibc.version >= (2, 17) && glibc.version < (3, 0), "{:?}", glibc.version);
            assert!(glibc.malloc.is_some_and(|(function, slot)| function != 0 && slot != 0));
        }
        if let Some(found) = of(&format!("{LIB}/ld-linux-x86-64.so.2")) {
            assert_eq!(found, Found::default());
        }
        if let Some(found) = of(&format!("{LIB}/libjemalloc.so.2")) {
            assert_eq!(found.marks, [Mark::Jemalloc, Mark::ExportsMalloc]);
            assert_eq!(found.jemalloc_setting.as_deref(), Some("MALLOC_CONF"));
        }
        if let Some(found) = of(&format!("{LIB}/libtcmalloc_minimal.so.4")) {
            assert_eq!(found.marks, [Mark::Gperftools, Mark::ExportsMalloc]);
        }
        if let Some(found) = of(&format!("{LIB}/libmimalloc.so.2.0")) {
            assert_eq!(found.marks, [Mark::Mimalloc, Mark::ExportsMalloc]);
        }
        if let Some(found) = of("/lib/ld-musl-x86_64.so.1") {
            assert_eq!(found.marks, [Mark::Musl]);
        }
        if let Some(found) = of(&format!("{LIB}/libm.so.6")) {
            assert_eq!(found, Found::default());
        }
    }

    #[test]
    fn versions_and_variables() {
        assert_eq!(newest_version(b"\0GLIBC_2.9\0GLIBC_2.36\0GLIBC_2.2.5\0GLIBC_PRIVATE\0"), Some((2, 36)));
        assert_eq!(newest_version(b"\0malloc\0"), None);
        assert_eq!(variable(b"conf\0_RJEM_MALLOC_CONF\0"), "_RJEM_MALLOC_CONF");
        assert_eq!(variable(b"MALLOC_CONF\0"), "MALLOC_CONF");
    }

    #[test]
    fn a_string_across_two_chunks_is_found() {
        let mut bytes = std::fs::read("/proc/self/exe").expect("own program");
        // No section headers: what is loaded is searched.
        bytes[0x28..0x30].fill(0);
        bytes[0x3c..0x40].fill(0);
        let object = Object::from_bytes(bytes.clone()).expect("an ELF file");
        let segments = object.layout().segments.clone();
        let long = segments.iter().find(|s| s.file_size > CHUNK + OVERLAP).copied();
        let Some(long) = long else { return };
        let at = (long.offset + CHUNK - 4) as usize;
        bytes[at..at + 16].copy_from_slice(b"tcmalloc_region_");
        let mut marks = BTreeSet::new();
        let object = Object::from_bytes(bytes).expect("an ELF file");
        search(&object, (long.offset, CHUNK + OVERLAP), &mut marks, &mut None);
        assert!(marks.contains(&Mark::Tcmalloc));
    }
}

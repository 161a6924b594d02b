//! Which allocators and runtimes a file was made with, by what stripping leaves: its dynamic symbols,
//! its sections' names, and the strings of its messages.

use super::elf::{Section, Segment};
use super::object::Object;
use super::symtab::SymbolTable;
use crate::model::{EXPORTS_MALLOC, Sign};
use goblin::elf::section_header::{SHT_DYNSYM, SHT_NOBITS};
use goblin::elf::sym::{STT_FUNC, STT_GNU_IFUNC};
use regex::bytes::Regex;
use std::collections::BTreeSet;

/// Constants of one file that are searched at most, bytes. Node's executable has 40 MB of them.
const MAX_SEARCHED: u64 = 128 << 20;
const CHUNK: u64 = 1 << 20;
/// Longer than any string that is searched for, with what precedes and follows it.
const OVERLAP: u64 = 64;

/// What one file holds.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct FileFacts {
    /// Sorted, each once.
    pub marks: Vec<String>,
    /// The environment variable that the allocator in it reads.
    pub setting: Option<String>,
    pub libc: Option<LibcFacts>,
    /// Its PT_LOAD program headers.
    pub segments: Vec<Segment>,
}

/// What is known of a C library with versions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LibcFacts {
    pub version: (u32, u32),
    /// Where its own `malloc` is, and where its calls of `malloc` find the function to call, both as
    /// the file states addresses.
    pub malloc: Option<(u64, u64)>,
}

/// What files are searched for, all strings at once.
pub struct MarkSearch {
    signs: Vec<Sign>,
    needles: Option<Regex>,
}

impl MarkSearch {
    pub fn new(signs: &[Sign]) -> MarkSearch {
        let strings = signs.iter().flat_map(|sign| sign.strings).map(|text| regex::escape(text));
        let settings = signs.iter().filter_map(|sign| sign.setting);
        // with the zero byte that ends it: what precedes it is a part of its name
        let settings = settings.map(|end| regex::escape(end) + "\0");
        let needles = Regex::new(&strings.chain(settings).collect::<Vec<_>>().join("|")).ok();
        MarkSearch { signs: signs.to_vec(), needles }
    }

    pub fn is_for(&self, signs: &[Sign]) -> bool {
        self.signs == signs
    }
}

/// Reads the file's dynamic symbols, and where those do not settle it, its constants. Damaged or
/// missing parts are left out.
pub fn marks_of(object: &Object, search: &MarkSearch) -> FileFacts {
    let signs = &search.signs[..];
    let exports = Exports::read(object, signs);
    let segments = object.layout().segments.clone();
    if exports.is_loader {
        return FileFacts { segments, ..FileFacts::default() };
    }
    if let Some((mark, version)) = exports.libc {
        let slot = object.linkage().slot_of(b"malloc");
        let libc = Some(LibcFacts { version, malloc: exports.malloc.zip(slot) });
        return FileFacts { marks: vec![mark.to_owned()], libc, segments, setting: None };
    }
    let ends = |sign: &Sign| {
        let end = sign.section.map(str::as_bytes);
        end.is_some_and(|end| object.layout().sections.iter().any(|s| s.name.ends_with(end)))
    };
    let mut search = Search { of: search, marks: BTreeSet::new(), setting: None };
    search.marks.extend(signs.iter().filter(|sign| ends(sign)).map(|sign| sign.mark));
    for part in constants(object) {
        search.part(object, part);
    }
    let Search { mut marks, setting, .. } = search;
    if exports.malloc.is_some() && !signs.iter().any(|sign| sign.is_libc && marks.contains(sign.mark)) {
        marks.insert(EXPORTS_MALLOC);
    }
    let setting = setting.filter(|(mark, _)| marks.contains(mark)).map(|(_, variable)| variable);
    FileFacts { marks: marks.into_iter().map(str::to_owned).collect(), setting, libc: None, segments }
}

/// What the dynamic symbols show.
#[derive(Default)]
struct Exports {
    malloc: Option<u64>,
    /// Its mark and version.
    libc: Option<(&'static str, (u32, u32))>,
    /// ld.so: before glibc 2.31 it has a `malloc`, for itself.
    is_loader: bool,
}

impl Exports {
    fn read(object: &Object, signs: &[Sign]) -> Exports {
        let mut out = Exports::default();
        for section in object.layout().sections.iter().filter(|s| s.kind == SHT_DYNSYM) {
            let Ok(table) = SymbolTable::read(object, section) else { continue };
            for entry in table.entries().filter(|entry| entry.symbol.st_shndx != 0) {
                let function = matches!(entry.symbol.st_type(), STT_FUNC | STT_GNU_IFUNC);
                match table.strings.get(entry.name.clone()).unwrap_or_default() {
                    b"malloc" if function => out.malloc = Some(entry.symbol.st_value),
                    b"_rtld_global" => out.is_loader = true,
                    name => {
                        let versioned = signs.iter().filter_map(|sign| Some((sign.mark, sign.versioned?)));
                        let own = |(_, (export, _)): &(&str, (&str, &str))| export.as_bytes() == name;
                        if let Some((mark, (_, prefix))) = versioned.filter(|_| function).find(own) {
                            out.libc = newest_version(&table.strings, prefix).map(|version| (mark, version));
                        }
                    }
                }
            }
        }
        out
    }
}

/// It names the interfaces of each of its versions: the newest is its own.
fn newest_version(strings: &[u8], prefix: &str) -> Option<(u32, u32)> {
    let names = strings.split(|&b| b == 0).filter_map(|name| name.strip_prefix(prefix.as_bytes()));
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

/// What was found of them in one file.
struct Search<'a> {
    of: &'a MarkSearch,
    marks: BTreeSet<&'static str>,
    /// Whose variable, and its name.
    setting: Option<(&'static str, String)>,
}

impl Search<'_> {
    fn part(&mut self, object: &Object, (mut at, size): (u64, u64)) {
        let MarkSearch { signs, needles: Some(needles) } = self.of else { return };
        let end = at.saturating_add(size);
        while at < end {
            let len = (end - at).min(CHUNK + OVERLAP);
            let Ok(bytes) = object.read(at, len) else { return };
            for found in needles.find_iter(&bytes) {
                let text = found.as_bytes();
                let has = |sign: &&Sign| sign.strings.iter().any(|string| string.as_bytes() == text);
                if let Some(sign) = signs.iter().find(has) {
                    self.marks.insert(sign.mark);
                    continue;
                }
                let reads = |sign: &&Sign| {
                    sign.setting.map(str::as_bytes).is_some_and(|end| text.strip_suffix(b"\0") == Some(end))
                };
                if let Some(sign) = signs.iter().find(reads)
                    && let Some(name) = variable(&bytes[..found.end()])
                {
                    self.setting.get_or_insert((sign.mark, name));
                }
            }
            at += CHUNK;
        }
    }
}

/// The variable's whole name, from the bytes up to the zero byte behind it. None where it ends a sentence: those who
/// print of the variable are not those who read it.
fn variable(until: &[u8]) -> Option<String> {
    let until = until.strip_suffix(b"\0").unwrap_or(until);
    let part_of_name = |b: &u8| b.is_ascii_uppercase() || b.is_ascii_digit() || *b == b'_';
    let len = until.iter().rev().take(OVERLAP as usize).take_while(|b| part_of_name(b)).count();
    let (before, name) = until.split_at(until.len() - len);
    before.last().is_none_or(|&b| b == 0).then(|| String::from_utf8_lossy(name).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attribution::rules::signs;

    fn of(path: &str) -> Option<FileFacts> {
        let Ok(file) = std::fs::File::open(path) else {
            crate::skip::skip_this(&format!("no {path}"));
            return None;
        };
        Some(marks_of(&Object::from_file(file).expect("an ELF file"), &MarkSearch::new(signs())))
    }

    #[test]
    fn of_libraries_here() {
        const LIB: &str = "/lib/x86_64-linux-gnu";
        if let Some(found) = of(&format!("{LIB}/libc.so.6")) {
            assert_eq!(found.marks, ["glibc"]);
            let glibc = found.libc.expect("a version");
            assert!(glibc.version >= (2, 17) && glibc.version < (3, 0), "{:?}", glibc.version);
            assert!(glibc.malloc.is_some_and(|(function, slot)| function != 0 && slot != 0));
        }
        if let Some(found) = of(&format!("{LIB}/ld-linux-x86-64.so.2")) {
            assert!(found.marks.is_empty() && !found.segments.is_empty());
        }
        if let Some(found) = of(&format!("{LIB}/libjemalloc.so.2")) {
            assert_eq!(found.marks, ["exports-malloc", "jemalloc"]);
            assert_eq!(found.setting.as_deref(), Some("MALLOC_CONF"));
        }
        if let Some(found) = of(&format!("{LIB}/libtcmalloc_minimal.so.4")) {
            assert_eq!(found.marks, ["exports-malloc", "gperftools"]);
        }
        if let Some(found) = of(&format!("{LIB}/libmimalloc.so.2.0")) {
            assert_eq!(found.marks, ["exports-malloc", "mimalloc"]);
        }
        if let Some(found) = of("/lib/ld-musl-x86_64.so.1") {
            assert_eq!(found.marks, ["musl"]);
        }
        if let Some(found) = of(&format!("{LIB}/libm.so.6")) {
            assert!(found.marks.is_empty() && found.libc.is_none());
        }
    }

    #[test]
    fn versions_and_variables() {
        assert_eq!(
            newest_version(b"\0GLIBC_2.9\0GLIBC_2.36\0GLIBC_2.2.5\0GLIBC_PRIVATE\0", "GLIBC_"),
            Some((2, 36))
        );
        assert_eq!(newest_version(b"\0malloc\0", "GLIBC_"), None);
        assert_eq!(variable(b"conf\0_RJEM_MALLOC_CONF\0").as_deref(), Some("_RJEM_MALLOC_CONF"));
        assert_eq!(variable(b"MALLOC_CONF\0").as_deref(), Some("MALLOC_CONF"));
        assert_eq!(
            variable(b"\0value of the environment variable MALLOC_CONF\0"),
            None,
            "a sentence of ClickHouse's"
        );
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
        let object = Object::from_bytes(bytes).expect("an ELF file");
        let of = MarkSearch::new(signs());
        let mut search = Search { of: &of, marks: BTreeSet::new(), setting: None };
        search.part(&object, (long.offset, CHUNK + OVERLAP));
        assert!(search.marks.contains("tcmalloc"));
    }
}

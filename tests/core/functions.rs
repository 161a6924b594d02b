//! On files made here, byte by byte.

use vmaudit::model::{Probe, Skip};
use vmaudit::objects::Object;
use vmaudit::objects::functions::*;

const FUNC: u8 = 2;
const IFUNC: u8 = 10;
const LOCAL: u8 = 0;
const GLOBAL: u8 = 1;
const WEAK: u8 = 2;

/// Sections of the file made: 1 is code, 2 is data, 3 a linkage table.
struct Symbol(&'static str, u64, u64, u8, u8, u16);

/// A shared object whose code is at file offset 0x1000 and address 0x3000, 0x1000 bytes of it.
fn elf(symbols: &[Symbol]) -> Vec<u8> {
    let mut strings = vec![0u8];
    let mut table = vec![0u8; 24];
    for &Symbol(name, value, size, kind, binding, section) in symbols {
        table.extend((strings.len() as u32).to_le_bytes());
        table.extend([binding << 4 | kind, 0]);
        table.extend(section.to_le_bytes());
        table.extend(value.to_le_bytes());
        table.extend(size.to_le_bytes());
        strings.extend(name.bytes().chain([0]));
    }
    let names = b"\0.text\0.data\0.plt\0.symtab\0.strtab\0";
    let mut out = vec![0u8; 0x2000];
    let segment = |kind: u32, flags: u32, offset: u64, vaddr: u64, size: u64| {
        let mut bytes = Vec::new();
        bytes.extend(kind.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        [offset, vaddr, vaddr, size, size, 0x1000].iter().for_each(|word| bytes.extend(word.to_le_bytes()));
        bytes
    };
    let section = |name: u32, kind: u32, flags: u64, place: [u64; 3], link: u32| {
        let mut bytes = Vec::new();
        bytes.extend(name.to_le_bytes());
        bytes.extend(kind.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        place.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
        bytes.extend(link.to_le_bytes());
        bytes.resize(64, 0);
        bytes
    };
    out[64..64 + 56].copy_from_slice(&segment(1, 4, 0, 0x2000, 0x1000));
    out[120..120 + 56].copy_from_slice(&segment(1, 5, 0x1000, 0x3000, 0x1000));
    let table_at = out.len() as u64;
    let table_len = table.len() as u64;
    out.extend(table);
    let strings_at = out.len() as u64;
    let strings_len = strings.len() as u64;
    out.extend(strings);
    let names_at = out.len() as u64;
    out.extend(names);
    let sections_at = out.len() as u64;
    out.extend(section(0, 0, 0, [0; 3], 0));
    out.extend(section(1, 1, 6, [0x3000, 0x1000, 0x800], 0));
    out.extend(section(7, 1, 3, [0x2000, 0, 0x1000], 0));
    out.extend(section(13, 1, 6, [0x3800, 0x1800, 0x800], 0));
    out.extend(section(18, 2, 0, [0, table_at, table_len], 5));
    out.extend(section(26, 3, 0, [0, strings_at, strings_len], 0));
    out.extend(section(1, 3, 0, [0, names_at, names.len() as u64], 0));
    let mut head = b"\x7fELF\x02\x01\x01".to_vec();
    head.resize(16, 0);
    head.extend(3u16.to_le_bytes());
    head.extend(62u16.to_le_bytes());
    head.extend(1u32.to_le_bytes());
    [0x3000, 64, sections_at].iter().for_each(|word: &u64| head.extend(word.to_le_bytes()));
    head.extend(0u32.to_le_bytes());
    [64u16, 56, 2, 64, 7, 6].iter().for_each(|half| head.extend(half.to_le_bytes()));
    out[..64].copy_from_slice(&head);
    out
}

fn table(symbols: &[Symbol]) -> FunctionTable {
    let object = Object::from_bytes(elf(symbols)).expect("an ELF file");
    FunctionTable::read(&object, DebugFiles::default())
}

fn probe(table: &FunctionTable, name: &str) -> Probe {
    let mut found = table.by_name(name.as_bytes());
    let first = found.next().unwrap_or_else(|| panic!("no {name}"));
    assert!(found.next().is_none(), "two {name}");
    first.probe
}

#[test]
fn each_reason() {
    let table = table(&[
        Symbol("plain", 0x3010, 8, FUNC, GLOBAL, 1),
        Symbol("register_tm_clones", 0x3020, 0, FUNC, LOCAL, 1),
        Symbol("imported", 0, 0, FUNC, GLOBAL, 0),
        Symbol("imported_with_stub", 0x3810, 0, FUNC, GLOBAL, 0),
        Symbol("memcpy", 0x3030, 8, IFUNC, GLOBAL, 1),
        Symbol("stub", 0x3820, 16, FUNC, LOCAL, 3),
        Symbol("absolute", 0x3040, 8, FUNC, GLOBAL, 0xfff1),
        Symbol("data", 0x2010, 8, FUNC, GLOBAL, 2),
        Symbol("nowhere", 0x9000, 8, FUNC, GLOBAL, 1),
        Symbol("many_sections", 0x3050, 8, FUNC, GLOBAL, 0xffff),
        Symbol("assembly", 0x3060, 8, 0, LOCAL, 1),
        Symbol("label", 0x3064, 0, 0, LOCAL, 1),
        Symbol("object", 0x2020, 8, 1, GLOBAL, 2),
    ]);
    for (name, expected) in [
        ("plain", Probe::Yes),
        ("register_tm_clones", Probe::No(Skip::ZeroSize)),
        ("imported", Probe::No(Skip::Imported)),
        ("imported_with_stub", Probe::No(Skip::Imported)),
        ("memcpy", Probe::No(Skip::IfuncResolver)),
        ("stub", Probe::No(Skip::LinkageStub)),
        ("absolute", Probe::No(Skip::Absolute)),
        ("data", Probe::No(Skip::NotExecutable)),
        ("nowhere", Probe::No(Skip::NotLoaded)),
        ("many_sections", Probe::Yes),
        ("assembly", Probe::Yes),
    ] {
        assert_eq!(probe(&table, name), expected, "{name}");
    }
    assert_eq!(table.functions().len(), 11, "labels and data are no functions");
    assert!(table.notes().is_empty(), "{:?}", table.notes());
}

#[test]
fn offsets_come_from_program_headers() {
    let table = table(&[Symbol("f", 0x3010, 8, FUNC, GLOBAL, 1)]);
    assert_eq!(table.functions()[0].offset, Some(0x1010));
    assert_eq!(table.functions()[0].svma, 0x3010);
}

#[test]
fn no_probe_stands_on_vector_code() {
    let mut bytes = elf(&[
        Symbol("__strchrnul_evex", 0x3010, 8, FUNC, LOCAL, 1),
        Symbol("alias", 0x3010, 8, FUNC, GLOBAL, 1),
        Symbol("__memset_avx2", 0x3020, 8, FUNC, LOCAL, 1),
        Symbol("plain", 0x3030, 8, FUNC, LOCAL, 1),
    ]);
    bytes[0x1010] = 0x62;
    bytes[0x1020] = 0xc5;
    bytes[0x1030] = 0x55;
    let table = FunctionTable::read(&Object::from_bytes(bytes).expect("an ELF file"), DebugFiles::default());
    for name in ["__strchrnul_evex", "alias", "__memset_avx2"] {
        assert_eq!(probe(&table, name), Probe::No(Skip::Vector), "{name}");
    }
    assert_eq!(probe(&table, "plain"), Probe::Yes);
}

#[test]
fn one_name_of_an_address_is_probed_and_the_others_say_which() {
    let table = table(&[
        Symbol("__libc_malloc", 0x3010, 8, FUNC, GLOBAL, 1),
        Symbol("malloc", 0x3010, 8, FUNC, GLOBAL, 1),
        Symbol("weak_malloc", 0x3010, 8, FUNC, WEAK, 1),
        Symbol("sizeless", 0x3010, 0, FUNC, GLOBAL, 1),
        Symbol("resolver", 0x3010, 8, IFUNC, GLOBAL, 1),
        Symbol("other", 0x3020, 8, FUNC, GLOBAL, 1),
    ]);
    assert_eq!(probe(&table, "malloc"), Probe::Yes);
    for alias in ["__libc_malloc", "weak_malloc", "sizeless"] {
        let function = table.by_name(alias.as_bytes()).next().expect("listed");
        assert!(matches!(function.probe, Probe::No(Skip::Alias { .. })), "{alias}: {:?}", function.probe);
        assert_eq!(table.probed(function).map(|f| table.name(f)), Some(&b"malloc"[..]), "{alias}");
    }
    assert_eq!(probe(&table, "resolver"), Probe::No(Skip::IfuncResolver));
    assert_eq!(probe(&table, "other"), Probe::Yes);
}

#[test]
fn a_file_that_ends_early_says_so_and_keeps_the_rest() {
    let whole = elf(&[Symbol("f", 0x3010, 8, FUNC, GLOBAL, 1), Symbol("g", 0x3020, 8, FUNC, GLOBAL, 1)]);
    for len in 0..whole.len() {
        let Ok(object) = Object::from_bytes(whole[..len].to_vec()) else { continue };
        let table = FunctionTable::read(&object, DebugFiles::default());
        assert!(!table.notes().is_empty(), "cut at {len}: nothing said");
    }
}

#[test]
fn no_damage_panics_or_needs_much() {
    let whole = elf(&[Symbol("f", 0x3010, 8, FUNC, GLOBAL, 1), Symbol("g", 0x3020, 8, FUNC, GLOBAL, 1)]);
    let interesting = (0..256).chain(0x2000..whole.len());
    for at in interesting {
        for value in [0u8, 1, 0x7f, 0x80, 0xff] {
            let mut bytes = whole.clone();
            bytes[at] = value;
            if let Ok(object) = Object::from_bytes(bytes) {
                let table = FunctionTable::read(&object, DebugFiles::default());
                for function in table.functions() {
                    let _ = table.name(function);
                    if function.probe == Probe::Yes {
                        assert!(function.offset.is_some_and(|o| o < whole.len() as u64), "{function:?}");
                    }
                }
                let _ = table.by_name(b"f").count();
            }
        }
    }
}

//! Any bytes as the unwind tables of a mapped file, and as the stack that is unwound by them.
//!
//! The first 8 bytes: what tables there are, the address in the code, sizes of the header and of the stack. The
//! header (`.eh_frame_hdr`), the stack and the table follow.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vmaudit::model::{Addr, AddrRange, FileRef, MmKey, StackSample, StackTable};
use vmaudit::objects::{Cfi, FileCache, Object, ObjectError, OpenRequest, Opener};
use vmaudit::unwind::{ExecMapping, SpaceState, Unwinder};

/// Where the file is mapped.
const BASE: u64 = 0x7f00_0000_0000;
/// The file's addresses of the header and of the tables.
const HEADER_AT: u64 = 0x8000;
const TABLE_AT: u64 = 0x10000;
/// What its only segment says of its size.
const SIZE: u64 = 0x40000;

const NAMES: &[u8] = b"\0.eh_frame\0.debug_frame\0";

struct Given(Vec<u8>);

impl Opener for Given {
    fn open(&self, _: &OpenRequest<'_>) -> Result<Object, ObjectError> {
        Object::from_bytes(self.0.clone())
    }
}

/// An ELF file of one segment, with the header and one or two tables.
fn file(tables: u8, header: &[u8], table: &[u8]) -> Vec<u8> {
    let (names_at, header_at) = (64u64 + 2 * 56, 64 + 2 * 56 + NAMES.len() as u64);
    let table_at = header_at + header.len() as u64;
    let sections_at = table_at + table.len() as u64;
    let mut out = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\x3e\0\x01\0\0\0".to_vec();
    let word = |out: &mut Vec<u8>, word: u64| out.extend_from_slice(&word.to_le_bytes());
    let stripped = tables & 4 != 0;
    for value in [0x20000, 64, if stripped { 0 } else { sections_at }] {
        word(&mut out, value);
    }
    let segments = 1 + u16::from(tables & 1 != 0);
    for half in [0u16, 0, 64, 56, segments, 64, 4, 3] {
        out.extend_from_slice(&half.to_le_bytes());
    }
    // PT_LOAD with PF_X and PF_R, from offset 0; PT_GNU_EH_FRAME
    for (kind, [offset, addr, size]) in
        [(1 | 5 << 32, [0, 0, SIZE]), (0x6474_e550 | 4 << 32, [header_at, HEADER_AT, header.len() as u64])]
    {
        for value in [kind, offset, addr, addr, size, size, 8] {
            word(&mut out, value);
        }
    }
    out.extend_from_slice(NAMES);
    out.extend_from_slice(header);
    out.extend_from_slice(table);
    let size = table.len() as u64;
    let (eh, debug) = (if tables & 2 != 0 { 1 } else { 0 }, if tables & 8 != 0 { 11 } else { 0 });
    for [name, addr, offset, size] in [
        [0; 4],
        [eh, TABLE_AT, table_at, size],
        [debug, 0, table_at, size],
        [0, 0, names_at, NAMES.len() as u64],
    ] {
        for value in [name | 1 << 32, 2, addr, offset, size, 0, 8, 0] {
            word(&mut out, value);
        }
    }
    out
}

fuzz_target!(|bytes: &[u8]| {
    let Some((&[tables, address @ .., header, low, high], rest)) = bytes.split_first_chunk::<8>() else {
        return;
    };
    let svma = u64::from(u32::from_le_bytes(address)) % SIZE;
    let (header, rest) = rest.split_at(usize::from(header).min(rest.len()));
    let (stack, table) = rest.split_at(usize::from(u16::from_le_bytes([low, high])).min(rest.len()));
    let bytes = file(tables, header, table);
    let object = Object::from_bytes(bytes.clone()).expect("an ELF file");
    if let Some(bounds) = Cfi::read(&object).bounds(svma) {
        assert!(bounds.contains(&svma));
    }
    let file = FileRef { major: 1, minor: 2, inode: 3, path: b"/fuzzed".to_vec(), deleted: false };
    let range = AddrRange::from_len(Addr(BASE), SIZE);
    let (mm, sp) = (MmKey(1), 0x7ffd_0000_0000);
    let mut unwinder = Unwinder::new(FileCache::new(Box::new(Given(bytes))));
    let mut stacks = StackTable::default();
    let state = SpaceState { mm, generation: 1, pid: 1 };
    unwinder.set_modules(state, [ExecMapping { range, offset: 0, file: Some(&file) }], &mut stacks);
    let sample = StackSample {
        ip: BASE + svma,
        sp,
        bp: sp + 16,
        bx: sp,
        r12: u64::MAX,
        few: tables & 16 != 0,
        full: tables & 32 != 0,
        holes: tables & 64 != 0,
        returned: tables & 128 != 0,
        bytes: stack,
        ..StackSample::default()
    };
    unwinder.plain_rules(mm, &sample);
    let first = unwinder.unwind(mm, &sample);
    let (id, _) = unwinder.unwind_interned(mm, &sample, &mut stacks);
    assert_eq!(stacks.stack(id).frames, first.frames);
    // This time from memory, where it was worth to be kept.
    let (again, _) = unwinder.unwind_interned(mm, &sample, &mut stacks);
    assert_eq!(stacks.stack(again).frames, first.frames);
});

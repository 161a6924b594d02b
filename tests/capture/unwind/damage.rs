//! Damaged and hostile files and stacks: any result will do, but there has to be one, soon, and
//! without a panic.

use crate::unwind::captured::*;
use std::process::Command;
use vmaudit::model::StackTable;
use vmaudit::objects::{FileCache, Object, ObjectError, OpenRequest, Opener};
use vmaudit::unwind::{MAX_FRAMES, SpaceState, Unwinder};

/// xorshift64*: the same sequence in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}

/// Gives the same damaged bytes for every requested file.
struct Damaged(Vec<u8>);

impl Opener for Damaged {
    fn open(&self, _: &OpenRequest<'_>) -> Result<Object, ObjectError> {
        Object::from_bytes(self.0.clone())
    }
}

fn capture(dir: &std::path::Path, compile: &str) -> (Capture, Vec<u8>) {
    let path = build(dir, compile, "program");
    let mut program = Program::start(&mut Command::new(&path));
    let capture = program.capture().unwrap();
    program.finish();
    (capture, std::fs::read(path).unwrap())
}

#[test]
fn damaged_files() {
    let dir = tempfile::tempdir().unwrap();
    let mut random = Random(0x5eed);
    for compile in ["gcc -O2 -static unwind_steps.c", "gcc -O2 unwind_steps.c"] {
        let (capture, whole) = capture(dir.path(), compile);
        let layout = Object::from_bytes(whole.clone()).unwrap().layout().clone();
        let names: [&[u8]; 5] = [b".eh_frame", b".eh_frame_hdr", b".symtab", b".dynsym", b".text"];
        let mut places: Vec<(usize, usize)> = names
            .iter()
            .filter_map(|n| layout.section(n))
            .map(|s| (s.offset as usize, s.size as usize))
            .collect();
        places.push((0, 64 + 12 * 56));
        places.push((whole.len() - 40 * 64, 40 * 64));
        for round in 0..150 {
            let mut bytes = whole.clone();
            let (start, len) = places[round % places.len()];
            for _ in 0..1 + random.below(200) {
                let at = (start + random.below(len)).min(bytes.len() - 1);
                bytes[at] = if random.below(3) == 0 { 0xff } else { random.next() as u8 };
            }
            if random.below(5) == 0 {
                bytes.truncate(random.below(whole.len()));
            }
            let mut unwinder = Unwinder::new(FileCache::new(Box::new(Damaged(bytes))));
            let mut table = StackTable::default();
            let state = SpaceState { mm: MM, generation: 1, pid: 1 };
            unwinder.set_modules(state, capture.modules(), &mut table);
            let stack = unwinder.unwind(MM, &capture.stack());
            assert!((1..=MAX_FRAMES).contains(&stack.frames.len()));
        }
    }
}

#[test]
fn hostile_stacks() {
    let dir = tempfile::tempdir().unwrap();
    let (capture, _) = capture(dir.path(), "gcc -O2 unwind_steps.c");
    let mut unwinder = Unwinder::default();
    let mut table = StackTable::default();
    unwinder.set_modules(SpaceState { mm: MM, generation: 1, pid: 1 }, capture.modules(), &mut table);
    let mut random = Random(7);
    let code: Vec<u64> = capture.mappings.iter().map(|(range, ..)| range.start.0).collect();
    for _ in 0..300 {
        let mut bytes = capture.bytes.clone();
        for word in bytes.chunks_exact_mut(8) {
            let value = match random.below(6) {
                0 => random.next(),
                1 => code[random.below(code.len())] + random.below(1 << 20) as u64,
                2 => capture.registers[1] + 8 * random.below(1 << 10) as u64,
                _ => continue,
            };
            word.copy_from_slice(&value.to_le_bytes());
        }
        let mut captured = capture.stack();
        captured.bytes = &bytes;
        captured.full = random.below(2) == 0;
        match random.below(4) {
            0 => captured.ip = random.next(),
            1 => captured.bp = random.next(),
            2 => (captured.sp, captured.bp) = (u64::MAX - random.below(64) as u64, u64::MAX),
            _ => {}
        }
        let stack = unwinder.unwind(MM, &captured);
        assert!((1..=MAX_FRAMES).contains(&stack.frames.len()));
    }
}

/// A frame that returns into itself for ever, by frame pointer and by scanning.
#[test]
fn endless_stacks_end() {
    let dir = tempfile::tempdir().unwrap();
    let (capture, _) = capture(dir.path(), "gcc -O2 unwind_steps.c");
    let mut unwinder = Unwinder::default();
    let mut table = StackTable::default();
    unwinder.set_modules(SpaceState { mm: MM, generation: 1, pid: 1 }, capture.modules(), &mut table);
    let whole = unwinder.unwind(MM, &capture.stack());
    // 64 KiB full of one return address.
    let [ip, sp, ..] = capture.registers;
    let word = capture.bytes[..8].to_vec();
    let bytes = word.repeat(8192);
    let mut captured = capture.stack();
    captured.bytes = &bytes;
    (captured.ip, captured.sp) = (ip, sp);
    let stack = unwinder.unwind(MM, &captured);
    assert!(stack.frames.len() <= MAX_FRAMES && whole.frames.len() < MAX_FRAMES);
}

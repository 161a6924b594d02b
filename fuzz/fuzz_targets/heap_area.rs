//! Any bytes as what a hostile process has written into the memory that it shares with vmaudit: an operation is a part of the
//! file, a place in it, and bytes that are repeated there.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::fs::File;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use vmaudit::capture::preload::layout::{BYTES, PARTS};
use vmaudit::capture::preload::{Area, StackRead};

/// Part, place (4 bytes), step, how often, bytes.
const OPERATION: usize = 8;

fn file() -> File {
    // SAFETY: it has just been made.
    let fd = unsafe { libc::memfd_create(c"fuzz".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(fd >= 0, "memfd_create");
    let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    file.set_len(BYTES as u64).expect("its length");
    file
}

fuzz_target!(|bytes: &[u8]| {
    let file = file();
    let mut rest = bytes;
    while let Some((&[part, a, b, c, d, step, times, len], after)) = rest.split_first_chunk::<OPERATION>() {
        let (value, after) = after.split_at(usize::from(len).min(after.len()));
        rest = after;
        let part = PARTS[usize::from(part) % PARTS.len()];
        let at = u32::from_le_bytes([a, b, c, d]) as usize;
        // Near the beginning mostly, where the library writes.
        let at = if step & 0x80 == 0 { at % 65_536 } else { at << 3 };
        for time in 0..usize::from(times).max(1) {
            let place = (at + time * usize::from(step & 0x7f)) % part.bytes;
            let value = &value[..value.len().min(part.bytes - place)];
            file.write_all_at(value, (part.at + place) as u64).expect("memory");
        }
    }
    let area = Area::of(file).expect("mapped");
    let stacks = area.last_stack().expect("searched");
    area.counted().expect("read");
    let (mut all, mut count) = (0u64, 0u64);
    area.blocks(|block| {
        all = all.checked_add(block.size).expect("less than an address space");
        count += 1;
    })
    .expect("read");
    assert!(all <= 1 << 47);
    for number in 0..=stacks.min(2000) {
        if let StackRead::Whole(stack) = area.stack(number) {
            assert!(stack.frames.len() <= 1024);
        }
        area.is_cut(number);
        area.description(number);
    }
    for request in area.requests() {
        area.answer(&request);
    }
    area.peak();
    area.forget_rules(1);
    area.publish(0x1000, 1, None);
});

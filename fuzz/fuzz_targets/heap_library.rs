//! The preloaded library as a program: any bytes as what a hostile vmaudit, or somebody else, writes into the shared memory
//! between the allocations and frees that the library counts there.
#![no_main]
#![allow(dead_code)]

use libfuzzer_sys::fuzz_target;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::*;

/// The library, but for its hooks and the allocator behind it.
#[path = "../../preload"]
mod library {
    pub mod area;
    pub mod blocks;
    pub mod cfi;
    pub mod interpreted;
    pub mod math;
    pub mod memory;
    pub mod pages;
    pub mod rules;
    pub mod samples;
    pub mod search;
    pub mod setup;
    pub mod shadow;
    pub mod socket;
    pub mod stacks;
    pub mod sys;
    pub mod tables;
    pub mod thread;
    pub mod walk;

    pub extern "C" fn free_heeded() {}
    pub extern "C" fn free_slow(_: *mut u8) {}

    /// The functions of the next library: none is called, and sizes are what they were.
    pub mod real {
        use super::area::FUNCTIONS;
        use super::cfi::Module;

        pub fn resolve() {}
        pub fn module_of(_: u64) -> Option<Module> {
            None
        }
        pub fn is_resolved() -> bool {
            true
        }
        pub fn is_second() -> bool {
            false
        }
        pub fn is_single() -> bool {
            false
        }
        pub fn at_fork(_: unsafe extern "C" fn()) {}
        pub fn heed_boot() {}
        pub fn only_free() -> Option<usize> {
            None
        }
        pub fn addresses() -> [usize; FUNCTIONS.len()] {
            [0; FUNCTIONS.len()]
        }
        pub fn given(block: u64) -> u64 {
            block & 0xffff
        }
        pub fn pthread_key_create(_: &mut u32, _: unsafe extern "C" fn(*mut u8)) -> i32 {
            -1
        }
        pub fn pthread_setspecific(_: u32, _: *const u8) {}
    }
}

use library::area::{BYTES, MAGIC, MODE_EXACT, MODE_SAMPLE, PARTS};
use library::cfi::{Module, UnwindTable};
use library::thread::{Thread, current};
use library::walk::Registers;
use library::{blocks, memory, samples, setup};

fn sealed(bytes: usize) -> File {
    // SAFETY: it has just been made.
    let fd = unsafe { libc::memfd_create(c"fuzz".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    assert!(fd >= 0, "memfd_create");
    let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    file.set_len(bytes as u64).expect("its length");
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    assert_eq!(unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, seals) }, 0);
    file
}

/// A stack of its own, because what AddressSanitizer puts between the variables of the real one is read by a walk.
fn stack() -> &'static mut [u64] {
    use std::sync::OnceLock;
    static STACK: OnceLock<usize> = OnceLock::new();
    const WORDS: usize = 8192;
    let at = *STACK.get_or_init(|| Box::leak(vec![0u64; WORDS].into_boxed_slice()).as_mut_ptr() as usize);
    // SAFETY: it is leaked, and this thread alone has it.
    unsafe { std::slice::from_raw_parts_mut(at as *mut u64, WORDS) }
}

fn write(file: &File, part: usize, at: usize, value: &[u8]) {
    let part = PARTS[part % PARTS.len()];
    let at = at % part.bytes;
    let value = &value[..value.len().min(part.bytes - at)];
    file.write_all_at(value, (part.at + at) as u64).expect("memory");
}

/// Any bytes as a module whose unwind table is at its beginning.
fn unwind_table(bytes: &[u8]) {
    let module: Box<[u8]> = bytes.into();
    let start = module.as_ptr() as u64;
    let end = start + module.len() as u64;
    if let Some(table) = UnwindTable::of(Module { start, end, header: start }) {
        (start + 1..end).step_by(5).take(64).for_each(|address| _ = table.rule(address));
    }
}

fuzz_target!(|bytes: &[u8]| {
    unwind_table(bytes);
    let Some((&mode, mut rest)) = bytes.split_first() else { return };
    let (area, bell) = (sealed(BYTES), sealed(4096));
    let mode = if mode & 1 == 0 { MODE_EXACT } else { MODE_SAMPLE };
    area.write_all_at(&MAGIC.to_ne_bytes(), 0).expect("memory");
    area.write_all_at(&mode.to_ne_bytes(), 8).expect("memory");
    area.write_all_at(&64u64.to_ne_bytes(), 16).expect("memory");
    let files = [area.as_raw_fd() as isize, bell.as_raw_fd() as isize];
    let started = setup::count_in(files, false);
    assert_eq!(started, Some(mode));
    let head = memory::area().head();
    // Nobody answers: no rules are requested.
    head.generated[0].end.store(u64::MAX, Relaxed);
    head.generated_len.store(1, Relaxed);
    let thread: &mut Thread = unsafe { &mut *current() };
    thread.enter();
    if thread.begin() {
        let stack = stack();
        let (low, high) = (stack.as_ptr() as u64, stack.as_ptr() as u64 + 8 * stack.len() as u64);
        while let Some((&[op, a, b, c, d, e, len, function], after)) = rest.split_first_chunk::<8>() {
            let (value, after) = after.split_at(usize::from(len).min(after.len()));
            rest = after;
            let number = u64::from(u32::from_le_bytes([a, b, c, d]));
            (thread.stack_start, thread.stack_end) = (low, high);
            // At the lower end of the stack, with what the input has above it.
            let at = 64 + usize::from(e) % 64;
            for (to, from) in stack[at..].iter_mut().zip(value.chunks_exact(8)) {
                *to = u64::from_le_bytes(from.try_into().expect("eight"));
            }
            let registers: &Registers = unsafe { &*stack[at..].as_ptr().cast() };
            let address = 0x5555_0000_0000 + (number & 0xffff_fff) * 8;
            match op % 8 {
                0..3 if mode == MODE_EXACT => {
                    blocks::allocated(thread, address, number * u64::from(function), registers, function % 17);
                }
                3 if mode == MODE_EXACT => {
                    if let Some(former) = blocks::freed(thread, address)
                        && function & 1 == 0
                    {
                        blocks::put_back(thread, address, former);
                    }
                }
                0..3 => samples::sampled(thread, address, number, registers, function % 17),
                3 => samples::sample_freed(thread, address),
                4 => setup::unloaded(),
                // What the head says of generated code stays: nobody would answer.
                _ => {
                    let head = std::mem::offset_of!(library::area::Head, real);
                    let (part, at) = (usize::from(op) / 8, number as usize);
                    let at = if part % PARTS.len() == 0 { head + at % 8192 } else { at % 262_144 };
                    if part % PARTS.len() != 1 || value.len() == 16 {
                        write(&area, part, at, value);
                    }
                }
            }
        }
    }
    thread.leave();
    // SAFETY: this is the only thread, and it has left its hook.
    unsafe { memory::unmap() };
});

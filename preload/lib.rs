//! Preloaded into the programs whose heap is profiled: it interposes the functions that allocate and free,
//! and counts in memory that it shares with vmaudit ([`area`]).
//!
//! # Safety
//!
//! Three things are taken for granted wherever `unsafe` says nothing else: the areas are as long as [`area`] says and hold
//! atomics only, a thread's own data ([`thread::Thread`]) are used by that thread alone, and the real functions have libc's
//! types. Stacks are read between the hook's stack pointer and the end of the mapping that it is in.
//!
//! What has to be fast is assembly: a subtraction and a jump while no mark of the sample is met. No libc: what a
//! hook calls must not take locks that the hook's caller may hold. Built by build.rs, embedded in vmaudit.

#![no_std]

pub mod area;
mod blocks;
mod cfi;
mod interpreted;
mod math;
mod memory;
pub mod pages;
mod real;
mod rules;
mod samples;
mod search;
mod setup;
mod shadow;
mod socket;
mod stacks;
mod sys;
mod tables;
mod thread;
mod walk;

use area::*;
use core::arch::naked_asm;
use thread::{Thread, current};
use walk::Registers;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {
        unsafe { core::arch::asm!("ud2") };
    }
}

/// The calling thread, where its calls are counted, and in which mode; until [`Counting`] goes.
struct Counting(&'static mut Thread, u32, Bytes);

/// Whether the assembly has taken the call's bytes from `left`.
#[derive(Clone, Copy, PartialEq)]
enum Bytes {
    Taken,
    /// This call is the one that began to count.
    NotTaken,
}

impl Drop for Counting {
    fn drop(&mut self) {
        if self.1 == MODE_EXACT {
            self.0.left = 0;
        }
        self.0.leave();
    }
}

#[inline(always)]
fn enter() -> Option<Counting> {
    let thread = unsafe { &mut *current() };
    if thread.inside != 0 {
        return None;
    }
    thread.enter();
    let epoch = setup::epoch();
    if epoch == thread.epoch && setup::mode_of(epoch) != MODE_OFF && !is_over() {
        return Some(Counting(thread, setup::mode_of(epoch), Bytes::Taken));
    }
    let (mode, bytes) = begin(thread)?;
    Some(Counting(thread, mode, bytes))
}

/// vmaudit has finished.
#[inline(always)]
fn is_over() -> bool {
    memory::area().head().mode.load(core::sync::atomic::Ordering::Relaxed) == MODE_OFF
}

/// The thread is in a hook, and begins to count, or leaves it.
#[cold]
#[inline(never)]
fn begin(thread: &mut Thread) -> Option<(u32, Bytes)> {
    let mut mode = setup::mode();
    let mut bytes = Bytes::Taken;
    if mode == MODE_OFF {
        mode = setup::begin();
        bytes = Bytes::NotTaken;
    }
    let is_new = thread.generation != setup::generation();
    if mode == MODE_OFF || is_new && !thread.begin() {
        thread.leave();
        return None;
    }
    if is_over() {
        setup::retire(thread.slot);
        thread.leave();
        return None;
    }
    if is_new && mode == MODE_SAMPLE {
        // What was left asleep is not for the sample; the bytes of this call are.
        thread.left = thread.left.min(0).wrapping_add(samples::draw(thread));
    }
    Some((mode, bytes))
}

impl Counting {
    /// Of a function whose assembly counts the bytes down.
    #[inline(always)]
    fn counted_down(&mut self, block: *mut u8, size: usize, registers: &Registers, function: u8) {
        if self.2 == Bytes::NotTaken {
            self.pass(size);
        }
        self.allocated(block, size, registers, function);
    }

    /// Its bytes have been taken from `left`.
    #[inline(always)]
    fn allocated(&mut self, block: *mut u8, size: usize, registers: &Registers, function: u8) {
        let Counting(thread, mode, _) = self;
        if block.is_null() {
            blocks::refused(size as u64);
            // A mark that lies in what is not there is no mark.
            if *mode == MODE_SAMPLE {
                thread.left = samples::draw(thread);
            }
        } else if *mode == MODE_EXACT {
            blocks::allocated(thread, block as u64, size as u64, registers, function);
        } else if thread.left <= 0 {
            samples::sampled(thread, block as u64, size as u64, registers, function);
            thread.left = samples::draw(thread);
        }
    }

    /// For functions whose assembly does not count the bytes down.
    #[inline(always)]
    fn pass(&mut self, size: usize) {
        if self.1 == MODE_SAMPLE {
            self.0.left = self.0.left.saturating_sub_unsigned(size as u64);
        }
    }

    #[inline(always)]
    fn freed(&mut self, block: *mut u8) -> Option<blocks::Former> {
        let Counting(thread, mode, _) = self;
        interpreted::freed(thread, block as u64);
        if *mode == MODE_EXACT {
            return blocks::freed(thread, block as u64);
        }
        samples::sample_freed(thread, block as u64);
        None
    }
}

extern "C" fn malloc_slow(size: usize, registers: &Registers) -> *mut u8 {
    let counting = enter();
    let block = real::malloc(size);
    if let Some(mut counting) = counting {
        counting.counted_down(block, size, registers, MALLOC);
    }
    block
}

extern "C" fn calloc_slow(count: usize, size: usize, registers: &Registers) -> *mut u8 {
    let counting = enter();
    let block = real::calloc(count, size);
    if let Some(mut counting) = counting {
        counting.counted_down(block, count.saturating_mul(size), registers, CALLOC);
    }
    block
}

extern "C" fn free_slow(block: *mut u8) {
    if block.is_null() || real::is_boot(block) {
        return;
    }
    let counting = enter();
    if let Some(mut counting) = counting {
        counting.freed(block);
        // The guard goes first: what the allocator does when it frees is not counted either way.
        real::free(block);
        return;
    }
    real::free(block);
}

fn resized(block: *mut u8, size: usize, registers: &Registers, function: u8) -> *mut u8 {
    if real::is_boot(block) {
        let to = malloc_slow(size, registers);
        return real::from_boot(block, size, to);
    }
    let Some(mut counting) = enter() else { return real::realloc(block, size) };
    let former = if block.is_null() { None } else { counting.freed(block) };
    let to = real::realloc(block, size);
    counting.pass(size);
    if !to.is_null() {
        counting.allocated(to, size, registers, function);
    } else if size != 0 {
        if let Some(former) = former {
            blocks::put_back(counting.0, block as u64, former);
        }
        blocks::refused(size as u64);
    }
    to
}

extern "C" fn realloc_slow(block: *mut u8, size: usize, registers: &Registers) -> *mut u8 {
    resized(block, size, registers, REALLOC)
}

extern "C" fn reallocarray_slow(block: *mut u8, count: usize, size: usize, registers: &Registers) -> *mut u8 {
    // More than there is: the allocator refuses it as it does, errno and all.
    resized(block, count.saturating_mul(size).min(isize::MAX as usize), registers, REALLOCARRAY)
}

fn aligned(function: u8, size: usize, registers: &Registers, real: impl FnOnce() -> *mut u8) -> *mut u8 {
    let counting = enter();
    let block = real();
    if let Some(mut counting) = counting {
        counting.pass(size);
        counting.allocated(block, size, registers, function);
    }
    block
}

extern "C" fn memalign_slow(alignment: usize, size: usize, registers: &Registers) -> *mut u8 {
    aligned(MEMALIGN, size, registers, || real::memalign(alignment, size))
}

extern "C" fn aligned_alloc_slow(alignment: usize, size: usize, registers: &Registers) -> *mut u8 {
    aligned(ALIGNED_ALLOC, size, registers, || real::aligned_alloc(alignment, size))
}

extern "C" fn valloc_slow(size: usize, registers: &Registers) -> *mut u8 {
    aligned(VALLOC, size, registers, || real::valloc(size))
}

extern "C" fn pvalloc_slow(size: usize, registers: &Registers) -> *mut u8 {
    aligned(PVALLOC, size, registers, || real::pvalloc(size))
}

extern "C" fn posix_memalign_slow(
    to: *mut *mut u8,
    alignment: usize,
    size: usize,
    registers: &Registers,
) -> i32 {
    let counting = enter();
    let error = real::posix_memalign(to, alignment, size);
    if let Some(mut counting) = counting {
        counting.pass(size);
        let block = if error == 0 { unsafe { *to } } else { core::ptr::null_mut() };
        counting.allocated(block, size, registers, POSIX_MEMALIGN);
    }
    error
}

extern "C" fn dlclose_slow(handle: *mut u8) -> i32 {
    let before = real::unloads();
    let result = real::dlclose(handle);
    if real::unloads() != before {
        setup::unloaded();
    }
    result
}

/// Where the operator is: the real one's address, or ours before it.
extern "C" fn operator_target(number: usize) -> usize {
    let real = real::operator(number);
    let target = match real {
        // It was called, so it exists: it is not found by name.
        0 => return without_operator as *const () as usize,
        _ if real::operators_are_own() => {
            setup::publish_real();
            OPERATOR_COUNTED[number] as *const () as usize
        }
        real => real,
    };
    real::OPERATOR_TARGET[number].store(target, core::sync::atomic::Ordering::Release);
    target
}

extern "C" fn without_operator() -> ! {
    loop {
        unsafe { core::arch::asm!("ud2") };
    }
}

/// An operator that is the allocator's own. Null: it throws, or not; the real one is called for that.
extern "C" fn operator_new_slow(
    size: usize,
    alignment: usize,
    number: usize,
    registers: &Registers,
) -> *mut u8 {
    let real = real::operator(real::NOTHROW[number]);
    if real == 0 {
        return core::ptr::null_mut();
    }
    let counting = enter();
    // The nothrow_t is empty, and is not read.
    let tag = 0usize;
    let block = unsafe {
        match number {
            0..4 => {
                core::mem::transmute::<usize, unsafe extern "C" fn(usize, *const usize) -> *mut u8>(real)(
                    size, &tag,
                )
            }
            _ => core::mem::transmute::<usize, unsafe extern "C" fn(usize, usize, *const usize) -> *mut u8>(
                real,
            )(size, alignment, &tag),
        }
    };
    if let Some(mut counting) = counting
        && !block.is_null()
    {
        counting.pass(size);
        counting.allocated(block, size, registers, OPERATORS + number as u8);
    }
    block
}

/// Before the allocator has it back.
extern "C" fn operator_delete_slow(block: *mut u8, number: usize) -> usize {
    if !block.is_null()
        && let Some(mut counting) = enter()
    {
        counting.freed(block);
    }
    real::operator(number)
}

/// Pushes registers, and describes that to unwinders (DWARF's numbers: System V ABI, figure 3.36).
macro_rules! push {
    ($($register:literal $number:literal),*) => {
        concat!($("push ", $register, "\n.cfi_adjust_cfa_offset 8\n.cfi_rel_offset ", $number, ", 0\n"),*)
    };
}

/// Takes back as many registers.
macro_rules! pop {
    ($($register:literal),*) => {
        concat!($("pop ", $register, "\n.cfi_adjust_cfa_offset -8\n"),*)
    };
}

/// Those that are the caller's.
macro_rules! push_saved {
    () => {
        push!("r15" 15, "r14" 14, "r13" 13, "r12" 12, "rbx" 3, "rbp" 6)
    };
}

/// As they were at the call: they are no longer on the stack.
macro_rules! saved_are_back {
    () => {
        "\n.cfi_restore 15\n.cfi_restore 14\n.cfi_restore 13\n.cfi_restore 12\n.cfi_restore 3\n.cfi_restore 6\n"
    };
}

/// Those with arguments.
macro_rules! push_arguments {
    () => {
        push!("rdi" 5, "rsi" 4, "rdx" 1)
    };
}

macro_rules! pop_arguments {
    () => {
        pop!("rdx", "rsi", "rdi")
    };
}

/// A hook's callee-saved registers and where it returns to, for the walk; then the slow way, with their
/// address as one more argument.
macro_rules! slow {
    ($argument:literal) => {
        concat!(
            push_saved!(),
            "mov ",
            $argument,
            ", rsp\nsub rsp, 8\n.cfi_adjust_cfa_offset 8\ncall {slow}\nadd rsp, 56\n.cfi_adjust_cfa_offset -56",
            saved_are_back!(),
            "ret"
        )
    };
}

macro_rules! hook {
    ($name:ident, $argument:literal, $slow:ident) => {
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        extern "C" fn $name() {
            naked_asm!(".cfi_startproc", slow!($argument), ".cfi_endproc", slow = sym $slow)
        }
    };
}

/// # Safety
/// As libc's.
#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn malloc() {
    naked_asm!(
        ".cfi_startproc",
        "cmp byte ptr [rip + {control} + {awake}], {counts_down}",
        "jae 3f",
        "2:",
        "jmp qword ptr [rip + {real}]",
        "3:",
        "jne 4f",
        "mov rax, qword ptr [rip + vmaudit_thread@GOTTPOFF]",
        "sub qword ptr fs:[rax], rdi",
        // Not at the mark yet, whatever the sign of the requested size.
        "ja 2b",
        "4:",
        slow!("rsi"),
        ".cfi_endproc",
        control = sym setup::CONTROL,
        awake = const core::mem::offset_of!(Control, awake),
        counts_down = const COUNTS_DOWN,
        real = sym real::MALLOC,
        slow = sym malloc_slow,
    )
}

#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn calloc() {
    naked_asm!(
        ".cfi_startproc",
        "cmp byte ptr [rip + {control} + {awake}], {counts_down}",
        "jae 3f",
        "2:",
        "jmp qword ptr [rip + {real}]",
        "3:",
        "jne 4f",
        "mov rax, qword ptr [rip + vmaudit_thread@GOTTPOFF]",
        "mov rdx, rdi",
        "imul rdx, rsi",
        "jc 4f",
        "sub qword ptr fs:[rax], rdx",
        "ja 2b",
        "4:",
        slow!("rdx"),
        ".cfi_endproc",
        control = sym setup::CONTROL,
        awake = const core::mem::offset_of!(Control, awake),
        counts_down = const COUNTS_DOWN,
        real = sym real::CALLOC,
        slow = sym calloc_slow,
    )
}

#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn free() {
    naked_asm!(
        ".cfi_startproc",
        "jmp qword ptr [rip + {target}]",
        ".cfi_endproc",
        target = sym setup::FREE_TARGET,
    )
}

/// Checks whether what is freed is of interest.
#[unsafe(naked)]
extern "C" fn free_heeded() {
    naked_asm!(
        ".cfi_startproc",
        "movabs rdx, 0x9e3779b97f4a7c15",
        "imul rdx, rdi",
        "shr rdx, 48",
        "lea rax, [rip + {heeded}]",
        "cmp byte ptr [rax + rdx], 0",
        "jne {slow}",
        "mov rax, qword ptr [rip + {real}]",
        "test rax, rax",
        "je {slow}",
        "jmp rax",
        ".cfi_endproc",
        heeded = sym setup::HEEDED,
        real = sym real::FREE,
        slow = sym free_slow,
    )
}

hook!(realloc, "rdx", realloc_slow);
hook!(reallocarray, "rcx", reallocarray_slow);
hook!(memalign, "rdx", memalign_slow);
hook!(aligned_alloc, "rdx", aligned_alloc_slow);
hook!(posix_memalign, "rcx", posix_memalign_slow);
hook!(valloc, "rsi", valloc_slow);
hook!(pvalloc, "rsi", pvalloc_slow);

#[unsafe(no_mangle)]
extern "C" fn dlclose(handle: *mut u8) -> i32 {
    dlclose_slow(handle)
}

/// A jump to the operator, which is resolved at the first call.
macro_rules! operator {
    ($name:ident, $number:literal) => {
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)]
        extern "C" fn $name() {
            naked_asm!(
                ".cfi_startproc",
                "mov rax, qword ptr [rip + {target} + 8 * {number}]",
                "test rax, rax",
                "jne 2f",
                push_arguments!(),
                "mov edi, {number}",
                "call {find}",
                pop_arguments!(),
                "2: jmp rax",
                ".cfi_endproc",
                target = sym real::OPERATOR_TARGET,
                number = const $number,
                find = sym operator_target,
            )
        }
    };
}

/// Counts, and calls the real operator itself where that throws.
macro_rules! counted_new {
    ($name:ident, $number:literal) => {
        #[unsafe(naked)]
        extern "C" fn $name() {
            naked_asm!(
                ".cfi_startproc",
                push_saved!(),
                "mov rcx, rsp",
                push_arguments!(),
                "mov edx, {number}",
                "call {slow}",
                pop_arguments!(),
                "add rsp, 48",
                ".cfi_adjust_cfa_offset -48",
                saved_are_back!(),
                "test rax, rax",
                "je 2f",
                "ret",
                "2:",
                push_arguments!(),
                "mov edi, {number}",
                "call {real}",
                pop_arguments!(),
                "jmp rax",
                ".cfi_endproc",
                number = const $number,
                slow = sym operator_new_slow,
                real = sym real_operator,
            )
        }
    };
}

extern "C" fn real_operator(number: usize) -> usize {
    real::operator(number)
}

macro_rules! counted_delete {
    ($name:ident, $number:literal) => {
        #[unsafe(naked)]
        extern "C" fn $name() {
            naked_asm!(
                ".cfi_startproc",
                push_arguments!(),
                "mov esi, {number}",
                "call {slow}",
                pop_arguments!(),
                "jmp rax",
                ".cfi_endproc",
                number = const $number,
                slow = sym operator_delete_slow,
            )
        }
    };
}

macro_rules! operators {
    ($($name:ident $counted:ident $kind:ident $number:literal;)*) => {
        $(operator!($name, $number); $kind!($counted, $number);)*
        static OPERATOR_COUNTED: [extern "C" fn(); real::OPERATORS] = [$($counted),*];
    };
}

operators! {
    _Znwm new0 counted_new 0;
    _Znam new1 counted_new 1;
    _ZnwmRKSt9nothrow_t new2 counted_new 2;
    _ZnamRKSt9nothrow_t new3 counted_new 3;
    _ZnwmSt11align_val_t new4 counted_new 4;
    _ZnamSt11align_val_t new5 counted_new 5;
    _ZnwmSt11align_val_tRKSt9nothrow_t new6 counted_new 6;
    _ZnamSt11align_val_tRKSt9nothrow_t new7 counted_new 7;
    _ZdlPv delete8 counted_delete 8;
    _ZdaPv delete9 counted_delete 9;
    _ZdlPvm delete10 counted_delete 10;
    _ZdaPvm delete11 counted_delete 11;
    _ZdlPvRKSt9nothrow_t delete12 counted_delete 12;
    _ZdaPvRKSt9nothrow_t delete13 counted_delete 13;
    _ZdlPvSt11align_val_t delete14 counted_delete 14;
    _ZdaPvSt11align_val_t delete15 counted_delete 15;
    _ZdlPvmSt11align_val_t delete16 counted_delete 16;
    _ZdaPvmSt11align_val_t delete17 counted_delete 17;
    _ZdlPvSt11align_val_tRKSt9nothrow_t delete18 counted_delete 18;
    _ZdaPvSt11align_val_tRKSt9nothrow_t delete19 counted_delete 19;
}

//! System calls, made directly: a hook may call nothing of libc, whose locks its caller may hold.

use core::arch::asm;
use core::hint::spin_loop;
use core::ptr::null_mut;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Acquire, Relaxed};

const OPEN: usize = 2;
const READ: usize = 0;
const CLOSE: usize = 3;
const FSTAT: usize = 5;
const MMAP: usize = 9;
const MUNMAP: usize = 11;
const RT_SIGPROCMASK: usize = 14;
const IOCTL: usize = 16;
const MREMAP: usize = 25;
const MADVISE: usize = 28;
const NANOSLEEP: usize = 35;
const GETPID: usize = 39;
const FCNTL: usize = 72;
const PRCTL: usize = 157;
const MUNLOCK: usize = 150;
const FUTEX: usize = 202;
const GETRANDOM: usize = 318;
const MEMBARRIER: usize = 324;

const PROT_READ: usize = 1;
const PROT_WRITE: usize = 2;
const MAP_SHARED: usize = 1;
const MAP_PRIVATE: usize = 2;
const MAP_FIXED: usize = 0x10;
const MAP_ANONYMOUS: usize = 0x20;
const MAP_NORESERVE: usize = 0x4000;
const MAP_FIXED_NOREPLACE: usize = 0x10_0000;
const MADV_DONTNEED: usize = 4;
const MADV_REMOVE: usize = 9;
const MADV_DONTFORK: usize = 10;
const MADV_DONTDUMP: usize = 16;
const MADV_WIPEONFORK: usize = 18;
const O_CLOEXEC: usize = 0o2_000_000;
const F_GET_SEALS: usize = 1034;
const GRND_NONBLOCK: usize = 1;
const PR_SET_VMA: usize = 0x5356_4d41;
const PR_SET_VMA_ANON_NAME: usize = 0;
const MEMBARRIER_PRIVATE_EXPEDITED: usize = 8;
const MEMBARRIER_REGISTER_PRIVATE_EXPEDITED: usize = 16;
const FUTEX_WAIT: usize = 0;
const FUTEX_WAKE: usize = 1;
const PROCMAP_QUERY: usize = 0xc068_6611;
const EINTR: isize = -4;
const EFAULT: isize = -14;
const ETIMEDOUT: isize = -110;

pub const PAGE: usize = 4096;

#[inline]
pub unsafe fn call(number: usize, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> isize {
    let result: isize;
    unsafe {
        asm!("syscall", inlateout("rax") number as isize => result, in("rdi") a, in("rsi") b, in("rdx") c,
            in("r10") d, in("r8") e, in("r9") f, lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result
}

/// Memory at the address and nowhere else: of the shared file, or anonymous and private (`file` is None). It is in no core dump and in no
/// child of fork, and what has locked everything (mlockall(2)) does not lock it. False where the kernel refuses, or something is there.
///
/// # Safety
/// With `replace`, what is there must not be used in another way.
pub unsafe fn map_at(at: usize, bytes: usize, file: Option<(isize, usize)>, replace: bool) -> bool {
    let (kind, fd, offset) = match file {
        Some((fd, offset)) => (MAP_SHARED, fd, offset),
        None => (MAP_PRIVATE | MAP_ANONYMOUS, -1, 0),
    };
    let place = if replace { MAP_FIXED } else { MAP_FIXED_NOREPLACE };
    let protection = PROT_READ | PROT_WRITE;
    let flags = kind | place | MAP_NORESERVE;
    let got = unsafe { call(MMAP, at, bytes, protection, flags, fd as usize, offset) };
    if got == at as isize {
        hide(at, bytes);
        return true;
    }
    // Before Linux 4.17 the address is a hint.
    if got > 0 {
        unsafe { unmap(got as *mut u8, bytes) };
    }
    false
}

fn hide(at: usize, bytes: usize) {
    // SAFETY: neither changes what is in the memory.
    unsafe {
        call(MADVISE, at, bytes, MADV_DONTDUMP, 0, 0, 0);
        call(MADVISE, at, bytes, MADV_DONTFORK, 0, 0, 0);
        call(MUNLOCK, at, bytes, 0, 0, 0, 0);
    }
}

/// The mapping that ends at `end` gets so many bytes more, of the same file. It stays where it is, and as it is. False
/// where the kernel refuses.
///
/// # Safety
/// Its last page is one of ours.
pub unsafe fn extend(end: usize, more: usize) -> bool {
    let last = end - PAGE;
    let got = unsafe { call(MREMAP, last, PAGE, PAGE + more, 0, 0, 0) };
    unsafe { call(MUNLOCK, end, more, 0, 0, 0, 0) };
    got == last as isize
}

/// A page of a shared file, which children of fork have as well, and no core dump. Null where the kernel refuses.
pub fn map_page(fd: isize) -> *mut u8 {
    let (protection, flags) = (PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE);
    let at = unsafe { call(MMAP, 0, PAGE, protection, flags, fd as usize, 0) };
    if at < 0 && at > -4096 {
        return null_mut();
    }
    unsafe {
        call(MADVISE, at as usize, PAGE, MADV_DONTDUMP, 0, 0, 0);
        call(MUNLOCK, at as usize, PAGE, 0, 0, 0, 0);
    }
    at as *mut u8
}

pub fn getpid() -> u32 {
    unsafe { call(GETPID, 0, 0, 0, 0, 0, 0) as u32 }
}

/// Private memory of one thread, in no core dump and in no child of fork. Null where the kernel refuses.
pub fn map_private(bytes: usize) -> *mut u8 {
    let at = map_anonymous(bytes);
    if !at.is_null() {
        hide(at as usize, bytes);
        const NAME: &[u8] = b"vmaudit-heap\0";
        let (option, what) = (PR_SET_VMA, PR_SET_VMA_ANON_NAME);
        unsafe { call(PRCTL, option, what, at as usize, bytes, NAME.as_ptr() as usize, 0) };
    }
    at
}

fn map_anonymous(bytes: usize) -> *mut u8 {
    let (protection, flags) = (PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE);
    let at = unsafe { call(MMAP, 0, bytes, protection, flags, usize::MAX, 0) };
    if at < 0 && at > -4096 { null_mut() } else { at as *mut u8 }
}

/// # Safety
/// The memory must not be used any more.
pub unsafe fn unmap(at: *mut u8, bytes: usize) {
    unsafe { call(MUNMAP, at as usize, bytes, 0, 0, 0, 0) };
}

/// Zeros, and no memory, in the place of what is in private memory, from the beginning of a page on.
///
/// # Safety
/// All that others find there meanwhile is what was there, or zeros.
pub unsafe fn empty_private(at: *mut u8, bytes: usize) {
    if unsafe { call(MADVISE, at as usize, bytes, MADV_DONTNEED, 0, 0, 0) } < 0 {
        // It is locked.
        for word in 0..bytes / 8 {
            unsafe { at.cast::<u64>().add(word).write_volatile(0) };
        }
    }
}

/// Gives back what is in whole pages of the range, of a shared file in memory.
///
/// # Safety
/// It must not be needed any more.
pub unsafe fn remove(at: *const u8, bytes: usize) {
    let start = (at as usize).next_multiple_of(4096);
    let end = (at as usize + bytes) & !4095;
    if end > start {
        unsafe { call(MADVISE, start, end - start, MADV_REMOVE, 0, 0, 0) };
    }
}

/// Whatever their priority.
pub fn let_others_run() {
    let time = [0usize, 20_000];
    unsafe { call(NANOSLEEP, time.as_ptr() as usize, 0, 0, 0, 0, 0) };
}

/// Spins this often before it lets others run.
const SPINS: u32 = 1000;

/// Once more in a loop that waits for another thread.
#[inline(always)]
pub fn pause(spins: &mut u32) {
    *spins += 1;
    match *spins % SPINS {
        0 => let_others_run(),
        _ => spin_loop(),
    }
}

/// Until it is unlocked: 0.
pub fn lock(word: &AtomicU32) {
    let mut spins = 0;
    while word.compare_exchange_weak(0, 1, Acquire, Relaxed).is_err() {
        pause(&mut spins);
    }
}

/// A page that is all zeros in a child of fork. Null before Linux 4.14.
pub fn page_wiped_by_fork() -> *mut u8 {
    let page = map_anonymous(PAGE);
    if !page.is_null() && unsafe { call(MADVISE, page as usize, PAGE, MADV_WIPEONFORK, 0, 0, 0) } < 0 {
        unsafe { unmap(page, PAGE) };
        return null_mut();
    }
    page
}

pub fn open(path: &[u8]) -> isize {
    debug_assert!(path.last() == Some(&0));
    unsafe { call(OPEN, path.as_ptr() as usize, O_CLOEXEC, 0, 0, 0, 0) }
}

pub fn read(fd: isize, to: &mut [u8]) -> isize {
    loop {
        let got = unsafe { call(READ, fd as usize, to.as_mut_ptr() as usize, to.len(), 0, 0, 0) };
        if got != EINTR {
            return got;
        }
    }
}

pub fn close(fd: isize) {
    unsafe { call(CLOSE, fd as usize, 0, 0, 0, 0, 0) };
}

/// Wakes one waiter, whichever process that is in.
pub fn wake(word: &AtomicU32) {
    unsafe { call(FUTEX, word.as_ptr() as usize, FUTEX_WAKE, 1, 0, 0, 0) };
}

/// True where the time is over.
pub fn wait(word: &AtomicU32, while_it_is: u32, milliseconds: u64) -> bool {
    let time = [milliseconds / 1000, milliseconds % 1000 * 1_000_000];
    let at = word.as_ptr() as usize;
    let result = unsafe { call(FUTEX, at, FUTEX_WAIT, while_it_is as usize, time.as_ptr() as usize, 0, 0) };
    result == ETIMEDOUT
}

/// Whether eight bytes can be read, without a fault where not. rt_sigprocmask(2) reads the set before it refuses what is to be
/// done with it (kernel/signal.c); whatever a program's seccomp filters forbid, they do not forbid this.
pub fn is_readable(address: u64) -> bool {
    const NOTHING_KNOWN: usize = usize::MAX;
    unsafe { call(RT_SIGPROCMASK, NOTHING_KNOWN, address as usize, 0, 8, 0, 0) != EFAULT }
}

/// The mapping that an address is in.
pub fn mapping_of(address: u64) -> Option<(u64, u64)> {
    let fd = open(b"/proc/self/maps\0");
    if fd < 0 {
        return readable_around(address);
    }
    // struct procmap_query, Linux 6.11
    let mut query = [0u64; 13];
    query[0] = size_of_val(&query) as u64;
    query[2] = address;
    let returned = unsafe { call(IOCTL, fd as usize, PROCMAP_QUERY, query.as_mut_ptr() as usize, 0, 0, 0) };
    let found = match returned {
        0 => Some((query[3], query[4])).filter(|(start, end)| (*start..*end).contains(&address)),
        _ => listed(fd, address),
    };
    close(fd);
    found
}

/// What can be read around an address without a gap, up to so many pages to each side: without /proc, or without a descriptor for it.
fn readable_around(address: u64) -> Option<(u64, u64)> {
    const MOST: u64 = 2048;
    let (page, bytes) = (address & !(PAGE as u64 - 1), PAGE as u64);
    let below = (1..MOST).take_while(|&count| is_readable(page.wrapping_sub(count * bytes))).count() as u64;
    let above = (0..MOST).take_while(|&count| is_readable(page + count * bytes)).count() as u64;
    (above > 0).then(|| (page - below * bytes, page + above * bytes))
}

/// From the lines themselves, which begin with `start-end `.
fn listed(fd: isize, address: u64) -> Option<(u64, u64)> {
    let mut bytes = [0u8; 1024];
    let (mut start, mut number) = (0u64, 0u64);
    // 0: in the first number, 1: in the second one, 2: behind both
    let mut part = 0;
    loop {
        let got = read(fd, &mut bytes);
        if got <= 0 {
            return None;
        }
        for &byte in bytes.get(..got as usize)? {
            match (part, byte) {
                (_, b'\n') => (part, number) = (0, 0),
                (2, _) => {}
                (0, b'-') => (part, start, number) = (1, number, 0),
                (1, b' ') => {
                    if (start..number).contains(&address) {
                        return Some((start, number));
                    }
                    part = 2;
                }
                (_, digit @ b'0'..=b'9') => number = number << 4 | (digit - b'0') as u64,
                (_, digit) => number = number << 4 | (digit.wrapping_sub(b'a') + 10) as u64 & 0xf,
            }
        }
    }
}

/// Bytes of a file.
pub fn length(fd: isize) -> u64 {
    let mut stat = [0u64; 18];
    match unsafe { call(FSTAT, fd as usize, stat.as_mut_ptr() as usize, 0, 0, 0, 0) } {
        0 => stat[6],
        _ => 0,
    }
}

/// Seals of a memory file (fcntl(2)); negative where it is none.
pub fn seals(fd: isize) -> isize {
    unsafe { call(FCNTL, fd as usize, F_GET_SEALS, 0, 0, 0, 0) }
}

/// A number that nobody foresees.
pub fn random() -> u64 {
    let mut out = 0u64;
    let got = unsafe { call(GETRANDOM, (&raw mut out) as usize, size_of::<u64>(), GRND_NONBLOCK, 0, 0, 0) };
    if got == size_of::<u64>() as isize {
        return out;
    }
    // SAFETY: an instruction of every x86-64.
    let cycles = unsafe { core::arch::x86_64::_rdtsc() };
    cycles.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Whether [`barrier`] will work.
pub fn register_barrier() -> bool {
    unsafe { call(MEMBARRIER, MEMBARRIER_REGISTER_PRIVATE_EXPEDITED, 0, 0, 0, 0, 0) == 0 }
}

/// What each thread has written before is seen here, and what is written here each thread sees from now on
/// (membarrier(2), Linux 4.14). False where it is not so.
pub fn barrier() -> bool {
    unsafe { call(MEMBARRIER, MEMBARRIER_PRIVATE_EXPEDITED, 0, 0, 0, 0, 0) == 0 }
}

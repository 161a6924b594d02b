//! System calls, made directly: a hook may call nothing of libc, whose locks its caller may hold.

use core::arch::asm;
use core::hint::spin_loop;
use core::ptr::null_mut;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Acquire, Relaxed};

const OPEN: usize = 2;
const READ: usize = 0;
const CLOSE: usize = 3;
const MMAP: usize = 9;
const MUNMAP: usize = 11;
const RT_SIGPROCMASK: usize = 14;
const IOCTL: usize = 16;
const MADVISE: usize = 28;
const SOCKET: usize = 41;
const CONNECT: usize = 42;
const SENDTO: usize = 44;
const RECVMSG: usize = 47;
const SETSOCKOPT: usize = 54;
const NANOSLEEP: usize = 35;
const GETTID: usize = 186;
const FUTEX: usize = 202;

pub const PROT_READ: usize = 1;
pub const PROT_WRITE: usize = 2;
pub const MAP_SHARED: usize = 1;
pub const MAP_PRIVATE: usize = 2;
const MAP_FIXED: usize = 0x10;
pub const MAP_ANONYMOUS: usize = 0x20;
pub const MAP_NORESERVE: usize = 0x4000;
const MADV_REMOVE: usize = 9;
const MADV_WIPEONFORK: usize = 18;
const O_CLOEXEC: usize = 0o2_000_000;
const AF_UNIX: u16 = 1;
const SOCK_SEQPACKET: usize = 5;
const SOL_SOCKET: usize = 1;
const SO_RCVTIMEO: usize = 20;
const SO_SNDTIMEO: usize = 21;
const MSG_CMSG_CLOEXEC: usize = 0x4000_0000;
const MSG_NOSIGNAL: usize = 0x4000;
const FUTEX_WAIT: usize = 0;
const FUTEX_WAKE: usize = 1;
const PROCMAP_QUERY: usize = 0xc068_6611;
const EINTR: isize = -4;
const EFAULT: isize = -14;
const ETIMEDOUT: isize = -110;

#[inline]
unsafe fn call(number: usize, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> isize {
    let result: isize;
    unsafe {
        asm!("syscall", inlateout("rax") number as isize => result, in("rdi") a, in("rsi") b, in("rdx") c,
            in("r10") d, in("r8") e, in("r9") f, lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result
}

pub fn gettid() -> u64 {
    unsafe { call(GETTID, 0, 0, 0, 0, 0, 0) as u64 }
}

/// Null where the kernel refuses.
pub fn map(bytes: usize, protection: usize, flags: usize, fd: isize) -> *mut u8 {
    unsafe { map_at(null_mut(), bytes, protection, flags, fd) }
}

/// In place of what is mapped there, unless `to` is null.
///
/// # Safety
/// What is there must be of the same kind: others may be using it.
pub unsafe fn map_at(to: *mut u8, bytes: usize, protection: usize, flags: usize, fd: isize) -> *mut u8 {
    let flags = if to.is_null() { flags } else { flags | MAP_FIXED };
    let at = unsafe { call(MMAP, to as usize, bytes, protection, flags, fd as usize, 0) };
    if at < 0 && at > -4096 { null_mut() } else { at as *mut u8 }
}

pub fn map_private(bytes: usize) -> *mut u8 {
    map(bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1)
}

/// # Safety
/// The memory must not be used any more.
pub unsafe fn unmap(at: *mut u8, bytes: usize) {
    unsafe { call(MUNMAP, at as usize, bytes, 0, 0, 0, 0) };
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
fn let_others_run() {
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
    let page = map_private(4096);
    if !page.is_null() && unsafe { call(MADVISE, page as usize, 4096, MADV_WIPEONFORK, 0, 0, 0) } < 0 {
        unsafe { unmap(page, 4096) };
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

/// One waiter.
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
        return None;
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

#[repr(C)]
struct Name {
    family: u16,
    /// An abstract one: begins with a zero byte.
    path: [u8; 108],
}

#[repr(C)]
struct Message {
    name: usize,
    name_len: usize,
    parts: *mut Part,
    part_count: usize,
    control: *mut Control,
    control_len: usize,
    flags: usize,
}

#[repr(C)]
struct Part {
    base: *mut u8,
    len: usize,
}

#[repr(C)]
struct Control {
    len: usize,
    level: i32,
    kind: i32,
    fds: [i32; 2],
}

/// Connects to vmaudit, and gets two files from it.
pub fn files_for(socket: &[u8], hello: &[u8]) -> Option<[isize; 2]> {
    let mut name = Name { family: AF_UNIX, path: [0; 108] };
    for (to, from) in name.path.iter_mut().skip(1).zip(socket) {
        *to = *from;
    }
    let fd = unsafe { call(SOCKET, AF_UNIX as usize, SOCK_SEQPACKET | O_CLOEXEC, 0, 0, 0, 0) };
    if fd < 0 {
        return None;
    }
    // A living vmaudit answers immediately.
    let patience = [2u64, 0];
    for option in [SO_RCVTIMEO, SO_SNDTIMEO] {
        let at = patience.as_ptr() as usize;
        unsafe { call(SETSOCKOPT, fd as usize, SOL_SOCKET, option, at, size_of_val(&patience), 0) };
    }
    let files = exchange(fd, &name, 3 + socket.len(), hello);
    close(fd);
    files
}

fn exchange(fd: isize, name: &Name, name_len: usize, hello: &[u8]) -> Option<[isize; 2]> {
    let to = name as *const Name as usize;
    if unsafe { call(CONNECT, fd as usize, to, name_len, 0, 0, 0) } < 0 {
        return None;
    }
    let sent = unsafe { call(SENDTO, fd as usize, hello.as_ptr() as usize, hello.len(), MSG_NOSIGNAL, 0, 0) };
    if sent != hello.len() as isize {
        return None;
    }
    let mut answer = [0u8; 8];
    let mut part = Part { base: answer.as_mut_ptr(), len: answer.len() };
    let mut control = Control { len: 0, level: 0, kind: 0, fds: [-1, -1] };
    let mut message = Message {
        name: 0,
        name_len: 0,
        parts: &mut part,
        part_count: 1,
        control: &mut control,
        control_len: size_of::<Control>(),
        flags: 0,
    };
    let at = &mut message as *mut Message as usize;
    let got = loop {
        let got = unsafe { call(RECVMSG, fd as usize, at, MSG_CMSG_CLOEXEC, 0, 0, 0) };
        if got != EINTR {
            break got;
        }
    };
    if got <= 0 || control.len != size_of::<Control>() {
        return None;
    }
    Some(control.fds.map(|fd| fd as isize))
}

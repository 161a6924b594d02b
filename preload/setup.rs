//! When and for whom is counted.

use super::area::*;
use super::real;
use super::thread::{Thread, current};
use super::{sys, walk};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering::*};

/// The shared file, mapped whole.
#[derive(Clone, Copy)]
pub struct Area(*mut u8);

macro_rules! part {
    ($name:ident, $at:expr, $of:ty) => {
        #[inline(always)]
        pub fn $name(self, index: usize) -> &'static $of {
            unsafe { &*self.0.add($at).cast::<$of>().add(index) }
        }
    };
}

impl Area {
    #[inline(always)]
    pub fn base(self) -> usize {
        self.0 as usize
    }

    #[inline(always)]
    pub fn head(self) -> &'static Head {
        unsafe { &*self.0.cast::<Head>() }
    }

    #[inline(always)]
    pub fn counts(self) -> *mut Count {
        unsafe { self.0.add(AT_COUNTS).cast() }
    }

    part!(rule, AT_RULES, Rule);
    part!(stack, AT_STACKS, Stack);
    part!(hash, AT_HASHES, Hash);
    part!(word, AT_WORDS, AtomicU64);
    part!(sample, AT_SAMPLES, Sample);
    part!(ask, AT_ASKS, Ask);
    part!(given, AT_GIVEN, AtomicU32);
    part!(window, AT_WINDOWS, AtomicU32);

    #[inline(always)]
    pub fn leaf_word(self, leaf: usize, word: usize) -> &'static AtomicU64 {
        unsafe { &*self.0.add(AT_LEAVES + leaf * LEAF_BYTES).cast::<AtomicU64>().add(word) }
    }
}

static AREA: AtomicPtr<u8> = AtomicPtr::new(null_mut());
static DOORBELL: AtomicPtr<Doorbell> = AtomicPtr::new(null_mut());

/// [`MODE_EXACT`] …, in a page that a child of fork finds empty.
static AWAKE: AtomicPtr<AtomicU32> = AtomicPtr::new(null_mut());

/// 0: not begun. 1: somebody does. 2: counting. 3: for good not.
static STATE: AtomicU32 = AtomicU32::new(0);
const BUSY: u32 = 1;
const COUNTING: u32 = 2;
const NEVER: u32 = 3;

static SOCKET: [AtomicU8; 64] = [const { AtomicU8::new(0) }; 64];
static THREAD_KEY: AtomicU32 = AtomicU32::new(u32::MAX);

/// Which frees are looked at: how many blocks that are of interest have an address that comes to the same.
/// The assembly of `free` reads it.
pub static HEEDED: [AtomicU8; 1 << HEEDED_BITS] = [const { AtomicU8::new(0) }; 1 << HEEDED_BITS];
pub const HEEDED_BITS: u32 = 16;

/// Only while [`mode`] says that something is counted.
#[inline(always)]
pub fn area() -> Area {
    Area(AREA.load(Relaxed))
}

#[inline(always)]
pub fn doorbell() -> &'static Doorbell {
    unsafe { &*DOORBELL.load(Relaxed) }
}

fn heeded(address: u64) -> &'static AtomicU8 {
    &HEEDED[spread(address, HEEDED_BITS) & ((1 << HEEDED_BITS) - 1)]
}

/// What begins at the address is of interest, or not any more. At 255 it stays so for ever.
pub fn heed(address: u64, it: bool) {
    let count = heeded(address);
    let step = |count: u8| match (count, it) {
        (u8::MAX, _) => None,
        (count, true) => Some(count + 1),
        (count, false) => Some(count.saturating_sub(1)),
    };
    let _ = count.fetch_update(Relaxed, Relaxed, step);
}

fn heed_all(it: bool) {
    for count in &HEEDED {
        count.store(it as u8, Relaxed);
    }
    real::heed_boot();
}

/// Of the process that this is now: [`MODE_OFF`] in a child of fork until it has an area of its own.
#[inline(always)]
pub fn mode() -> u32 {
    let awake = AWAKE.load(Relaxed);
    match awake.is_null() {
        true => MODE_OFF,
        false => unsafe { (*awake).load(Relaxed) },
    }
}

/// The mode, after beginning where that was not tried yet.
#[cold]
#[inline(never)]
pub fn begin() -> u32 {
    let forked = STATE.load(Acquire) == COUNTING;
    if forked && STATE.compare_exchange(COUNTING, BUSY, AcqRel, Relaxed).is_err() {
        return mode();
    }
    if !forked && STATE.compare_exchange(0, BUSY, AcqRel, Relaxed).is_err() {
        return mode();
    }
    if forked {
        walk::listen_again();
    }
    let mode = start(forked).unwrap_or(MODE_OFF);
    if mode == MODE_OFF {
        heed_all(false);
    }
    STATE.store(if mode == MODE_OFF { NEVER } else { COUNTING }, Release);
    mode
}

/// vmaudit has what it wanted: nothing is counted from now on.
#[cold]
#[inline(never)]
pub fn retire(thread: &mut Thread) {
    STATE.store(NEVER, Relaxed);
    let awake = AWAKE.load(Relaxed);
    if !awake.is_null() {
        unsafe { (*awake).store(MODE_OFF, Relaxed) };
    }
    heed_all(false);
    thread.left = i64::MAX;
}

/// True once it is clear that nothing will ever be counted here.
pub fn is_never() -> bool {
    STATE.load(Relaxed) == NEVER
}

fn start(forked: bool) -> Option<u32> {
    let mut name = [0u8; 64];
    let name = match forked {
        true => {
            for (to, from) in name.iter_mut().zip(&SOCKET) {
                *to = from.load(Relaxed);
            }
            let len = name.iter().position(|&byte| byte == 0)?;
            &name[..len]
        }
        false => {
            let len = socket_name(&mut name)?;
            for (to, from) in SOCKET.iter().zip(&name[..len]) {
                to.store(*from, Relaxed);
            }
            &name[..len]
        }
    };
    let hello = Hello { magic: MAGIC, forked: forked as u32, pad: 0 };
    let bytes = unsafe { core::slice::from_raw_parts((&raw const hello).cast::<u8>(), size_of::<Hello>()) };
    let [file, bell] = sys::files_for(name, bytes)?;
    let shared = sys::PROT_READ | sys::PROT_WRITE;
    let at = sys::map(BYTES, shared, sys::MAP_SHARED | sys::MAP_NORESERVE, file);
    let bell_at = sys::map(4096, shared, sys::MAP_SHARED, bell);
    sys::close(file);
    sys::close(bell);
    if at.is_null() || bell_at.is_null() {
        return None;
    }
    let area = Area(at);
    if area.head().magic.load(Relaxed) != MAGIC {
        return None;
    }
    let awake = match AWAKE.load(Relaxed) {
        former if former.is_null() => sys::page_wiped_by_fork().cast::<AtomicU32>(),
        former => former,
    };
    if awake.is_null() {
        return None;
    }
    let former = AREA.swap(at, Relaxed);
    if !former.is_null() {
        unsafe {
            sys::unmap(former, BYTES);
            sys::unmap(DOORBELL.load(Relaxed).cast(), 4096);
        }
    }
    DOORBELL.store(bell_at.cast(), Relaxed);
    let mode = area.head().mode.load(Relaxed);
    heed_all(mode == MODE_EXACT);
    if THREAD_KEY.load(Relaxed) == u32::MAX {
        let mut key = 0u32;
        if real::pthread_key_create(&mut key, thread_ends) == 0 {
            THREAD_KEY.store(key, Relaxed);
        }
    }
    area.head().begun.store(1, Release);
    AWAKE.store(awake, Relaxed);
    unsafe { (*awake).store(mode, Release) };
    tell_real();
    Some(mode)
}

/// Where the functions are in truth, as far as they were looked for.
pub fn tell_real() {
    if mode() != MODE_OFF {
        for (to, from) in area().head().real.iter().zip(real::addresses()) {
            to.store(from as u64, Relaxed);
        }
    }
}

/// From the environment that the process was started with: libc may not have it yet.
fn socket_name(to: &mut [u8; 64]) -> Option<usize> {
    const VARIABLE: &[u8] = b"VMAUDIT_HEAP=";
    let fd = sys::open(b"/proc/self/environ\0");
    if fd < 0 {
        return None;
    }
    let mut bytes = [0u8; 512];
    // How much of the variable's name has been met, and of its value.
    let (mut met, mut len, mut other) = (0, 0, false);
    let found = 'read: loop {
        let got = sys::read(fd, &mut bytes);
        if got <= 0 {
            break None;
        }
        for &byte in &bytes[..(got as usize).min(bytes.len())] {
            if met == VARIABLE.len() {
                match byte {
                    0 => break 'read Some(len),
                    _ if len == to.len() - 1 => break 'read None,
                    _ => {
                        to[len] = byte;
                        len += 1;
                    }
                }
            } else if byte == 0 {
                (met, other) = (0, false);
            } else if !other && byte == VARIABLE[met] {
                met += 1;
            } else {
                other = true;
            }
        }
    };
    sys::close(fd);
    found.filter(|&len| len > 0)
}

/// libc's destructor of a thread's value calls [`Thread::end`].
pub fn end_is_told(thread: &Thread) {
    let key = THREAD_KEY.load(Relaxed);
    if key != u32::MAX {
        real::pthread_setspecific(key, (thread as *const Thread).cast());
    }
}

unsafe extern "C" fn thread_ends(_: *mut u8) {
    unsafe { (*current()).end() };
}

/// A library may be gone: what is known of its code is void then.
pub fn unloaded() {
    if mode() != MODE_OFF {
        area().head().code.fetch_add(1, AcqRel);
    }
}

/// As soon as the library is there.
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = constructor;

extern "C" fn constructor() {
    real::resolve();
    // Also where nothing will ever be allocated: that is known then.
    let thread = unsafe { &mut *current() };
    if mode() == MODE_OFF && thread.inside == 0 {
        thread.inside = 1;
        begin();
        thread.inside = 0;
    }
}

//! When counting begins and ends.

use super::area::*;
use super::pages::LEAF_BYTES;
use super::real;
use super::thread::{Thread, current};
use super::{sys, walk};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

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
    part!(tail, AT_TAILS, Hash);
    part!(word, AT_WORDS, AtomicU64);
    part!(sample, AT_SAMPLES, Sample);
    part!(request, AT_REQUESTS, Request);
    part!(given, AT_GIVEN, AtomicU32);
    part!(window, AT_WINDOWS, AtomicU32);
    part!(leaf_window, AT_LEAF_WINDOWS, AtomicU32);

    #[inline(always)]
    pub fn page(self, leaf: usize, page: usize) -> &'static AtomicU64 {
        unsafe { &*self.0.add(AT_LEAVES + leaf * LEAF_BYTES).cast::<AtomicU64>().add(page) }
    }

    /// `first` and `len`: as divided before.
    #[inline(always)]
    pub fn words(self, first: usize, len: usize) -> &'static [AtomicU64] {
        unsafe { core::slice::from_raw_parts(self.0.add(AT_BLOCK_WORDS).cast::<AtomicU64>().add(first), len) }
    }
}

static AREA: AtomicPtr<u8> = AtomicPtr::new(null_mut());
static DOORBELL: AtomicPtr<Doorbell> = AtomicPtr::new(null_mut());

/// [`MODE_EXACT`] …, in a page that a child of fork finds empty.
static AWAKE: AtomicPtr<AtomicU32> = AtomicPtr::new(null_mut());

/// Counted up with each area: a thread's data may be about a former one, in the same place.
static GENERATION: AtomicUsize = AtomicUsize::new(0);

/// 0: not begun. 1: beginning. 2: counting. 3: not until vmaudit requests it.
static STATE: AtomicU32 = AtomicU32::new(0);
const BUSY: u32 = 1;
const COUNTING: u32 = 2;
const RESTING: u32 = 3;

/// Started without a listener's name.
static IS_ARMED: AtomicU8 = AtomicU8::new(0);

/// vmaudit finds it by this name.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static vmaudit_heap_control: AtomicPtr<Control> = AtomicPtr::new((&raw const CONTROL).cast_mut());

pub static CONTROL: Control = Control {
    armed: AtomicU64::new(ARMED),
    awake: AtomicU8::new(EXAMINES),
    socket: [const { AtomicU8::new(0) }; SOCKET_NAME],
    area: AtomicU64::new(0),
};

static SOCKET: [AtomicU8; SOCKET_NAME] = [const { AtomicU8::new(0) }; SOCKET_NAME];
static THREAD_KEY: AtomicU32 = AtomicU32::new(u32::MAX);

/// Which frees are examined: how many blocks that are of interest have an address that comes to the same. The
/// assembly of `free` reads it.
pub static HEEDED: [AtomicU8; 1 << HEEDED_BITS] = [const { AtomicU8::new(0) }; 1 << HEEDED_BITS];
pub const HEEDED_BITS: u32 = 16;

/// Where `free` goes: while nothing is counted and nothing was handed out here, straight to the real one, and while each
/// block is counted, straight to where it is examined.
pub static FREE_TARGET: AtomicPtr<()> = AtomicPtr::new(super::free_heeded as *mut ());

/// Only while [`mode`] says that something is counted.
#[inline(always)]
pub fn area() -> Area {
    Area(AREA.load(Relaxed))
}

#[inline(always)]
pub fn doorbell() -> &'static Doorbell {
    unsafe { &*DOORBELL.load(Relaxed) }
}

/// No other thread can be in a hook, and none will be before this one leaves it.
#[inline(always)]
pub fn is_single() -> bool {
    real::is_single()
}

/// What a thread's data belong to, if that is what it begins with.
#[inline(always)]
pub fn generation() -> usize {
    GENERATION.load(Relaxed)
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

/// Only what the real functions have not handed out is of interest.
fn heed_no_more() {
    // What was never written takes no memory.
    for count in HEEDED.iter().filter(|count| count.load(Relaxed) != 0) {
        count.store(0, Relaxed);
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

/// The mode, after beginning where that was not tried yet, or is requested by now.
#[cold]
#[inline(never)]
pub fn begin() -> u32 {
    let state = STATE.load(Acquire);
    let begins = match state {
        0 | COUNTING => true,
        RESTING => IS_ARMED.load(Relaxed) != 0 && CONTROL.socket[0].load(Acquire) != 0,
        _ => false,
    };
    if !begins && state == RESTING {
        sleep();
    }
    if !begins || STATE.compare_exchange(state, BUSY, AcqRel, Relaxed).is_err() {
        return mode();
    }
    let forked = state == COUNTING;
    if state == RESTING {
        for (to, from) in SOCKET.iter().zip(&CONTROL.socket) {
            to.store(from.load(Relaxed), Relaxed);
        }
        CONTROL.socket[0].store(0, Relaxed);
    }
    if state != 0 {
        walk::listen_again();
    }
    let mode = start(state == 0, forked).unwrap_or(MODE_OFF);
    if mode == MODE_OFF {
        rest();
    }
    STATE.store(if mode == MODE_OFF { RESTING } else { COUNTING }, Release);
    mode
}

/// vmaudit has finished: nothing is counted until it connects again.
#[cold]
#[inline(never)]
pub fn retire() {
    if STATE.compare_exchange(COUNTING, BUSY, AcqRel, Relaxed).is_ok() {
        let awake = AWAKE.load(Relaxed);
        if !awake.is_null() {
            unsafe { (*awake).store(MODE_OFF, Relaxed) };
        }
        rest();
        STATE.store(RESTING, Release);
    }
}

/// All calls go straight to the real functions.
fn rest() {
    heed_no_more();
    let free = real::only_free().unwrap_or(super::free_heeded as *const () as usize);
    FREE_TARGET.store(free as *mut (), Relaxed);
    sleep();
}

/// Not while the real functions are being resolved: the lookup may call ours.
fn sleep() {
    if real::is_resolved() {
        CONTROL.awake.store(ASLEEP, Relaxed);
    }
}

/// vmaudit is gone: what is counted has no reader.
pub fn give_up() {
    if IS_ARMED.load(Relaxed) != 0 {
        area().head().mode.store(MODE_OFF, Relaxed);
    }
}

fn start(first: bool, forked: bool) -> Option<u32> {
    let mut name = [0u8; SOCKET_NAME];
    if first {
        let Some(len) = socket_name(&mut name) else {
            IS_ARMED.store(1, Relaxed);
            return None;
        };
        for (to, from) in SOCKET.iter().zip(&name[..len]) {
            to.store(*from, Relaxed);
        }
    }
    for (to, from) in name.iter_mut().zip(&SOCKET) {
        *to = from.load(Relaxed);
    }
    let len = name.iter().position(|&byte| byte == 0)?;
    let name = &name[..len];
    let hello = Hello { magic: MAGIC, forked: forked as u32, pad: 0 };
    let bytes = unsafe { core::slice::from_raw_parts((&raw const hello).cast::<u8>(), size_of::<Hello>()) };
    let [file, bell] = sys::files_for(name, bytes)?;
    let shared = sys::PROT_READ | sys::PROT_WRITE;
    // In the place of a former one: a thread that was held up in it finds memory there still.
    let (former, former_bell) = (AREA.load(Relaxed), DOORBELL.load(Relaxed).cast::<u8>());
    let (at, bell_at) = unsafe {
        let flags = sys::MAP_SHARED | sys::MAP_NORESERVE;
        (sys::map_at(former, BYTES, shared, flags, file), sys::map_at(former_bell, 4096, shared, flags, bell))
    };
    sys::close(file);
    sys::close(bell);
    if at.is_null() || bell_at.is_null() {
        return None;
    }
    AREA.store(at, Relaxed);
    DOORBELL.store(bell_at.cast(), Relaxed);
    GENERATION.fetch_add(1, Relaxed);
    CONTROL.area.store(at as u64, Relaxed);
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
    let mode = area.head().mode.load(Relaxed);
    heed_no_more();
    let free = match mode {
        MODE_EXACT => super::free_slow as *mut (),
        _ => super::free_heeded as *mut (),
    };
    FREE_TARGET.store(free, Relaxed);
    if THREAD_KEY.load(Relaxed) == u32::MAX {
        let mut key = 0u32;
        if real::pthread_key_create(&mut key, thread_ends) == 0 {
            THREAD_KEY.store(key, Relaxed);
        }
    }
    area.head().begun.store(1, Release);
    AWAKE.store(awake, Relaxed);
    unsafe { (*awake).store(mode, Release) };
    CONTROL.awake.store(if mode == MODE_SAMPLE { COUNTS_DOWN } else { EXAMINES }, Relaxed);
    publish_real();
    Some(mode)
}

/// Publishes the addresses of the real functions, as far as they were resolved.
pub fn publish_real() {
    if mode() != MODE_OFF {
        for (to, from) in area().head().real.iter().zip(real::addresses()) {
            to.store(from as u64, Relaxed);
        }
    }
}

/// From the environment that the process was started with: libc may not have it yet.
fn socket_name(to: &mut [u8; SOCKET_NAME]) -> Option<usize> {
    const VARIABLE: &[u8] = b"VMAUDIT_HEAP=";
    let fd = sys::open(b"/proc/self/environ\0");
    if fd < 0 {
        return None;
    }
    let mut bytes = [0u8; 512];
    // How much of the variable's name has been matched, and of its value.
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
pub fn end_is_notified(thread: &Thread) {
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
        area().head().interpreted.store(0, Release);
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

//! When counting begins and ends.

use super::area::*;
use super::memory::{self, Slot, area};
use super::thread::{Thread, current};
use super::{real, rules, samples, shadow, socket, stacks, sys, walk};
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering::*};

/// Says what is counted now: the generation, and in the two lowest bits [`MODE_EXACT`] …; in a page that a child of fork
/// finds empty.
static AWAKE: AtomicPtr<AtomicU32> = AtomicPtr::new((&raw const NEVER).cast_mut());
static NEVER: AtomicU32 = AtomicU32::new(0);
const MODES: u32 = 3;

/// Counted up with each area: a thread's data may be about a former one, in the same place.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// 0: not begun. 1: beginning. 2: counting. 3: not until vmaudit requests it.
static STATE: AtomicU32 = AtomicU32::new(0);
const BUSY: u32 = 1;
const COUNTING: u32 = 2;
const RESTING: u32 = 3;

/// vmaudit finds it by this name.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static vmaudit_heap_control: AtomicPtr<Control> = AtomicPtr::new((&raw const CONTROL).cast_mut());

pub static CONTROL: Control = Control {
    armed: AtomicU64::new(ARMED),
    awake: AtomicU8::new(EXAMINES),
    request: AtomicU64::new(0),
    offered: AtomicU64::new(0),
    descriptor: AtomicU32::new(0),
    counts_for: AtomicU64::new(0),
    area: AtomicU64::new(0),
};

/// The first generation of this process that its parent did not have.
static FORKED_AT: AtomicU32 = AtomicU32::new(0);

/// A thread was in a hook when counting ended: what it may use is zeros, and stays until it is out.
static IS_LEFT: AtomicU8 = AtomicU8::new(0);

static THREAD_KEY: AtomicU32 = AtomicU32::new(u32::MAX);

/// Which frees are examined: how many blocks that are of interest have an address that comes to the same. The
/// assembly of `free` reads it.
pub static HEEDED: [AtomicU8; 1 << HEEDED_BITS] = [const { AtomicU8::new(0) }; 1 << HEEDED_BITS];
pub const HEEDED_BITS: u32 = 16;

/// Where `free` goes: while nothing is counted and nothing was handed out here, straight to the real one, and while each
/// block is counted, straight to where it is examined.
pub static FREE_TARGET: AtomicPtr<()> = AtomicPtr::new(super::free_heeded as *mut ());

/// No other thread can be in a hook, and none will be before this one leaves it.
#[inline(always)]
pub fn is_single() -> bool {
    real::is_single()
}

/// What a thread's data belong to, if that is what it begins with.
#[inline(always)]
pub fn generation() -> u32 {
    GENERATION.load(Relaxed)
}

/// What a thread began with before belongs to the process that this one was forked from.
#[inline(always)]
pub fn forked_at() -> u32 {
    FORKED_AT.load(Relaxed)
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
    mode_of(epoch())
}

/// Equal to what a thread began with ([`Thread::epoch`]) as long as it may go on with that.
#[inline(always)]
pub fn epoch() -> u32 {
    // SAFETY: a page that stays, or a static.
    unsafe { (*AWAKE.load(Relaxed)).load(Relaxed) }
}

#[inline(always)]
pub fn mode_of(epoch: u32) -> u32 {
    epoch & MODES
}

/// The mode, after beginning where that was not tried yet, or is requested by now.
#[cold]
#[inline(never)]
pub fn begin() -> u32 {
    let state = STATE.load(Acquire);
    let begins = match state {
        0 | COUNTING => true,
        RESTING => CONTROL.request.load(Acquire) != 0,
        _ => false,
    };
    if !begins && state == RESTING {
        sleep();
    }
    if !begins || STATE.compare_exchange(state, BUSY, AcqRel, Relaxed).is_err() {
        return mode();
    }
    // Another thread has begun meanwhile.
    if mode() != MODE_OFF {
        STATE.store(state, Release);
        return mode();
    }
    // Counting, and nothing is counted: a child of fork.
    let forked = state == COUNTING;
    if forked {
        memory::forked();
    }
    let mode = start(state, forked).unwrap_or(MODE_OFF);
    if mode == MODE_OFF {
        rest();
    }
    STATE.store(if mode == MODE_OFF { RESTING } else { COUNTING }, Release);
    mode
}

/// vmaudit has finished: nothing is counted until it requests that again, and what was mapped for it goes.
#[cold]
#[inline(never)]
pub fn retire(own: *const Slot) {
    if STATE.compare_exchange(COUNTING, BUSY, AcqRel, Relaxed).is_ok() {
        let awake = AWAKE.load(Relaxed);
        if awake != (&raw const NEVER).cast_mut() {
            unsafe { (*awake).store(MODE_OFF, Relaxed) };
        }
        CONTROL.counts_for.store(0, Relaxed);
        CONTROL.area.store(0, Relaxed);
        rest();
        // SAFETY: a slot is a static.
        take_away(unsafe { own.as_ref() });
        STATE.store(RESTING, Release);
    }
}

/// How often it is looked whether others have left their hooks.
const LOOKS: u32 = 200;

fn take_away(own: Option<&Slot>) {
    for _ in 0..LOOKS {
        if memory::is_quiet(own) {
            // SAFETY: nobody is in a hook, and who comes finds that nothing is counted.
            unsafe { memory::unmap() };
            return;
        }
        sys::let_others_run();
    }
    memory::wipe();
    IS_LEFT.store(1, Relaxed);
}

/// Whether there is nothing of a former area.
fn has_left(own: *const Slot) -> bool {
    if IS_LEFT.load(Relaxed) != 0 && memory::is_quiet(unsafe { own.as_ref() }) {
        // SAFETY: as in `take_away`.
        unsafe { memory::unmap() };
        IS_LEFT.store(0, Relaxed);
    }
    IS_LEFT.load(Relaxed) == 0
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
    area().head().mode.store(MODE_OFF, Relaxed);
}

/// How a process finds who listens, and what it has to know.
struct Way {
    path: [u8; SOCKET_PATH],
    token: [u8; TOKEN],
}

fn start(state: u32, forked: bool) -> Option<u32> {
    // With another library of the kind before this one, that one counts.
    if real::is_second() || !has_left(unsafe { (*current()).slot }) {
        return None;
    }
    let waker = match forked {
        true => CONTROL.counts_for.load(Relaxed),
        false => CONTROL.request.swap(0, AcqRel),
    };
    let connection = match state {
        // It was taken back.
        RESTING if waker == 0 => None,
        RESTING => offer(waker, || true),
        COUNTING => connect(true).or_else(offer_to_parents),
        _ => connect(false),
    }?;
    let mode = socket::receive(connection).and_then(|files| {
        let mode = count_in(files, forked);
        files.into_iter().for_each(sys::close);
        mode
    });
    sys::close(connection);
    CONTROL.counts_for.store(if mode.is_some() { waker } else { 0 }, Relaxed);
    mode
}

/// By the environment.
fn connect(forked: bool) -> Option<isize> {
    let Way { path, token } = way()?;
    let fd = socket::connect(&path)?;
    let control = &raw const CONTROL as u64;
    if socket::greet(fd, &Hello { magic: MAGIC, forked: forked as u32, pad: 0, control, token }) {
        return Some(fd);
    }
    sys::close(fd);
    None
}

/// How often it is looked whether that was done.
const GLANCES: u32 = 20;

/// vmaudit takes an end of a connection from this process.
fn offer(number: u64, is_there: impl Fn() -> bool) -> Option<isize> {
    let [own, other] = socket::pair()?;
    CONTROL.descriptor.store(other as u32, Relaxed);
    CONTROL.offered.store(number, Release);
    let is_taken = (0..GLANCES).any(|_| socket::wait(own) || !is_there()) && socket::wait(own);
    CONTROL.offered.store(0, Release);
    sys::close(other);
    if is_taken {
        return Some(own);
    }
    sys::close(own);
    None
}

/// A child of fork that does not find vmaudit by a path (it runs as another user by now, or somewhere else) rings its
/// parent's bell.
fn offer_to_parents() -> Option<isize> {
    let (bell, number) = (memory::bell(), sys::random() | 1);
    let is_free = |slot: &&Forked| slot.number.compare_exchange(0, number, AcqRel, Relaxed).is_ok();
    let slot = bell.forked.iter().find(is_free)?;
    slot.pid.store(sys::getpid(), Release);
    bell.rung.fetch_add(1, Release);
    sys::wake(&bell.rung);
    // The time goes on while vmaudit is there, and it takes the number away where it may not take the descriptor.
    let last = core::cell::Cell::new(bell.tick.load(Relaxed));
    let is_there = || {
        let now = bell.tick.load(Relaxed);
        last.replace(now) != now && slot.number.load(Acquire) == number
    };
    let connection = offer(number, is_there);
    let _ = slot.number.compare_exchange(number, 0, AcqRel, Relaxed);
    connection
}

/// vmaudit looks what there is to be answered.
pub fn ring() {
    let bell = memory::bell();
    bell.rung.fetch_add(1, Release);
    sys::wake(&bell.rung);
}

/// Begins to count in the area and with the doorbell that two files are.
pub fn count_in([file, bell]: [isize; 2], forked: bool) -> Option<u32> {
    memory::begin();
    stacks::begin();
    shadow::begin();
    samples::begin();
    walk::begin();
    if !memory::map_bell(bell) {
        return None;
    }
    let area = memory::map(file)?;
    let awake = match AWAKE.load(Relaxed) {
        former if former == (&raw const NEVER).cast_mut() => sys::page_wiped_by_fork().cast::<AtomicU32>(),
        former => former,
    };
    if awake.is_null() || !sys::register_barrier() {
        // SAFETY: nobody has seen it.
        unsafe { memory::unmap() };
        return None;
    }
    let generation = GENERATION.fetch_add(1, Relaxed) + 1;
    if forked {
        FORKED_AT.store(generation, Relaxed);
    }
    CONTROL.area.store(area.head() as *const Head as u64, Relaxed);
    let mode = area.head().mode.load(Relaxed).min(MODE_EXACT);
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
    unsafe { (*awake).store(generation << MODES.count_ones() | mode, Release) };
    CONTROL.awake.store(if mode == MODE_SAMPLE { COUNTS_DOWN } else { EXAMINES }, Relaxed);
    publish_real();
    Some(mode)
}

/// In a child of fork. Where a handler of a signal has forked, and this thread goes on in a hook, it finds zeros there.
unsafe extern "C" fn child() {
    if unsafe { (*current()).inside } != 0 && STATE.load(Relaxed) == COUNTING {
        memory::forked_in_a_hook();
    }
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
fn way() -> Option<Way> {
    let fd = sys::open(b"/proc/self/environ\0");
    if fd < 0 {
        return None;
    }
    let found = read_way(fd);
    sys::close(fd);
    found
}

fn read_way(fd: isize) -> Option<Way> {
    let name = VARIABLE.as_bytes();
    let (mut way, mut bytes) = (Way { path: [0; SOCKET_PATH], token: [0; TOKEN] }, [0u8; 512]);
    // Bytes of the variable so far, its name and `=` among them; None: another one.
    let mut met = Some(0);
    loop {
        let got = sys::read(fd, &mut bytes);
        if got <= 0 {
            return None;
        }
        for &byte in bytes.get(..got as usize)? {
            let path = name.len() + 1 + TOKEN + 1;
            met = match met {
                // There is a zero behind the path.
                Some(at) if byte == 0 && at > path => return Some(way),
                _ if byte == 0 => Some(0),
                Some(at) if at < name.len() && byte == name[at] => Some(at + 1),
                Some(at) if at == name.len() && byte == b'=' => Some(at + 1),
                Some(at) if at > name.len() && at + 1 < path => {
                    way.token[at - name.len() - 1] = byte;
                    Some(at + 1)
                }
                Some(at) if at + 1 == path && byte == b':' => Some(at + 1),
                Some(at) if at >= path && at - path < SOCKET_PATH - 1 => {
                    way.path[at - path] = byte;
                    Some(at + 1)
                }
                _ => None,
            };
        }
    }
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
        rules::unloaded();
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
    real::at_fork(child);
    // Also where nothing will ever be allocated: that is known then.
    let thread = unsafe { &mut *current() };
    if mode() == MODE_OFF && thread.inside == 0 {
        thread.enter();
        begin();
        thread.leave();
    }
}

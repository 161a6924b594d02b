//! How to find the caller of a frame, for each place in code that was on a stack: by the unwind tables of this process' modules
//! ([`super::cfi`]), and where these say nothing by what vmaudit answers. Each place is worked out once.

use super::area::{STOP, rule_body};
use super::cfi::{Module, UnwindTable};
use super::tables::{Pair, Table};
use super::{real, sys};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering::*};

/// [`rule_body`] by place.
static RULES: Table<Pair> = Table::new();
/// The state of the code that they are about.
static CODE: AtomicU32 = AtomicU32::new(0);

/// A module that was met.
#[derive(Clone, Copy)]
struct Met {
    module: Module,
    table: Option<UnwindTable>,
    /// vmaudit knows what is mapped there.
    is_known: bool,
}

/// Those that were met, by where they begin.
static MET: AtomicPtr<Met> = AtomicPtr::new(null_mut());
static MET_COUNT: AtomicUsize = AtomicUsize::new(0);
/// Taken while they are searched.
static LOCK: AtomicU32 = AtomicU32::new(0);
/// More are met anew each time.
const MOST_MET: usize = 1 << 12;
const MET_BYTES: usize = MOST_MET * size_of::<Met>();

/// The answer of the process' own tables.
pub enum Learned {
    /// `is_new`: vmaudit has not seen the module.
    Rule {
        body: u64,
        is_new: bool,
    },
    Nothing,
}

/// 0: not known.
#[inline(always)]
pub fn find(place: u64, code: u32) -> u64 {
    match CODE.load(Relaxed) == code {
        true => RULES.get(place),
        false => 0,
    }
}

/// Notes what a place is, in a state of the code.
fn set(place: u64, body: u64, code: u32) {
    if CODE.load(Relaxed) != code {
        RULES.empty();
        CODE.store(code, Relaxed);
    }
    RULES.set(place, body);
}

/// By the tables of the process.
pub fn learn(place: u64, code: u32) -> Learned {
    sys::lock(&LOCK);
    let met = meet(place);
    let body = met.and_then(|met| met.table).and_then(|table| table.rule(place));
    if let Some(body) = body {
        set(place, body, code);
    }
    LOCK.store(0, Release);
    let is_new = met.is_none_or(|met| !met.is_known);
    body.map_or(Learned::Nothing, |body| Learned::Rule { body, is_new })
}

/// Keeps what vmaudit has answered: 0 for no rule.
pub fn learned(place: u64, body: u64, code: u32) {
    sys::lock(&LOCK);
    set(place, if body == 0 { rule_body(STOP, 0, 0) } else { body }, code);
    LOCK.store(0, Release);
}

/// vmaudit has looked at what is mapped.
pub fn is_seen(place: u64) {
    sys::lock(&LOCK);
    if let Some(at) = position(place) {
        unsafe { (*MET.load(Relaxed).add(at)).is_known = true };
    }
    LOCK.store(0, Release);
}

/// Where the module is among those that were met.
fn position(place: u64) -> Option<usize> {
    let at = first_after(place).checked_sub(1)?;
    (place < unsafe { (*MET.load(Relaxed).add(at)).module.end }).then_some(at)
}

/// The number of modules that begin at a place or before.
fn first_after(place: u64) -> usize {
    let all = MET.load(Relaxed);
    let (mut low, mut high) = (0, MET_COUNT.load(Relaxed));
    while low < high {
        let middle = low + (high - low) / 2;
        match unsafe { (*all.add(middle)).module.start } <= place {
            true => low = middle + 1,
            false => high = middle,
        }
    }
    low
}

fn meet(place: u64) -> Option<Met> {
    if let Some(at) = position(place) {
        return Some(unsafe { *MET.load(Relaxed).add(at) });
    }
    let module = real::module_of(place)?;
    let met = Met { module, table: UnwindTable::of(module), is_known: false };
    if MET.load(Relaxed).is_null() {
        MET.store(sys::map_private(MET_BYTES).cast(), Relaxed);
    }
    let (all, count, at) = (MET.load(Relaxed), MET_COUNT.load(Relaxed), first_after(module.start));
    if !all.is_null() && count < MOST_MET {
        // SAFETY: there is space for one more, and the lock is taken.
        unsafe {
            core::ptr::copy(all.add(at), all.add(at + 1), count - at);
            all.add(at).write(met);
        }
        MET_COUNT.store(count + 1, Relaxed);
    }
    Some(met)
}

/// A library may be gone: modules that are where they were stay.
pub fn unloaded() {
    sys::lock(&LOCK);
    let all = MET.load(Relaxed);
    let mut kept = 0;
    for at in 0..MET_COUNT.load(Relaxed) {
        let met = unsafe { *all.add(at) };
        if real::module_of(met.module.start) == Some(met.module) {
            unsafe { all.add(kept).write(met) };
            kept += 1;
        }
    }
    MET_COUNT.store(kept, Relaxed);
    LOCK.store(0, Release);
}

/// A child of fork has none of it.
pub fn forked() {
    RULES.forked();
    MET.store(null_mut(), Relaxed);
    MET_COUNT.store(0, Relaxed);
    LOCK.store(0, Relaxed);
}

pub fn forked_in_a_hook() {
    RULES.forked_in_a_hook();
    MET_COUNT.store(0, Relaxed);
    MET.store(null_mut(), Relaxed);
    LOCK.store(0, Relaxed);
}

/// # Safety
/// No thread searches any more.
pub unsafe fn unmap() {
    unsafe { RULES.unmap() };
    let met = MET.load(Relaxed);
    if !met.is_null() {
        unsafe { sys::unmap(met.cast(), MET_BYTES) };
    }
    forked();
}

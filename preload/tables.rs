//! Tables in this process' own memory that are searched without a lock. One that is full is replaced by one of twice the size.

use super::memory::area;
use super::sys;
use core::marker::PhantomData;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

/// A table consists of these. All zeros stand for nothing.
pub trait Entry {
    /// Where the search for it begins; None: there is nothing.
    fn home(&self) -> Option<usize>;
    fn set(&self, from: &Self);
}

/// A number for a key, which is not 0.
#[repr(C)]
pub struct Pair {
    key: AtomicU64,
    value: AtomicU64,
}

/// The number of something that is elsewhere, and a part of its hash in the upper half.
#[repr(transparent)]
pub struct Number(AtomicU64);

/// An open hash table.
pub struct Table<E> {
    at: AtomicPtr<Header>,
    /// Taken while an entry is added.
    lock: AtomicU32,
    of: PhantomData<E>,
}

/// At the beginning, in a page of its own, which stays when the entries are given back: a thread may be searching them.
#[repr(C, align(4096))]
struct Header {
    /// Entries less 1: a power of two.
    last: AtomicUsize,
    used: AtomicUsize,
    bytes: AtomicUsize,
    /// The table that this one has replaced.
    former: AtomicPtr<Header>,
}

const LEAST: usize = 1 << 9;

impl Pair {
    #[inline(always)]
    fn home_of(key: u64) -> usize {
        (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) as usize
    }
}

impl Entry for Pair {
    fn home(&self) -> Option<usize> {
        let key = self.key.load(Relaxed);
        (key != 0).then(|| Pair::home_of(key))
    }

    fn set(&self, from: &Pair) {
        self.value.store(from.value.load(Relaxed), Relaxed);
        self.key.store(from.key.load(Relaxed), Release);
    }
}

impl Entry for Number {
    fn home(&self) -> Option<usize> {
        let word = self.0.load(Relaxed);
        (word != 0).then_some((word >> 32) as usize)
    }

    fn set(&self, from: &Number) {
        self.0.store(from.0.load(Relaxed), Release);
    }
}

impl Header {
    fn entries<E>(&self) -> *const E {
        unsafe { (self as *const Header).add(1) }.cast()
    }

    /// The first entry from `home` on that is taken.
    #[inline(always)]
    fn find<E>(&self, home: usize, take: impl Fn(&E) -> bool) -> Option<&E> {
        let last = self.last.load(Relaxed);
        // SAFETY: one of the entries.
        let at = |step: usize| unsafe { &*self.entries::<E>().add(home.wrapping_add(step) & last) };
        (0..=last).map(at).find(|entry| take(entry))
    }

    fn put<E: Entry>(&self, new: &E) {
        let home = new.home().unwrap_or(0);
        if let Some(entry) = self.find::<E>(home, |entry| entry.home().is_none()) {
            entry.set(new);
            self.used.fetch_add(1, Relaxed);
        }
    }
}

impl<E: Entry> Table<E> {
    pub const fn new() -> Table<E> {
        Table { at: AtomicPtr::new(null_mut()), lock: AtomicU32::new(0), of: PhantomData }
    }

    #[inline(always)]
    fn header(&self) -> Option<&Header> {
        // SAFETY: a table stays mapped as long as its process counts.
        unsafe { self.at.load(Acquire).as_ref() }
    }

    /// At most three quarters full.
    fn with_space(&self) -> Option<&Header> {
        let former = self.header();
        let old = match former {
            Some(table) if 4 * table.used.load(Relaxed) <= 3 * table.last.load(Relaxed) => {
                return Some(table);
            }
            Some(table) => table.last.load(Relaxed) + 1,
            None => 0,
        };
        let count = (2 * old).max(LEAST);
        let bytes = size_of::<Header>() + count * size_of::<E>();
        let at: *mut Header = sys::map_private(bytes).cast();
        // SAFETY: zeros are an empty table.
        let table = unsafe { at.as_ref() }?;
        table.last.store(count - 1, Relaxed);
        table.bytes.store(bytes, Relaxed);
        table.former.store(self.at.load(Relaxed), Relaxed);
        if let Some(former) = former {
            let entries = (0..old).map(|index| unsafe { &*former.entries::<E>().add(index) });
            entries.filter(|entry| entry.home().is_some()).for_each(|entry| table.put(entry));
        }
        self.at.store(at, Release);
        area().head().private.fetch_add((bytes - old * size_of::<E>()) as u64, Relaxed);
        if let Some(former) = former {
            // SAFETY: who still searches there finds nothing, and asks again with the lock.
            unsafe { sys::empty_private(former.entries::<u8>().cast_mut(), old * size_of::<E>()) };
        }
        Some(table)
    }

    /// Nothing is there any more. A search at the same time may find what was there, or not.
    pub fn empty(&self) {
        sys::lock(&self.lock);
        if let Some(table) = self.header() {
            let bytes = (table.last.load(Relaxed) + 1) * size_of::<E>();
            unsafe { sys::empty_private(table.entries::<u8>().cast_mut(), bytes) };
            table.used.store(0, Relaxed);
        }
        self.lock.store(0, Release);
    }

    /// A child of fork does not have it.
    pub fn forked(&self) {
        self.at.store(null_mut(), Relaxed);
        self.lock.store(0, Relaxed);
    }

    /// In a child that was forked in a hook: zeros, an empty table of one entry, take the place of what is searched.
    pub fn forked_in_a_hook(&self) {
        let at = self.at.load(Relaxed);
        if !at.is_null() {
            unsafe { sys::map_at(at as usize, 2 * size_of::<Header>(), None, true) };
        }
        self.lock.store(0, Relaxed);
    }

    /// # Safety
    /// No thread searches any more.
    pub unsafe fn unmap(&self) {
        let mut at = self.at.swap(null_mut(), Relaxed);
        while let Some(table) = unsafe { at.as_ref() } {
            let (former, bytes) = (table.former.load(Relaxed), table.bytes.load(Relaxed));
            unsafe { sys::unmap(at.cast(), bytes) };
            at = former;
        }
    }
}

impl Table<Pair> {
    /// 0: it is not there.
    #[inline(always)]
    pub fn get(&self, key: u64) -> u64 {
        let Some(table) = self.header() else { return 0 };
        let is_it = |entry: &Pair| matches!(entry.key.load(Acquire), 0) || entry.key.load(Relaxed) == key;
        match table.find::<Pair>(Pair::home_of(key), is_it) {
            Some(entry) if entry.key.load(Relaxed) == key => entry.value.load(Relaxed),
            _ => 0,
        }
    }

    /// Returns what is there, or is made now; 0: `make` has made nothing, or there is no memory. One thread at a time makes something,
    /// and that calls no function of the program.
    #[cold]
    #[inline(never)]
    pub fn add(&self, key: u64, make: impl FnOnce() -> u64) -> u64 {
        sys::lock(&self.lock);
        let mut value = self.get(key);
        if value == 0
            && let Some(table) = self.with_space()
        {
            value = make();
            if value != 0 {
                table.put(&Pair { key: AtomicU64::new(key), value: AtomicU64::new(value) });
            }
        }
        self.lock.store(0, Release);
        value
    }

    /// Where nothing is there yet.
    pub fn set(&self, key: u64, value: u64) {
        self.add(key, || value);
    }
}

impl Table<Number> {
    /// The number for a hash of which `is` is true; 0: it is not there.
    #[inline(always)]
    pub fn get(&self, hash: u64, is: impl Fn(u32) -> bool) -> u32 {
        let Some(table) = self.header() else { return 0 };
        let part = (hash >> 32) as u32;
        let is_it = |entry: &Number| {
            let word = entry.0.load(Acquire);
            word == 0 || (word >> 32) as u32 == part && is(word as u32)
        };
        table.find::<Number>(part as usize, is_it).map_or(0, |entry| entry.0.load(Relaxed) as u32)
    }

    /// Does as with pairs. `hash` is not 0 in its upper half.
    #[cold]
    #[inline(never)]
    pub fn add(&self, hash: u64, is: impl Fn(u32) -> bool, make: impl FnOnce() -> u32) -> u32 {
        sys::lock(&self.lock);
        let mut number = self.get(hash, is);
        if number == 0
            && let Some(table) = self.with_space()
        {
            number = make();
            if number != 0 {
                table.put(&Number(AtomicU64::new(hash >> 32 << 32 | number as u64)));
            }
        }
        self.lock.store(0, Release);
        number
    }
}

//! Tables in this process' own memory that are searched without a lock: a number for a key. A table that is full is replaced by one of
//! twice the size.

use super::sys;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

/// An open hash table.
pub struct Table {
    at: AtomicPtr<Header>,
    /// Taken while an entry is added.
    lock: AtomicU32,
}

/// At the beginning, in pages of its own, which stay when the entries are given back: a thread may be searching them.
#[repr(C, align(4096))]
struct Header {
    /// Entries less 1: a power of two.
    last: AtomicUsize,
    used: AtomicUsize,
    bytes: AtomicUsize,
    /// The table that this one has replaced.
    former: AtomicPtr<Header>,
}

#[repr(C)]
struct Entry {
    /// 0: none.
    key: AtomicU64,
    value: AtomicU64,
}

const LEAST: usize = 1 << 9;

impl Header {
    fn entries(&self) -> *const Entry {
        unsafe { (self as *const Header).add(1) }.cast()
    }

    /// Where a key is, or may be put; None: there is no space.
    #[inline(always)]
    fn place(&self, key: u64) -> Option<&Entry> {
        let last = self.last.load(Relaxed);
        let home = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) as usize;
        for step in 0..=last {
            // SAFETY: one of the entries.
            let entry = unsafe { &*self.entries().add(home.wrapping_add(step) & last) };
            let known = entry.key.load(Acquire);
            if known == key || known == 0 {
                return Some(entry);
            }
        }
        None
    }

    fn put(&self, key: u64, value: u64) {
        if let Some(entry) = self.place(key) {
            entry.value.store(value, Relaxed);
            if entry.key.swap(key, Release) == 0 {
                self.used.fetch_add(1, Relaxed);
            }
        }
    }
}

impl Table {
    pub const fn new() -> Table {
        Table { at: AtomicPtr::new(null_mut()), lock: AtomicU32::new(0) }
    }

    /// 0: it is not there.
    #[inline(always)]
    pub fn find(&self, key: u64) -> u64 {
        // SAFETY: a table stays mapped as long as its process counts.
        let Some(table) = (unsafe { self.at.load(Acquire).as_ref() }) else { return 0 };
        match table.place(key) {
            Some(entry) if entry.key.load(Relaxed) == key => entry.value.load(Relaxed),
            _ => 0,
        }
    }

    /// What is there, or is made now; 0: `make` has made nothing, or there is no memory. One thread at a time makes something, and
    /// that calls no function of the program.
    #[cold]
    #[inline(never)]
    pub fn add(&self, key: u64, make: impl FnOnce() -> u64) -> u64 {
        sys::lock(&self.lock);
        let mut value = self.find(key);
        if value == 0
            && let Some(table) = self.with_space()
        {
            value = make();
            if value != 0 {
                table.put(key, value);
            }
        }
        self.lock.store(0, Release);
        value
    }

    /// In the place of what was there.
    pub fn set(&self, key: u64, value: u64) {
        sys::lock(&self.lock);
        if let Some(table) = self.with_space() {
            table.put(key, value);
        }
        self.lock.store(0, Release);
    }

    fn with_space(&self) -> Option<&Header> {
        let former = self.at.load(Relaxed);
        // SAFETY: as above.
        let old = match unsafe { former.as_ref() } {
            Some(table) if 8 * table.used.load(Relaxed) <= 5 * table.last.load(Relaxed) => {
                return Some(table);
            }
            Some(table) => table.last.load(Relaxed) + 1,
            None => 0,
        };
        let count = (2 * old).max(LEAST);
        let bytes = size_of::<Header>() + count * size_of::<Entry>();
        let at: *mut Header = sys::map_private(bytes).cast();
        // SAFETY: zeros are an empty table.
        let table = unsafe { at.as_ref() }?;
        table.last.store(count - 1, Relaxed);
        table.bytes.store(bytes, Relaxed);
        table.former.store(former, Relaxed);
        if let Some(former) = unsafe { former.as_ref() } {
            for index in 0..old {
                let entry = unsafe { &*former.entries().add(index) };
                let key = entry.key.load(Relaxed);
                if key != 0 {
                    table.put(key, entry.value.load(Relaxed));
                }
            }
        }
        self.at.store(at, Release);
        if let Some(former) = unsafe { former.as_ref() } {
            // SAFETY: who still searches there finds nothing, and asks again with the lock.
            unsafe { sys::empty_private(former.entries().cast_mut().cast(), old * size_of::<Entry>()) };
        }
        Some(table)
    }

    /// Nothing is there any more. A search at the same time may find what was there, or not.
    pub fn empty(&self) {
        sys::lock(&self.lock);
        if let Some(table) = unsafe { self.at.load(Relaxed).as_ref() } {
            let bytes = (table.last.load(Relaxed) + 1) * size_of::<Entry>();
            unsafe { sys::empty_private(table.entries().cast_mut().cast(), bytes) };
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

//! Addresses, half-open address ranges and byte counts of one address space.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};

/// Page size of every architecture supported so far, in bytes (x86-64: 4 KiB).
pub const PAGE: u64 = 4096;

/// Where user space ends at most: x86-64 with five levels of page tables (TASK_SIZE_MAX,
/// arch/x86/include/asm/page_64.h).
pub const USER_END: u64 = 1 << 56;

/// A virtual address of the audited process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Addr(pub u64);

impl Addr {
    /// Rounds down to a page boundary.
    pub fn page_down(self) -> Addr {
        Addr(self.0 & !(PAGE - 1))
    }

    /// Rounds up to a page boundary; saturates at the last page of the address space.
    pub fn page_up(self) -> Addr {
        Addr(page_up(self.0))
    }

    /// True for a multiple of `align`, which has to be a power of two.
    pub fn is_aligned(self, align: u64) -> bool {
        self.0 & (align - 1) == 0
    }

    /// Rounds down to a multiple of `align`, which has to be a power of two.
    pub fn align_down(self, align: u64) -> Addr {
        Addr(self.0 & !(align - 1))
    }

    /// `self + len`, saturating at the end of the address space.
    pub fn saturating_add(self, len: u64) -> Addr {
        Addr(self.0.saturating_add(len))
    }
}

/// `len` rounded up to whole pages, saturating.
pub fn page_up(len: u64) -> u64 {
    match len.checked_add(PAGE - 1) {
        Some(sum) => sum & !(PAGE - 1),
        None => !(PAGE - 1),
    }
}

impl fmt::Debug for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A half-open range `[start, end)` with `start <= end`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct AddrRange {
    pub start: Addr,
    pub end: Addr,
}

impl AddrRange {
    /// A range from its ends; an inverted pair gives the empty range at `start`.
    pub fn new(start: u64, end: u64) -> AddrRange {
        AddrRange { start: Addr(start), end: Addr(end.max(start)) }
    }

    /// `[start, start + len)`, saturating at the end of the address space.
    pub fn from_len(start: Addr, len: u64) -> AddrRange {
        AddrRange { start, end: start.saturating_add(len) }
    }

    pub fn len(self) -> u64 {
        self.end.0 - self.start.0
    }

    pub fn bytes(self) -> Bytes {
        Bytes(self.len())
    }

    pub fn is_empty(self) -> bool {
        self.start == self.end
    }

    pub fn contains(self, addr: Addr) -> bool {
        self.start <= addr && addr < self.end
    }

    pub fn contains_range(self, other: AddrRange) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    pub fn overlaps(self, other: AddrRange) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// The common part; empty when there is none.
    pub fn intersect(self, other: AddrRange) -> AddrRange {
        AddrRange::new(self.start.0.max(other.start.0), self.end.0.min(other.end.0))
    }
}

impl fmt::Debug for AddrRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}-{:#x}", self.start.0, self.end.0)
    }
}

impl fmt::Display for AddrRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}-{:#x}", self.start.0, self.end.0)
    }
}

/// A number of bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Bytes(pub u64);

impl Add for Bytes {
    type Output = Bytes;
    fn add(self, other: Bytes) -> Bytes {
        Bytes(self.0 + other.0)
    }
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Bytes) {
        self.0 += other.0;
    }
}

impl Sub for Bytes {
    type Output = Bytes;
    /// Saturates at zero: counters read at different moments may cross.
    fn sub(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_sub(other.0))
    }
}

impl std::iter::Sum for Bytes {
    fn sum<I: Iterator<Item = Bytes>>(iter: I) -> Bytes {
        Bytes(iter.map(|b| b.0).sum())
    }
}

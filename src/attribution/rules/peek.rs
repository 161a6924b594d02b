//! Structures of a runtime in the memory of its process, read a page at a time and kept: one view for all that follow.

use crate::model::arenas::ReadMemory;
use crate::model::function_table::ReadBytes;
use crate::model::hash::IntMap;
use crate::model::{Addr, PAGE};

/// Pages that are kept: 256 MiB.
const MAX_PAGES: usize = 1 << 16;
/// Longest string.
const LONGEST: usize = 4096;

pub struct Peek<'a, 'm> {
    read: &'a mut ReadMemory<'m>,
    /// None where it cannot be read.
    pages: IntMap<u64, Option<Box<[u8; PAGE as usize]>>>,
}

impl<'a, 'm> Peek<'a, 'm> {
    pub fn new(read: &'a mut ReadMemory<'m>) -> Peek<'a, 'm> {
        Peek { read, pages: IntMap::default() }
    }

    /// Forgets what it has read: what follows is a new view.
    pub fn forget(&mut self) {
        self.pages.clear();
    }

    fn page(&mut self, at: u64) -> Option<&[u8; PAGE as usize]> {
        if !self.pages.contains_key(&at) {
            if self.pages.len() >= MAX_PAGES {
                self.pages.clear();
            }
            let mut bytes = Box::new([0; PAGE as usize]);
            let is_there = (self.read)(Addr(at), &mut bytes[..]);
            self.pages.insert(at, is_there.then_some(bytes));
        }
        self.pages.get(&at)?.as_deref()
    }

    /// False where not all of it can be read.
    pub fn fill(&mut self, at: u64, into: &mut [u8]) -> bool {
        let mut done = 0;
        while done < into.len() {
            let Some(from) = at.checked_add(done as u64) else { return false };
            let start = Addr(from).page_down().0;
            let Some(page) = self.page(start) else { return false };
            let inside = (from - start) as usize;
            let count = (page.len() - inside).min(into.len() - done);
            into[done..done + count].copy_from_slice(&page[inside..inside + count]);
            done += count;
        }
        true
    }

    pub fn bytes(&mut self, at: u64, len: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.fill(at, &mut bytes).then_some(bytes)
    }

    pub fn array<const N: usize>(&mut self, at: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.fill(at, &mut bytes).then_some(bytes)
    }

    pub fn u64(&mut self, at: u64) -> Option<u64> {
        self.array(at).map(u64::from_le_bytes)
    }

    pub fn u32(&mut self, at: u64) -> Option<u32> {
        self.array(at).map(u32::from_le_bytes)
    }

    /// As it is now, whatever was read before.
    pub fn u32_now(&mut self, at: u64) -> Option<u32> {
        let mut bytes = [0; 4];
        (self.read)(Addr(at), &mut bytes).then(|| u32::from_le_bytes(bytes))
    }

    pub fn u8(&mut self, at: u64) -> Option<u8> {
        self.array(at).map(|[byte]| byte)
    }

    pub fn words(&mut self, at: u64, count: usize) -> Option<Vec<u64>> {
        let bytes = self.bytes(at, count.checked_mul(8)?)?;
        Some(bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect())
    }

    /// Up to its NUL; lossy.
    pub fn string(&mut self, at: u64) -> Option<String> {
        let mut out = Vec::new();
        loop {
            match self.u8(at.checked_add(out.len() as u64)?)? {
                0 => return Some(String::from_utf8_lossy(&out).into_owned()),
                byte if out.len() < LONGEST => out.push(byte),
                _ => return None,
            }
        }
    }
}

impl ReadBytes for Peek<'_, '_> {
    fn fill(&mut self, at: u64, into: &mut [u8]) -> bool {
        Peek::fill(self, at, into)
    }
}

//! The code cache: which code is at an address, how large its frames are, and which method it is of. As HotSpot's own
//! stack walker finds it (src/hotspot/share/code/codeCache.cpp, memory/heap.cpp, cpu/x86/frame_x86.cpp; JDK 17 to 25).

mod cache;
mod method;
pub(super) mod structs;

use crate::attribution::rules::peek::Peek;
use crate::model::arenas::ReadMemory;
use crate::model::stack::{CodeAt, CodeTables, GeneratedFunction};
use crate::model::{Addr, PAGE};
use cache::CodeCache;
use method::Methods;
use structs::Structs;

const LONGEST_STRING: usize = 64;

struct Tables {
    cache: CodeCache,
    methods: Methods,
}

/// See [`crate::model::stack::FindCodeTables`].
pub fn find(
    variable: &mut dyn FnMut(&str) -> Option<Addr>,
    memory: &mut ReadMemory<'_>,
) -> Option<Box<dyn CodeTables>> {
    let mut peek = Peek::new(memory);
    let structs = Structs::read(variable, &mut peek)?;
    Some(Box::new(Tables { cache: CodeCache::of(&structs)?, methods: Methods::of(&structs, &mut peek)? }))
}

impl CodeTables for Tables {
    fn code_at(&self, address: u64, memory: &mut ReadMemory<'_>) -> Option<CodeAt> {
        self.cache.code_at(address, &mut Now(memory))
    }

    fn name(&self, what: u64, memory: &mut ReadMemory<'_>) -> Option<GeneratedFunction> {
        let mut now = Now(memory);
        if let Some(blob) = self.cache.blob(what, &mut now) {
            return Some(GeneratedFunction { name: blob.name, place: None });
        }
        self.methods.named(what, None, &mut now)
    }

    fn interpreted(
        &self,
        function: u64,
        instruction: u64,
        memory: &mut ReadMemory<'_>,
    ) -> Option<GeneratedFunction> {
        self.methods.named(function, Some(instruction), &mut Now(memory))
    }
}

/// The memory as it is, without a copy that is kept.
struct Now<'a, 'm>(&'a mut ReadMemory<'m>);

impl Now<'_, '_> {
    fn fill(&mut self, at: u64, bytes: &mut [u8]) -> Option<()> {
        (self.0)(Addr(at), bytes).then_some(())
    }

    fn array<const N: usize>(&mut self, at: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.fill(at, &mut bytes).map(|()| bytes)
    }

    fn u8(&mut self, at: u64) -> Option<u8> {
        self.array(at).map(|[byte]| byte)
    }

    fn u16(&mut self, at: u64) -> Option<u16> {
        self.array(at).map(u16::from_le_bytes)
    }

    fn u32(&mut self, at: u64) -> Option<u32> {
        self.array(at).map(u32::from_le_bytes)
    }

    fn u64(&mut self, at: u64) -> Option<u64> {
        self.array(at).map(u64::from_le_bytes)
    }

    fn bytes(&mut self, at: u64, len: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.fill(at, &mut bytes).map(|()| bytes)
    }

    /// Up to its NUL, at most 64 bytes. In one read, or two where a page ends.
    fn string(&mut self, at: u64) -> Option<String> {
        let mut text = Vec::new();
        while text.len() < LONGEST_STRING {
            let from = at.checked_add(text.len() as u64)?;
            let rest_of_page = (PAGE - from % PAGE) as usize;
            let bytes = self.bytes(from, rest_of_page.min(LONGEST_STRING - text.len()))?;
            let end = bytes.iter().position(|&byte| byte == 0);
            text.extend_from_slice(&bytes[..end.unwrap_or(bytes.len())]);
            if end.is_some() {
                return String::from_utf8(text).ok();
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::arenas::memory_of;

    #[test]
    fn a_string_ends_at_its_nul_within_64_bytes() {
        // Two pages, and nothing behind them.
        let mut pages = vec![b'x'; 2 * PAGE as usize];
        pages[4000..4008].copy_from_slice(b"nmethod\0");
        pages[4090..4100].copy_from_slice(b"across it\0");
        pages[8188..].copy_from_slice(b"end\0");
        let mut reads = 0;
        let mut memory = |at: Addr, into: &mut [u8]| {
            reads += 1;
            memory_of(0, &pages)(at, into)
        };
        let mut string = |at| Now(&mut memory).string(at);
        assert_eq!(string(4000).as_deref(), Some("nmethod"));
        assert_eq!(string(4090).as_deref(), Some("across it"));
        assert_eq!(string(8188).as_deref(), Some("end"));
        assert_eq!(string(100), None, "64 bytes without an end");
        assert_eq!(string(8192), None, "not to be read");
        assert_eq!(reads, 1 + 2 + 1 + 1 + 1);
    }
}

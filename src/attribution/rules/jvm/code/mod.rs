//! The code cache: which code is at an address, how large its frames are, and which method it is of. As HotSpot's own
//! stack walker finds it (src/hotspot/share/code/codeCache.cpp, memory/heap.cpp, cpu/x86/frame_x86.cpp; JDK 17 to 25).
//!
//! ```text
//! CodeCache::_heaps ──► CodeHeap: memory in segments of 128 bytes, and a byte for each: how far back its block begins
//!                         block: header, CodeBlob (name, size, size of its frames) ──nmethod──► Method ──► names
//! ```

mod method;
pub(super) mod structs;

use crate::attribution::rules::peek::Peek;
use crate::model::arenas::ReadMemory;
use crate::model::stack::{CodeAt, CodeFrame, CodeTables, GeneratedFunction};
use crate::model::{Addr, PAGE};
use method::Methods;
use std::cell::RefCell;
use std::collections::BTreeMap;
use structs::Structs;

/// Code heaps of a JVM: profiled, not profiled, other.
const MOST_HEAPS: u64 = 8;
/// Steps back to the beginning of a block, of at most 254 segments each.
const MOST_STEPS: usize = 1 << 14;
/// A segment that belongs to no block (`free_sentinel`).
const FREE: u8 = 0xff;
const LONGEST_STRING: usize = 64;
/// Bytes of a block and its blob that are looked at, at most.
const LONGEST_HEADER: usize = 512;
/// Blobs that are remembered.
const MOST_FOUND: usize = 1 << 15;
/// No frame of compiled code is larger, bytes.
const LARGEST_FRAME: u64 = 1 << 20;

/// Words of an interpreter's frame, from rbp (frame_x86.hpp; the same in all versions).
const INTERPRETED: CodeFrame = CodeFrame::Interpreted { caller: -8, function: -24, instruction: -64 };

/// Where the structures have their fields.
struct Layout {
    heaps: u64,
    array_length: u64,
    array_data: u64,
    memory: u64,
    segments: u64,
    segment_log2: u64,
    space_low: u64,
    space_high: u64,
    block_used: u64,
    block_size: u64,
    blob_name: u64,
    blob_size: u64,
    frame_size: u64,
    nmethod_method: u64,
}

impl Layout {
    fn of(structs: &Structs) -> Option<Layout> {
        let either = |types: &[&str], field: &str| types.iter().find_map(|of| structs.field(of, field));
        Some(Layout {
            heaps: structs.field("CodeCache", "_heaps")?,
            array_length: either(&["GrowableArrayBase", "GenericGrowableArray"], "_len")?,
            array_data: structs.field("GrowableArray<int>", "_data")?,
            memory: structs.field("CodeHeap", "_memory")?,
            segments: structs.field("CodeHeap", "_segmap")?,
            segment_log2: structs.field("CodeHeap", "_log2_segment_size")?,
            space_low: structs.field("VirtualSpace", "_low")?,
            space_high: structs.field("VirtualSpace", "_high")?,
            block_used: structs.field("HeapBlock::Header", "_used")?,
            block_size: structs.size("HeapBlock")?,
            blob_name: structs.field("CodeBlob", "_name")?,
            blob_size: structs.field("CodeBlob", "_size")?,
            frame_size: structs.field("CodeBlob", "_frame_size")?,
            nmethod_method: either(&["nmethod", "CompiledMethod"], "_method")?,
        })
    }
}

struct Tables {
    layout: Layout,
    methods: Methods,
    found: RefCell<BTreeMap<u64, Found>>,
}

/// See [`crate::model::stack::FindCodeTables`].
pub fn find(
    variable: &mut dyn FnMut(&str) -> Option<Addr>,
    memory: &mut ReadMemory<'_>,
) -> Option<Box<dyn CodeTables>> {
    let mut peek = Peek::new(memory);
    let structs = Structs::read(variable, &mut peek)?;
    let (layout, methods) = (Layout::of(&structs)?, Methods::of(&structs, &mut peek)?);
    Some(Box::new(Tables { layout, methods, found: RefCell::default() }))
}

/// A blob of the code cache.
struct Blob {
    at: u64,
    name: String,
    header: Header,
}

impl Blob {
    fn is_method(&self) -> bool {
        matches!(self.name.as_str(), "nmethod" | "native nmethod")
    }
}

/// What a block and its blob say of themselves. While it is the same, so is what was concluded from it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Header {
    is_used: bool,
    size: u64,
    name: u64,
    /// Words. Not positive: the frames are linked.
    frame_size: i32,
    /// Of a method only; else whatever is there.
    method: u64,
}

/// A blob that was found before, by where it begins.
#[derive(Clone, Copy)]
struct Found {
    header: Header,
    code: CodeAt,
}

impl Layout {
    /// In one read: a stack asks for one header a frame.
    fn header(&self, block: u64, now: &mut Now<'_, '_>) -> Option<Header> {
        let of_blob = |field: u64| self.block_size.checked_add(field);
        let ends = [of_blob(self.nmethod_method)?, of_blob(self.blob_name)?, of_blob(self.blob_size)?];
        let last = ends.into_iter().max()?.max(of_blob(self.frame_size)?).max(self.block_used);
        let mut bytes = [0; LONGEST_HEADER];
        let bytes = bytes.get_mut(..usize::try_from(last.checked_add(8)?).ok()?)?;
        now.fill(block, bytes)?;
        let at = |field: u64| bytes.get(field as usize..);
        let word = |field: u64| at(of_blob(field)?)?.first_chunk().copied().map(u64::from_le_bytes);
        let half = |field: u64| at(of_blob(field)?)?.first_chunk().copied().map(u32::from_le_bytes);
        Some(Header {
            is_used: *at(self.block_used)?.first()? == 1,
            size: half(self.blob_size)?.into(),
            name: word(self.blob_name)?,
            frame_size: half(self.frame_size)? as i32,
            method: word(self.nmethod_method)?,
        })
    }
}

impl Tables {
    /// As it was found before, if that code is still there.
    fn known(&self, address: u64, now: &mut Now<'_, '_>) -> Option<CodeAt> {
        let found = self.found.borrow();
        let (&at, found) = found.range(..=address).next_back()?;
        let is_inside = address - at < found.header.size;
        let header =
            is_inside.then(|| self.layout.header(at.checked_sub(self.layout.block_size)?, now)).flatten();
        (header == Some(found.header)).then_some(found.code)
    }

    fn keep(&self, at: u64, found: Found) {
        let mut all = self.found.borrow_mut();
        if all.len() >= MOST_FOUND {
            all.clear();
        }
        all.insert(at, found);
    }

    fn blob(&self, address: u64, now: &mut Now<'_, '_>) -> Option<Blob> {
        let layout = &self.layout;
        let heaps = now.u64(layout.heaps)?;
        let count = u64::from(now.u32(heaps.checked_add(layout.array_length)?)?);
        let list = now.u64(heaps.checked_add(layout.array_data)?)?;
        let mut all = (0..count.min(MOST_HEAPS)).filter_map(|n| now.u64(list.checked_add(n * 8)?));
        let all: Vec<u64> = all.by_ref().collect();
        for heap in all {
            let space = heap.checked_add(layout.memory)?;
            let (low, high) = (
                now.u64(space.checked_add(layout.space_low)?)?,
                now.u64(space.checked_add(layout.space_high)?)?,
            );
            if (low..high).contains(&address) {
                return self.blob_in(heap, (low, address), now);
            }
        }
        None
    }

    fn blob_in(&self, heap: u64, (low, address): (u64, u64), now: &mut Now<'_, '_>) -> Option<Blob> {
        let layout = &self.layout;
        let log2 = now.u32(heap.checked_add(layout.segment_log2)?).filter(|log2| (3..=20).contains(log2))?;
        let map = now.u64(heap.checked_add(layout.segments)?.checked_add(layout.space_low)?)?;
        let mut segment = (address - low) >> log2;
        for _ in 0..MOST_STEPS {
            match now.u8(map.checked_add(segment)?)? {
                FREE => return None,
                0 => return self.blob_at(low.checked_add(segment << log2)?, address, now),
                back => segment = segment.checked_sub(u64::from(back))?,
            }
        }
        None
    }

    fn blob_at(&self, block: u64, address: u64, now: &mut Now<'_, '_>) -> Option<Blob> {
        let at = block.checked_add(self.layout.block_size)?;
        let header = self.layout.header(block, now)?;
        let covers = (at..at.checked_add(header.size)?).contains(&address);
        let name = (header.is_used && covers).then(|| now.string(header.name)).flatten()?;
        Some(Blob { at, name, header })
    }
}

impl CodeTables for Tables {
    fn code_at(&self, address: u64, memory: &mut ReadMemory<'_>) -> Option<CodeAt> {
        let mut now = Now(memory);
        if let Some(code) = self.known(address, &mut now) {
            return Some(code);
        }
        let blob = self.blob(address, &mut now)?;
        let frame = match u64::try_from(blob.header.frame_size) {
            _ if blob.name == "Interpreter" => INTERPRETED,
            Ok(words) if words > 0 => CodeFrame::Sized((words * 8).min(LARGEST_FRAME)),
            _ => CodeFrame::Linked,
        };
        let code = CodeAt { frame, what: if blob.is_method() { blob.header.method } else { blob.at } };
        self.keep(blob.at, Found { header: blob.header, code });
        Some(code)
    }

    fn name(&self, what: u64, memory: &mut ReadMemory<'_>) -> Option<GeneratedFunction> {
        let mut now = Now(memory);
        if let Some(blob) = self.blob(what, &mut now) {
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
            let found = pages.get(at.0 as usize..).and_then(|rest| rest.get(..into.len()));
            found.map(|bytes| into.copy_from_slice(bytes)).is_some()
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

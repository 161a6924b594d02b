//! Blobs of the code cache, and which of them is at an address.
//!
//! ```text
//! CodeCache::_heaps ──► CodeHeap: memory in segments of 128 bytes, and a byte for each: how far back its block begins
//!                         block: header, CodeBlob (name, size, size of its frames, method)
//! ```

use super::Now;
use super::structs::Structs;
use crate::model::stack::{CodeAt, CodeFrame};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Code heaps of a JVM: profiled, not profiled, other.
const MOST_HEAPS: u64 = 8;
/// Steps back to the beginning of a block, of at most 254 segments each.
const MOST_STEPS: usize = 1 << 14;
/// A segment that belongs to no block (`free_sentinel`).
const FREE: u8 = 0xff;
/// Bytes of a block and its blob that are read, at most.
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

/// What code is where in one process.
pub(super) struct CodeCache {
    layout: Layout,
    found: RefCell<BTreeMap<u64, Found>>,
}

/// A blob of the code cache.
pub(super) struct Blob {
    at: u64,
    pub name: String,
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
    /// In one read: a stack needs one header per frame.
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

impl CodeCache {
    /// None: a JVM whose structures are other ones.
    pub fn of(structs: &Structs) -> Option<CodeCache> {
        Some(CodeCache { layout: Layout::of(structs)?, found: RefCell::default() })
    }

    /// As [`CodeTables::code_at`](crate::model::stack::CodeTables::code_at).
    pub fn code_at(&self, address: u64, now: &mut Now<'_, '_>) -> Option<CodeAt> {
        if let Some(code) = self.known(address, now) {
            return Some(code);
        }
        let blob = self.blob(address, now)?;
        let frame = match u64::try_from(blob.header.frame_size) {
            _ if blob.name == "Interpreter" => INTERPRETED,
            Ok(words) if words > 0 => CodeFrame::Sized((words * 8).min(LARGEST_FRAME)),
            _ => CodeFrame::Linked,
        };
        let code = CodeAt { frame, what: if blob.is_method() { blob.header.method } else { blob.at } };
        self.keep(blob.at, Found { header: blob.header, code });
        Some(code)
    }

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

    /// The blob that an address is in.
    pub fn blob(&self, address: u64, now: &mut Now<'_, '_>) -> Option<Blob> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Addr;
    use crate::model::arenas::memory_of;

    const LAYOUT: Layout = Layout {
        heaps: 0x1000,
        array_length: 0,
        array_data: 8,
        memory: 0,
        segments: 32,
        segment_log2: 64,
        space_low: 0,
        space_high: 8,
        block_used: 8,
        block_size: 16,
        blob_name: 0,
        blob_size: 8,
        frame_size: 12,
        nmethod_method: 16,
    };

    /// One heap with two blocks of two and of six segments of 128 bytes, from 0x2000 on.
    fn memory() -> Vec<u8> {
        let mut memory = vec![0; 0x4000];
        let mut put = |at: usize, bytes: &[u8]| memory[at..at + bytes.len()].copy_from_slice(bytes);
        put(0x1000, &0x1100u64.to_le_bytes()); // CodeCache::_heaps
        put(0x1100, &1u32.to_le_bytes());
        put(0x1108, &0x1200u64.to_le_bytes());
        put(0x1200, &0x1300u64.to_le_bytes()); // the heap
        put(0x1300, &0x2000u64.to_le_bytes());
        put(0x1308, &0x2400u64.to_le_bytes());
        put(0x1320, &0x1400u64.to_le_bytes());
        put(0x1340, &7u32.to_le_bytes());
        put(0x1400, &[0, 1, 0, 1, 2, 3, 4, 5]); // its segments
        put(0x1500, b"nmethod\0Interpreter\0");
        for (block, size, name, frame, method) in
            [(0x2000, 0xf0u32, 0x1500u64, 6u32, 0x7770u64), (0x2100, 0x2f0, 0x1508, 0, 0)]
        {
            put(block + 8, &[1]);
            put(block + 16, &name.to_le_bytes());
            put(block + 24, &size.to_le_bytes());
            put(block + 28, &frame.to_le_bytes());
            put(block + 32, &method.to_le_bytes());
        }
        memory
    }

    /// What is there, and how many reads that took.
    fn look_up(cache: &CodeCache, memory: &[u8], address: u64) -> (Option<CodeAt>, usize) {
        let mut reads = 0;
        let mut read = |at: Addr, into: &mut [u8]| {
            reads += 1;
            memory_of(0, memory)(at, into)
        };
        let found = cache.code_at(address, &mut Now(&mut read));
        (found, reads)
    }

    #[test]
    fn a_blob_is_found_by_one_read_while_it_stands() {
        let (cache, mut memory) = (CodeCache { layout: LAYOUT, found: RefCell::default() }, memory());
        let method = CodeAt { frame: CodeFrame::Sized(48), what: 0x7770 };
        let (found, reads) = look_up(&cache, &memory, 0x20c0);
        assert_eq!(found, Some(method));
        assert!(reads > 5, "{reads}");
        assert_eq!(look_up(&cache, &memory, 0x2080), (Some(method), 1));
        let interpreter = CodeAt { frame: INTERPRETED, what: 0x2110 };
        assert_eq!(look_up(&cache, &memory, 0x23ff).0, Some(interpreter));
        assert_eq!(look_up(&cache, &memory, 0x2200), (Some(interpreter), 1));
        assert_eq!(look_up(&cache, &memory, 0x2400).0, None, "behind the heap");

        // Another method, compiled to the same place.
        memory[0x2020..0x2028].copy_from_slice(&0x8880u64.to_le_bytes());
        memory[0x201c] = 4;
        let other = CodeAt { frame: CodeFrame::Sized(32), what: 0x8880 };
        assert_eq!(look_up(&cache, &memory, 0x20c0).0, Some(other));
        assert_eq!(look_up(&cache, &memory, 0x20c0), (Some(other), 1));
        // It is gone.
        memory[0x2008] = 0;
        assert_eq!(look_up(&cache, &memory, 0x20c0).0, None);
    }
}

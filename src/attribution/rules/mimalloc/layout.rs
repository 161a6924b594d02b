//! Where mimalloc 2 keeps what in the header of a segment, and in the records of its slices.
//!
//! Source: include/mimalloc/types.h, `mi_segment_t`, `mi_page_t`, `mi_heap_t`; up to 2.0.9 include/mimalloc-types.h.
//! Of builds without MI_SECURE, MI_DEBUG and MI_PADDING: with them, records have keys, and links are encoded.

/// Offsets in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    pub versions: &'static str,
    /// `MI_SEGMENT_SIZE`, and what segments are aligned to.
    pub segment: u64,
    /// `commit_mask`: a bit a slice.
    pub committed: u64,
    pub used: u64,
    pub cookie: u64,
    pub segment_slices: u64,
    pub info_slices: u64,
    pub kind: u64,
    pub slice_entries: u64,
    pub thread: u64,
    pub slices: u64,
    pub record: Record,
    /// `thread_delayed_free` of a heap.
    pub delayed: u64,
}

/// Of a slice; the first one of a page is the page's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    pub size: u64,
    pub used: Field,
    pub block_size: Field,
    pub thread_free: u64,
    pub heap: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Field {
    pub at: u64,
    pub len: usize,
}

const fn field(at: u64, len: usize) -> Field {
    Field { at, len }
}

/// `MI_SEGMENT_SLICE_SIZE`
pub const SLICE: u64 = 64 << 10;
/// `MI_SEGMENT_HUGE`: of one block alone.
pub const OF_ONE_BLOCK: u32 = 1;
/// `MI_HUGE_BLOCK_SIZE`: what is said of larger blocks before 2.1.4.
pub const HUGE: u64 = 2 << 30;

const BEFORE_214: Record =
    Record { size: 80, used: field(24, 4), block_size: field(28, 4), thread_free: 40, heap: 48 };
const SINCE_214: Record =
    Record { size: 96, used: field(32, 2), block_size: field(40, 8), thread_free: 56, heap: 64 };

const OF_209: Layout = Layout {
    versions: "2.0.9 to 2.1.2",
    segment: 32 << 20,
    committed: 112,
    used: 208,
    cookie: 216,
    segment_slices: 224,
    info_slices: 232,
    kind: 240,
    slice_entries: 248,
    thread: 256,
    slices: 264,
    record: BEFORE_214,
    delayed: 2840,
};

const OF_214: Layout = Layout { versions: "2.1.4 to 2.1.7", record: SINCE_214, delayed: 8, ..OF_209 };

pub const LAYOUTS: [Layout; 4] = [
    OF_209,
    OF_214,
    Layout {
        versions: "2.1.8 to 2.4.1",
        committed: 120,
        used: 216,
        cookie: 224,
        segment_slices: 248,
        info_slices: 256,
        kind: 264,
        slice_entries: 272,
        thread: 280,
        slices: 288,
        ..OF_214
    },
    Layout {
        versions: "2.0.3 to 2.0.7",
        segment: 64 << 20,
        committed: 152,
        used: 312,
        cookie: 320,
        segment_slices: 328,
        info_slices: 336,
        kind: 344,
        slice_entries: 360,
        thread: 352,
        slices: 368,
        ..OF_209
    },
];

impl Layout {
    /// `MI_SLICES_PER_SEGMENT`
    pub const fn entries(&self) -> u64 {
        self.segment / SLICE
    }

    /// Bytes of the header, up to the last record that is ever in use.
    pub const fn header(&self) -> u64 {
        self.slices + self.entries() * self.record.size
    }
}

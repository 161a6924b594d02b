//! A range of a memory file, mapped for as long as it is read.

use memmap2::{MmapOptions, MmapRaw};
use std::fs::File;
use std::io;
use std::ops::Range;

/// What was written of a range of a file that cannot become shorter, when it was mapped. To read the rest would take memory, too.
#[derive(Default)]
pub(super) struct View {
    map: Option<MmapRaw>,
    /// Bytes from the beginning of the range, in their order.
    written: Vec<Range<usize>>,
}

impl View {
    /// # Errors
    /// When the range cannot be mapped.
    pub fn of(file: &File, at: usize, written: &[Range<usize>]) -> io::Result<View> {
        let Some(end) = written.last().map(|last| last.end) else { return Ok(View::default()) };
        let map = MmapOptions::new().offset(at as u64).len(end - at).map_raw_read_only(file)?;
        let written = written.iter().map(|part| part.start - at..part.end - at).collect();
        Ok(View { map: Some(map), written })
    }

    /// The value with this index, of a type that consists of atomics: others write it meanwhile. None where nothing was written.
    pub fn get<T>(&self, index: usize) -> Option<&T> {
        let map = self.map.as_ref()?;
        let from = index.checked_mul(size_of::<T>())?;
        let part = self.written.get(self.written.partition_point(|part| part.end <= from))?;
        let is_there = part.start <= from && from + size_of::<T>() <= part.end;
        // SAFETY: so much is mapped, at the beginning of a page, and any bytes are atomics.
        is_there.then(|| unsafe { &*map.as_ptr().add(from).cast::<T>() })
    }

    /// How many values were written, at most.
    pub fn count<T>(&self) -> usize {
        self.written.iter().map(|part| part.len() / size_of::<T>()).sum()
    }

    /// Values up to here may be there.
    pub fn end<T>(&self) -> usize {
        self.written.last().map_or(0, |last| last.end / size_of::<T>())
    }
}

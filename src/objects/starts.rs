//! Where functions start, for code that has no unwind information: from symbols and from the
//! targets of direct calls.
//!
//! Every 0xe8 is taken for a call. Random bytes behind it lead into the same file with a
//! probability of its size over 4 GiB, but small constants are not random (`movl $0,-24(%rbp)`
//! holds e8 00 00 00 00): what lies inside a function whose bounds are known is no start.

use super::cfi::Cfi;
use super::file::ElfFile;
use super::symbols::FunctionSymbols;
use std::ops::{Range, RangeInclusive};

/// Code looked through at most, bytes; the largest programs have some 200 MB.
const MAX_CODE: u64 = 256 << 20;
/// How much of a function is looked through for a jump that leaves it.
const MAX_BODY: u64 = 4096;

/// Sorted virtual addresses (as the file states them).
#[derive(Default, Debug)]
pub struct FunctionStarts {
    starts: Vec<u64>,
}

impl FunctionStarts {
    pub fn read(file: &ElfFile, cfi: &Cfi, symbols: &FunctionSymbols) -> FunctionStarts {
        let mut starts = Vec::new();
        let mut left = MAX_CODE;
        for segment in file.layout().segments.iter().filter(|s| s.exec) {
            let len = segment.file_size.min(left);
            left -= len;
            let Ok(code) = file.read(segment.offset, len) else { continue };
            let end = segment.vaddr.saturating_add(segment.file_size);
            starts.extend(call_targets(&code, segment.vaddr).filter(|t| (segment.vaddr..end).contains(t)));
        }
        starts.sort_unstable();
        starts.dedup();
        starts.retain(|&target| {
            symbols.covering(target).is_none_or(|symbol| symbol.range_start == target)
                && cfi.bounds(target).is_none_or(|bounds| bounds.start == target)
        });
        starts.extend(symbols.starts());
        starts.push(file.layout().entry);
        starts.sort_unstable();
        starts.dedup();
        FunctionStarts { starts }
    }

    /// The last known start at or before an address.
    pub fn before(&self, svma: u64) -> Option<u64> {
        let after = self.starts.partition_point(|&s| s <= svma);
        self.starts.get(after.checked_sub(1)?).copied()
    }

    /// The first known start behind an address.
    pub fn after(&self, svma: u64) -> Option<u64> {
        self.starts.get(self.starts.partition_point(|&s| s <= svma)).copied()
    }
}

/// The code of a function jumps to one of these addresses.
pub(super) fn jumps_into(file: &ElfFile, function: Range<u64>, addresses: RangeInclusive<u64>) -> bool {
    let len = (function.end.saturating_sub(function.start)).min(MAX_BODY);
    let Some(offset) = file.layout().offset_of(function.start) else { return false };
    let Ok(body) = file.read(offset, len) else { return false };
    jump_targets(&body, function.start).any(|target| addresses.contains(&target))
}

fn call_targets(code: &[u8], at: u64) -> impl Iterator<Item = u64> + '_ {
    relative_targets(code, at, |opcode, _| opcode == 0xe8)
}

/// `jmp rel32` and the conditional ones; of the latter the second byte is looked at.
fn jump_targets(code: &[u8], at: u64) -> impl Iterator<Item = u64> + '_ {
    let long = relative_targets(code, at, |opcode, before| {
        opcode == 0xe9 || before == Some(0x0f) && opcode & 0xf0 == 0x80
    });
    let short = code.windows(2).enumerate().filter_map(move |(index, window)| {
        let [0xeb, rel] = *window else { return None };
        let next = at.checked_add(index as u64 + 2)?;
        Some(next.wrapping_add_signed(i64::from(rel as i8)))
    });
    long.chain(short)
}

fn relative_targets(code: &[u8], at: u64, is: impl Fn(u8, Option<u8>) -> bool) -> impl Iterator<Item = u64> {
    code.windows(5).enumerate().filter_map(move |(index, window)| {
        let [opcode, rel @ ..] = window else { return None };
        let before = index.checked_sub(1).and_then(|i| code.get(i)).copied();
        if !is(*opcode, before) {
            return None;
        }
        let next = at.checked_add(index as u64 + 5)?;
        Some(next.wrapping_add_signed(i64::from(i32::from_le_bytes(rel.try_into().ok()?))))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets() {
        // 0x1000: nop; call 0x1010; jmp 0x1000; je 0x100c; jmp 0x100f (short)
        let code = [
            0x90, 0xe8, 0x0a, 0, 0, 0, 0xe9, 0xf5, 0xff, 0xff, 0xff, 0x0f, 0x84, 0xfb, 0xff, 0xff, 0xff,
            0xeb, 0xfc,
        ];
        assert_eq!(call_targets(&code, 0x1000).collect::<Vec<_>>(), [0x1010]);
        assert_eq!(jump_targets(&code, 0x1000).collect::<Vec<_>>(), [0x1000, 0x100c, 0x100f]);
    }

    #[test]
    fn neighbours() {
        let starts = FunctionStarts { starts: vec![0x10, 0x20] };
        assert_eq!(
            [0xf, 0x10, 0x1f, 0x20].map(|a| starts.before(a)),
            [None, Some(0x10), Some(0x10), Some(0x20)]
        );
        assert_eq!([0xf, 0x10, 0x20].map(|a| starts.after(a)), [Some(0x10), Some(0x20), None]);
    }
}

//! Where functions start, for code that has no unwind information: from symbols and from the
//! targets of direct calls.
//!
//! Every 0xe8 is taken for a call. Random bytes behind it lead into the same file with a
//! probability of its size over 4 GiB, but small constants are not random (`movl $0,-24(%rbp)`
//! holds e8 00 00 00 00): what lies inside a function whose bounds are known is no start. Where the unwind tables
//! begin and end to say nothing, a function may begin, too.

use super::cfi::Cfi;
use super::elf::Segment;
use super::file::ElfFile;
use super::symbols::FunctionSymbols;
use crate::model::PAGE;
use std::ops::{Range, RangeInclusive};

/// Code searched at most, bytes; the largest programs have some 200 MB.
const MAX_CODE: u64 = 256 << 20;
/// Code that is read at once (little enough that the allocator need not map it anew each time), and the bytes of
/// a direct call.
pub(super) const CHUNK: u64 = 1 << 16;
const CALL: u64 = 5;
/// Less than that between two functions is padding: they begin at multiples of it.
const SHORTEST_GAP: u64 = 16;
/// How much of a function is searched for a jump that leaves it.
pub(super) const MAX_BODY: u64 = 4096;

/// Sorted virtual addresses (as the file states them).
#[derive(Default, Debug)]
pub struct FunctionStarts {
    starts: Vec<u64>,
}

impl FunctionStarts {
    pub fn read(file: &ElfFile, cfi: &Cfi, symbols: &FunctionSymbols) -> FunctionStarts {
        let mut starts = Vec::new();
        let mut left = MAX_CODE;
        let mut covered = Covered::by(cfi);
        let covers = covered.merged();
        let mut segments: Vec<_> = file.layout().segments.iter().filter(|s| s.exec).collect();
        segments.sort_unstable_by_key(|segment| segment.vaddr);
        for segment in segments {
            let len = segment.file_size.min(left);
            left -= len;
            let all = segment.vaddr..segment.vaddr.saturating_add(segment.file_size);
            let mut targets = Targets::within(all.clone());
            for gap in gaps(&covers, &all) {
                targets.include(&gap);
                starts.extend([gap.start, gap.end]);
            }
            in_pieces(file, (segment, len), CALL, |code, at| {
                call_targets(code, at).for_each(|target| targets.insert(target));
            });
            starts.extend(targets.iter().filter(|&target| {
                symbols.covering(target).is_none_or(|symbol| symbol.range_start == target)
                    && covered.start_of(target).is_none_or(|start| start == target)
            }));
        }
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

/// Code that no unwind table covers, and that a function can be in.
fn gaps(covers: &[Range<u64>], segment: &Range<u64>) -> Vec<Range<u64>> {
    let mut found = Vec::new();
    let mut from = segment.start;
    let end = segment.end..segment.end;
    for cover in covers.iter().filter(|cover| cover.end > segment.start).chain([&end]) {
        let to = cover.start.min(segment.end);
        if to.saturating_sub(from) >= SHORTEST_GAP {
            found.push(from..to);
        }
        from = from.max(cover.end);
    }
    found
}

/// A set of addresses within a segment: a bit for each of its bytes. Only some pages of a large program are
/// without unwind information, and only theirs are kept: of a browser's millions of calls, nearly none leads
/// there.
struct Targets {
    segment: Range<u64>,
    words: Vec<u64>,
    pages: Vec<bool>,
}

impl Targets {
    /// Of at most [`MAX_CODE`] bytes from the start of the segment on.
    fn within(segment: Range<u64>) -> Targets {
        let len = (segment.end - segment.start).min(MAX_CODE);
        let pages = vec![false; len.div_ceil(PAGE) as usize];
        Targets { segment, words: vec![0; len.div_ceil(64) as usize], pages }
    }

    /// Addresses in the pages of this range are kept.
    fn include(&mut self, range: &Range<u64>) {
        let page = |at: u64| ((at - self.segment.start) / PAGE) as usize;
        let (first, last) = (page(range.start), page(range.end - 1));
        self.pages.iter_mut().take(last + 1).skip(first).for_each(|page| *page = true);
    }

    fn insert(&mut self, target: u64) {
        let at = target.wrapping_sub(self.segment.start);
        if self.pages.get((at / PAGE) as usize) != Some(&true) || target >= self.segment.end {
            return;
        }
        if let Some(word) = self.words.get_mut((at / 64) as usize) {
            *word |= 1 << (at % 64);
        }
    }

    /// In ascending order.
    fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        let words =
            self.words.chunks((PAGE / 64) as usize).zip((self.segment.start..).step_by(PAGE as usize));
        let requested = words.zip(&self.pages).filter(|&(_, &requested)| requested);
        let words = requested.flat_map(|((words, at), _)| words.iter().zip((at..).step_by(64)));
        words.flat_map(|(&word, at)| {
            let next = |left: &u64| (left & (left - 1) != 0).then_some(left & (left - 1));
            std::iter::successors((word != 0).then_some(word), next)
                .map(move |left| at + u64::from(left.trailing_zeros()))
        })
    }
}

/// What unwind tables cover, for addresses that are queried in ascending order: a browser's 200 MB have
/// millions of calls.
struct Covered {
    /// Of each table, sorted, and how many of them begin below the last query.
    tables: Vec<(Vec<Range<u64>>, usize)>,
}

impl Covered {
    fn by(cfi: &Cfi) -> Covered {
        Covered { tables: cfi.functions().into_iter().map(|functions| (functions, 0)).collect() }
    }

    /// Of all tables together: sorted, and nothing twice.
    fn merged(&self) -> Vec<Range<u64>> {
        let mut all: Vec<Range<u64>> = self.tables.iter().flat_map(|(ranges, _)| ranges).cloned().collect();
        all.sort_unstable_by_key(|range| range.start);
        all.dedup_by(|next, last| {
            let joins = next.start <= last.end;
            last.end = if joins { last.end.max(next.end) } else { last.end };
            joins
        });
        all
    }

    /// As [`Cfi::bounds`], the start only.
    fn start_of(&mut self, svma: u64) -> Option<u64> {
        self.tables.iter_mut().find_map(|(functions, below)| {
            *below += functions[*below..].iter().take_while(|function| function.start <= svma).count();
            let last = functions.get(below.checked_sub(1)?)?;
            last.contains(&svma).then_some(last.start)
        })
    }
}

/// Calls `each` for the first `len` bytes of a segment's code and their address, piece by piece; no instruction of up to
/// `longest` bytes is cut. What cannot be read is left out.
pub(super) fn in_pieces(
    file: &ElfFile,
    (segment, len): (&Segment, u64),
    longest: u64,
    mut each: impl FnMut(&[u8], u64),
) {
    let mut done = 0;
    while done < len {
        let part = (len - done).min(CHUNK + longest - 1);
        let Ok(code) = file.read(segment.offset.saturating_add(done), part) else { break };
        each(&code, segment.vaddr.saturating_add(done));
        done += CHUNK;
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
    memchr::memchr_iter(0xe8, code).filter_map(move |index| {
        let next = index.checked_add(CALL as usize)?;
        let distance = i32::from_le_bytes(code.get(index + 1..next)?.try_into().ok()?);
        Some(at.checked_add(next as u64)?.wrapping_add_signed(i64::from(distance)))
    })
}

/// `jmp rel32` and the conditional ones; of the latter the second byte is examined.
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

/// Where four bytes of the code would lead to as the distance behind an opcode, which is recognised by it and
/// the byte before it.
pub(super) fn relative_targets(
    code: &[u8],
    at: u64,
    is: impl Fn(u8, Option<u8>) -> bool,
) -> impl Iterator<Item = u64> {
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
    fn gaps_between_what_is_covered() {
        let gaps = |covers: &[Range<u64>]| -> Vec<(u64, u64)> {
            gaps(covers, &(0x1000..0x2000)).into_iter().map(|gap| (gap.start, gap.end)).collect()
        };
        assert_eq!(gaps(&[]), [(0x1000, 0x2000)]);
        assert_eq!(gaps(&[0x800..0x1100, 0x110f..0x1200, 0x1210..0x3000]), [(0x1200, 0x1210)]);
        assert_eq!(gaps(&[0x1100..0x1200, 0x2100..0x2200]), [(0x1000, 0x1100), (0x1200, 0x2000)]);
        assert_eq!(gaps(std::slice::from_ref(&(0x800..0x900))), [(0x1000, 0x2000)]);
    }

    #[test]
    fn only_requested_pages_have_targets() {
        let mut targets = Targets::within(0x1000..0x4800);
        targets.include(&(0x2ff0..0x3000));
        targets.include(&(0x4000..0x4800));
        for target in [0xfff, 0x1000, 0x2000, 0x2fff, 0x3000, 0x3fff, 0x4000, 0x47ff, 0x4800, u64::MAX] {
            targets.insert(target);
        }
        assert_eq!(targets.iter().collect::<Vec<_>>(), [0x2000, 0x2fff, 0x4000, 0x47ff]);
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

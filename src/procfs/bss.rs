//! Where an image's bss lies in a process. The program headers decide: from the page behind p_filesz to
//! p_memsz (fs/binfmt_elf.c, `elf_load`; elf/dl-map-segments.h). Other memory that was mapped right above is
//! not distinguished in maps, and the kernel makes one VMA of both.

use crate::model::addr::page_up;
use crate::model::{Addr, AddrRange, Mapping, MappingFile, PAGE};
use crate::objects::Segment;

/// The bss of an image, derived from one of its executable mappings and its PT_LOAD headers. It is not known
/// for a segment whose file pages are not where its header puts them (a file that was mapped, but not
/// loaded).
pub(super) fn bss_of(code: &Mapping, segments: &[Segment], mappings: &[Mapping]) -> Vec<AddrRange> {
    let Some(file) = code.file else { return Vec::new() };
    let places = segments.iter().filter(|s| s.exec).filter_map(|s| bias(code, s));
    let mut found: Vec<AddrRange> = places
        .flat_map(|bias| {
            let with_file = segments.iter().enumerate().filter(|(_, s)| s.mem_size > s.file_size);
            let mapped = with_file.filter(move |(at, _)| in_place(bias, &segments[..=*at], (file, mappings)));
            mapped.filter_map(move |(_, segment)| bss(bias, segment))
        })
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// What is to be added to the file's addresses, if this mapping is of this segment.
fn bias(code: &Mapping, segment: &Segment) -> Option<u64> {
    let start = Addr(segment.offset).page_down().0;
    let end = page_up(segment.offset.checked_add(segment.file_size)?);
    if !(start..end).contains(&code.offset) {
        return None;
    }
    let svma = Addr(segment.vaddr).page_down().0.checked_add(code.offset - start)?;
    Some(code.range.start.0.wrapping_sub(svma))
}

/// True if the last page that has bytes of the file, of these segments, is mapped where it belongs.
fn in_place(bias: u64, until: &[Segment], (file, mappings): (MappingFile, &[Mapping])) -> bool {
    let last = until.iter().rfind(|segment| segment.file_size > 0);
    last.is_some_and(|segment| {
        let last = segment.file_size - 1;
        let at = Addr(bias.wrapping_add(segment.vaddr.wrapping_add(last))).page_down();
        let offset = Addr(segment.offset.saturating_add(last)).page_down().0;
        let holder = Mapping::holding(mappings, at).filter(|m| m.file == Some(file));
        holder.is_some_and(|m| m.offset.checked_add(at.0 - m.range.start.0) == Some(offset))
    })
}

fn bss(bias: u64, segment: &Segment) -> Option<AddrRange> {
    let start = match segment.file_size {
        0 => Addr(segment.vaddr).page_down().0,
        size => page_up(segment.vaddr.checked_add(size)?),
    };
    let end = segment.vaddr.checked_add(segment.mem_size).filter(|end| *end <= u64::MAX - PAGE)?;
    let range = AddrRange::new(bias.wrapping_add(start), bias.wrapping_add(page_up(end)));
    (range.start < range.end).then_some(range)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::procfs::parse_maps;

    const MAPS: &[u8] = b"\
7f0000000000-7f0000001000 r--p 00000000 08:01 7 /usr/lib/libfoo.so
7f0000001000-7f0000003000 r-xp 00001000 08:01 7 /usr/lib/libfoo.so
7f0000003000-7f0000004000 r--p 00002000 08:01 7 /usr/lib/libfoo.so
7f0000004000-7f0000005000 rw-p 00003000 08:01 7 /usr/lib/libfoo.so
7f0000005000-7f0000009000 rw-p 00000000 00:00 0
7f1000000000-7f1000005000 r-xp 00000000 08:01 7 /usr/lib/libfoo.so
7f1000005000-7f1000009000 rw-p 00000000 00:00 0
";

    fn load(offset: u64, vaddr: u64, (file_size, mem_size): (u64, u64), exec: bool) -> Segment {
        Segment { offset, vaddr, file_size, mem_size, exec }
    }

    /// Text, then data that begins in the middle of a page, all but its end made read-only (RELRO).
    fn image(data: (u64, u64)) -> Vec<Segment> {
        vec![
            load(0, 0, (0x800, 0x800), false),
            load(0x1000, 0x1000, (0x1800, 0x1800), true),
            load(0x2e00, 0x3e00, data, false),
        ]
    }

    fn found(code: usize, segments: &[Segment]) -> Vec<(u64, u64)> {
        let mappings = parse_maps(MAPS).mappings;
        let ranges = bss_of(&mappings[code], segments, &mappings);
        ranges.iter().map(|range| (range.start.0, range.end.0)).collect()
    }

    #[test]
    fn program_headers_say_where_it_ends() {
        assert_eq!(found(1, &image((0x1000, 0x1100))), [], "all of it in the last page of the file");
        assert_eq!(found(1, &image((0x1000, 0x1300))), [(0x7f00_0000_5000, 0x7f00_0000_6000)]);
        assert_eq!(found(1, &image((0x1000, 0x2000))), [(0x7f00_0000_5000, 0x7f00_0000_6000)]);
        assert_eq!(found(1, &image((0x1000, 0x5200))), [(0x7f00_0000_5000, 0x7f00_0000_9000)]);
        assert_eq!(found(1, &image((0x1000, u64::MAX))), [], "a damaged header");
    }

    #[test]
    fn a_segment_without_bytes_in_the_file_is_bss() {
        let mut segments = image((0x1000, 0x1000));
        segments.push(load(0x3e00, 0x6000, (0, 0x1001), false));
        assert_eq!(found(1, &segments), [(0x7f00_0000_6000, 0x7f00_0000_8000)]);
    }

    #[test]
    fn a_file_that_is_mapped_otherwise_was_not_loaded() {
        assert_eq!(found(5, &image((0x1000, 0x5200))), []);
    }
}

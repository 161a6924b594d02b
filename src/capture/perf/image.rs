//! What execve has mapped, out of the kernel's reports on the way. Pure, but for one snapshot of the head
//! of each file.
//!
//! The loader maps a file as long as all its segments together, to find a place, then unmaps all but
//! the first segment, which is not reported, and maps the others over it (fs/binfmt_elf.c, elf_load).
//! Before that the stack is reported without its name, and again with it when it has its place
//! (fs/exec.c, setup_arg_pages).

use super::sample::Mapped;
use crate::model::PAGE;
use crate::sys::untrusted_open;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

const PT_LOAD: u32 = 1;

/// The mappings of a new program, by address.
pub fn mappings(reports: &[Mapped], first_segment: &dyn Fn(&Mapped) -> Option<u64>) -> Vec<Mapped> {
    let placed = reports.iter().position(|report| report.name == b"[stack]");
    let reports = match placed {
        // A program's own pages come after the stack's.
        Some(at) => &reports[at..],
        None => reports,
    };
    let mut map: Vec<Mapped> = Vec::new();
    let mut files: Vec<(u32, u32, u64)> = Vec::new();
    for (index, report) in reports.iter().enumerate() {
        let mut report = report.clone();
        let file = (report.major, report.minor, report.inode);
        if report.inode != 0 && !files.contains(&file) {
            files.push(file);
            let rest = &reports[index + 1..];
            report.len = report.len.min(first_segment(&report).unwrap_or_else(|| until_next(&report, rest)));
        }
        lay(&mut map, report);
    }
    map.sort_by_key(|mapped| mapped.start);
    map
}

/// Where the next segment begins: the first cannot be longer.
fn until_next(first: &Mapped, rest: &[Mapped]) -> u64 {
    let same = |next: &&Mapped| {
        next.inode == first.inode
            && next.start > first.start
            && next.start < first.start.saturating_add(first.len)
    };
    rest.iter().find(same).map_or(first.len, |next| next.start - first.start)
}

/// Maps over whatever is there.
fn lay(map: &mut Vec<Mapped>, new: Mapped) {
    let (start, end) = (new.start, new.start.saturating_add(new.len));
    let mut kept = Vec::with_capacity(map.len() + 2);
    for old in map.drain(..) {
        let old_end = old.start.saturating_add(old.len);
        if old_end <= start || end <= old.start {
            kept.push(old);
            continue;
        }
        if old.start < start {
            kept.push(Mapped { len: start - old.start, ..old.clone() });
        }
        if end < old_end {
            let offset = if old.inode == 0 { old.offset } else { old.offset + (end - old.start) };
            kept.push(Mapped { start: end, len: old_end - end, offset, ..old });
        }
    }
    kept.push(new);
    *map = kept;
}

/// Bytes, in pages, that the first segment of a file takes; None where that is not to be had.
pub fn first_segment(mapped: &Mapped) -> Option<u64> {
    segment_size(&head_of(mapped)?)
}

/// True for a program whose calls take entries that are not traced.
pub fn is_32_bit(mapped: &Mapped) -> bool {
    head_of(mapped).is_some_and(|head| head.starts_with(b"\x7fELF\x01"))
}

fn head_of(mapped: &Mapped) -> Option<Vec<u8>> {
    let path = std::str::from_utf8(&mapped.name).ok()?;
    let pointed = untrusted_open::point_at(Path::new(path)).ok()?;
    // A device number may differ from what stat says (btrfs, overlayfs).
    if pointed.metadata().ok()?.ino() != mapped.inode {
        return None;
    }
    let mut file = untrusted_open::open_regular(&pointed).ok()?;
    let mut head = vec![0; 4096];
    let length = file.read(&mut head).ok()?;
    head.truncate(length);
    Some(head)
}

/// The first PT_LOAD of a 64-bit ELF header, in pages.
fn segment_size(head: &[u8]) -> Option<u64> {
    let u16_at = |at: usize| Some(u16::from_ne_bytes(head.get(at..at.checked_add(2)?)?.try_into().ok()?));
    let u32_at = |at: usize| Some(u32::from_ne_bytes(head.get(at..at.checked_add(4)?)?.try_into().ok()?));
    let u64_at = |at: usize| Some(u64::from_ne_bytes(head.get(at..at.checked_add(8)?)?.try_into().ok()?));
    if head.get(..5)? != b"\x7fELF\x02" {
        return None;
    }
    let table = usize::try_from(u64_at(32)?).ok()?;
    let (size, count) = (usize::from(u16_at(54)?), usize::from(u16_at(56)?));
    for index in 0..count {
        let at = table.checked_add(index * size)?;
        if u32_at(at)? == PT_LOAD {
            let (address, in_file) = (u64_at(at.checked_add(16)?)?, u64_at(at.checked_add(32)?)?);
            let size = crate::model::addr::page_up((address % PAGE).checked_add(in_file)?);
            return (size > 0).then_some(size);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(start: u64, len: u64, inode: u64, name: &[u8]) -> Mapped {
        let (prot, flags, offset) = (1, 2, 0);
        Mapped { start, len, offset, major: 8, minor: 1, inode, prot, flags, name: name.to_vec() }
    }

    fn ranges(map: &[Mapped]) -> Vec<(u64, u64)> {
        map.iter().map(|mapped| (mapped.start, mapped.start + mapped.len)).collect()
    }

    #[test]
    fn a_file_is_as_long_as_its_segments_and_the_stack_where_it_was_put() {
        let reports = [
            report(0x7fff_0000, 0x2_1000, 0, b"//anon"),
            report(0x7ffe_0000, 0x2_1000, 0, b"[stack]"),
            report(0x1000, 0x5000, 9, b"/bin/x"),
            report(0x2000, 0x1000, 9, b"/bin/x"),
            report(0x5000, 0x1000, 9, b"/bin/x"),
            report(0x6000, 0x1000, 0, b"//anon"),
        ];
        let expected = [
            (0x1000, 0x2000),
            (0x2000, 0x3000),
            (0x5000, 0x6000),
            (0x6000, 0x7000),
            (0x7ffe_0000, 0x8000_1000),
        ];
        assert_eq!(ranges(&mappings(&reports, &|_| Some(0x1000))), expected);
        // Without the file the next segment shows where the first ends.
        assert_eq!(ranges(&mappings(&reports, &|_| None)), expected);
    }

    #[test]
    fn what_is_mapped_over_is_cut_with_its_offset() {
        let mut map = Vec::new();
        lay(&mut map, report(0x1000, 0x4000, 9, b"/bin/x"));
        lay(&mut map, report(0x2000, 0x1000, 0, b"//anon"));
        map.sort_by_key(|mapped| mapped.start);
        assert_eq!(ranges(&map), [(0x1000, 0x2000), (0x2000, 0x3000), (0x3000, 0x5000)]);
        assert_eq!(map[2].offset, 0x2000);
    }

    #[test]
    fn headers_that_are_no_headers_have_no_segments() {
        assert_eq!(segment_size(b""), None);
        assert_eq!(segment_size(b"#!/bin/sh\n"), None);
        let mut wild = vec![0xff; 64];
        wild[..5].copy_from_slice(b"\x7fELF\x02");
        assert_eq!(segment_size(&wild), None);
    }
}

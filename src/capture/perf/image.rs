//! What execve has mapped, out of the kernel's reports on the way. Pure, but for one look at the head
//! of each file.
//!
//! The loader maps a file as long as all its segments together, to find a place, then unmaps all but
//! the first segment, which is not reported, and maps the others over it (fs/binfmt_elf.c, elf_load).
//! Before that the stack is reported without its name, and again with it when it has its place
//! (fs/exec.c, setup_arg_pages).

use super::sample::Mapped;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

const PAGE: u64 = crate::model::PAGE;
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
        next.inode == first.inode && next.start > first.start && next.start < first.start + first.len
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
    // Somebody may have put a pipe in its place: opening that must not wait.
    let mut file =
        File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path).ok()?;
    let found = file.metadata().ok()?;
    // A device number may differ from what stat says (btrfs, overlayfs).
    if !found.is_file() || found.ino() != mapped.inode {
        return None;
    }
    let mut head = vec![0; 4096];
    let length = file.read(&mut head).ok()?;
    head.truncate(length);
    Some(head)
}

/// The first PT_LOAD of a 64-bit ELF header, in pages.
fn segment_size(head: &[u8]) -> Option<u64> {
    let u16_at = |at: usize| Some(u16::from_ne_bytes(head.get(at..at + 2)?.try_into().ok()?));
    let u32_at = |at: usize| Some(u32::from_ne_bytes(head.get(at..at + 4)?.try_into().ok()?));
    let u64_at = |at: usize| Some(u64::from_ne_bytes(head.get(at..at + 8)?.try_into().ok()?));
    if head.get(..5)? != b"\x7fELF\x02" {
        return None;
    }
    let table = usize::try_from(u64_at(32)?).ok()?;
    let (size, count) = (usize::from(u16_at(54)?), usize::from(u16_at(56)?));
    for index in 0..count {
        let at = table.checked_add(index * size)?;
        if u32_at(at)? == PT_LOAD {
            let (address, in_file) = (u64_at(at + 16)?, u64_at(at + 32)?);
            return Some(crate::model::addr::page_up((address % PAGE).checked_add(in_file)?));
        }
    }
    None
}

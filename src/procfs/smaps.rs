//! Parses `/proc/PID/smaps`: bytes in, entries out. No I/O.
//!
//! Source of the format: fs/proc/task_mmu.c, `show_smap`, `__show_smap`, `show_smap_vma_flags`. Reading it
//! makes the kernel walk every page table under the mmap lock, some eight times longer than maps: read it
//! only where Pss or VmFlags are needed.

use super::maps::{DamagedLine, LineFault, is_stack_without_code, parse_line, take_decimal, unname_code};
use crate::model::{Mapping, VmFlags, VmaDetail};

/// One VMA with its figures, in bytes. Those that a kernel does not print are 0.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SmapsEntry {
    pub mapping: Mapping,
    /// Smallest page of the mapping: 2 MiB or more for hugetlb.
    pub kernel_page_size: u64,
    /// Pages present in the page tables, without zero pages, without hugetlb.
    pub rss: u64,
    pub pss: u64,
    pub anonymous: u64,
    pub anon_huge_pages: u64,
    pub shared_hugetlb: u64,
    pub private_hugetlb: u64,
    pub swap: u64,
    pub swap_pss: u64,
    pub vm_flags: VmFlags,
}

/// A whole smaps file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ParsedSmaps {
    /// In the file's order, vsyscall included if the kernel printed it.
    pub entries: Vec<SmapsEntry>,
    pub damaged: Vec<DamagedLine>,
}

/// Parses a whole file. Fields of other kernels are ignored, damaged lines skipped and listed.
pub fn parse_smaps(bytes: &[u8]) -> ParsedSmaps {
    let mut parsed = ParsedSmaps::default();
    for (index, line) in bytes.split(|&b| b == b'\n').enumerate() {
        if line.is_empty() {
            continue;
        }
        let outcome = if is_field(line) {
            match parsed.entries.last_mut() {
                Some(entry) => set_field(entry, line),
                None => Err(LineFault::Orphan),
            }
        } else {
            parse_line(line).map(|mapping| parsed.entries.push(SmapsEntry::empty(mapping)))
        };
        if let Err(fault) = outcome {
            parsed.damaged.push(DamagedLine { line: index + 1, fault });
        }
    }
    if parsed.entries.iter().any(|entry| is_stack_without_code(&entry.mapping)) {
        parsed.entries.iter_mut().for_each(|entry| unname_code(&mut entry.mapping));
    }
    parsed
}

/// Field names begin with a capital letter, header lines with a lower-case hexadecimal digit.
fn is_field(line: &[u8]) -> bool {
    line.first().is_some_and(u8::is_ascii_uppercase)
}

fn set_field(entry: &mut SmapsEntry, line: &[u8]) -> Result<(), LineFault> {
    let colon = line.iter().position(|&b| b == b':').ok_or(LineFault::Field)?;
    let (key, value) = (&line[..colon], &line[colon + 1..]);
    if key == b"VmFlags" {
        entry.vm_flags = VmFlags::parse(value);
        return Ok(());
    }
    let Some(figure) = entry.figure(key) else { return Ok(()) };
    let mut digits = value.trim_ascii_start();
    let kib = take_decimal(&mut digits).ok_or(LineFault::Field)?;
    *figure = kib.saturating_mul(1024);
    Ok(())
}

impl SmapsEntry {
    fn empty(mapping: Mapping) -> SmapsEntry {
        SmapsEntry {
            mapping,
            kernel_page_size: 0,
            rss: 0,
            pss: 0,
            anonymous: 0,
            anon_huge_pages: 0,
            shared_hugetlb: 0,
            private_hugetlb: 0,
            swap: 0,
            swap_pss: 0,
            vm_flags: VmFlags::default(),
        }
    }

    /// The part that rules use.
    pub(super) fn into_detail(self) -> VmaDetail {
        VmaDetail {
            range: self.mapping.range,
            flags: self.vm_flags,
            pss: self.pss,
            page_size: self.kernel_page_size,
            hugetlb: self.private_hugetlb.saturating_add(self.shared_hugetlb),
        }
    }

    /// The figure that a key names. None for those that are not used.
    fn figure(&mut self, key: &[u8]) -> Option<&mut u64> {
        Some(match key {
            b"KernelPageSize" => &mut self.kernel_page_size,
            b"Rss" => &mut self.rss,
            b"Pss" => &mut self.pss,
            b"Anonymous" => &mut self.anonymous,
            b"AnonHugePages" => &mut self.anon_huge_pages,
            b"Shared_Hugetlb" => &mut self.shared_hugetlb,
            b"Private_Hugetlb" => &mut self.private_hugetlb,
            b"Swap" => &mut self.swap,
            b"SwapPss" => &mut self.swap_pss,
            _ => return None,
        })
    }
}

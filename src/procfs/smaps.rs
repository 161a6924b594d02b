//! Parses `/proc/PID/smaps`: bytes in, entries out. No I/O.
//!
//! Source of the format: fs/proc/task_mmu.c, `show_smap`, `__show_smap`, `show_smap_vma_flags`.
//! Reading it makes the kernel walk every page table under the mmap lock, some eight times
//! longer than maps: read it only where Pss or VmFlags are wanted.

use super::maps::{DamagedLine, LineFault, parse_line, take_decimal};
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

    /// What rules may ask of it.
    pub(super) fn into_detail(self) -> VmaDetail {
        VmaDetail {
            range: self.mapping.range,
            flags: self.vm_flags,
            pss: self.pss,
            page_size: self.kernel_page_size,
            hugetlb: self.private_hugetlb.saturating_add(self.shared_hugetlb),
        }
    }

    /// The figure that a key names. None for those that nobody asks for.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::AddrRange;

    const TWO: &[u8] = b"7f10c0000000-7f10c0021000 rw-p 00000000 00:00 0 \n\
        Size:                132 kB\n\
        KernelPageSize:        4 kB\n\
        MMUPageSize:           4 kB\n\
        Rss:                   8 kB\n\
        Pss:                   7 kB\n\
        Pss_Dirty:             7 kB\n\
        Anonymous:             8 kB\n\
        Swap:                 12 kB\n\
        THPeligible:           0\n\
        ProtectionKey:         0\n\
        VmFlags: rd wr mr mw me nr sd \n\
        7f10c0021000-7f10c4000000 ---p 00000000 08:01 5          /A: b\n\
        Rss:                   0 kB\n\
        VmFlags: mr mw me ht sd \n";

    #[test]
    fn figures_are_bytes_and_flags_are_kept() {
        let parsed = parse_smaps(TWO);
        assert!(parsed.damaged.is_empty());
        let [first, second] = parsed.entries.as_slice() else { panic!("two entries") };
        assert_eq!(first.mapping.range, AddrRange::new(0x7f10c0000000, 0x7f10c0021000));
        assert_eq!(
            (first.rss, first.pss, first.anonymous, first.swap, first.kernel_page_size),
            (8192, 7168, 8192, 12288, 4096)
        );
        assert!(first.vm_flags.has("nr") && !first.vm_flags.has("ht"));
        assert_eq!(second.mapping.name, b"/A: b");
        assert!(second.vm_flags.has("ht"));
        assert_eq!(second.rss, 0);
    }

    #[test]
    fn damage_is_numbered_and_the_rest_stands() {
        let text =
            b"Rss:   4 kB\n1000-2000 rw-p 00000000 00:00 0 \nRss:   x kB\nNoColon\nPss:  4 kB\nrubbish\n";
        let parsed = parse_smaps(text);
        let faults: Vec<(usize, LineFault)> = parsed.damaged.iter().map(|d| (d.line, d.fault)).collect();
        assert_eq!(
            faults,
            [(1, LineFault::Orphan), (3, LineFault::Field), (4, LineFault::Field), (6, LineFault::Range)]
        );
        assert_eq!(parsed.entries.len(), 1);
        assert_eq!(parsed.entries[0].pss, 4096);
    }

    proptest::proptest! {
        #[test]
        fn no_input_panics(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..400)) {
            parse_smaps(&bytes);
        }
    }
}

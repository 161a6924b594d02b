//! Headers of an ELF file: segments, sections, build id. Every size in the file is checked
//! against a bound before anything is read or allocated.

use super::bytes::{ObjectError, ReadAt, read_exact};
use goblin::container::{Container, Ctx, Endian};
use goblin::elf::header::{
    EM_386, EM_AARCH64, EM_ARM, EM_X86_64, ET_CORE, ET_DYN, ET_EXEC, ET_REL, Header, machine_to_str,
};
use goblin::elf::program_header::{PF_X, PT_GNU_EH_FRAME, PT_INTERP, PT_LOAD, PT_NOTE, ProgramHeader};
use goblin::elf::section_header::{SHF_COMPRESSED, SHT_NOBITS, SHT_NOTE, SectionHeader};

/// Bounds against hostile headers; the largest seen in the wild are far below.
const MAX_SEGMENTS: usize = 1024;
const MAX_SECTIONS: usize = 65_536;
const MAX_NAMES: u64 = 8 << 20;
/// What is longer is cut: each of [`MAX_SECTIONS`] could have all of [`MAX_NAMES`] as its name.
const MAX_SECTION_NAME: usize = 256;
const MAX_NOTE: u64 = 64 << 10;

pub const EHDR: usize = 64;
const PHDR: usize = 56;
const SHDR: usize = 64;

/// A PT_LOAD segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    pub offset: u64,
    pub vaddr: u64,
    pub file_size: u64,
    /// p_memsz: what lies beyond `file_size` is zero, and in no file.
    pub mem_size: u64,
    pub exec: bool,
}

/// A section header with its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    pub name: Box<[u8]>,
    pub kind: u32,
    pub flags: u64,
    pub addr: u64,
    pub offset: u64,
    pub size: u64,
    pub link: u32,
}

impl Section {
    pub fn is_compressed(&self) -> bool {
        self.flags & u64::from(SHF_COMPRESSED) != 0
    }
}

/// What the headers of a 64-bit x86-64 ELF file say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ElfLayout {
    pub segments: Vec<Segment>,
    /// Empty when the section headers were stripped.
    pub sections: Vec<Section>,
    /// e_entry: where the kernel, or the dynamic loader, starts it.
    pub entry: u64,
    /// A dynamic loader starts it (PT_INTERP).
    pub is_dynamic_program: bool,
    /// PT_GNU_EH_FRAME: where `.eh_frame_hdr` is in memory.
    pub eh_frame_hdr: Option<Segment>,
    /// NT_GNU_BUILD_ID, lower-case hex.
    pub build_id: Option<String>,
}

impl ElfLayout {
    /// Parses the headers of a file.
    ///
    /// # Errors
    /// `NotElf` for anything but a little-endian 64-bit x86-64 ELF file, `Io` for short reads of
    /// the headers themselves. Damaged section headers are left out instead.
    pub fn parse(file: &dyn ReadAt) -> Result<ElfLayout, ObjectError> {
        let ctx = Ctx::new(Container::Big, Endian::Little);
        let head = read_exact(file, 0, EHDR as u64)?;
        if !head.starts_with(b"\x7fELF") {
            return Err(ObjectError::NoMagic);
        }
        if head.get(..6) != Some(b"\x7fELF\x02\x01") {
            return Err(ObjectError::NotElf);
        }
        let header = goblin::elf::Elf::parse_header(&head).map_err(|_| ObjectError::NotElf)?;
        if header.e_machine != EM_X86_64 || usize::from(header.e_phentsize) != PHDR && header.e_phnum != 0 {
            return Err(ObjectError::NotElf);
        }
        let count = usize::from(header.e_phnum).min(MAX_SEGMENTS);
        let table = read_exact(file, header.e_phoff, (count * PHDR) as u64)?;
        let programs = ProgramHeader::parse(&table, 0, count, ctx).map_err(|_| ObjectError::NotElf)?;
        let mut layout = ElfLayout {
            sections: sections(file, &header, ctx),
            entry: header.e_entry,
            ..ElfLayout::default()
        };
        for program in &programs {
            let segment = Segment {
                offset: program.p_offset,
                vaddr: program.p_vaddr,
                file_size: program.p_filesz,
                mem_size: program.p_memsz,
                exec: program.p_flags & PF_X != 0,
            };
            match program.p_type {
                PT_LOAD => layout.segments.push(segment),
                PT_INTERP => layout.is_dynamic_program = true,
                PT_GNU_EH_FRAME => layout.eh_frame_hdr = Some(segment),
                PT_NOTE if layout.build_id.is_none() => {
                    layout.build_id = build_id_in(file, segment.offset, segment.file_size);
                }
                _ => {}
            }
        }
        if layout.build_id.is_none() {
            // `objcopy --only-keep-debug` leaves the note as a section whose segment is gone.
            let notes = layout.sections.iter().filter(|s| s.kind == SHT_NOTE);
            layout.build_id = notes.filter_map(|s| build_id_in(file, s.offset, s.size)).next();
        }
        Ok(layout)
    }

    pub fn section(&self, name: &[u8]) -> Option<&Section> {
        self.sections.iter().find(|s| &*s.name == name && s.kind != SHT_NOBITS)
    }

    /// The virtual address (as the file states it) of a file offset, preferring executable
    /// segments: neighbouring segments may share the page at their border, and `file_offset` came
    /// from an executable mapping.
    pub fn svma_of(&self, file_offset: u64) -> Option<u64> {
        let covers = |s: &&Segment| {
            let start = crate::model::Addr(s.offset).page_down().0;
            let end = crate::model::addr::page_up(s.offset.saturating_add(s.file_size));
            (start..end).contains(&file_offset)
        };
        let exec = self.segments.iter().filter(|s| s.exec).find(covers);
        let segment = exec.or_else(|| self.segments.iter().find(covers))?;
        Some(segment.vaddr.wrapping_add(file_offset.wrapping_sub(segment.offset)))
    }

    /// The file offset of a virtual address, if a segment holds it.
    pub fn offset_of(&self, svma: u64) -> Option<u64> {
        let segment = self.segment_of(svma)?;
        segment.offset.checked_add(svma - segment.vaddr)
    }

    /// The segment of which the file has this byte.
    pub fn segment_of(&self, svma: u64) -> Option<&Segment> {
        self.segments.iter().find(|s| svma.checked_sub(s.vaddr).is_some_and(|d| d < s.file_size))
    }

    /// File offset after the last byte of the segment that holds `svma`.
    pub fn segment_end(&self, svma: u64) -> Option<u64> {
        let segment = self.segment_of(svma)?;
        segment.offset.checked_add(segment.file_size)
    }
}

/// Section headers with names; empty when they are missing or make no sense.
fn sections(file: &dyn ReadAt, header: &Header, ctx: Ctx) -> Vec<Section> {
    read_sections(file, header, ctx).unwrap_or_default()
}

fn read_sections(file: &dyn ReadAt, header: &Header, ctx: Ctx) -> Option<Vec<Section>> {
    if header.e_shoff == 0 || usize::from(header.e_shentsize) != SHDR {
        return None;
    }
    let first = read_exact(file, header.e_shoff, SHDR as u64).ok()?;
    let first = SectionHeader::parse_from(&first, 0, 1, ctx).ok()?.pop()?;
    // More than 0xff00 sections: the count moves to section 0 (System V ABI, "e_shnum").
    let count = match header.e_shnum {
        0 => usize::try_from(first.sh_size).ok()?,
        n => usize::from(n),
    };
    if count == 0 || count > MAX_SECTIONS {
        return None;
    }
    let table = read_exact(file, header.e_shoff, (count * SHDR) as u64).ok()?;
    let headers = SectionHeader::parse_from(&table, 0, count, ctx).ok()?;
    let names_at = match header.e_shstrndx {
        0xffff => usize::try_from(first.sh_link).ok()?,
        n => usize::from(n),
    };
    let names = headers.get(names_at)?;
    if names.sh_size > MAX_NAMES {
        return None;
    }
    let names = read_exact(file, names.sh_offset, names.sh_size).ok()?;
    let name_at = |at: usize| -> Box<[u8]> {
        let tail = names.get(at..).unwrap_or_default();
        let tail = tail.get(..MAX_SECTION_NAME).unwrap_or(tail);
        tail.split(|&b| b == 0).next().unwrap_or_default().into()
    };
    let section = |h: &SectionHeader| Section {
        name: name_at(h.sh_name),
        kind: h.sh_type,
        flags: h.sh_flags,
        addr: h.sh_addr,
        offset: h.sh_offset,
        size: h.sh_size,
        link: h.sh_link,
    };
    Some(headers.iter().map(section).collect())
}

fn build_id_in(file: &dyn ReadAt, offset: u64, size: u64) -> Option<String> {
    let notes = read_exact(file, offset, size.min(MAX_NOTE)).ok()?;
    parse_build_id(&notes)
}

/// What a file is that [`ElfLayout::parse`] refuses, from its first 64 bytes.
pub fn foreign(head: &[u8]) -> String {
    const ONLY: &str = "vmaudit reads 64-bit x86-64 programs and libraries";
    let half = |at: usize| Some(u16::from_le_bytes(head.get(at..at + 2)?.try_into().ok()?));
    if head.is_empty() {
        return "an empty file".to_owned();
    }
    if head.starts_with(b"!<arch>\n") {
        return format!("an archive of object files, not linked yet; {ONLY}");
    }
    if !head.starts_with(b"\x7fELF") {
        let text = head.iter().all(|b| b.is_ascii_graphic() || b.is_ascii_whitespace());
        return format!("not an ELF file{}; {ONLY}", if text { ", but text" } else { "" });
    }
    match (head.get(4), head.get(5), half(18)) {
        (Some(1), _, _) => format!("a 32-bit ELF file; {ONLY}"),
        (Some(2), Some(2), _) => format!("a big-endian ELF file; {ONLY}"),
        (Some(2), Some(1), Some(machine)) if machine != EM_X86_64 => {
            format!("an ELF file for another processor ({}); {ONLY}", machine_to_str(machine))
        }
        (Some(2), Some(1), Some(_)) if head.len() == EHDR => {
            let size = half(54).unwrap_or(0);
            format!("a damaged ELF file: its program headers are said to have {size} bytes each, not {PHDR}")
        }
        _ => "a damaged or truncated ELF file".to_owned(),
    }
}

/// Whether the processor itself executes a file with these first 64 bytes: one of its own, also of the 32-bit kind.
pub fn runs_here(head: &[u8]) -> bool {
    let machine = head.get(18..20).and_then(|half| half.try_into().ok()).map(u16::from_le_bytes);
    let own = if cfg!(target_arch = "aarch64") { [EM_AARCH64, EM_ARM] } else { [EM_X86_64, EM_386] };
    head.starts_with(b"\x7fELF") && machine.is_some_and(|machine| own.contains(&machine))
}

/// What a file is whose symbols have no address to probe, from its first 64 bytes.
pub fn no_program(head: &[u8]) -> Option<String> {
    let kind = u16::from_le_bytes(head.get(16..18)?.try_into().ok()?);
    match kind {
        ET_EXEC | ET_DYN => None,
        ET_REL => Some("an object file that is not linked yet: its functions have no addresses".to_owned()),
        ET_CORE => Some("a core dump, not a program".to_owned()),
        other => Some(format!("an ELF file of type {other}, neither program nor library")),
    }
}

/// Finds NT_GNU_BUILD_ID (3) of owner "GNU" in the bytes of a note segment or section.
pub fn parse_build_id(notes: &[u8]) -> Option<String> {
    let word = |at: usize| -> Option<usize> {
        let bytes = notes.get(at..at.checked_add(4)?)?;
        usize::try_from(u32::from_le_bytes(bytes.try_into().ok()?)).ok()
    };
    let mut at = 0usize;
    loop {
        let (name_len, desc_len, kind) = (word(at)?, word(at + 4)?, word(at + 8)?);
        let name_at = at + 12;
        let desc_at = name_at.checked_add(name_len.checked_next_multiple_of(4)?)?;
        let next = desc_at.checked_add(desc_len.checked_next_multiple_of(4)?)?;
        if kind == 3 && notes.get(name_at..name_at + 4) == Some(b"GNU\0") {
            let id = notes.get(desc_at..desc_at + desc_len)?;
            return Some(id.iter().map(|b| format!("{b:02x}")).collect());
        }
        at = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(kind: u32, name: &[u8], desc: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        for word in [name.len() as u32, desc.len() as u32, kind] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        for part in [name, desc] {
            out.extend_from_slice(part);
            out.resize(out.len().next_multiple_of(4), 0);
        }
        out
    }

    #[test]
    fn build_id_is_found_after_other_notes() {
        let mut notes = note(1, b"GNU\0", &[0; 16]);
        notes.extend(note(3, b"GNU\0", &[0xab, 0x01, 0xff]));
        assert_eq!(parse_build_id(&notes).as_deref(), Some("ab01ff"));
    }

    #[test]
    fn damaged_notes_give_nothing() {
        let whole = note(3, b"GNU\0", &[1, 2, 3, 4]);
        for len in 0..whole.len() {
            assert_eq!(parse_build_id(&whole[..len]), None, "cut at {len}");
        }
        assert_eq!(parse_build_id(&[0xff; 64]), None);
    }

    #[test]
    fn offsets_at_a_shared_page_belong_to_the_executable_segment() {
        let layout = ElfLayout {
            segments: vec![
                Segment { offset: 0, vaddr: 0, file_size: 0x1100, mem_size: 0x1100, exec: false },
                Segment { offset: 0x1100, vaddr: 0x2100, file_size: 0x800, mem_size: 0x800, exec: true },
            ],
            ..ElfLayout::default()
        };
        assert_eq!(layout.svma_of(0x1100), Some(0x2100));
        assert_eq!(layout.svma_of(0x1010), Some(0x2010));
        assert_eq!(layout.svma_of(0x10), Some(0x10));
        assert_eq!(layout.svma_of(0x5000), None);
        assert_eq!(layout.offset_of(0x2101), Some(0x1101));
        assert_eq!(layout.offset_of(0x9000), None);
    }

    #[test]
    fn no_prefix_or_damage_of_a_real_file_panics() {
        let own = std::fs::read("/proc/self/exe").unwrap_or_default();
        let head = &own[..own.len().min(8192)];
        for len in (0..head.len()).step_by(7) {
            let _ = ElfLayout::parse(&head[..len].to_vec());
        }
        for at in 0..EHDR + 4 * PHDR {
            for value in [0u8, 0x7f, 0xff] {
                let mut bytes = head.to_vec();
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = value;
                }
                let _ = ElfLayout::parse(&bytes);
            }
        }
    }
}

//! A saved `/proc/PID/smaps` or `/proc/PID/maps`, read line by line: it may be a file of another
//! machine, cut off, joined from several, or no such file at all. What makes no sense is an error
//! with its line number, and memory is bounded whatever the file's length.

use super::maps::{LineFault, parse_line, take_decimal};
use crate::model::{AddrRange, Mapping, PAGE, VmFlags, VmaDetail};
use std::io::{self, BufRead, Read};

/// Longer than any line of the kernel's: a path has at most 4096 bytes, each of which may be a
/// newline written in four.
const MAX_LINE: u64 = 32 << 10;
/// Sixteen times the usual vm.max_map_count.
const MAX_MAPPINGS: usize = 1 << 20;
/// All names together, bytes.
const MAX_NAMES: usize = 256 << 20;

/// An address space as a file shows it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SavedMaps {
    /// Sorted, disjoint, without vsyscall.
    pub mappings: Vec<Mapping>,
    /// (VMA, Rss bytes, Swap bytes) of each mapping; None for a maps file, which has no figures.
    pub figures: Option<Vec<(AddrRange, u64, u64)>>,
    /// What VmFlags and other lines say of those mappings that have them.
    pub details: Vec<VmaDetail>,
    /// Mappings that the kernel printed twice, because they were merged while it printed.
    pub torn: usize,
    /// Its last line has no end: more may have come after it.
    pub cut: bool,
}

/// Why a file is not what it should be.
#[derive(thiserror::Error, Debug)]
pub enum SavedError {
    #[error("line {line}: {fault}")]
    Line { line: u64, fault: SavedFault },
    #[error("it is empty: the smaps of a kernel thread or a zombie is, too")]
    Empty,
    #[error("line {line}: cannot be read: {source}")]
    Read { line: u64, source: io::Error },
}

#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
pub enum SavedFault {
    #[error("no line of smaps or maps ({0})")]
    Damaged(LineFault),
    #[error("longer than {MAX_LINE} bytes: no line of smaps or maps")]
    TooLong,
    #[error("{0} is not at a page boundary")]
    Unaligned(AddrRange),
    #[error("{0} lies below the mapping before it: several files joined, or lines out of order")]
    OutOfOrder(AddrRange),
    #[error("{0} are more bytes than the mapping has ({1})")]
    TooMuch(&'static str, u64),
    #[error("the mapping that begins here has no line Rss, others have: the file is cut off or edited")]
    NoRss,
    #[error("the mapping that begins here has no line VmFlags, others have: the file is cut off")]
    NoFlags,
    #[error("this is smaps_rollup, the sum over all mappings: smaps itself is needed")]
    Rollup,
    #[error("more than {MAX_MAPPINGS} mappings")]
    TooMany,
    #[error("names of more than {} MiB", MAX_NAMES >> 20)]
    Names,
}

/// What belongs to the mapping whose header line was read last.
struct Open {
    line: u64,
    rss: Option<u64>,
    swap: u64,
    /// The line VmFlags, the last of each mapping.
    flags: Option<VmFlags>,
    pss: u64,
    page_size: u64,
    hugetlb: u64,
}

#[derive(Default)]
struct Reader {
    saved: SavedMaps,
    figures: Vec<(AddrRange, u64, u64)>,
    /// None before the first mapping, and for those that are left out (vsyscall).
    open: Option<Open>,
    began: bool,
    has_rss: bool,
    /// A mapping had the line VmFlags, the last of each.
    has_flags: bool,
    /// The first mapping without Rss.
    without_rss: Option<u64>,
    names: usize,
}

/// Reads a whole file. Lines may end in CR LF.
///
/// # Errors
/// At the first line that makes no sense.
pub fn parse_saved(mut source: impl BufRead) -> Result<SavedMaps, SavedError> {
    let mut reader = Reader::default();
    let mut text = Vec::new();
    let mut line = 0;
    loop {
        line += 1;
        text.clear();
        let got = source.by_ref().take(MAX_LINE + 1).read_until(b'\n', &mut text);
        if got.map_err(|source| SavedError::Read { line, source })? == 0 {
            break;
        }
        let at = |fault| SavedError::Line { line, fault };
        if text.len() as u64 > MAX_LINE {
            return Err(at(SavedFault::TooLong));
        }
        let bytes = text.strip_suffix(b"\n").unwrap_or(&text);
        reader.saved.cut = bytes.len() == text.len();
        let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
        if bytes.is_empty() {
            continue;
        }
        if bytes.first().is_some_and(u8::is_ascii_uppercase) {
            reader.field(bytes).map_err(at)?;
        } else {
            reader.close().map_err(|(line, fault)| SavedError::Line { line, fault })?;
            reader.header(bytes, line).map_err(at)?;
        }
    }
    reader.finish()
}

impl Reader {
    fn header(&mut self, bytes: &[u8], line: u64) -> Result<(), SavedFault> {
        let mut mapping = parse_line(bytes).map_err(SavedFault::Damaged)?;
        self.began = true;
        if mapping.is_special("[rollup]") {
            return Err(SavedFault::Rollup);
        }
        // vsyscall is no part of VmSize; the upper half is the kernel's.
        if mapping.is_special("[vsyscall]") || mapping.range.end.0 > 1 << 63 || mapping.range.is_empty() {
            return Ok(());
        }
        if !mapping.range.start.is_aligned(PAGE) || !mapping.range.end.is_aligned(PAGE) {
            return Err(SavedFault::Unaligned(mapping.range));
        }
        if let Some(last) = self.saved.mappings.last()
            && mapping.range.start < last.range.end
        {
            // The kernel releases its lock between chunks of the file: a VMA just printed that is merged with
            // the next one is printed again, with its old start.
            if mapping.range.start < last.range.start || mapping.range.end <= last.range.end {
                return Err(SavedFault::OutOfOrder(mapping.range));
            }
            self.saved.torn += 1;
            if mapping.file.is_some() {
                mapping.offset = mapping.offset.wrapping_add(last.range.end.0 - mapping.range.start.0);
            }
            mapping.range.start = last.range.end;
        }
        self.names += mapping.name.len();
        if self.names > MAX_NAMES {
            return Err(SavedFault::Names);
        }
        if self.saved.mappings.len() >= MAX_MAPPINGS {
            return Err(SavedFault::TooMany);
        }
        self.saved.mappings.push(mapping);
        self.open = Some(Open { line, rss: None, swap: 0, flags: None, pss: 0, page_size: 0, hugetlb: 0 });
        Ok(())
    }

    fn field(&mut self, bytes: &[u8]) -> Result<(), SavedFault> {
        if !self.began {
            return Err(SavedFault::Damaged(LineFault::Orphan));
        }
        let colon = bytes.iter().position(|&b| b == b':').ok_or(SavedFault::Damaged(LineFault::Field))?;
        let (key, value) = (&bytes[..colon], &bytes[colon + 1..]);
        let (Some(open), Some(mapping)) = (&mut self.open, self.saved.mappings.last()) else { return Ok(()) };
        let name = match key {
            b"Rss" => "Rss",
            b"Swap" => "Swap",
            b"Pss" => "Pss",
            b"KernelPageSize" => "KernelPageSize",
            b"Private_Hugetlb" => "Private_Hugetlb",
            b"Shared_Hugetlb" => "Shared_Hugetlb",
            b"VmFlags" => {
                open.flags = Some(VmFlags::parse(value));
                return Ok(());
            }
            _ => return Ok(()),
        };
        let mut digits = value.trim_ascii_start();
        let kib = take_decimal(&mut digits).ok_or(SavedFault::Damaged(LineFault::Field))?;
        let bytes = kib.saturating_mul(1024);
        match name {
            "Pss" => open.pss = bytes,
            "KernelPageSize" => open.page_size = bytes,
            "Private_Hugetlb" | "Shared_Hugetlb" => open.hugetlb = open.hugetlb.saturating_add(bytes),
            _ => {}
        }
        if !matches!(name, "Rss" | "Swap") {
            return Ok(());
        }
        let torn = self.saved.torn > 0;
        let len = mapping.range.len();
        if bytes > len && !torn {
            return Err(SavedFault::TooMuch(name, len));
        }
        match name {
            "Rss" => open.rss = Some(bytes.min(len)),
            _ => open.swap = bytes.min(len),
        }
        Ok(())
    }

    /// The mapping whose lines were read is complete.
    fn close(&mut self) -> Result<(), (u64, SavedFault)> {
        let (Some(open), Some(mapping)) = (self.open.take(), self.saved.mappings.last()) else {
            return Ok(());
        };
        self.has_flags |= open.flags.is_some();
        if let Some(flags) = open.flags {
            let (range, pss) = (mapping.range, open.pss);
            let (page_size, hugetlb) = (open.page_size, open.hugetlb);
            self.saved.details.push(VmaDetail { range, flags, pss, page_size, hugetlb });
        }
        match open.rss {
            Some(_) => self.has_rss = true,
            None => _ = self.without_rss.get_or_insert(open.line),
        }
        if let (true, Some(line)) = (self.has_rss, self.without_rss) {
            return Err((line, SavedFault::NoRss));
        }
        if let Some(rss) = open.rss {
            let swap = open.swap.min(mapping.range.len() - rss);
            self.figures.push((mapping.range, rss, swap));
        }
        Ok(())
    }

    fn finish(mut self) -> Result<SavedMaps, SavedError> {
        if let Some(Open { line, flags: None, .. }) = self.open
            && self.has_flags
        {
            return Err(SavedError::Line { line, fault: SavedFault::NoFlags });
        }
        self.close().map_err(|(line, fault)| SavedError::Line { line, fault })?;
        if self.saved.mappings.is_empty() {
            return Err(SavedError::Empty);
        }
        if self.has_rss {
            self.saved.figures = Some(self.figures);
        }
        Ok(self.saved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Addr;

    fn error(text: &[u8]) -> String {
        parse_saved(text).expect_err("an error").to_string()
    }

    const HEAP: &str = "1000-4000 rw-p 00000000 00:00 0 [heap]\nRss: 8 kB\nSwap: 4 kB\n";

    #[test]
    fn smaps_and_maps_are_distinguished() {
        let text =
            format!("{HEAP}ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]\nRss: 4 kB\n");
        let saved = parse_saved(text.as_bytes()).expect("sound");
        assert_eq!(saved.figures, Some(vec![(AddrRange::new(0x1000, 0x4000), 8192, 4096)]));
        let maps =
            b"1000-2000 r--p 00000000 08:01 7 /a b\\012c (deleted)\r\n2000-3000 rw-p 00000000 00:00 0 \r\n";
        let saved = parse_saved(maps.as_slice()).expect("sound");
        assert_eq!(saved.figures, None);
        assert_eq!(saved.mappings[0].name, b"/a b\nc (deleted)");
        assert_eq!(saved.mappings[1].name, b"");
    }

    #[test]
    fn a_merged_mapping_printed_twice_is_counted_once() {
        let text = format!("{HEAP}1000-6000 rw-p 00000000 00:00 0 [heap]\nRss: 20 kB\n");
        let saved = parse_saved(text.as_bytes()).expect("sound");
        assert_eq!((saved.torn, saved.mappings.len()), (1, 2));
        assert_eq!(saved.mappings[1].range.start, Addr(0x4000));
        assert_eq!(saved.figures.expect("figures")[1].1, 8192, "no more than fits");
    }

    #[test]
    fn damage_is_reported_with_its_line() {
        assert!(error(b"").contains("empty"));
        assert!(error(b"\n\n").contains("empty"));
        assert!(error(b"Name: bash\n").starts_with("line 1: "));
        assert!(error(b"\x7fELF\x02\x01").starts_with("line 1: no line of smaps"));
        assert!(error(format!("{HEAP}{HEAP}").as_bytes()).starts_with("line 4: 0x1000-0x4000 lies below"));
        assert!(error(b"1000-2000 rw-p 0 0:0 0\nRss: 9 kB\n").starts_with("line 2: Rss are more bytes"));
        assert!(error(b"1000-2000 rw-p 0 0:0 0\nRss: x\n").starts_with("line 2: "));
        assert!(error(b"1001-2000 rw-p 0 0:0 0\n").contains("page boundary"));
        assert!(error(b"1000-2000 ---p 0 0:0 0 [rollup]\nRss: 9 kB\n").contains("smaps_rollup"));
        let cut = format!("{HEAP}5000-6000 rw-p 0 0:0 0\nSize: 4 kB\n");
        assert!(error(cut.as_bytes()).starts_with("line 4: "), "{}", error(cut.as_bytes()));
        let long = [vec![b'1'; 40_000], b"\n".to_vec()].concat();
        assert!(error(&long).contains("longer"));
    }

    #[test]
    fn a_file_that_ends_too_early_is_noticed() {
        let cut = |text: &str| parse_saved(text.as_bytes()).expect("sound").cut;
        let whole = format!("{HEAP}VmFlags: rd wr\n5000-6000 rw-p 0 0:0 0\nRss: 4 kB\nVmFlags: rd wr \n");
        assert!(!cut(&whole) && !cut(HEAP) && !cut("1000-2000 rw-p 0 0:0 0\n"));
        assert!(cut(whole.trim_end()) && cut("1000-2000 rw-p 0 0:0 0"));
        assert!(parse_saved(whole.strip_suffix("lags: rd wr \n").expect("its end").as_bytes()).is_err());
        for end in ["VmFlags: rd wr \n", "\nVmFlags: rd wr \n"] {
            let text = whole.strip_suffix(end).expect("its end");
            assert!(error(text.as_bytes()).starts_with("line 5: the mapping that begins here"), "{text}");
        }
    }

    #[test]
    fn an_endless_line_takes_no_memory() {
        let endless = std::io::BufReader::new(std::io::repeat(b'a'));
        assert!(parse_saved(endless).is_err());
    }

    proptest::proptest! {
        #[test]
        fn no_input_panics(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..400)) {
            let _ = parse_saved(bytes.as_slice());
        }

        #[test]
        fn damaged_files_do_not_panic(at in 0usize..5000, byte: u8, len in 0usize..8000) {
            let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/captures/arenas4.threads-up.smaps");
            let mut bytes = std::fs::read(path).expect("fixture");
            bytes.truncate(len);
            if let Some(place) = bytes.get_mut(at) {
                *place = byte;
            }
            if let Ok(saved) = parse_saved(bytes.as_slice()) {
                let total: u64 = saved.mappings.iter().map(|m| m.range.len()).sum();
                let resident: u64 = saved.figures.iter().flatten().map(|f| f.1 + f.2).sum();
                proptest::prop_assert!(resident <= total);
            }
        }
    }
}

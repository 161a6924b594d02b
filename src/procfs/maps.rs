//! Parses `/proc/PID/maps`: bytes in, [`Mapping`]s out. No I/O.
//!
//! Source of the format: fs/proc/task_mmu.c, `show_vma_header_prefix` and `show_map_vma`.
//! Names may hold any byte: a path is written raw, except that a newline becomes `\012`
//! (`seq_path(m, …, "\n")`). A file name that really contains the four characters `\012`
//! cannot be distinguished from that; the kernel does not escape the backslash.

use crate::model::{AddrRange, Mapping, MappingFile, Prot, Sharing};

/// What is wrong with a line of maps (or with the header line of an smaps entry).
#[derive(thiserror::Error, Clone, Copy, PartialEq, Eq, Debug)]
pub enum LineFault {
    #[error("no address range in hexadecimal")]
    Range,
    #[error("the range ends before it starts")]
    Inverted,
    #[error("no permissions such as r-xp")]
    Permissions,
    #[error("no file offset in hexadecimal")]
    Offset,
    #[error("no device such as fd:01")]
    Device,
    #[error("no inode number")]
    Inode,
    #[error("a field without a number")]
    Field,
    #[error("a field before the first mapping")]
    Orphan,
}

/// A line that was skipped.
#[derive(thiserror::Error, Clone, Copy, PartialEq, Eq, Debug)]
#[error("line {line}: {fault}")]
pub struct DamagedLine {
    /// From 1.
    pub line: usize,
    pub fault: LineFault,
}

/// An address space as maps shows it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ParsedMaps {
    /// Sorted by address, disjoint, without vsyscall.
    pub mappings: Vec<Mapping>,
    /// Lines that made no sense; nothing of them is in `mappings`.
    pub damaged: Vec<DamagedLine>,
    /// Lines that overlapped an earlier one and were cut or dropped. The kernel releases its lock between
    /// chunks of the file; when a VMA just printed is merged with the next one meanwhile, the merged one is
    /// printed again with its old start.
    pub torn: usize,
}

/// Parses a whole file. Damaged lines are skipped and listed; the others are valid.
pub fn parse_maps(bytes: &[u8]) -> ParsedMaps {
    let mut parser = MapsParser::default();
    // A line has at least 50 bytes; with names about 80.
    parser.parsed.mappings.reserve(bytes.len() / 64);
    parser.push(bytes);
    parser.finish()
}

/// Parses a file that comes in pieces, which may end within a line.
#[derive(Default)]
pub struct MapsParser {
    parsed: ParsedMaps,
    /// Lines before what comes next.
    lines: usize,
    /// The beginning of a line whose end has not come yet.
    begun: Vec<u8>,
}

impl MapsParser {
    pub fn push(&mut self, bytes: &[u8]) {
        let Some(last) = bytes.iter().rposition(|&b| b == b'\n') else {
            return self.begun.extend_from_slice(bytes);
        };
        let (mut whole, begun) = (&bytes[..last], &bytes[last + 1..]);
        if !self.begun.is_empty() {
            let end = whole.iter().position(|&b| b == b'\n');
            let (first, others) = whole.split_at(end.unwrap_or(whole.len()));
            let mut line = std::mem::take(&mut self.begun);
            line.extend_from_slice(first);
            self.line(&line);
            self.begun.extend_from_slice(begun);
            if end.is_none() {
                return;
            }
            whole = &others[1..];
        } else {
            self.begun.extend_from_slice(begun);
        }
        whole.split(|&b| b == b'\n').for_each(|line| self.line(line));
    }

    fn line(&mut self, line: &[u8]) {
        self.lines += 1;
        if line.is_empty() {
            return;
        }
        match parse_line(line) {
            Ok(mapping) => add_in_order(&mut self.parsed, mapping),
            Err(fault) => self.parsed.damaged.push(DamagedLine { line: self.lines, fault }),
        }
    }

    pub fn finish(mut self) -> ParsedMaps {
        let last = std::mem::take(&mut self.begun);
        self.line(&last);
        let mut parsed = self.parsed;
        if parsed.mappings.iter().any(is_stack_without_code) {
            parsed.mappings.iter_mut().for_each(unname_code);
        }
        parsed
    }
}

/// The kernel writes `[heap]` at whatever lies where the break is or would be (fs/proc/task_mmu.c,
/// `vma_is_initial_heap`), be it made by mmap: compiled code is no break, unless all that can be read can be
/// executed (READ_IMPLIES_EXEC), and the stack with it.
pub(super) fn unname_code(mapping: &mut Mapping) {
    if mapping.prot.write && mapping.prot.exec && mapping.is_special("[heap]") {
        mapping.name.clear();
    }
}

pub(super) fn is_stack_without_code(mapping: &Mapping) -> bool {
    mapping.is_special("[stack]") && !mapping.prot.exec
}

fn add_in_order(parsed: &mut ParsedMaps, mut mapping: Mapping) {
    if is_vsyscall(&mapping) || mapping.range.is_empty() {
        return;
    }
    if let Some(last) = parsed.mappings.last()
        && mapping.range.start < last.range.end
    {
        parsed.torn += 1;
        let end = last.range.end;
        if mapping.range.end <= end {
            return;
        }
        if mapping.file.is_some() {
            // The file may contain any number here.
            mapping.offset = mapping.offset.wrapping_add(end.0 - mapping.range.start.0);
        }
        mapping.range.start = end;
    }
    parsed.mappings.push(mapping);
}

/// The gate VMA: the same fixed kernel page in every process, no part of VmSize.
fn is_vsyscall(mapping: &Mapping) -> bool {
    mapping.name == b"[vsyscall]" || mapping.range.start.0 >= 1 << 63
}

/// The lowest and highest mapped user address, from the first and the last line only: enough
/// to begin scanning pages before the rest is parsed. None when those lines make no sense.
pub fn user_span(bytes: &[u8]) -> Option<AddrRange> {
    let mut lines = bytes.split(|&b| b == b'\n').filter(|line| !line.is_empty());
    let first = parse_line(lines.next()?).ok()?;
    if is_vsyscall(&first) {
        return None;
    }
    let last = bytes
        .rsplit(|&b| b == b'\n')
        .filter(|line| !line.is_empty())
        .take(2)
        .filter_map(|line| parse_line(line).ok())
        .find(|mapping| !is_vsyscall(mapping))?;
    Some(AddrRange::new(first.range.start.0, last.range.end.0))
}

/// Parses one line without its newline:
/// `7f0c8a000000-7f0c8a021000 rw-p 00000000 00:00 0      name`.
pub fn parse_line(line: &[u8]) -> Result<Mapping, LineFault> {
    let mut rest = line;
    let start = take_hex(&mut rest).ok_or(LineFault::Range)?;
    take_byte(&mut rest, b'-').ok_or(LineFault::Range)?;
    let end = take_hex(&mut rest).ok_or(LineFault::Range)?;
    take_byte(&mut rest, b' ').ok_or(LineFault::Range)?;
    if end < start {
        return Err(LineFault::Inverted);
    }
    let (prot, sharing) = take_permissions(&mut rest).ok_or(LineFault::Permissions)?;
    let offset = take_hex(&mut rest).ok_or(LineFault::Offset)?;
    take_byte(&mut rest, b' ').ok_or(LineFault::Offset)?;
    let major = take_hex(&mut rest).and_then(|n| u32::try_from(n).ok()).ok_or(LineFault::Device)?;
    take_byte(&mut rest, b':').ok_or(LineFault::Device)?;
    let minor = take_hex(&mut rest).and_then(|n| u32::try_from(n).ok()).ok_or(LineFault::Device)?;
    take_byte(&mut rest, b' ').ok_or(LineFault::Device)?;
    let inode = take_decimal(&mut rest).ok_or(LineFault::Inode)?;
    // Between inode and name: one blank, then padding up to column 73. No name starts with a
    // blank, but some end with one.
    let name = match rest.iter().position(|&b| b != b' ') {
        Some(0) => return Err(LineFault::Inode),
        Some(at) => unescape(&rest[at..]),
        None => Vec::new(),
    };
    let no_file = major == 0 && minor == 0 && inode == 0;
    let file = (!no_file).then_some(MappingFile { major, minor, inode });
    Ok(Mapping { range: AddrRange::new(start, end), prot, sharing, offset, file, name })
}

fn take_permissions(rest: &mut &[u8]) -> Option<(Prot, Sharing)> {
    let (letters, after) = rest.split_first_chunk::<5>()?;
    let flag = |byte: u8, on: u8| match byte {
        b'-' => Some(false),
        _ if byte == on => Some(true),
        _ => None,
    };
    let prot =
        Prot { read: flag(letters[0], b'r')?, write: flag(letters[1], b'w')?, exec: flag(letters[2], b'x')? };
    let sharing = match letters[3] {
        b'p' => Sharing::Private,
        b's' => Sharing::Shared,
        _ => return None,
    };
    if letters[4] != b' ' {
        return None;
    }
    *rest = after;
    Some((prot, sharing))
}

fn take_byte(rest: &mut &[u8], byte: u8) -> Option<()> {
    let (&first, after) = rest.split_first()?;
    if first != byte {
        return None;
    }
    *rest = after;
    Some(())
}

/// 1 to 16 hexadecimal digits.
fn take_hex(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    let mut digits = 0;
    while let Some(&byte) = rest.get(digits) {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            b'A'..=b'F' => byte - b'A' + 10,
            _ => break,
        };
        if digits == 16 {
            return None;
        }
        value = value << 4 | u64::from(digit);
        digits += 1;
    }
    *rest = &rest[digits..];
    (digits > 0).then_some(value)
}

/// A decimal number that fits 64 bits.
pub(super) fn take_decimal(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    let mut digits = 0;
    while let Some(&byte) = rest.get(digits) {
        if !byte.is_ascii_digit() {
            break;
        }
        value = value.checked_mul(10)?.checked_add(u64::from(byte - b'0'))?;
        digits += 1;
    }
    *rest = &rest[digits..];
    (digits > 0).then_some(value)
}

/// `\012` back to a newline. Nothing else is escaped.
fn unescape(name: &[u8]) -> Vec<u8> {
    const ESCAPED: &[u8] = b"\\012";
    if !name.contains(&b'\\') {
        return name.to_vec();
    }
    let mut plain = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some((&byte, after)) = rest.split_first() {
        if let Some(after) = rest.strip_prefix(ESCAPED) {
            plain.push(b'\n');
            rest = after;
        } else {
            plain.push(byte);
            rest = after;
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_file_in_pieces_is_the_whole_file(
            lines in proptest::collection::vec(prop_oneof![
                Just("1000-2000 rw-p 00000000 00:00 0 "),
                Just("1000-3000 rw-p 00000000 00:00 0 "),
                Just("5000-6000 r-xp 00001000 fd:01 77                  /a b\\012c"),
                Just("7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0  [stack]"),
                Just("5618e0000000-561900000000 rwxp 00000000 00:00 0  [heap]"),
                Just("no line"),
                Just(""),
            ], 0..12),
            ends_whole in any::<bool>(),
            sizes in proptest::collection::vec(0usize..90, 1..20),
        ) {
            let text = lines.join("\n") + if ends_whole { "\n" } else { "" };
            let mut parser = MapsParser::default();
            let mut rest = text.as_bytes();
            for size in sizes {
                let (piece, after) = rest.split_at(size.min(rest.len()));
                parser.push(piece);
                rest = after;
            }
            parser.push(rest);
            prop_assert_eq!(parser.finish(), parse_maps(text.as_bytes()));
            prop_assert_eq!(parse_maps(text.as_bytes()).damaged, damaged_by_lines(&text));
        }
    }

    fn damaged_by_lines(text: &str) -> Vec<DamagedLine> {
        let lines = text.split('\n').enumerate().filter(|(_, line)| !line.is_empty());
        let fault = |(at, line): (usize, &str)| Some((at + 1, parse_line(line.as_bytes()).err()?));
        lines.filter_map(fault).map(|(line, fault)| DamagedLine { line, fault }).collect()
    }

    #[test]
    fn vsyscall_is_left_out_of_the_span() {
        let text = b"1000-2000 rw-p 00000000 00:00 0 \n\
            ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]\n";
        assert_eq!(user_span(text), Some(AddrRange::new(0x1000, 0x2000)));
        assert_eq!(user_span(b""), None);
        assert_eq!(user_span(b"ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]\n"), None);
    }

    /// As a renderer of Chromium 156, whose compiled code lies where the break would be.
    #[test]
    fn compiled_code_is_no_break() {
        let names = |stack: &str| {
            let text = format!(
                "5618e0000000-561900000000 rwxp 00000000 00:00 0                  [heap]\n\
                 7fff00000000-7fff00001000 {stack} 00000000 00:00 0                  [stack]\n"
            );
            parse_maps(text.as_bytes()).mappings.remove(0).name
        };
        assert_eq!(names("rw-p"), b"");
        assert_eq!(names("rwxp"), b"[heap]", "all that can be read can be executed");
    }
}

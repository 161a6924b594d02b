//! The linker's description of a program (`moduledata`), which leads to all its tables, and the toolchain's version.
//!
//! Source: src/runtime/symtab.go, `moduledata`, `pcHeader`; src/debug/buildinfo/buildinfo.go. In words of 8 bytes,
//! of Go 1.16 to 1.27:
//!
//! ```text
//! 0 pcHeader   1 funcnametab   4 cutab   7 filetab   10 pctab   13 pclntable   16 ftab     (slices: pointer, len, cap)
//! 20 minpc, maxpc   22 text, etext
//! 38 (1.18, 1.19), 40 (to 1.26), 43 (1.27)   gofunc
//! ```

use super::{FunctionTable, ReadBytes, Table, array, u64_at};
use crate::model::AddrRange;

/// Words of the description that are examined.
pub const WORDS: usize = 48;

/// Of those, what comes before `gofunc` in each version.
const FIRST: usize = 34;

/// The form of the tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// Addresses of functions (Go 1.16 and 1.17).
    Absolute,
    /// Where they are from the code's beginning (1.18, 1.19).
    Relative,
    /// The same, and each has the line where it begins (1.20 and later).
    WithStartLines,
}

impl Form {
    pub const ALL: [Form; 3] = [Form::WithStartLines, Form::Relative, Form::Absolute];

    /// By the first bytes of the tables' header.
    pub fn of(header: [u8; 8]) -> Option<Form> {
        Form::ALL.into_iter().find(|form| form.word() == header)
    }

    /// The header's first word: instructions of one byte at least, pointers of eight.
    pub fn word(self) -> [u8; 8] {
        let magic: u32 = match self {
            Form::Absolute => 0xffff_fffa,
            Form::Relative => 0xffff_fff0,
            Form::WithStartLines => 0xffff_fff1,
        };
        let [a, b, c, d] = magic.to_le_bytes();
        [a, b, c, d, 0, 0, super::values::QUANTUM as u8, 8]
    }

    /// Where a field of a function's record is, by where it is in that of Go 1.18.
    pub(super) fn at(self, field: u64) -> u64 {
        match self {
            Form::Absolute => field + 4,
            Form::Relative | Form::WithStartLines => field,
        }
    }

    /// Bytes of a record before what there are different numbers of: the line of the beginning comes in the middle.
    pub(super) fn fixed(self) -> u64 {
        match self {
            Form::Relative => 40,
            Form::Absolute | Form::WithStartLines => 44,
        }
    }

    /// Where the header says how far away the tables are.
    fn offsets(self) -> u64 {
        if self == Form::Absolute { 24 } else { 32 }
    }
}

/// `go1.19.8`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Version {
    pub text: String,
    pub minor: u32,
}

/// The tables that these words describe, if they are a description: the tables lie where the header says, which is at
/// the first word.
pub fn described(
    words: &[u64],
    version: Option<&Version>,
    bytes: &mut dyn ReadBytes,
) -> Option<FunctionTable> {
    let word = |at: usize| words.get(at).copied();
    let header = word(0)?;
    let form = Form::of(array(bytes, header)?)?;
    for (index, at) in [1, 4, 7, 10, 13].into_iter().enumerate() {
        let offset = u64_at(bytes, header.checked_add(form.offsets() + index as u64 * 8)?)?;
        if word(at)? != header.checked_add(offset)? {
            return None;
        }
    }
    let table = |at: usize| Some(Table { at: word(at)?, len: word(at + 1)? });
    let index = table(16)?;
    if u64_at(bytes, header.checked_add(8)?)?.checked_add(1)? != index.len {
        return None;
    }
    let function_data = match (form, version.map(|version| version.minor)) {
        (Form::Absolute, _) => Some(0),
        (Form::Relative, Some(18..=19)) => word(38),
        (Form::WithStartLines, Some(20..=26)) => word(40),
        (Form::WithStartLines, Some(27)) => word(43),
        _ => None,
    };
    let text = Some((word(22)?, word(23)?)).filter(|(from, to)| from < to)?;
    let text = AddrRange::new(text.0, text.1);
    let functions = table(13)?;
    let function_data = function_data.or_else(|| before_sections(words, (text, functions), bytes));
    Some(FunctionTable {
        form,
        names: table(1)?,
        units: table(4)?,
        files: table(7)?,
        values: table(10)?,
        functions,
        index,
        text,
        function_data,
    })
}

/// `gofunc` of a version that is not known (some programs are made without their build information): it stands before
/// the slice of the code's sections, of which the first is all code; from 1.26 on the tables' end, behind which it then
/// leads, is between them.
fn before_sections(
    words: &[u64],
    (text, functions): (AddrRange, Table),
    bytes: &mut dyn ReadBytes,
) -> Option<u64> {
    let end = functions.at.checked_add(functions.len)?;
    let is_all = |at: u64, bytes: &mut dyn ReadBytes| {
        let size = at.checked_add(8).and_then(|at| u64_at(bytes, at));
        // with or without the byte in which nothing ends
        u64_at(bytes, at) == Some(0) && size.is_some_and(|size| size.abs_diff(text.len()) <= 1)
    };
    let mut found = words.windows(5).skip(FIRST).filter(|window| match window {
        [_, _, at, 1, 1] => is_all(*at, bytes),
        _ => false,
    });
    let [before, last, ..] = *found.next()? else { return None };
    match found.next() {
        Some(_) => None,
        None if last >= end && (end..last).contains(&before) => Some(before),
        None => Some(last),
    }
}

/// The build information: a header of 32 bytes, flags (2: strings follow), then a length and the version.
pub fn version_in(bytes: &[u8]) -> Option<Version> {
    let magic = b"\xff Go buildinf:";
    let at = (0..bytes.len()).step_by(16).find(|&at| bytes[at..].starts_with(magic))?;
    let info = bytes.get(at..)?;
    if *info.get(15)? & 2 == 0 {
        return None;
    }
    let len = usize::from(*info.get(32)?);
    if len >= 0x80 {
        return None;
    }
    let text = std::str::from_utf8(info.get(33..33 + len)?).ok()?;
    let minor = text.strip_prefix("go1.")?.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()?;
    Some(Version { text: text.split(' ').next().unwrap_or(text).to_owned(), minor })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_in_the_build_information() {
        let info = |text: &str| {
            let head = [&b"rubbish.rubbish."[..], b"\xff Go buildinf:", &[8, 2], &[0; 16]].concat();
            [&head[..], &[text.len() as u8], text.as_bytes(), b"rest"].concat()
        };
        let version = |text: &str| version_in(&info(text)).map(|version| (version.text, version.minor));
        assert_eq!(version("go1.19.8"), Some(("go1.19.8".to_owned(), 19)));
        assert_eq!(version("go1.27rc1 X:none"), Some(("go1.27rc1".to_owned(), 27)));
        assert_eq!(version("devel +abc"), None);
        assert_eq!(version_in(&info("go1.19.8")[..40]), None);
        assert_eq!(version_in(b""), None);
    }
}

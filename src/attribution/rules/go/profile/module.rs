//! The linker's description of a Go program (`moduledata`), found without symbols, and the toolchain's version.
//!
//! Source: src/runtime/symtab.go, `moduledata`, `pcHeader`; src/debug/buildinfo/buildinfo.go. In words of 8 bytes,
//! of Go 1.18 to 1.27:
//!
//! ```text
//! 0 pcHeader   1 funcnametab   4 cutab   7 filetab   10 pctab   13 pclntable   16 ftab     (slices: pointer, len, cap)
//! 20 minpc, maxpc   22 text, etext   24 noptrdata, …   26 data, …   28 bss, …   30 noptrbss, enoptrbss
//! 38 (to 1.19), 40 (to 1.26), 43 (1.27)   gofunc
//! ```

use crate::attribution::rules::peek::Peek;
use crate::model::arenas::Surroundings;
use crate::model::{Addr, AddrRange, Mapping, Sharing};

/// The first word of the tables of functions: of Go 1.18 and 1.19; of 1.20 and later.
const MAGIC_118: u32 = 0xffff_fff0;
const MAGIC_120: u32 = 0xffff_fff1;
/// Of Go 1.16, and of 1.2 to 1.15.
const OLDER: [u32; 2] = [0xffff_fffa, 0xffff_fffb];
/// Words of `moduledata` that are examined.
const WORDS: usize = 44;
/// Initialised data of a program that are searched.
const LONGEST_DATA: u64 = 64 << 20;

/// `pcHeader` and what it leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slice {
    pub at: u64,
    pub len: u64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Module {
    pub version: Version,
    /// Functions have a line of their beginning (Go 1.20 and later).
    pub has_start_lines: bool,
    pub names: Slice,
    pub units: Slice,
    pub files: Slice,
    pub values: Slice,
    pub functions: Slice,
    pub index: Slice,
    pub text: AddrRange,
    /// Variables without and with pointers, initialised or not.
    pub variables: AddrRange,
    pub function_data: u64,
}

/// `go1.19.8`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Version {
    pub text: String,
    pub minor: u32,
}

pub enum Found {
    Module(Box<Module>),
    /// A Go program whose tables this version does not know: why.
    Unknown {
        version: String,
        why: String,
    },
}

/// Of the program itself: libraries that are made with Go (`-buildmode=c-shared`) are not searched for.
pub fn find(process: &Surroundings<'_>, peek: &mut Peek<'_, '_>) -> Option<Found> {
    let own = |m: &&Mapping| {
        m.file.is_some()
            && m.sharing == Sharing::Private
            && !m.prot.exec
            && m.name == process.exe
            && m.range.len() <= LONGEST_DATA
    };
    let data: Vec<&Mapping> = process.mappings.iter().filter(own).collect();
    let writable = data.iter().filter(|m| m.prot.write).chain(data.iter().filter(|m| !m.prot.write));
    let (mut version, mut found, mut older) = (None, None, false);
    for mapping in writable {
        let Some(bytes) = peek.bytes(mapping.range.start.0, mapping.range.len() as usize) else { continue };
        version = version.or_else(|| version_in(&bytes));
        if found.is_some() {
            continue;
        }
        for (at, word) in (mapping.range.start.0..).step_by(8).zip(bytes.as_chunks().0) {
            let header = u64::from_le_bytes(*word);
            if !data.iter().any(|m| m.range.contains(Addr(header))) {
                continue;
            }
            match peek.array::<8>(header) {
                Some([a, b, c, d, 0, 0, _, 8]) => {
                    let magic = u32::from_le_bytes([a, b, c, d]);
                    older |= OLDER.contains(&magic);
                    if [MAGIC_118, MAGIC_120].contains(&magic)
                        && let Some(words) = described(at, header, peek)
                    {
                        found = Some((magic, words));
                        break;
                    }
                }
                _ => continue,
            }
        }
        if found.is_some() && version.is_some() {
            break;
        }
    }
    let Some((magic, words)) = found else {
        // The version alone is no proof of a runtime: any file may embed such bytes.
        return older.then(|| Found::Unknown {
            version: version.map_or_else(|| "before 1.18".to_owned(), |version| version.text),
            why: "its tables of functions have the form of before Go 1.18".to_owned(),
        });
    };
    let Some(version) = version else {
        return Some(Found::Unknown {
            version: "of an unknown version".to_owned(),
            why: "the program does not say which Go made it (no build information): what its tables look like is \
                  not known"
                .to_owned(),
        });
    };
    Some(match module(magic, &words, version.clone()) {
        Some(module) => Found::Module(Box::new(module)),
        None => Found::Unknown {
            why: format!("the tables of {} are not known", version.text),
            version: version.text,
        },
    })
}

/// The words at `at`, where they are a `moduledata`: the tables lie where the header says.
fn described(at: u64, header: u64, peek: &mut Peek<'_, '_>) -> Option<Vec<u64>> {
    let words = peek.words(at, WORDS)?;
    // funcnameOffset, cuOffset, filetabOffset, pctabOffset, pclnOffset
    let offsets = peek.words(header + 32, 5)?;
    let agree = offsets
        .iter()
        .zip([1, 4, 7, 10, 13])
        .all(|(offset, word)| words.get(word).copied() == header.checked_add(*offset));
    let counted = peek.u64(header + 8)?.checked_add(1)? == *words.get(17)?;
    (agree && counted).then_some(words)
}

fn module(magic: u32, words: &[u64], version: Version) -> Option<Module> {
    let word = |at: usize| words.get(at).copied();
    let slice = |at: usize| Some(Slice { at: word(at)?, len: word(at + 1)? });
    let function_data = match (magic, version.minor) {
        (MAGIC_118, 18..=19) => 38,
        (MAGIC_120, 20..=26) => 40,
        (MAGIC_120, 27) => 43,
        _ => return None,
    };
    let range = |from: usize, to: usize| Some((word(from)?, word(to)?)).filter(|(from, to)| from <= to);
    let (from, to) = range(24, 31)?;
    let (text, end) = range(22, 23)?;
    Some(Module {
        has_start_lines: magic == MAGIC_120,
        names: slice(1)?,
        units: slice(4)?,
        files: slice(7)?,
        values: slice(10)?,
        functions: slice(13)?,
        index: slice(16)?,
        text: AddrRange::new(text, end),
        variables: AddrRange::new(from, to),
        function_data: word(function_data)?,
        version,
    })
}

/// The build information: a header of 32 bytes, flags (2: strings follow), then a length and the version.
fn version_in(bytes: &[u8]) -> Option<Version> {
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

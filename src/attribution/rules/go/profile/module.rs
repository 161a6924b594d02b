//! The linker's description of a Go program (`moduledata`) in the memory of a process, found without symbols, and the
//! toolchain's version.
//!
//! Source: src/runtime/symtab.go, `moduledata`. In words of 8 bytes, besides what the tables of functions need
//! (`crate::model::function_table`), of Go 1.18 to 1.27:
//!
//! ```text
//! 24 noptrdata, …   26 data, …   28 bss, …   30 noptrbss, enoptrbss
//! ```

use crate::attribution::rules::peek::Peek;
use crate::model::arenas::Surroundings;
use crate::model::function_table::{Form, FunctionTable, Version, WORDS, described, version_in};
use crate::model::{Addr, AddrRange, Mapping, Sharing};

/// The first word of the tables of functions of Go 1.2 to 1.15.
const OLDEST: [u8; 8] = [0xfb, 0xff, 0xff, 0xff, 0, 0, 1, 8];
/// Versions (1.x) whose profile and tables are known.
const KNOWN: std::ops::RangeInclusive<u32> = 18..=27;
/// Initialised data of a program that are searched.
const LONGEST_DATA: u64 = 64 << 20;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Module {
    pub version: Version,
    pub table: FunctionTable,
    /// Variables without and with pointers, initialised or not.
    pub variables: AddrRange,
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
            let Some(first) = peek.array::<8>(header) else { continue };
            match Form::of(first) {
                // Of Go 1.16 and 1.17.
                Some(Form::Absolute) => older = true,
                Some(_) => {
                    if let Some(words) = peek.words(at, WORDS)
                        && described(&words, None, peek).is_some()
                    {
                        found = Some(words);
                        break;
                    }
                }
                None => older |= first == OLDEST,
            }
        }
        if found.is_some() && version.is_some() {
            break;
        }
    }
    let Some(words) = found else {
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
    Some(match module(&words, &version, peek) {
        Some(module) => Found::Module(Box::new(module)),
        None => Found::Unknown {
            why: format!("the tables of {} are not known", version.text),
            version: version.text,
        },
    })
}

fn module(words: &[u64], version: &Version, peek: &mut Peek<'_, '_>) -> Option<Module> {
    let table = described(words, Some(version), peek)?;
    if !KNOWN.contains(&version.minor) || table.function_data.is_none() {
        return None;
    }
    let (from, to) = Some((*words.get(24)?, *words.get(31)?)).filter(|(from, to)| from <= to)?;
    Some(Module { version: version.clone(), table, variables: AddrRange::new(from, to) })
}

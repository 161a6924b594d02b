//! Which file a library's name means, as ld.so finds it: LD_LIBRARY_PATH, its cache, the standard
//! directories (ld.so(8)). The RUNPATH of a program is its own and is not known here.

use super::bytes::ObjectError;
use super::elf::ElfLayout;
use super::open::open_regular;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

const CACHE: &str = "/etc/ld.so.cache";
/// glibc, sysdeps/generic/dl-cache.h: CACHEMAGIC_NEW with CACHE_VERSION.
const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
/// `struct cache_file_new` and `struct file_entry_new`.
const HEADER: usize = 48;
const ENTRY: usize = 24;
/// FLAG_X8664_LIB64 | FLAG_ELF_LIBC6
const THIS_MACHINE: u32 = 0x0303;
const MAX_ENTRIES: usize = 1 << 20;

const DIRECTORIES: [&str; 6] =
    ["/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib"];

/// What was found, or what is called alike.
#[derive(Debug, PartialEq, Eq)]
pub enum FoundLibrary {
    At(PathBuf),
    /// Names that contain the requested one, for an error message.
    Unknown {
        similar: Vec<String>,
    },
}

/// Finds the file of a library called `name` (`libtcmalloc.so.4`), or of a program on the PATH.
pub fn find(name: &OsStr) -> FoundLibrary {
    let cache = std::fs::read(CACHE).unwrap_or_default();
    let variable = |name| std::env::var_os(name).unwrap_or_default();
    let (of_user, programs) = (split(&variable("LD_LIBRARY_PATH")), split(&variable("PATH")));
    let entries = parse_cache(&cache);
    let cached = entries.iter().filter(|(soname, _)| *soname == name.as_bytes());
    let candidates = of_user
        .iter()
        .map(|dir| dir.join(name))
        .chain(cached.map(|(_, path)| PathBuf::from(OsStr::from_bytes(path))))
        .chain(DIRECTORIES.iter().map(|dir| Path::new(dir).join(name)))
        .chain(programs.iter().map(|dir| dir.join(name)));
    // What is no file for this machine is passed by, as ld.so does.
    if let Some(path) = candidates.into_iter().find(|path| is_usable(path)) {
        return FoundLibrary::At(path);
    }
    let part = stem(name.as_bytes());
    let similar: BTreeSet<&[u8]> = entries
        .iter()
        .map(|(soname, _)| *soname)
        .filter(|soname| part.len() >= 3 && soname.windows(part.len()).any(|window| window == part))
        .collect();
    FoundLibrary::Unknown {
        similar: similar.into_iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect(),
    }
}

fn split(list: &OsString) -> Vec<PathBuf> {
    std::env::split_paths(list).filter(|dir| dir.is_absolute()).collect()
}

fn is_usable(path: &Path) -> bool {
    let Ok(file) = open_regular(path) else { return false };
    match ElfLayout::parse(&file) {
        Ok(_) => true,
        // It is the requested one; its damage is reported when it is opened.
        Err(ObjectError::Io(_)) => true,
        Err(_) => false,
    }
}

/// `tcmalloc` of `libtcmalloc.so.9`.
fn stem(name: &[u8]) -> &[u8] {
    let name = name.strip_prefix(b"lib").unwrap_or(name);
    name.split(|&b| b == b'.').next().unwrap_or_default()
}

/// Names and paths of this machine's libraries, in the order of the cache.
fn parse_cache(bytes: &[u8]) -> Vec<(&[u8], &[u8])> {
    // Before glibc 2.32 an old cache came first; the offsets count from the new one.
    let start = bytes.windows(MAGIC.len()).position(|window| window == MAGIC);
    let Some(bytes) = start.and_then(|at| bytes.get(at..)) else { return Vec::new() };
    let word = |at: usize| -> Option<usize> {
        let four = bytes.get(at..at.checked_add(4)?)?;
        usize::try_from(u32::from_le_bytes(four.try_into().ok()?)).ok()
    };
    let text = |at: usize| bytes.get(at..).and_then(|tail| tail.split(|&b| b == 0).next());
    let count = word(MAGIC.len()).unwrap_or(0).min(MAX_ENTRIES);
    let entry = |index: usize| {
        let at = HEADER + index * ENTRY;
        (word(at)? as u32 == THIS_MACHINE).then_some(())?;
        Some((text(word(at + 4)?)?, text(word(at + 8)?)?))
    };
    // A table that is cut ends where it is cut.
    let whole = bytes.len().saturating_sub(HEADER) / ENTRY;
    (0..count.min(whole)).filter_map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(entries: &[(u32, &str, &str)]) -> Vec<u8> {
        let mut strings = Vec::new();
        let mut table = Vec::new();
        let base = HEADER + entries.len() * ENTRY;
        for (flags, name, path) in entries {
            table.extend(flags.to_le_bytes());
            for text in [name, path] {
                table.extend(((base + strings.len()) as u32).to_le_bytes());
                strings.extend(text.bytes().chain([0]));
            }
            table.extend([0; 12]);
        }
        let mut out = MAGIC.to_vec();
        out.extend((entries.len() as u32).to_le_bytes());
        out.resize(HEADER, 0);
        out.extend(table);
        out.extend(strings);
        out
    }

    #[test]
    fn names_of_this_machine_are_read() {
        let bytes =
            cache(&[(0x0303, "libc.so.6", "/lib/libc.so.6"), (0x0003, "libc.so.6", "/lib32/libc.so.6")]);
        assert_eq!(parse_cache(&bytes), [(&b"libc.so.6"[..], &b"/lib/libc.so.6"[..])]);
        let mut with_old = b"ld.so-1.7.0\0 old entries ".to_vec();
        with_old.extend(&bytes);
        assert_eq!(parse_cache(&with_old).len(), 1);
    }

    #[test]
    fn damage_gives_less_and_no_panic() {
        let bytes = cache(&[(0x0303, "liba.so", "/lib/liba.so"), (0x0303, "libb.so", "/lib/libb.so")]);
        for len in 0..bytes.len() {
            assert!(parse_cache(&bytes[..len]).len() <= 2);
        }
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] = 0xff;
            let _ = parse_cache(&bad);
        }
    }

    #[test]
    fn stems() {
        assert_eq!(stem(b"libtcmalloc.so.9"), b"tcmalloc");
        assert_eq!(stem(b"libtcmalloc_minimal"), b"tcmalloc_minimal");
    }
}

//! Files of /proc and /sys, whose size stat(2) does not report, and the limit on open files.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// The kernel writes most of them whole into a buffer of this size.
const PAGE: usize = 4096;

/// The bytes of a file of at most a few pages.
///
/// # Errors
/// Of open(2) or read(2).
pub fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    read_open(&File::open(path)?, PAGE)
}

/// What is left to read. `expected` bytes are reserved first.
///
/// # Errors
/// Of read(2).
pub fn read_open(opened: &File, expected: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(expected);
    // `File` queries its size and position first, which are 0 here.
    opened.take(u64::MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The next `size` bytes; fewer only at the end.
///
/// # Errors
/// Of read(2).
pub fn read_at_most(opened: &File, size: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(size);
    opened.take(size as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// As many open files as the hard limit allows (RLIMIT_NOFILE). Where that is not enough, what needs them fails later,
/// and says so.
pub fn raise_descriptor_limit() {
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_long_files() {
        assert_eq!(read("/proc/self/comm").ok(), std::fs::read("/proc/self/comm").ok());
        let maps = read("/proc/self/maps").expect("its own");
        assert!(maps.len() > PAGE && maps.ends_with(b"\n"));
        assert!(read("/proc/self/no-such-file").is_err());
    }
}

//! Files of /proc and /sys, whose size stat(2) does not report, and the limit on open files.

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, rlim_t, setrlimit};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The kernel writes most of them whole into a buffer of this size.
const PAGE: usize = 4096;

/// The bytes of a file of at most a few pages.
///
/// # Errors
/// Of open(2) or read(2).
pub fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    read_open(&open(path)?, PAGE)
}

/// Opens a file to be read. Where there is no descriptor, other threads are given a moment to close some.
///
/// # Errors
/// Of open(2).
pub fn open(path: impl AsRef<Path>) -> io::Result<File> {
    with_patience(|| File::open(path.as_ref()))
}

/// Opens a file that is of no use unless it stays open. A few descriptors are left to what is open for a moment: EMFILE
/// where this one is among them.
///
/// # Errors
/// Of open(2).
pub fn open_to_keep(path: impl AsRef<Path>) -> io::Result<File> {
    with_patience(|| {
        let file = File::open(path.as_ref())?;
        if leaves_a_few(file.as_raw_fd()) {
            Ok(file)
        } else {
            Err(io::Error::from_raw_os_error(libc::EMFILE))
        }
    })
}

fn with_patience(open: impl Fn() -> io::Result<File>) -> io::Result<File> {
    const PAUSE: Duration = Duration::from_millis(1);
    const ATTEMPTS: u32 = 50;
    let is_full = |opened: &io::Result<File>| matches!(opened, Err(error) if error.raw_os_error() == Some(libc::EMFILE));
    let mut opened = open();
    for _ in 1..ATTEMPTS {
        if !is_full(&opened) {
            break;
        }
        std::thread::sleep(PAUSE);
        opened = open();
    }
    opened.inspect_err(count_refusal)
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

/// The limit on open files, soft and hard, from before it was raised.
static LIMITS_BEFORE: OnceLock<(rlim_t, rlim_t)> = OnceLock::new();

/// Allows as many open files as the hard limit does (RLIMIT_NOFILE). Where that is not enough, what needs them fails
/// later, and [`not_opened`] counts it.
pub fn raise_descriptor_limit() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        LIMITS_BEFORE.get_or_init(|| (soft, hard));
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

/// Sets the limit that this process was started with: for a program that it is about to execute. Async-signal-safe.
///
/// # Errors
/// None in practice.
pub fn restore_descriptor_limit() -> Result<(), Errno> {
    LIMITS_BEFORE.get().map_or(Ok(()), |&(soft, hard)| setrlimit(Resource::RLIMIT_NOFILE, soft, hard))
}

/// How many files this process may have open (the soft RLIMIT_NOFILE).
pub fn descriptor_limit() -> u64 {
    getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft)
}

/// Whether a file may stay open. A new descriptor has the lowest number that is free: above half of the limit, the rest
/// is left to what has to be kept, and to what is open for a moment.
pub fn may_be_kept(fd: RawFd) -> bool {
    number(fd) < descriptor_limit() / 2
}

/// As [`may_be_kept`], of what is of no use unless it stays open: only a few are left to what is open for a moment.
pub fn leaves_a_few(fd: RawFd) -> bool {
    const FOR_A_MOMENT: u64 = 6;
    number(fd).saturating_add(FOR_A_MOMENT) < descriptor_limit()
}

fn number(fd: RawFd) -> u64 {
    u64::try_from(fd).unwrap_or(u64::MAX)
}

static NOT_OPENED: AtomicU64 = AtomicU64::new(0);

/// Counts an error of opening a file where the limit on open files is the reason.
pub fn count_refusal(error: &io::Error) {
    if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) {
        NOT_OPENED.fetch_add(1, Ordering::Relaxed);
    }
}

/// How often a file was not opened because of the limit on open files.
pub fn not_opened() -> u64 {
    NOT_OPENED.load(Ordering::Relaxed)
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

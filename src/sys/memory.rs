//! Another process's memory: process_vm_readv(2), and `/proc/TID/mem` for where that is forbidden (the
//! seccomp profiles of older container engines forbid the call, not the file).

use nix::errno::Errno;
use nix::sys::uio::{RemoteIoVec, process_vm_readv, process_vm_writev};
use nix::unistd::Pid;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::unix::fs::FileExt;

/// IOV_MAX: places that one call reads.
pub const MAX_PLACES: usize = 1024;

/// Reads bytes at an address; fewer where not all of them can be read.
///
/// # Errors
/// As the system call: EFAULT where nothing is mapped, ESRCH where there is no such process.
pub fn read(tid: i32, at: u64, into: &mut [u8]) -> Result<usize, Errno> {
    let remote = RemoteIoVec { base: usize::try_from(at).map_err(|_| Errno::EFAULT)?, len: into.len() };
    process_vm_readv(Pid::from_raw(tid), &mut [IoSliceMut::new(into)], &[remote])
}

/// Reads at an address; false where not all of it can be read.
pub fn read_whole(tid: i32, at: u64, into: &mut [u8]) -> bool {
    let len = into.len();
    read(tid, at, into) == Ok(len)
}

/// Reads as many bytes as each of `into` has at each address, at most [`MAX_PLACES`]; how many were read
/// before the first that could not be.
///
/// # Errors
/// As the system call, but for EFAULT.
pub fn read_places<const N: usize>(tid: i32, at: &[u64], into: &mut [[u8; N]]) -> Result<usize, Errno> {
    let remote: Vec<RemoteIoVec> = at.iter().map(|&at| RemoteIoVec { base: at as usize, len: N }).collect();
    match process_vm_readv(Pid::from_raw(tid), &mut [IoSliceMut::new(into.as_flattened_mut())], &remote) {
        Ok(bytes) => Ok(bytes / N),
        Err(Errno::EFAULT) => Ok(0),
        Err(errno) => Err(errno),
    }
}

/// As [`read`], through the file.
///
/// # Errors
/// When it may not be opened, or nothing is mapped there.
pub fn read_through_file(tid: i32, at: u64, into: &mut [u8]) -> io::Result<usize> {
    File::open(format!("/proc/{tid}/mem"))?.read_at(into, at)
}

/// Writes all of the bytes at an address.
///
/// # Errors
/// As process_vm_writev(2): EPERM without the rights of ptrace's PTRACE_MODE_ATTACH (or where Yama forbids
/// it), ESRCH where there is no such process, EFAULT where not all of it can be written.
pub fn write(tid: i32, at: u64, bytes: &[u8]) -> Result<(), Errno> {
    let remote = RemoteIoVec { base: usize::try_from(at).map_err(|_| Errno::EFAULT)?, len: bytes.len() };
    match process_vm_writev(Pid::from_raw(tid), &[IoSlice::new(bytes)], &[remote])? {
        written if written == bytes.len() => Ok(()),
        _ => Err(Errno::EFAULT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_either_way_and_nothing_is_an_error() {
        let text = *b"sixteen bytes ..";
        let (own, at) = (std::process::id() as i32, text.as_ptr() as u64);
        let mut bytes = [0; 16];
        assert_eq!(read(own, at, &mut bytes), Ok(16));
        assert_eq!(bytes, text);
        assert_eq!(read_through_file(own, at + 8, &mut bytes[..4]).expect("own memory"), 4);
        assert_eq!(bytes[..4], text[8..12]);
        assert_eq!(read(own, 4096, &mut bytes), Err(Errno::EFAULT));
        assert!(read_through_file(own, 4096, &mut bytes).is_err());
        let mut places = [[0; 8]; 3];
        assert_eq!(read_places(own, &[at, at + 8, 4096], &mut places), Ok(2));
        assert_eq!(places.as_flattened()[..16], text);
        assert_eq!(read_places(own, &[4096, at], &mut places[..2]), Ok(0));
    }
}

//! Another process' memory, with the user's own rights.

use super::viewer;
use crate::model::Tid;
use crate::sys::memory;
use std::io;

/// Reads bytes at an address; fewer where not all of them can be read.
///
/// process_vm_readv(2) goes by the caller's permitted capabilities, effective or not (mm_access() checks with
/// PTRACE_MODE_REALCREDS; cap_ptrace_access_check, security/commoncap.c). Where some are lent, /proc/TID/mem
/// is read, which goes by the effective ones.
///
/// # Errors
/// When there is no such process, it may not be read, or nothing is mapped there.
pub fn read_memory(tid: Tid, at: u64, buffer: &mut [u8]) -> io::Result<usize> {
    if viewer().is_some() {
        return memory::read_through_file(tid, at, buffer);
    }
    Ok(memory::read(tid, at, buffer)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_and_nothing_is_an_error() {
        let text = *b"sixteen bytes ..";
        let own = std::process::id() as Tid;
        let mut read = [0; 16];
        assert_eq!(read_memory(own, text.as_ptr() as u64, &mut read).expect("own memory"), 16);
        assert_eq!(read, text);
        assert!(read_memory(own, 4096, &mut read).is_err());
    }
}

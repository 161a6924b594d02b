//! Another process' memory, with the user's own rights.

use super::viewer;
use crate::model::{PAGE, Tid};
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

/// The pointer at an address.
pub fn read_pointer(tid: Tid, at: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    (read_memory(tid, at, &mut bytes).ok()? == bytes.len()).then(|| u64::from_ne_bytes(bytes))
}

/// A string, without its NUL. None where it cannot be read up to there, or is longer than `longest`.
pub fn read_string(tid: Tid, at: u64, longest: usize) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    while out.len() <= longest {
        let from = at.checked_add(out.len() as u64)?;
        // Page by page: the next one may not be there.
        let mut piece = vec![0; (PAGE - from % PAGE) as usize];
        let count = read_memory(tid, from, &mut piece).ok().filter(|&count| count > 0)?;
        let piece = piece.get(..count)?;
        match piece.iter().position(|&byte| byte == 0) {
            Some(end) => {
                out.extend_from_slice(piece.get(..end)?);
                return (out.len() <= longest).then_some(out);
            }
            None => out.extend_from_slice(piece),
        }
    }
    None
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

    #[test]
    fn pointers_and_strings() {
        let own = std::process::id() as Tid;
        let long = [vec![b'x'; 9000], vec![0]].concat();
        let at = long.as_ptr() as u64;
        assert_eq!(read_string(own, at, 9000).map(|s| s.len()), Some(9000));
        assert_eq!(read_string(own, at, 8999), None);
        assert_eq!(read_string(own, at + 9000, 10), Some(Vec::new()));
        assert_eq!(read_string(own, 16, 10), None, "nothing is mapped there");
        let pointer = &raw const at as u64;
        assert_eq!(read_pointer(own, pointer), Some(at));
        assert_eq!(read_pointer(own, u64::MAX - 3), None);
    }
}

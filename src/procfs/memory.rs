//! Reads many small pieces of a process's memory, without stopping it.

use super::process_dir::ProcessDir;
use crate::model::{Addr, Tid};
use crate::rights;
use crate::sys::memory::{self, MAX_PLACES};
use std::io;
use std::os::unix::fs::FileExt;

/// Reads `N` bytes at each address; None where nothing is readable. One system call for a
/// thousand addresses, and `/proc/TID/mem` where process_vm_readv is forbidden (the seccomp
/// profile of older container engines).
///
/// # Errors
/// When neither way is allowed.
pub fn read_pieces<const N: usize>(
    dir: &ProcessDir,
    tid: Tid,
    addrs: &[Addr],
) -> io::Result<Vec<Option<[u8; N]>>> {
    // As in rights::read_memory.
    if rights::viewer().is_some() {
        return read_through_file(dir, addrs);
    }
    let mut pieces = Vec::with_capacity(addrs.len());
    while let Some(rest) = addrs.get(pieces.len()..).filter(|rest| !rest.is_empty()) {
        let batch = &rest[..rest.len().min(MAX_PLACES)];
        match read_vectored::<N>(tid, batch) {
            Ok(read) => {
                // The call ends at the first unreadable piece: note it, go on behind it.
                let stopped = read.len() < batch.len();
                pieces.extend(read.into_iter().map(Some));
                if stopped {
                    pieces.push(None);
                }
            }
            Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) => {
                return read_through_file(dir, addrs);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(pieces)
}

/// The pieces up to the first unreadable one.
fn read_vectored<const N: usize>(tid: Tid, addrs: &[Addr]) -> io::Result<Vec<[u8; N]>> {
    let mut buffer = vec![[0u8; N]; addrs.len()];
    let places: Vec<u64> = addrs.iter().map(|addr| addr.0).collect();
    let read = memory::read_places(tid, &places, &mut buffer)?;
    buffer.truncate(read);
    Ok(buffer)
}

fn read_through_file<const N: usize>(dir: &ProcessDir, addrs: &[Addr]) -> io::Result<Vec<Option<[u8; N]>>> {
    let memory = dir.open_file("mem").map_err(io::Error::other)?;
    Ok(addrs
        .iter()
        .map(|addr| {
            let mut piece = [0u8; N];
            memory.read_exact_at(&mut piece, addr.0).ok().map(|()| piece)
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreadable_places_are_left_out_either_way() {
        let pid = std::process::id() as i32;
        let dir = ProcessDir::open(pid, pid).expect("own directory");
        let known = *b"sixteen bytes ..";
        let (good, bad) = (Addr(known.as_ptr() as u64), Addr(4096));
        let places = [bad, good, bad, bad, good];
        let expected = vec![None, Some(known), None, None, Some(known)];
        assert_eq!(read_pieces::<16>(&dir, pid, &places).expect("own memory"), expected);
        assert_eq!(read_through_file::<16>(&dir, &places).expect("own memory"), expected);
    }

    #[test]
    fn more_places_than_one_call_takes() {
        let pid = std::process::id() as i32;
        let dir = ProcessDir::open(pid, pid).expect("own directory");
        let numbers: Vec<u64> = (0..3 * MAX_PLACES as u64 + 5).collect();
        let places: Vec<Addr> =
            numbers.iter().map(|number| Addr(std::ptr::from_ref(number) as u64)).collect();
        let read = read_pieces::<8>(&dir, pid, &places).expect("own memory");
        let read: Option<Vec<u64>> = read.into_iter().map(|piece| piece.map(u64::from_ne_bytes)).collect();
        assert_eq!(read, Some(numbers));
    }
}

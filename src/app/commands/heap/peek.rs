//! Reads another process' memory.

use crate::model::Tid;
use crate::rights::read_memory;

const PAGE: u64 = 4096;

fn read(tid: Tid, at: u64, buffer: &mut [u8]) -> Option<usize> {
    read_memory(tid, at, buffer).ok().filter(|&n| n > 0)
}

/// The pointer at an address.
pub fn read_pointer(tid: Tid, at: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    (read(tid, at, &mut bytes)? == bytes.len()).then(|| u64::from_ne_bytes(bytes))
}

/// A string, without its NUL. None where it cannot be read up to there, or is longer than `longest`.
pub fn read_string(tid: Tid, at: u64, longest: usize) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    while out.len() <= longest {
        let from = at.checked_add(out.len() as u64)?;
        // Page by page: the next one may not be there.
        let mut piece = vec![0; (PAGE - from % PAGE) as usize];
        let count = read(tid, from, &mut piece)?;
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
    fn own_memory() {
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

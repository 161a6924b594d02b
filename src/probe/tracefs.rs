//! The number of a tracepoint, from tracefs.

use super::Failure;
use crate::sys::tracefs;
use std::io::ErrorKind;

/// Where tracefs is, and the id of a tracepoint such as `syscalls/sys_exit_mmap`.
pub fn id(tracepoint: &str) -> Result<(&'static str, u64), Failure> {
    let mut failure = Failure::Absent("no tracefs".to_owned());
    for root in tracefs::ROOTS {
        match tracefs::id(root, tracepoint) {
            Ok(number) => return Ok((root, number)),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) if error.kind() == ErrorKind::InvalidData => {
                return Err(Failure::Absent(format!("{root} is no tracefs")));
            }
            // Of two failures, that of the one that exists but cannot be read says more.
            Err(error) => failure = error.into(),
        }
    }
    Err(failure)
}

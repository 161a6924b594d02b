//! Files on file systems that other processes serve, which could keep every later read waiting.

use super::bytes::ObjectError;
use crate::sys::untrusted_open::file_system;
use nix::sys::statfs::{BTRFS_SUPER_MAGIC, FUSE_SUPER_MAGIC, OVERLAYFS_SUPER_MAGIC};
use std::fs::File;
use std::io;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

/// Files on a file system that a process serves are read into memory at once, up to this size.
const MAX_SERVED: u64 = 256 << 20;

/// How long a file system may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// True where stat(2) shows another device than maps does: btrfs has a device a subvolume, and
/// overlayfs before Linux 6.8 shows the device below in maps.
pub(super) fn hides_device(file: &File) -> bool {
    matches!(file_system(file), Some(BTRFS_SUPER_MAGIC | OVERLAYFS_SUPER_MAGIC))
}

/// The bytes of a file that a process serves (FUSE), which could keep every later read waiting; None
/// for a file of the kernel's own file systems.
pub(super) fn read_if_served(file: &File) -> Result<Option<Vec<u8>>, ObjectError> {
    if file_system(file) != Some(FUSE_SUPER_MAGIC) {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    let read = io::Read::read_to_end(&mut io::Read::take(file, MAX_SERVED + 1), &mut bytes)? as u64;
    if read > MAX_SERVED {
        return Err(ObjectError::TooLarge(read));
    }
    Ok(Some(bytes))
}

/// Does `work` in a thread of its own, and gives it up when it takes too long: it then waits for a
/// file system until vmaudit ends.
pub(super) fn with_patience<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ObjectError> + Send + 'static,
) -> Result<T, ObjectError> {
    let (sender, receiver) = sync_channel(1);
    std::thread::Builder::new().name("open".into()).spawn(move || drop(sender.send(work())))?;
    match receiver.recv_timeout(PATIENCE) {
        Ok(result) => result,
        Err(RecvTimeoutError::Timeout) => Err(ObjectError::NoAnswer),
        Err(RecvTimeoutError::Disconnected) => Err(ObjectError::NotElf),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_never_answers_is_not_waited_for() {
        let (blocker, blocked) = sync_channel::<()>(1);
        let result = with_patience(move || {
            let _ = blocked.recv();
            Ok(())
        });
        assert!(matches!(result, Err(ObjectError::NoAnswer)));
        drop(blocker);
        assert_eq!(with_patience(|| Ok(7)).expect("at once"), 7);
    }
}

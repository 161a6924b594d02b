//! The values of an array map (BPF_F_MMAPABLE) as memory that is shared with the kernel's side.

use crate::capture::CaptureError;
use nix::errno::Errno;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use std::ffi::c_void;
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::ptr::NonNull;

/// A mapping of its own, for as long as it lives.
pub(in crate::capture) struct SharedArray {
    at: NonNull<c_void>,
    bytes: NonZeroUsize,
}

// SAFETY: the mapping belongs to this alone; users of a pointer into it are responsible for the access.
unsafe impl Send for SharedArray {}
// SAFETY: as above.
unsafe impl Sync for SharedArray {}

impl SharedArray {
    /// `count` values of the type `V`.
    ///
    /// # Errors
    /// When the kernel does not map them.
    pub fn of<V>(map: impl AsFd, count: usize, protection: ProtFlags) -> Result<SharedArray, CaptureError> {
        let bytes = (count * size_of::<V>()).next_multiple_of(crate::model::PAGE as usize);
        let bytes = NonZeroUsize::new(bytes).ok_or(CaptureError::Mapping(Errno::EINVAL))?;
        // SAFETY: a new mapping, where the kernel puts it.
        let at = unsafe { mmap(None, bytes, protection, MapFlags::MAP_SHARED, map, 0) };
        Ok(SharedArray { at: at.map_err(CaptureError::Mapping)?, bytes })
    }

    /// The first value.
    pub fn first<V>(&self) -> NonNull<V> {
        self.at.cast()
    }
}

impl Drop for SharedArray {
    fn drop(&mut self) {
        // SAFETY: made by `of`, and nothing of it is lent out.
        let _ = unsafe { munmap(self.at, self.bytes.get()) };
    }
}

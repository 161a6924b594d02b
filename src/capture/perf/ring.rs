//! One ring that the kernel writes and we read (kernel/events/ring_buffer.c).

use crate::sys::perf::abi;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use std::ffi::c_void;
use std::io;
use std::mem::offset_of;
use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering, fence};

const DATA_HEAD: usize = offset_of!(abi::perf_event_mmap_page, data_head);
const DATA_TAIL: usize = offset_of!(abi::perf_event_mmap_page, data_tail);
/// Type, misc, size.
const HEADER: usize = size_of::<abi::perf_event_header>();

/// A control page with the ring behind it.
pub struct Ring {
    base: NonNull<c_void>,
    page: usize,
    size: usize,
}

// SAFETY: the mapping belongs to this value alone, and is not bound to a thread.
unsafe impl Send for Ring {}

impl Ring {
    /// Maps `size` bytes, a power of two of pages.
    ///
    /// # Errors
    /// EPERM where they are more than the user may lock (perf_event_mlock_kb, RLIMIT_MEMLOCK).
    pub fn map(event: &OwnedFd, size: usize) -> io::Result<Ring> {
        let page = crate::model::PAGE as usize;
        let length = NonZeroUsize::new(page + size).ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: a new mapping wherever the kernel likes; it is unmapped by `drop` alone.
        let base = unsafe {
            mmap(None, length, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_SHARED, event, 0)
        }?;
        Ok(Ring { base, page, size })
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: inside the control page, aligned; the kernel accesses it as a whole, too.
        unsafe { &*self.base.as_ptr().byte_add(offset).cast::<AtomicU64>() }
    }

    /// How far the kernel has written, bytes since the beginning.
    pub fn head(&self) -> u64 {
        self.word(DATA_HEAD).load(Ordering::Acquire)
    }

    /// Hands the records up to `head` to `take`, each with its header, and frees their space. Returns how
    /// many bytes were in the ring, at most, before that.
    pub fn read(&mut self, head: u64, mut take: impl FnMut(&[u8])) -> u64 {
        let mut tail = self.word(DATA_TAIL).load(Ordering::Relaxed);
        let begin = tail;
        let mut scratch = Vec::new();
        while tail < head {
            let Some(length) = self.length_at(tail) else {
                // Not as the kernel writes it: nothing behind it can be found.
                tail = head;
                break;
            };
            let at = (tail % self.size as u64) as usize;
            let data = self.data();
            match data.get(at..at + length) {
                Some(whole) => take(whole),
                None => {
                    let first = &data[at..];
                    scratch.clear();
                    scratch.extend_from_slice(first);
                    scratch.extend_from_slice(&data[..length - first.len()]);
                    take(&scratch);
                }
            }
            tail += length as u64;
        }
        self.word(DATA_TAIL).store(tail, Ordering::Release);
        // A writer that found no space by the old tail has written what precedes the head read now.
        fence(Ordering::SeqCst);
        self.head().saturating_sub(begin)
    }

    /// Bytes that it has space for.
    pub fn size(&self) -> u64 {
        self.size as u64
    }

    /// The size of a record; a header never wraps, since records are multiples of its size.
    fn length_at(&self, tail: u64) -> Option<usize> {
        let at = (tail % self.size as u64) as usize;
        let size = self.data().get(at + 6..at + 8)?;
        let length = usize::from(u16::from_ne_bytes(size.try_into().ok()?));
        (HEADER..=self.size).contains(&length).then_some(length)
    }

    fn data(&self) -> &[u8] {
        // SAFETY: the mapping has `size` bytes behind the control page. The kernel writes only
        // between head and tail + size; callers read only between tail and head.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().byte_add(self.page).cast::<u8>(), self.size) }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length, and no slice of it outlives `self`.
        let _ = unsafe { munmap(self.base, self.page + self.size) };
    }
}

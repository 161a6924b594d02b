//! Placing the probes, from any thread: system calls on descriptors, and nothing of libbpf's.
//!
//! A probe belongs to a file, not to a process: it can be placed before the file is mapped anywhere. In whose address space
//! it is then, [`Members`] says.

use super::ProbeFunction;
use crate::capture::members::Members;
use crate::capture::uprobe_link::{ProbeError, Site};
use libbpf_rs::libbpf_sys;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

/// Functions of one file at these file offsets.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    pub file: BorrowedFd<'a>,
    pub functions: &'a [(u64, ProbeFunction)],
}

/// What became of a [`Request`].
#[derive(Debug, Default)]
pub struct ProbesPlaced {
    /// For each function its number in events; None where the kernel refuses to probe it.
    pub numbers: Vec<Option<u32>>,
    /// One of the refusals.
    pub refused: Option<ProbeError>,
}

/// Places probes. Dropped, they are gone.
#[derive(Debug)]
pub struct Prober {
    pub(super) members: Arc<Members>,
    /// The table `functions`.
    pub(super) table: OwnedFd,
    /// The number that the next function gets.
    pub(super) next: Mutex<u32>,
}

/// Of the kernel side's table.
pub(super) const MAX_FUNCTIONS: u32 = super::skel::types::vmaudit_heap_limit::VMAUDIT_HEAP_FUNCTIONS.0;

impl Prober {
    /// Probes functions of a file.
    ///
    /// # Errors
    /// When there are too many, or the table cannot be written. A function that the kernel refuses is
    /// no error ([`ProbesPlaced::refused`]).
    pub fn place(&self, request: Request<'_>) -> Result<ProbesPlaced, ProbeError> {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let first = *next;
        let count = request.functions.len() as u32;
        if count > MAX_FUNCTIONS - first {
            return Err(ProbeError::TooMany(MAX_FUNCTIONS));
        }
        // Before the probes: the program reads it at the first hit.
        for (index, (_, function)) in (first..).zip(request.functions) {
            self.write(index, function).map_err(ProbeError::Table)?;
        }
        *next += count;
        let sites: Vec<Site> = (first..)
            .zip(request.functions)
            .map(|(index, (offset, function))| (*offset, u64::from(index), function.needs_return()))
            .collect();
        let mut placed = ProbesPlaced { numbers: (first..first + count).map(Some).collect(), refused: None };
        for (at, error) in self.members.place(request.file, sites).map_err(ProbeError::Link)? {
            if let Some(number) = placed.numbers.get_mut(at) {
                *number = None;
            }
            placed.refused = Some(error);
        }
        Ok(placed)
    }

    /// The processes that have the probes.
    pub fn members(&self) -> &Arc<Members> {
        &self.members
    }

    fn write(&self, index: u32, function: &ProbeFunction) -> io::Result<()> {
        let value = function.encode();
        // SAFETY: key and value are as long as the map says (asserted in `function`), and outlive the
        // call.
        let failed = unsafe {
            libbpf_sys::bpf_map_update_elem(
                self.table.as_raw_fd(),
                (&raw const index).cast(),
                value.as_ptr().cast(),
                0,
            )
        };
        if failed == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(-failed)) }
    }
}

//! Marking the threads of processes that run already.
//!
//! The first thread of each target is marked by pidfd, so that a number that was given to another process is
//! never marked by mistake. A BPF program that visits all tasks then marks the other threads (PIDFD_THREAD,
//! which could do it from here, is Linux 6.9, and a system call a thread). Threads that are created meanwhile
//! inherit the mark, unless their parent was not marked yet: so passes are made until one finds no unmarked
//! thread.

use super::BpfTracer;
use super::counter;
use super::skel::types::vmaudit_found as Found;
use crate::capture::CaptureError;
use crate::capture::plain::value_of;
use crate::model::{Addr, MmKey, Pid, Tid};
use crate::sys::pidfd::has_ended;
use libbpf_rs::{Iter, MapCore, MapFlags};
use std::io::Read;
use std::mem::{offset_of, size_of};
use std::os::fd::{AsRawFd, BorrowedFd};

const _: () = assert!(offset_of!(Found, comm) == 24);

/// A pass takes a fraction of a microsecond a thread. Two are the rule.
const MAX_PASSES: u32 = 100;

/// A thread that is traced from now on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MarkedThread {
    pub pid: Pid,
    pub tid: Tid,
    /// What its events will carry; None for a first thread that has exited while others live on,
    /// and for a process without user memory.
    pub mm: Option<MmKey>,
    /// mm->brk, when the thread was found.
    pub brk: Option<Addr>,
    pub comm: Vec<u8>,
}

impl BpfTracer {
    /// Marks every thread of the processes behind `targets`, and of those marked before; returns
    /// them all. Needs [`CaptureConfig::running_targets`](crate::capture::CaptureConfig). A process that has ended is left out.
    ///
    /// # Errors
    /// When the kernel refuses, or has no memory for the marks.
    pub fn mark_running(&self, targets: &[(Pid, BorrowedFd<'_>)]) -> Result<Vec<MarkedThread>, CaptureError> {
        let link = self.skel.progs.mark_threads.attach().map_err(CaptureError::Threads)?;
        for _ in 0..MAX_PASSES {
            let (before, failed) = (self.counts.sum(counter::MARKED), self.counts.sum(counter::UNMARKABLE));
            let mut new_leader = false;
            // In each pass: another thread's execve makes that one the first.
            for &(pid, pidfd) in targets {
                new_leader |= self.mark_first_thread(pid, pidfd)?;
            }
            let mut bytes = Vec::new();
            Iter::new(&link)
                .map_err(CaptureError::Threads)?
                .read_to_end(&mut bytes)
                .map_err(|source| CaptureError::Threads(source.into()))?;
            let unmarkable = self.counts.sum(counter::UNMARKABLE) - failed;
            if unmarkable > 0 {
                return Err(CaptureError::Unmarkable { count: unmarkable });
            }
            if self.counts.sum(counter::MARKED) == before && !new_leader {
                return Ok(bytes.chunks_exact(size_of::<Found>()).filter_map(decode).collect());
            }
        }
        Err(CaptureError::NeverDone { passes: MAX_PASSES })
    }

    /// True when it was not marked before.
    fn mark_first_thread(&self, pid: Pid, pidfd: BorrowedFd<'_>) -> Result<bool, CaptureError> {
        let key = pidfd.as_raw_fd().to_ne_bytes();
        let value = [0u8; size_of::<super::skel::types::traced_thread>()];
        match self.skel.maps.threads.update(&key, &value, MapFlags::NO_EXIST) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == libbpf_rs::ErrorKind::AlreadyExists => Ok(false),
            Err(_) if has_ended(pidfd) => Ok(false),
            Err(source) => Err(CaptureError::Target { pid, source }),
        }
    }
}

fn decode(bytes: &[u8]) -> Option<MarkedThread> {
    let found: Found = value_of(bytes)?;
    let comm: Vec<u8> = found.comm.iter().map(|&c| c as u8).take_while(|&c| c != 0).collect();
    Some(MarkedThread {
        pid: found.pid as Pid,
        tid: found.tid as Tid,
        mm: (found.mm != 0).then_some(MmKey(found.mm)),
        brk: (found.brk != 0).then_some(Addr(found.brk)),
        comm,
    })
}

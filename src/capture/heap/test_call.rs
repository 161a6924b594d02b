//! Whether probes work on this kernel at all: a child of vmaudit's calls a function of vmaudit's own that is
//! probed as the allocators' are. Done where nothing else was seen.

use super::attach::{MAX_FUNCTIONS, Prober};
use super::{Action, HeapTracer, ProbeFunction, Request, Where};
use crate::capture::CaptureError;
use crate::capture::bpf::BpfTracer;
use crate::capture::members::{Members, Reach};
use crate::sys::{pidfd, poll};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork, pipe2, write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

/// Returns its first argument.
#[cfg(target_arch = "x86_64")]
const FUNCTION: [u8; 4] = [0x48, 0x89, 0xf8, 0xc3];
#[cfg(target_arch = "aarch64")]
const FUNCTION: [u8; 4] = [0xc0, 0x03, 0x5f, 0xd6];

/// The size of its request, and its result: an unused address.
const BYTES: usize = 64;

impl HeapTracer {
    /// Makes the call; true when it was seen. Nothing of it gets into the counts of others but the totals.
    ///
    /// # Errors
    /// When there can be no process, file or probe for it.
    pub fn sees_a_call(&self, tracer: &BpfTracer) -> Result<bool, CaptureError> {
        let failed = |errno: Errno| CaptureError::Uprobes(errno.into());
        let file = memfd_create(c"vmaudit-test", MFdFlags::MFD_CLOEXEC).map_err(failed)?;
        write(&file, &FUNCTION).map_err(failed)?;
        let (go, word) = pipe2(OFlag::O_CLOEXEC).map_err(failed)?;
        // SAFETY: the child makes system calls alone, and leaves with _exit.
        let child = match unsafe { fork() }.map_err(failed)? {
            ForkResult::Child => {
                drop(word);
                // with what vmaudit's file lends, its user may not inspect the child
                match crate::rights::give_up_with_only([go.as_fd(), file.as_fd()]) {
                    Ok(()) => call(&go, &file),
                    // SAFETY: _exit takes a number and does not return.
                    Err(_) => unsafe { libc::_exit(1) },
                }
            }
            ForkResult::Parent { child } => child,
        };
        drop(go);
        let made = self.probe_and_let_go(tracer, (child.as_raw(), &file), &word);
        drop(word);
        let ended = loop {
            match waitpid(child, None) {
                Err(Errno::EINTR) => {}
                other => break other.map_err(failed)?,
            }
        };
        let before = made?;
        if ended != WaitStatus::Exited(child, 0) {
            // Executable memory is forbidden here (vm.memfd_noexec, a security module).
            return Err(failed(Errno::EACCES));
        }
        let after = self.counters();
        Ok(after.seen + after.skipped > before)
    }

    /// What was seen before the call.
    fn probe_and_let_go(
        &self,
        tracer: &BpfTracer,
        (child, file): (i32, &OwnedFd),
        word: &OwnedFd,
    ) -> Result<u64, CaptureError> {
        let failed = |errno: Errno| CaptureError::Uprobes(errno.into());
        let pidfd = pidfd::open(child).map_err(failed)?;
        tracer.add_target(child, pidfd.as_fd())?;
        let way = self.prober.members.way().try_clone().map_err(CaptureError::Uprobes)?;
        let members = Members::new(way, Reach::Members).map_err(CaptureError::Uprobes)?;
        members.enter(child);
        let prober = Prober {
            members: Arc::new(members),
            table: self.prober.table.try_clone().map_err(CaptureError::Uprobes)?,
            // The last number: whatever is probed later has others.
            next: (MAX_FUNCTIONS - 1).into(),
        };
        let function = ProbeFunction {
            size: Where::Argument(1),
            result: Where::Returned,
            ..ProbeFunction::new(Action::Allocate)
        };
        let placed = prober.place(Request { file: file.as_fd(), functions: &[(0, function)] });
        let refused = placed.map_or_else(Some, |placed| placed.refused);
        if let Some(error) = refused {
            return Err(CaptureError::Uprobes(std::io::Error::other(error)));
        }
        let counters = self.counters();
        write(word, b"g").map_err(failed)?;
        // The probe has to outlive the call. The child ends by itself.
        poll::wait_readable(&pidfd, None);
        Ok(counters.seen + counters.skipped)
    }
}

/// In the child: waits for the word, and calls.
fn call(go: &OwnedFd, file: &OwnedFd) -> ! {
    let mut word = 0u8;
    // SAFETY: system calls with a byte of this stack, a new mapping of the file with the function, which
    // takes and returns a number; then the end.
    unsafe {
        let code = libc::mmap(
            std::ptr::null_mut(),
            FUNCTION.len(),
            libc::PROT_READ | libc::PROT_EXEC,
            libc::MAP_PRIVATE,
            file.as_raw_fd(),
            0,
        );
        let started = libc::read(go.as_raw_fd(), (&raw mut word).cast(), 1);
        if code == libc::MAP_FAILED || started != 1 {
            libc::_exit(1);
        }
        let function: extern "C" fn(usize) -> usize = std::mem::transmute(code);
        libc::_exit(i32::from(function(BYTES) != BYTES))
    }
}

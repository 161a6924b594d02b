//! Runs of programs that the kernel left out: `recursion_misses` of `struct bpf_prog_info` (Linux 5.12).
//!
//! A program is skipped where it is in flight on that CPU already, and those of classic tracepoints and
//! function returns also while anybody there is inside a bpf(2) call on a map (`bpf_prog_active`). The
//! kernel counts for all tasks, not only for those that are traced: this is an upper bound.

use super::hooks::needs_spares;
use libbpf_rs::libbpf_sys::{bpf_prog_get_info_by_fd, bpf_prog_info};
use libbpf_rs::{Link, ProgramMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// One event's programs: it is lost only where each of them was skipped.
#[derive(Debug)]
struct Hook(Vec<OwnedFd>);

/// What is attached, by event.
#[derive(Debug, Default)]
pub(in crate::capture) struct Attached {
    hooks: Vec<Hook>,
}

impl Attached {
    /// `programs` run one after the other at one event, and any of them does the work.
    pub fn add<'a>(&mut self, programs: impl IntoIterator<Item = BorrowedFd<'a>>) {
        // Without a descriptor of ours nothing is counted; the programs themselves are not affected.
        let own = programs.into_iter().filter_map(|program| program.try_clone_to_owned().ok()).collect();
        self.hooks.push(Hook(own));
    }

    /// Attaches one event's program, with its spares where this kernel needs them ([`needs_spares`]).
    pub fn attach<'a, 'o: 'a, E>(
        &mut self,
        programs: &[&'a ProgramMut<'o>; 3],
        attach: impl Fn(&'a ProgramMut<'o>) -> Result<Link, E>,
    ) -> Result<Vec<Link>, E> {
        let used = if needs_spares() { &programs[..] } else { &programs[..1] };
        let links = used.iter().map(|program| attach(program)).collect::<Result<_, E>>()?;
        self.add(used.iter().map(|program| program.as_fd()));
        Ok(links)
    }

    /// Events that no program saw, at most.
    pub fn missed(&self) -> u64 {
        let fewest = |hook: &Hook| hook.0.iter().map(|program| misses(program.as_fd())).min();
        self.hooks.iter().filter_map(fewest).sum()
    }
}

fn misses(program: BorrowedFd<'_>) -> u64 {
    let mut info = bpf_prog_info::default();
    let mut length = size_of::<bpf_prog_info>() as u32;
    // SAFETY: `info` is a valid bpf_prog_info of the stated length and outlives the call.
    let refused = unsafe { bpf_prog_get_info_by_fd(program.as_raw_fd(), &raw mut info, &raw mut length) };
    if refused == 0 { info.recursion_misses } else { 0 }
}

//! Which address spaces have breakpoints: those of the processes that are counted, and no other, unless the user requests
//! it. What translates another program's code (an emulator, an instrumenting tool) reads that code from the page that it
//! has mapped, with the breakpoint in it, and ends with SIGTRAP.
//!
//! A link for one process is asked about each address space that maps the file: `link->task->mm` of a uprobe_multi link
//! (kernel/trace/bpf_trace.c, uprobe_multi_link_filter), `event->hw.target->mm` of a perf event (kernel/trace/
//! trace_uprobe.c, __uprobe_perf_filter). So it follows its process through execve: the new program has breakpoints from
//! the moment on at which it maps the file. A child of fork has its parent's breakpoints, copied with the pages
//! (uprobe_dup_mmap), but no program runs there until it has links of its own.

use super::uprobe_link::{ProbeError, Site, Way};
use crate::model::Pid;
use crate::sys::file::raise_descriptor_limit;
use crate::sys::{pidfd, task};
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use std::collections::HashMap;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Where breakpoints are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Reach {
    /// In the processes that have entered.
    #[default]
    Members,
    /// In every process of the machine that maps the file.
    AllProcesses,
}

/// Functions of a file that each member has probes in, also those that come later.
#[derive(Debug)]
struct Placement {
    file: OwnedFd,
    sites: Vec<Site>,
}

#[derive(Debug)]
struct Member {
    /// The number may have a new owner.
    pidfd: OwnedFd,
    links: Vec<OwnedFd>,
}

/// What became of [`Members::enter`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry {
    /// It has probes now.
    New,
    /// It had them before.
    Known,
    /// There is no process with this number, or it is that of another thread than the first.
    Gone,
}

#[derive(Debug, Default)]
struct State {
    placements: Vec<Placement>,
    everywhere: Vec<OwnedFd>,
    members: HashMap<Pid, Member>,
}

/// The processes that have probes, and the functions that are probed; usable from any thread. Dropped, all probes are gone.
#[derive(Debug)]
pub struct Members {
    way: Way,
    reach: Reach,
    state: Mutex<State>,
    /// Readable when a member has ended: its number is the event's data.
    ends: Epoll,
}

/// Links that are let go of at a time, by a thread each. The kernel waits tens of milliseconds for grace periods, and those
/// that wait together share them.
const AT_ONCE: usize = 32;

impl Members {
    pub(in crate::capture) fn new(way: Way, reach: Reach) -> io::Result<Members> {
        // Each process takes some descriptors, and with single uprobes one for each function.
        raise_descriptor_limit();
        let ends = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        Ok(Members { way, reach, state: Mutex::default(), ends })
    }

    pub(in crate::capture) fn way(&self) -> &Way {
        &self.way
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Probes functions of a file; returns the places in the list of those that the kernel refuses to probe.
    pub(in crate::capture) fn place(
        &self,
        file: BorrowedFd<'_>,
        sites: Vec<Site>,
    ) -> io::Result<Vec<(usize, ProbeError)>> {
        let mut state = self.state();
        let mut refused = Vec::new();
        if self.reach == Reach::AllProcesses {
            let links = self.link_or_each(file, &sites, None, &mut refused);
            state.everywhere.extend(links);
            return Ok(refused);
        }
        for (&pid, member) in &mut state.members {
            let mut now = Vec::new();
            member.links.extend(self.link_or_each(file, &sites, Some(pid), &mut now));
            // One that has ended says nothing of a function.
            if !pidfd::has_ended(member.pidfd.as_fd()) {
                refused.extend(now);
            }
        }
        refused.sort_by_key(|&(at, _)| at);
        refused.dedup_by_key(|&mut (at, _)| at);
        state.placements.push(Placement { file: file.try_clone_to_owned()?, sites });
        Ok(refused)
    }

    /// Gives a process its probes.
    pub fn enter(&self, pid: Pid) -> Entry {
        if self.reach == Reach::AllProcesses {
            return Entry::Known;
        }
        let mut state = self.state();
        if let Some(known) = state.members.get(&pid) {
            if !pidfd::has_ended(known.pidfd.as_fd()) {
                return Entry::Known;
            }
            self.forget(&mut state, pid);
        }
        let Ok(pidfd) = pidfd::open(pid) else { return Entry::Gone };
        if pidfd::has_ended(pidfd.as_fd()) {
            return Entry::Gone;
        }
        let mut links = Vec::new();
        for placement in &state.placements {
            // What is refused here was refused where it was placed, or the process is gone.
            let file = placement.file.as_fd();
            links.extend(self.link_or_each(file, &placement.sites, Some(pid), &mut Vec::new()));
        }
        // Without that its links stay until the end.
        let _ = self.ends.add(pidfd.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, pid as u64));
        state.members.insert(pid, Member { pidfd, links });
        Entry::New
    }

    /// Whether a process has probes.
    pub fn has(&self, pid: Pid) -> bool {
        self.reach == Reach::AllProcesses || self.state().members.contains_key(&pid)
    }

    /// Takes a process' probes away; they are gone when this returns.
    pub fn remove(&self, pid: Pid) {
        let gone = self.state().members.remove(&pid);
        if let Some(member) = &gone {
            let _ = self.ends.delete(member.pidfd.as_fd());
        }
        gone.into_iter().for_each(|member| let_go(member.links));
    }

    /// The same, and does not wait for it: what matters is that the kernel begins at once.
    pub fn begin_to_remove(&self, pid: Pid) {
        let Some(member) = self.state().members.remove(&pid) else { return };
        let _ = self.ends.delete(member.pidfd.as_fd());
        let urgent = move || {
            task::run_before_others();
            drop(member.links);
        };
        // Without a thread, they go now.
        let _ = std::thread::Builder::new().name("probes".to_owned()).spawn(urgent);
    }

    /// A process has ended: nobody waits until the kernel has let go of its probes.
    pub(in crate::capture) fn ended(&self, pid: Pid) {
        let mut state = self.state();
        let is_over = |member: &Member| pidfd::has_ended(member.pidfd.as_fd());
        if state.members.get(&pid).is_some_and(is_over) {
            self.forget(&mut state, pid);
        }
    }

    fn forget(&self, state: &mut State, pid: Pid) {
        let Some(member) = state.members.remove(&pid) else { return };
        let _ = self.ends.delete(member.pidfd.as_fd());
        in_background(member.links);
    }

    /// What is readable when a member has ended.
    pub(in crate::capture) fn ends(&self) -> &Epoll {
        &self.ends
    }

    /// Takes all probes away, and does not wait for it.
    pub fn clear(&self) {
        in_background(self.take_all());
    }

    /// Takes all probes away; they are gone when this returns.
    pub(in crate::capture) fn clear_now(&self) {
        let_go(self.take_all());
    }

    fn take_all(&self) -> Vec<OwnedFd> {
        let State { placements: _, everywhere, members } = std::mem::take(&mut *self.state());
        everywhere.into_iter().chain(members.into_values().flat_map(|member| member.links)).collect()
    }

    /// All of them with as few links as there can be. One that cannot be probed spoils all: then each by itself.
    fn link_or_each(
        &self,
        file: BorrowedFd<'_>,
        sites: &[Site],
        pid: Option<Pid>,
        refused: &mut Vec<(usize, ProbeError)>,
    ) -> Vec<OwnedFd> {
        // Digits only: no NUL to fail on.
        let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap_or_default();
        let all = match self.way.link(&path, sites, pid) {
            Ok(links) => return links,
            Err(error) => error,
        };
        if sites.len() < 2 || all.errno() == Some(Errno::ESRCH) {
            refused.extend(sites.first().map(|_| (0, all)));
            return Vec::new();
        }
        let mut links = Vec::new();
        for (at, site) in sites.iter().enumerate() {
            match self.way.link(&path, std::slice::from_ref(site), pid) {
                Ok(mut one) => links.append(&mut one),
                Err(error) => refused.push((at, error)),
            }
        }
        links
    }
}

fn in_background(links: Vec<OwnedFd>) {
    if !links.is_empty() {
        // Without a thread, they go now.
        let _ = std::thread::Builder::new().name("probes".to_owned()).spawn(move || let_go(links));
    }
}

fn let_go(links: Vec<OwnedFd>) {
    if links.len() < 2 {
        return drop(links);
    }
    let mut shares: Vec<Vec<OwnedFd>> = Vec::new();
    shares.resize_with(links.len().min(AT_ONCE), Vec::new);
    let count = shares.len();
    for (at, link) in links.into_iter().enumerate() {
        if let Some(share) = shares.get_mut(at % count) {
            share.push(link);
        }
    }
    std::thread::scope(|scope| {
        for share in shares {
            scope.spawn(move || drop(share));
        }
    });
}

//! Processes that ran already: their end, and the user's request to stop. They are only watched:
//! nothing here sends a signal, or holds anything.

use super::error::TargetError;
use super::find::Process;
use super::signals::{self, Arrived, Signals};
use super::watch;
use crate::model::Pid;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollTimeout};
use nix::sys::signal::Signal;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};

/// An event of the targets, or a signal to vmaudit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AttachedEvent {
    /// All threads of this process have ended.
    Ended(Pid),
    /// All of the processes have ended.
    NoneLeft,
    /// Ctrl-C and the like, sent to vmaudit alone.
    Interrupt(Signal),
}

/// The targets of `attach`. Dropped, they go on as before.
pub struct Attached {
    processes: Vec<Process>,
    signals: Signals,
    epoll: Epoll,
    queue: VecDeque<AttachedEvent>,
}

/// Marks the signals among the events; processes are numbered.
const FROM_SIGNALS: u64 = u64::MAX;

impl Attached {
    /// From here on SIGINT, SIGTERM, SIGHUP and SIGQUIT are blocked and read by
    /// [`Attached::poll`], unless they were ignored.
    ///
    /// # Errors
    /// When the kernel refuses a descriptor.
    pub fn new(processes: Vec<Process>) -> Result<Attached, TargetError> {
        let (taken, before) = signals::block().map_err(TargetError::at("sigprocmask"))?;
        let signals = Signals::open(taken, before)?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(TargetError::at("epoll_create1"))?;
        let attached = Attached { processes, signals, epoll, queue: VecDeque::new() };
        watch(&attached.epoll, attached.signals.as_fd(), FROM_SIGNALS)?;
        for (number, process) in attached.processes.iter().enumerate() {
            watch(&attached.epoll, process.as_fd(), number as u64)?;
        }
        Ok(attached)
    }

    /// The targets, also those that have ended.
    pub fn processes(&self) -> &[Process] {
        &self.processes
    }

    /// One more target, found when the others were traced already.
    ///
    /// # Errors
    /// When the kernel refuses to watch it.
    pub fn add(&mut self, process: Process) -> Result<(), TargetError> {
        watch(&self.epoll, process.as_fd(), self.processes.len() as u64)?;
        self.processes.push(process);
        Ok(())
    }

    /// The target with this number.
    pub fn process(&self, pid: Pid) -> Option<&Process> {
        self.processes.iter().find(|process| process.pid() == pid)
    }

    /// Requests to stop from now on: they stay blocked when this is dropped.
    ///
    /// # Errors
    /// When the kernel refuses a descriptor.
    pub fn take_requests(&self) -> Result<Signals, TargetError> {
        self.signals.take_requests()
    }

    /// True when [`Attached::poll`] has something already.
    pub fn has_pending(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Readable when there is something new.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }

    /// The next event, without waiting.
    ///
    /// # Errors
    /// When the kernel refuses what it never refuses.
    pub fn poll(&mut self) -> Result<Option<AttachedEvent>, TargetError> {
        if let Some(event) = self.queue.pop_front() {
            return Ok(Some(event));
        }
        let mut ready = [EpollEvent::empty(); 16];
        let count = match self.epoll.wait(&mut ready, EpollTimeout::ZERO) {
            Ok(count) => count,
            Err(nix::errno::Errno::EINTR) => 0,
            Err(errno) => return Err(TargetError { step: "epoll_wait", errno }),
        };
        let mut ended = Vec::new();
        for event in &ready[..count] {
            match event.data() {
                FROM_SIGNALS => self.receive_signals()?,
                number => ended.extend(self.processes.get(number as usize).map(Process::pid)),
            }
        }
        for pid in ended {
            self.end(pid)?;
        }
        Ok(self.queue.pop_front())
    }

    /// It is waited for no more, but keeps its place among the targets.
    fn end(&mut self, pid: Pid) -> Result<(), TargetError> {
        let Some(process) = self.process(pid) else { return Ok(()) };
        self.epoll.delete(process.as_fd()).map_err(TargetError::at("epoll_ctl"))?;
        self.queue.push_back(AttachedEvent::Ended(pid));
        if self.processes.iter().all(Process::has_ended) {
            self.queue.push_back(AttachedEvent::NoneLeft);
        }
        Ok(())
    }

    fn receive_signals(&mut self) -> Result<(), TargetError> {
        while let Some(arrived) = self.signals.next()? {
            if let Arrived::Request { signal, .. } = arrived {
                self.queue.push_back(AttachedEvent::Interrupt(signal));
            }
        }
        Ok(())
    }
}

//! Processes that a counted one forks, and those that execute a program, as the kernel's side reports them (bpf/newcomers.h).

use super::CaptureError;
use super::heap::skel::types::vmaudit_newcomer as Raw;
use super::members::Members;
use super::plain::value_of;
use crate::model::Pid;
use crate::sys::task;
use libbpf_rs::{MapHandle, RingBuffer, RingBufferBuilder};
use nix::sys::epoll::{EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::{SigSet, SigmaskHow};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::JoinHandle;

/// What became of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Newcomer {
    /// A counted process has forked this one, then.
    Forked { pid: Pid, parent: Pid, time_ns: u64 },
    /// A counted process executes another program, or one begins to be counted with that.
    Executed { pid: Pid, time_ns: u64 },
}

/// A thread that waits for newcomers, and for the ends of members; it ends with this.
pub struct Watch {
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

/// Numbers of epoll's that no process has.
const RING: u64 = u64::MAX;
const STOP: u64 = u64::MAX - 1;

impl Watch {
    /// `tell` is called by that thread, at once.
    pub(super) fn start(
        map: MapHandle,
        members: Arc<Members>,
        tell: impl FnMut(Newcomer) + Send + 'static,
    ) -> Result<Watch, CaptureError> {
        let failed = |errno: nix::errno::Errno| CaptureError::Wake(errno.into());
        let event = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC).map_err(failed)?;
        let stop = Arc::new(event);
        let ends = members.ends();
        ends.add(stop.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, STOP)).map_err(failed)?;
        ends.add(map.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, RING)).map_err(failed)?;
        // The session waits for signals in its own thread: none may end up here.
        let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK);
        let run = move || run(&map, &members, tell);
        let thread = std::thread::Builder::new().name("newcomers".to_owned()).spawn(run);
        if let Ok(before) = before {
            let _ = before.thread_set_mask();
        }
        Ok(Watch { stop, thread: Some(thread.map_err(CaptureError::Wake)?) })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // Fails only when it is readable for long.
        let _ = self.stop.write(1);
        if let Some(thread) = self.thread.take() {
            // It panicked, and said so.
            let _ = thread.join();
        }
    }
}

fn run(map: &MapHandle, members: &Members, tell: impl FnMut(Newcomer) + 'static) {
    // A process that forked runs already, and what it allocates now is not counted.
    task::run_before_others();
    let Ok(ring) = ring_of(map, tell) else { return };
    let mut events = [EpollEvent::empty(); 16];
    loop {
        // Fails where a signal comes.
        let count = members.ends().wait(&mut events, EpollTimeout::NONE).unwrap_or(0);
        // Those that came first: who has ended by now has no use for probes.
        let _ = ring.consume();
        for event in events.iter().take(count) {
            match event.data() {
                STOP => return,
                RING => {}
                pid => members.ended(pid as Pid),
            }
        }
    }
}

fn ring_of(
    map: &MapHandle,
    mut tell: impl FnMut(Newcomer) + 'static,
) -> Result<RingBuffer<'static>, libbpf_rs::Error> {
    let mut builder = RingBufferBuilder::new();
    let tell = move |record: &[u8]| {
        decode(record).into_iter().for_each(&mut tell);
        0
    };
    builder.add(map, tell)?;
    builder.build()
}

fn decode(record: &[u8]) -> Option<Newcomer> {
    let Raw { time_ns, pid, parent } = value_of(record)?;
    let (pid, parent) = (pid as Pid, parent as Pid);
    Some(match parent {
        0 => Newcomer::Executed { pid, time_ns },
        parent => Newcomer::Forked { pid, parent, time_ns },
    })
}

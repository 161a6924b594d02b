//! Calls seen through seccomp user notification: needs no privileges, works in a default container.
//!
//! A thread of vmaudit's receives each notified call while its thread waits in it, copies the stack,
//! and lets it go on. It writes the same records as the BPF programs (bpf/vmaudit.h), so all that
//! follows is the same. What is not delivered is worked out: results from what is mapped
//! afterwards, new tasks from their first calls, new programs from the address space that is gone.
//! Of the registers only the instruction and stack pointers are known.
//!
//! ```text
//!   target ──call──▶ kernel ──▶ Server (a thread) ──records──▶ Queue ──▶ NotifyReader
//!      ▲                           │ /proc/TID/syscall, process_vm_readv, maps
//!      └─────── CONTINUE ◀─────────┘
//! ```

mod calls;
mod effect;
mod emit;
mod exec;
mod expect;
mod peek;
mod queue;
mod results;
mod server;
mod shadow;
mod space;
mod task_creation;
mod task_exit;
mod tasks;
mod view;

pub use calls::{NUMBERS, PRCTL_OPTIONS};
pub use peek::ParseMaps;

use super::{CaptureError, Counters, EventSource};
use crate::model::{HeldCalls, Pid};
use queue::Queue;
use server::Server;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

/// How long to wait for results that are on their way.
const SETTLE: Duration = Duration::from_millis(20);
/// How long to wait until the thread that serves has let all calls go.
const LET_GO: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug)]
pub struct NotifyConfig {
    /// Most bytes of user stack to copy.
    pub stack_bytes: u64,
    /// Bytes of records that may wait for the reader, before the target does.
    pub queue_bytes: u32,
    pub follow_forks: bool,
    pub parse_maps: ParseMaps,
}

/// The backend, from before the target runs.
pub struct NotifyTracer {
    config: NotifyConfig,
    queue: Arc<Queue>,
    /// What is used, for `-v`.
    pub attached: String,
}

impl NotifyTracer {
    /// # Errors
    /// When there are no descriptors left.
    pub fn start(config: NotifyConfig) -> Result<NotifyTracer, CaptureError> {
        let queue = Queue::new(config.queue_bytes as usize).map_err(CaptureError::Notify)?;
        let attached = format!("{} system calls through seccomp user notification", NUMBERS.len() + 2);
        Ok(NotifyTracer { config, queue: Arc::new(queue), attached })
    }

    /// Serves the target's calls from now on, in a thread of its own: `main`, whose first call is the
    /// first of its program, and what descends from it.
    ///
    /// # Errors
    /// When the thread cannot be made.
    pub fn serve(&self, calls: impl HeldCalls + 'static, main: Pid) -> Result<(), CaptureError> {
        let queue = Arc::clone(&self.queue);
        let server = Server::new(calls, queue, self.config, main).map_err(CaptureError::Notify)?;
        let builder = thread::Builder::new().name("notify".to_owned());
        self.queue.begin();
        let started = builder.spawn(move || server.run()).map_err(CaptureError::Notify);
        if started.is_err() {
            self.queue.end();
        }
        started.map(drop)
    }

    /// Hands each record to `handle`.
    pub fn reader<'a>(&'a self, handle: impl FnMut(&[u8]) + 'a) -> NotifyReader<'a> {
        NotifyReader { queue: &self.queue, handle: Box::new(handle) }
    }
}

type Handle<'a> = dyn FnMut(&[u8]) + 'a;

/// The reader's end. When it is dropped, the target is served no more: the keeper lets all go on.
pub struct NotifyReader<'a> {
    queue: &'a Queue,
    handle: Box<Handle<'a>>,
}

impl NotifyReader<'_> {
    fn drain(&mut self) {
        for record in self.queue.take() {
            (self.handle)(&record);
        }
    }
}

impl EventSource for NotifyReader<'_> {
    fn poll(&mut self) -> Result<(), CaptureError> {
        self.queue.request();
        self.drain();
        Ok(())
    }

    fn settle(&mut self) -> Result<(), CaptureError> {
        self.drain();
        self.queue.settle(SETTLE);
        self.drain();
        Ok(())
    }

    fn poll_while(&mut self, more: &mut dyn FnMut() -> bool) -> Result<(), CaptureError> {
        self.queue.settle(SETTLE);
        for record in self.queue.take() {
            (self.handle)(&record);
        }
        let _ = more();
        Ok(())
    }

    fn wake_fd(&self) -> BorrowedFd<'_> {
        self.queue.wake_fd()
    }

    fn trouble(&self) -> Option<String> {
        self.queue.trouble()
    }

    /// The keeper must not begin to receive before the server has ended: of two, one would wait in the kernel
    /// for a call that the other has, and answer none meanwhile.
    fn stop(&mut self) {
        self.queue.stop_serving(LET_GO);
    }

    fn counters(&self) -> Result<Counters, CaptureError> {
        let get = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let queue = self.queue;
        Ok(Counters {
            known_stacks: 0,
            seen: get(&queue.seen),
            without_stack: get(&queue.without_stack),
            lost: get(&queue.lost),
            lost_tasks: get(&queue.lost_tasks),
        })
    }
}

impl Drop for NotifyReader<'_> {
    fn drop(&mut self) {
        self.stop();
    }
}

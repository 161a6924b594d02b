//! Records on their way from the thread that serves the target to the one that reads them. When
//! they are more than fit, the target waits: nothing is lost.

use nix::sys::eventfd::{EfdFlags, EventFd};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The reader is woken when this many bytes wait.
const WAKE: usize = 1 << 20;

#[derive(Default)]
struct Waiting {
    records: VecDeque<Vec<u8>>,
    bytes: usize,
    /// There is a server: it tells, and may hold calls.
    serves: bool,
    /// Asked to tell what it can: how often, and how often it has.
    asked: u64,
    settled: u64,
}

/// The two ends' common ground.
pub struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
    capacity: usize,
    /// Readable when a good deal waits.
    pub wake: EventFd,
    /// Readable when the server is to settle or to stop.
    pub call: EventFd,
    pub stop: AtomicBool,
    /// Calls whose results are not told yet.
    pub unsettled: AtomicBool,
    pub seen: AtomicU64,
    pub without_stack: AtomicU64,
    pub lost: AtomicU64,
    pub lost_tasks: AtomicU64,
    trouble: Mutex<Option<String>>,
}

impl Queue {
    pub fn new(capacity: usize) -> io::Result<Queue> {
        let event = || EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK);
        Ok(Queue {
            waiting: Mutex::default(),
            changed: Condvar::new(),
            capacity: capacity.max(WAKE),
            wake: event()?,
            call: event()?,
            stop: AtomicBool::new(false),
            unsettled: AtomicBool::new(false),
            seen: AtomicU64::new(0),
            without_stack: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            lost_tasks: AtomicU64::new(0),
            trouble: Mutex::default(),
        })
    }

    /// Server: what the user should know. The first time counts.
    pub fn report_trouble(&self, what: impl FnOnce() -> String) {
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        trouble.get_or_insert_with(what);
    }

    pub fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Before there is a server.
    pub fn begin(&self) {
        self.lock().serves = true;
    }

    /// Server: adds a record; waits for room.
    pub fn push(&self, record: Vec<u8>) {
        let mut waiting = self.lock();
        while waiting.bytes >= self.capacity && !self.stop.load(Ordering::Relaxed) {
            let guard = self.changed.wait_timeout(waiting, Duration::from_millis(10));
            waiting = guard.unwrap_or_else(PoisonError::into_inner).0;
        }
        let before = waiting.bytes;
        waiting.bytes += record.len();
        waiting.records.push_back(record);
        if before < WAKE && waiting.bytes >= WAKE {
            let _ = self.wake.write(1);
        }
    }

    /// Reader: takes all that waits.
    pub fn take(&self) -> VecDeque<Vec<u8>> {
        let mut waiting = self.lock();
        let _ = self.wake.read();
        waiting.bytes = 0;
        self.changed.notify_all();
        std::mem::take(&mut waiting.records)
    }

    /// Reader: asks the server to tell what it can, unless it has not come to the last request yet.
    pub fn ask(&self) {
        let mut waiting = self.lock();
        if waiting.settled == waiting.asked {
            self.ask_of(&mut waiting);
        }
    }

    /// The number of the request; None where there is no server.
    fn ask_of(&self, waiting: &mut Waiting) -> Option<u64> {
        if !waiting.serves {
            return None;
        }
        waiting.asked += 1;
        let _ = self.call.write(1);
        Some(waiting.asked)
    }

    /// Reader: asks the server to tell what it can, and waits for that, at most `limit`. Meanwhile the
    /// queue may fill: the caller takes, and asks again.
    pub fn settle(&self, limit: Duration) {
        let mut waiting = self.lock();
        let Some(wanted) = self.ask_of(&mut waiting) else { return };
        let ready = |w: &mut Waiting| w.serves && w.settled < wanted && w.bytes < self.capacity;
        let guard = self.changed.wait_timeout_while(waiting, limit, ready);
        drop(guard.unwrap_or_else(PoisonError::into_inner));
    }

    /// Server: how often it was asked. To be had before it settles, and given back afterwards.
    pub fn asked(&self) -> u64 {
        let _ = self.call.read();
        self.lock().asked
    }

    pub fn settled(&self, asked: u64) {
        self.lock().settled = asked;
        self.changed.notify_all();
    }

    /// Reader: nobody is to be served any more; waits until that is so, at most `limit`. What is not
    /// read by then is not wanted.
    pub fn stop_serving(&self, limit: Duration) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.call.write(1);
        self.changed.notify_all();
        let guard = self.changed.wait_timeout_while(self.lock(), limit, |waiting| waiting.serves);
        drop(guard.unwrap_or_else(PoisonError::into_inner));
    }

    /// Server: there will be no more, and every call that was received has been let go.
    pub fn end(&self) {
        self.lock().serves = false;
        self.changed.notify_all();
    }

    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

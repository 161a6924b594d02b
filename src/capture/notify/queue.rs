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
    /// There is a server: it reports, and may hold calls.
    serves: bool,
    /// How often the server was requested to report, and how often it has done so.
    requests: u64,
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
    /// Calls whose results are not reported yet.
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

    /// Server: adds a record; waits for space.
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

    /// Reader: requests the server to report what it can, unless the last request is still pending.
    pub fn request(&self) {
        let mut waiting = self.lock();
        if waiting.settled == waiting.requests {
            self.request_of(&mut waiting);
        }
    }

    /// The number of the request; None where there is no server.
    fn request_of(&self, waiting: &mut Waiting) -> Option<u64> {
        if !waiting.serves {
            return None;
        }
        waiting.requests += 1;
        let _ = self.call.write(1);
        Some(waiting.requests)
    }

    /// Reader: requests the server to report what it can, and waits for that, at most `limit`. Meanwhile the
    /// queue may fill: the caller reads it, and requests again.
    pub fn settle(&self, limit: Duration) {
        let mut waiting = self.lock();
        let Some(request) = self.request_of(&mut waiting) else { return };
        let ready = |w: &mut Waiting| w.serves && w.settled < request && w.bytes < self.capacity;
        let guard = self.changed.wait_timeout_while(waiting, limit, ready);
        drop(guard.unwrap_or_else(PoisonError::into_inner));
    }

    /// Server: the number of requests so far. To be read before it settles, and passed to `settled`
    /// afterwards.
    pub fn requests(&self) -> u64 {
        let _ = self.call.read();
        self.lock().requests
    }

    pub fn settled(&self, requests: u64) {
        self.lock().settled = requests;
        self.changed.notify_all();
    }

    /// Reader: ends the server, and waits for that, at most `limit`. What is not read by then is dropped.
    pub fn stop_serving(&self, limit: Duration) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.call.write(1);
        self.changed.notify_all();
        let guard = self.changed.wait_timeout_while(self.lock(), limit, |waiting| waiting.serves);
        drop(guard.unwrap_or_else(PoisonError::into_inner));
    }

    /// Server: there will be no more records, and every call that was received has been continued.
    pub fn end(&self) {
        self.lock().serves = false;
        self.changed.notify_all();
    }

    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

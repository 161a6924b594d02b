//! Moves records out of the rings into a queue in memory, from whichever thread comes first: the session's
//! own when it reads, or one that does nothing else while the session is busy. The rings hold some
//! milliseconds of a busy program, and what the session does may take longer: reading maps, opening a file,
//! taking a snapshot.

use super::positions;
use super::queue::{Frames, Queue};
use crate::capture::{CaptureError, wire};
use crate::sys::{poll, task};
use libbpf_rs::{MapCore, RingBuffer, RingBufferBuilder};
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::{SigSet, SigmaskHow};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Records that are moved before it is checked again whether there is space for more.
const CHUNK: usize = 32;
/// A ring that cannot be emptied, because a record is still being written, is seen to again after so long, which doubles
/// each time: a busy thread fills the smallest rings in less than a millisecond.
const SOON: Duration = Duration::from_micros(20);
const LATEST: Duration = Duration::from_millis(1);
/// Rings below this size are emptied at once: a millisecond may fill them.
const SMALL: u64 = 1 << 20;
/// Larger ones are left to the session until this part of them is full. Emptying them on each wake would take
/// the session's processor, and delay its work: the unwind rules of `heap --combined`, say.
const PART: u64 = 8;

struct Rings {
    calls: RingBuffer<'static>,
    touches: Option<RingBuffer<'static>>,
    /// The time of the latest page fault that was moved.
    latest: Arc<AtomicU64>,
    /// Bytes in each that the thread leaves to the session.
    idle: [u64; 2],
}

impl Rings {
    fn has_much(&self) -> bool {
        let waiting = |ring: &RingBuffer<'_>| {
            let (read, written) = positions(ring);
            written.saturating_sub(read)
        };
        let touches = self.touches.as_ref().map_or(0, waiting);
        waiting(&self.calls) > self.idle[0] || touches > self.idle[1]
    }
}

/// The rings of a tracer, and the queue.
pub(super) struct Drain {
    rings: Mutex<Rings>,
    queue: Arc<Mutex<Queue>>,
    /// Something was taken out of the queue.
    taken: Condvar,
    /// Readable once there is something to handle, in the rings or in the queue.
    moved: EventFd,
    stop: EventFd,
    /// What the thread waits for: more in a ring, or `stop`.
    wakes: Epoll,
}

/// A thread that panicked while it held one of these left it as it was.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drain {
    /// `limit`: of the queue, in bytes.
    pub(super) fn of(
        calls: &impl MapCore,
        touches: Option<&impl MapCore>,
        limit: usize,
    ) -> Result<Drain, CaptureError> {
        // One half is taken while the other is filled.
        let queue = Arc::new(Mutex::new(Queue::of(limit / 2)));
        let latest = Arc::new(AtomicU64::new(0));
        let into = Arc::clone(&queue);
        let idle = [idle_bytes(calls), touches.map_or(0, idle_bytes)];
        let event = || EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC);
        let event = || event().map_err(|errno| CaptureError::Wake(errno.into()));
        let (moved, stop) = (event()?, event()?);
        let rings = [Some(calls.as_fd()), touches.map(|touches| touches.as_fd())];
        let wakes = wakes_of(rings.into_iter().zip(idle), stop.as_fd());
        let wakes = wakes.map_err(|errno| CaptureError::Wake(errno.into()))?;
        let calls = ring_of(calls, move |record| lock(&into).push(record))?;
        let (into, seen) = (Arc::clone(&queue), Arc::clone(&latest));
        let move_touch = move |record: &[u8]| {
            seen.fetch_max(wire::time_of(record).unwrap_or(0), Ordering::Relaxed);
            lock(&into).push_touch(record);
        };
        let touches = touches.map(|map| ring_of(map, move_touch)).transpose()?;
        Ok(Drain {
            rings: Mutex::new(Rings { calls, touches, latest, idle }),
            queue,
            taken: Condvar::new(),
            moved,
            stop,
            wakes,
        })
    }

    /// Moves what waits now, and not what comes meanwhile: a target may report faster than that is moved.
    /// Returns up to which of all bytes that were ever written to the ring of calls that was done.
    pub(super) fn drain(&self) -> Result<u64, CaptureError> {
        let rings = lock(&self.rings);
        self.move_touches(&rings);
        let touched = rings.latest.load(Ordering::Relaxed);
        let (_, until) = positions(&rings.calls);
        while !lock(&self.queue).is_full() {
            let count = rings.calls.consume_raw_n(CHUNK);
            if count < 0 {
                return Err(CaptureError::Ring(libbpf_rs::Error::from_raw_os_error(-count)));
            }
            if count == 0 || positions(&rings.calls).0 >= until {
                break;
            }
        }
        // Those that the calls just moved come after.
        self.move_touches(&rings);
        let (read, written) = positions(&rings.calls);
        if read == written {
            lock(&self.queue).moved_until(touched);
        }
        Ok(read)
    }

    fn move_touches(&self, rings: &Rings) {
        let Some(ring) = &rings.touches else { return };
        while lock(&self.queue).has_space_for_touches() {
            // A failure here means that the ring is gone; what was read is still handled.
            if ring.consume_raw_n(CHUNK) < CHUNK as i32 {
                break;
            }
        }
    }

    /// How many bytes were ever written to the ring of calls.
    pub(super) fn written(&self) -> u64 {
        positions(&lock(&self.rings).calls).1
    }

    /// How many of them were read.
    pub(super) fn read(&self) -> u64 {
        positions(&lock(&self.rings).calls).0
    }

    /// As [`Queue::exchange`].
    pub(super) fn take(&self, calls: &mut Frames, touches: &mut Frames) -> Option<u64> {
        let until = lock(&self.queue).exchange(calls, touches)?;
        self.taken.notify_one();
        Some(until)
    }

    /// As [`Queue::stripped`].
    pub(super) fn stripped(&self) -> u64 {
        lock(&self.queue).stripped()
    }

    /// Readable once there is something to handle, in the rings or in the queue.
    pub(super) fn moved(&self) -> BorrowedFd<'_> {
        self.moved.as_fd()
    }

    /// What was moved until now is about to be taken.
    pub(super) fn clear_moved(&self) {
        // Fails where nothing was.
        let _ = self.moved.read();
    }

    fn stop(&self) {
        // Fails only when it is readable for long.
        let _ = self.stop.write(1);
        drop(lock(&self.queue));
        self.taken.notify_all();
    }

    fn is_stopped(&self) -> bool {
        !poll::events(&self.stop).is_empty()
    }

    /// Whenever the kernel's side says that there is much, until it is stopped.
    fn run(&self) {
        task::run_before_others();
        loop {
            // Fails where a signal comes: it is seen to at once then.
            let _ = self.wakes.wait(&mut [EpollEvent::empty(); 3], EpollTimeout::NONE);
            if self.is_stopped() {
                return;
            }
            // Fails only when it is readable for long.
            let _ = self.moved.write(1);
            // Failures are reported to the session's own thread.
            if self.empty().is_err() {
                return;
            }
        }
    }

    /// Until there is not much any more.
    fn empty(&self) -> Result<(), CaptureError> {
        let (mut before, mut pause) = (0, SOON);
        while lock(&self.rings).has_much() && !self.is_stopped() {
            let now = self.drain()?;
            // The session may have read before that was moved.
            let _ = self.moved.write(1);
            let queue = lock(&self.queue);
            if queue.is_full() {
                let full = |queue: &mut Queue| queue.is_full() && !self.is_stopped();
                drop(self.taken.wait_while(queue, full));
            } else if now == before {
                drop(queue);
                poll::wait(&[self.stop.as_fd()], Some(pause));
                pause = (pause * 2).min(LATEST);
            }
            if now != before {
                pause = SOON;
            }
            before = now;
        }
        Ok(())
    }
}

/// Of each ring, with the bytes in it that are left to the session: only what comes after these wakes the thread. It would
/// be woken again and again, and each time it takes a processor from the targets.
fn wakes_of<'a>(
    rings: impl Iterator<Item = (Option<BorrowedFd<'a>>, u64)>,
    stop: BorrowedFd<'_>,
) -> Result<Epoll, Errno> {
    let wakes = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    wakes.add(stop, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
    for (ring, idle) in rings {
        let edge = if idle > 0 { EpollFlags::EPOLLET } else { EpollFlags::empty() };
        if let Some(ring) = ring {
            wakes.add(ring, EpollEvent::new(EpollFlags::EPOLLIN | edge, 0))?;
        }
    }
    Ok(wakes)
}

/// Bytes in a ring that the thread leaves to the session.
fn idle_bytes(ring: &impl MapCore) -> u64 {
    let size = u64::from(ring.max_entries());
    if size < SMALL { 0 } else { size / PART }
}

fn ring_of(
    map: &impl MapCore,
    mut push: impl FnMut(&[u8]) + 'static,
) -> Result<RingBuffer<'static>, CaptureError> {
    let mut builder = RingBufferBuilder::new();
    let push = move |record: &[u8]| {
        push(record);
        0
    };
    builder.add(map, push).map_err(CaptureError::Ring)?;
    builder.build().map_err(CaptureError::Ring)
}

/// The thread that drains the rings in the background; it ends with this.
pub(super) struct Drainer {
    pub(super) drain: Arc<Drain>,
    thread: Option<JoinHandle<()>>,
}

impl Drainer {
    pub(super) fn start(drain: Drain) -> Result<Drainer, CaptureError> {
        let drain = Arc::new(drain);
        let own = Arc::clone(&drain);
        // The session waits for signals in its own thread: none may end up here.
        let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK);
        let thread = std::thread::Builder::new().name("rings".to_owned()).spawn(move || own.run());
        if let Ok(before) = before {
            let _ = before.thread_set_mask();
        }
        Ok(Drainer { drain, thread: Some(thread.map_err(CaptureError::Wake)?) })
    }
}

impl Drop for Drainer {
    fn drop(&mut self) {
        self.drain.stop();
        if let Some(thread) = self.thread.take() {
            // It panicked, and said so.
            let _ = thread.join();
        }
    }
}

//! Reads the rings, in the thread that made it; another one empties them when they fill up meanwhile.

use super::canary::Canary;
use super::deep::DeepStacks;
use super::life::{Life, StackBytes};
use super::losses::Losses;
use super::merge::{self, Joined};
use super::plan::{Meaning, Planned, Stack};
use super::rings::{Rings, Waiting};
use super::sample::{self, RecordBody};
use crate::capture::{CaptureError, Counters, EventSource};
use crate::sys::clock::monotonic_ns;
use crate::sys::task;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Where the records come from.
pub struct Source<'a> {
    pub pid: i32,
    pub follow_forks: bool,
    pub rings: Arc<Mutex<Rings>>,
    /// The events whose descriptors become readable when a ring fills up.
    pub owners: Vec<&'a OwnedFd>,
    pub meanings: HashMap<u16, Planned>,
    /// Tracepoints whose stacks are in the second rings.
    pub apart: HashSet<u16>,
    pub canary: &'a Canary,
    pub deep: DeepStacks<'a>,
    pub losses: Losses<'a>,
}

/// Reads the rings of a `PerfTracer`.
pub struct PerfReader<'a, F> {
    rings: Arc<Mutex<Rings>>,
    meanings: HashMap<u16, Planned>,
    apart: HashSet<u16>,
    life: Life,
    canary: &'a Canary,
    deep: DeepStacks<'a>,
    losses: Losses<'a>,
    /// Read of the rings, of each CPU, and not put together yet.
    read: Vec<Waiting>,
    silenced: Option<&'static str>,
    ready: VecDeque<Joined>,
    handle: F,
    /// Readable once the other thread has taken something.
    wake: Arc<EventFd>,
    stop: Arc<EventFd>,
    emptier: Option<JoinHandle<()>>,
}

/// Records that are handled before it is checked again whether to go on.
const CHUNK: usize = 64;

impl<'a, F: FnMut(&[u8])> PerfReader<'a, F> {
    pub fn new(source: Source<'a>, handle: F) -> Result<PerfReader<'a, F>, CaptureError> {
        let failed = |source: nix::Error| CaptureError::Wake(source.into());
        let event = || EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC).map(Arc::new);
        let (wake, stop) = (event().map_err(failed)?, event().map_err(failed)?);
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(failed)?;
        epoll.add(stop.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, STOP)).map_err(failed)?;
        for owner in source.owners {
            // By edge: an event whose task has ended stays ready.
            let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
            epoll.add(owner, EpollEvent::new(flags, 0)).map_err(failed)?;
        }
        let (rings, wakes) = (Arc::clone(&source.rings), Arc::clone(&wake));
        let emptier = std::thread::Builder::new()
            .name("vmaudit-rings".to_owned())
            .spawn(move || empty_when_full(&epoll, &rings, &wakes))
            .map_err(CaptureError::Wake)?;
        Ok(PerfReader {
            rings: source.rings,
            meanings: source.meanings,
            apart: source.apart,
            life: Life::of(source.pid, source.follow_forks),
            canary: source.canary,
            deep: source.deep,
            losses: source.losses,
            read: Vec::new(),
            silenced: None,
            ready: VecDeque::new(),
            handle,
            wake,
            stop,
            emptier: Some(emptier),
        })
    }

    /// Everything that happened until now becomes `ready`.
    fn fetch(&mut self) {
        let mut rings = lock(&self.rings);
        let until = monotonic_ns();
        rings.drain();
        let (new, crowded) = (rings.take(), rings.take_crowded());
        // All else takes its time, and the other thread has to be able to empty the rings meanwhile.
        drop(rings);
        self.read.resize_with(new.len(), Waiting::default);
        for (read, new) in self.read.iter_mut().zip(new) {
            read.calls.extend(new.calls);
            read.stacks.extend(new.stacks);
        }
        let rings = &self.rings;
        let mut more = |cpu| lock(rings).take_stacks(cpu);
        self.ready.extend(merge::take(&mut self.read, &self.apart, until, &mut more));
        crowded.into_iter().for_each(|cpu| self.losses.suspect(cpu));
    }

    fn handle(&mut self, joined: &Joined) {
        let inline = |id| self.meanings.get(&id).is_some_and(|planned| planned.stack == Stack::Inline);
        let Some((when, what)) = sample::parse(&joined.record.bytes, &inline) else { return };
        if let RecordBody::Lost(count) = what {
            self.losses.recorded(count);
            return;
        }
        let meaning = match &what {
            RecordBody::Call(call) => self
                .meanings
                .get(&call.tracepoint)
                .filter(|planned| planned.number == i64::from(call.number))
                .map(|planned| planned.meaning),
            _ => None,
        };
        let emit = &mut self.handle;
        if let (RecordBody::Call(call), Some(Meaning::Changed(op))) = (&what, meaning)
            && self.apart.contains(&call.tracepoint)
        {
            let parsed = joined.stack.as_ref().and_then(|bytes| sample::parse(bytes, &|_| true));
            let stack = match parsed {
                Some((_, RecordBody::Call(with_stack))) => {
                    let sp = call.registers.map_or(0, |registers| registers.sp());
                    let there = self.life.stack_above(when.tid, sp);
                    self.deep.copied(when.tid, with_stack.stack.len(), there);
                    StackBytes::Copied(with_stack.stack)
                }
                _ => StackBytes::Lost,
            };
            self.life.changed(when, op, (call, stack), emit);
            return;
        }
        if let RecordBody::Exit { tid, .. } = what {
            self.deep.ended(tid);
        }
        self.life.take((when, what), meaning, emit);
    }
}

const STOP: u64 = 1;

/// The rings fill up in milliseconds.
const SLICE_NS: u64 = 100_000;

fn empty_when_full(epoll: &Epoll, rings: &Mutex<Rings>, wake: &EventFd) {
    task::request_slices(SLICE_NS);
    task::request_priority();
    let mut events = [EpollEvent::empty(); 8];
    loop {
        match epoll.wait(&mut events, EpollTimeout::NONE) {
            Ok(count) if events.iter().take(count).any(|event| event.data() == STOP) => return,
            Ok(_) => {
                lock(rings).drain();
                // Fails only when it is readable for long.
                let _ = wake.write(1);
            }
            Err(nix::Error::EINTR) => {}
            Err(_) => return,
        }
    }
}

/// A thread that panicked while it held the rings left them as they were.
fn lock(rings: &Mutex<Rings>) -> MutexGuard<'_, Rings> {
    rings.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<F: FnMut(&[u8])> EventSource for PerfReader<'_, F> {
    fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    fn poll_while(&mut self, more: &mut dyn FnMut() -> bool) -> Result<(), CaptureError> {
        // Readable again from the next time on that the other thread takes something.
        let _ = self.wake.read();
        self.fetch();
        let mut handled = 0;
        while let Some(joined) = self.ready.pop_front() {
            self.handle(&joined);
            handled += 1;
            if handled % CHUNK == 0 && !more() {
                return Ok(());
            }
        }
        self.life.settle(&mut self.handle);
        if self.life.has_doubts()
            && let Some(call) = self.canary.silenced()
        {
            self.life.counters.lost += 1;
            self.silenced = Some(call);
        }
        Ok(())
    }

    fn counters(&self) -> Result<Counters, CaptureError> {
        let counters = self.life.counters;
        Ok(Counters { lost: counters.lost + self.losses.total(), ..counters })
    }

    fn trouble(&self) -> Option<String> {
        let silenced = self.silenced.map(|call| CaptureError::Silenced { call });
        silenced.map(|error| format!("for a while {error}; what was called then is not known"))
    }
}

impl<F> Drop for PerfReader<'_, F> {
    fn drop(&mut self) {
        let _ = self.stop.write(1);
        if let Some(emptier) = self.emptier.take() {
            let _ = emptier.join();
        }
    }
}

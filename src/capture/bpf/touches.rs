//! The ring of page faults (`--touch`): its records, kept until their turn comes.

use super::skel::types::touch_state as State;
use super::{skel, tracepoints, waits};
use crate::capture::plain::value_of;
use crate::capture::{CaptureError, TouchCounters, wire};
use libbpf_rs::{Link, MapCore, MapFlags, RingBuffer, RingBufferBuilder};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd};
use std::rc::Rc;

/// How to record page faults.
#[derive(Clone, Copy, Debug)]
pub struct TouchConfig {
    /// Faults that each CPU records a second before it samples.
    pub budget: u32,
    /// Size of their ring, rounded as the others'.
    pub ring_bytes: u32,
}

/// Before loading: room for the records, or nothing at all of it.
pub(super) fn prepare(
    open: &mut skel::OpenVmauditSkel<'_>,
    config: Option<TouchConfig>,
) -> Result<(), CaptureError> {
    let on = config.is_some();
    open.progs.page_fault.set_autoload(on);
    open.maps.touches.set_autocreate(on).map_err(CaptureError::Load)?;
    open.maps.touch_states.set_autocreate(on).map_err(CaptureError::Load)?;
    let Some(config) = config else { return Ok(()) };
    let ring_bytes = super::round_ring(config.ring_bytes);
    if let Some(rodata) = open.maps.rodata_data.as_deref_mut() {
        rodata.touch_budget = config.budget;
        rodata.touch_wake_bytes = u64::from(ring_bytes / 8);
    }
    open.maps.touches.set_max_entries(ring_bytes).map_err(CaptureError::Load)
}

/// After loading.
///
/// # Errors
/// [`CaptureError::NoPageFaults`] where the kernel has no such tracepoint.
pub(super) fn attach(skel: &skel::VmauditSkel<'_>) -> Result<Vec<Link>, CaptureError> {
    let ids = tracepoints::page_fault_ids();
    if ids.is_empty() {
        return Err(CaptureError::NoPageFaults);
    }
    let attach = |&(name, id): &(&str, u64)| {
        let what = format!("exceptions:{name}");
        let event = tracepoints::open_event(id)
            .map_err(|source| CaptureError::Tracepoint { what: what.clone(), source })?;
        // libbpf's link owns the descriptor from here on.
        let fd = event.into_raw_fd();
        let link = skel.progs.page_fault.attach_perf_event(fd);
        let link = link.map_err(|source| CaptureError::Attach { what, source })?;
        tracepoints::leave_program_only(fd);
        Ok(link)
    };
    ids.iter().map(attach).collect()
}

/// Sums up `struct touch_state` (bpf/touch.h) of all CPUs.
pub(super) fn counters(skel: &skel::VmauditSkel<'_>) -> Result<TouchCounters, CaptureError> {
    let states = skel
        .maps
        .touch_states
        .lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY)
        .map_err(CaptureError::Counters)?;
    let mut sum = TouchCounters::default();
    for bytes in states.iter().flatten() {
        let Some(state) = value_of::<State>(bytes) else { continue };
        sum.faults += state.faults;
        sum.sampled += state.sampled;
        sum.lost += state.lost;
    }
    Ok(sum)
}

/// Records read from the ring and not handled yet, by time.
#[derive(Clone)]
pub(super) struct Touches<'a> {
    ring: Rc<RingBuffer<'a>>,
    queue: Rc<RefCell<VecDeque<Vec<u8>>>>,
}

impl<'a> Touches<'a> {
    pub(super) fn of(skel: &'a skel::VmauditSkel<'static>) -> Result<Touches<'a>, CaptureError> {
        let queue: Rc<RefCell<VecDeque<Vec<u8>>>> = Rc::default();
        let into = Rc::clone(&queue);
        let mut builder = RingBufferBuilder::new();
        builder
            .add(&skel.maps.touches, move |bytes| {
                into.borrow_mut().push_back(bytes.to_vec());
                0
            })
            .map_err(CaptureError::Ring)?;
        Ok(Touches { ring: Rc::new(builder.build().map_err(CaptureError::Ring)?), queue })
    }

    /// Takes in what the ring holds; the time of the latest record.
    pub(super) fn fetch(&self) -> u64 {
        if waits(&self.ring) {
            // A failure here means that the ring is gone; what was read is still handled.
            let _ = self.ring.consume();
            // CPUs reserve and take the time at slightly different moments.
            self.queue.borrow_mut().make_contiguous().sort_by_key(|record| wire::time_of(record));
        }
        self.queue.borrow().back().and_then(|record| wire::time_of(record)).unwrap_or(0)
    }

    /// Hands over what is not later than `until`, oldest first.
    pub(super) fn up_to(&self, until: u64, mut handle: impl FnMut(&[u8])) {
        loop {
            let mut queue = self.queue.borrow_mut();
            let is_due = |record: &Vec<u8>| wire::time_of(record).unwrap_or(0) <= until;
            if !queue.front().is_some_and(is_due) {
                return;
            }
            let record = queue.pop_front().unwrap_or_default();
            drop(queue);
            handle(&record);
        }
    }

    /// A descriptor that becomes readable when this ring or the other has filled up a good deal.
    pub(super) fn wake_with(&self, ring: &RingBuffer<'_>) -> Result<Epoll, CaptureError> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(|e| CaptureError::Wake(e.into()))?;
        for fd in [ring.epoll_fd(), self.ring.epoll_fd()] {
            // SAFETY: both rings outlive this function, and their descriptors with them.
            let fd = unsafe { BorrowedFd::borrow_raw(fd) };
            let event = EpollEvent::new(EpollFlags::EPOLLIN, fd.as_raw_fd() as u64);
            epoll.add(fd, event).map_err(|e| CaptureError::Wake(e.into()))?;
        }
        Ok(epoll)
    }
}

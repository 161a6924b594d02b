//! The ring of page faults (`--touch`): its records, kept until their turn comes.

use super::queue::Frames;
use super::skel::types::touch_state as State;
use super::{skel, tracepoints};
use crate::capture::plain::value_of;
use crate::capture::{CaptureError, TouchCounters, wire};
use libbpf_rs::{Link, MapCore, MapFlags};
use std::collections::VecDeque;
use std::os::fd::IntoRawFd;

/// How to record page faults.
#[derive(Clone, Copy, Debug)]
pub struct TouchConfig {
    /// Faults that each CPU records a second before it samples.
    pub budget: u32,
    /// Size of their ring, rounded as the others'.
    pub ring_bytes: u32,
}

/// Before loading: space for the records, or nothing at all of it.
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

/// Records that were read from the ring and not handled yet, by time.
#[derive(Default)]
pub(super) struct Touches {
    records: VecDeque<Vec<u8>>,
    /// Those up to this time may be handled when there are no more calls.
    until: u64,
}

impl Touches {
    pub(super) fn add(&mut self, records: &mut Frames, until: u64) {
        self.until = until;
        let before = self.records.len();
        while let Some(record) = records.next() {
            self.records.push_back(record.to_vec());
        }
        if self.records.len() > before {
            // CPUs reserve and take the time at slightly different moments.
            self.records.make_contiguous().sort_by_key(|record| wire::time_of(record));
        }
    }

    /// Hands over what is not later than `until`, oldest first.
    pub(super) fn up_to(&mut self, until: u64, handle: &mut dyn FnMut(&[u8])) {
        let is_due = |record: &Vec<u8>| wire::time_of(record).unwrap_or(0) <= until;
        while self.records.front().is_some_and(is_due) {
            if let Some(record) = self.records.pop_front() {
                handle(&record);
            }
        }
    }

    /// Hands over what is due when there are no more calls.
    pub(super) fn due(&mut self, handle: &mut dyn FnMut(&[u8])) {
        self.up_to(self.until, handle);
    }
}

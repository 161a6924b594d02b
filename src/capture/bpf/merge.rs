//! Several rings, one order.

use super::touches::Touches;
use crate::capture::wire::time_of;
use libbpf_rs::libbpf_sys::{
    ring, ring__avail_data_size, ring__consumer_pos, ring__producer_pos, ring_buffer__ring,
};
use libbpf_rs::{AsRawLibbpf, RingBuffer};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Records of the second ring that wait for the older ones of the first. There may be as many as
/// that ring holds, and one is asked for with each record of the first.
#[derive(Default)]
pub struct Spilled {
    by_time: BTreeMap<(u64, u64), Vec<u8>>,
    seen: u64,
}

impl Spilled {
    pub fn push(&mut self, bytes: &[u8]) {
        self.seen += 1;
        self.by_time.insert((time_of(bytes).unwrap_or(0), self.seen), bytes.to_vec());
    }

    fn is_empty(&self) -> bool {
        self.by_time.is_empty()
    }

    /// The oldest, if it is from before `until`.
    fn pop_before(&mut self, until: u64) -> Option<Vec<u8>> {
        let first = self.by_time.first_entry()?;
        (first.key().0 < until).then(|| first.remove())
    }
}

/// Brings the records of all rings into the order of their time stamps.
pub struct Merger<'a, F> {
    pub spill: Rc<RingBuffer<'a>>,
    /// Filled whenever `spill` is consumed.
    pub spilled: Rc<RefCell<Spilled>>,
    /// Page faults, where they are asked for.
    pub touches: Option<Touches<'a>>,
    pub handle: F,
}

impl<F: FnMut(&[u8])> Merger<'_, F> {
    /// The next record of the first ring.
    pub fn record(&mut self, bytes: &[u8]) {
        if waits(&self.spill) || !self.spilled.borrow().is_empty() {
            self.older_than(time_of(bytes).unwrap_or(u64::MAX));
        }
        if let Some(touches) = &self.touches {
            touches.fetch();
            touches.up_to(time_of(bytes).unwrap_or(0), &mut self.handle);
        }
        (self.handle)(bytes);
    }

    /// Handles the spilled records up to a time.
    fn older_than(&mut self, until: u64) {
        if waits(&self.spill) {
            // A failure here means that the ring is gone; what was read is still handled.
            let _ = self.spill.consume();
        }
        loop {
            let next = self.spilled.borrow_mut().pop_before(until);
            let Some(record) = next else { return };
            (self.handle)(&record);
        }
    }

    /// When the first ring is empty. Page faults up to `until` were taken before it was read: the
    /// calls that they rest on are known now.
    pub fn rest(&mut self, until: u64) {
        if waits(&self.spill) || !self.spilled.borrow().is_empty() {
            self.older_than(u64::MAX);
        }
        if let Some(touches) = &self.touches {
            touches.up_to(until, &mut self.handle);
        }
    }
}

/// The only ring of each of ours.
fn first(of: &RingBuffer<'_>) -> *mut ring {
    // SAFETY: libbpf's ring_buffer lives as long as `of`; index 0 exists in each of ours.
    unsafe { ring_buffer__ring(of.as_libbpf_object().as_ptr(), 0) }
}

/// Whether a ring holds unread data: two loads, no system call.
pub fn waits(ring: &RingBuffer<'_>) -> bool {
    let first = first(ring);
    // SAFETY: not null, and it lives as long as `ring`.
    !first.is_null() && unsafe { ring__avail_data_size(first) } > 0
}

/// How far a ring was read, and how far it was written: bytes since it was made.
pub fn positions(ring: &RingBuffer<'_>) -> (u64, u64) {
    let first = first(ring);
    if first.is_null() {
        return (0, 0);
    }
    // SAFETY: not null, and it lives as long as `ring`.
    unsafe { (ring__consumer_pos(first), ring__producer_pos(first)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spilled_records_come_by_time_and_equal_times_in_order_of_arrival() {
        let record = |time: u64, mark: u8| [&time.to_ne_bytes()[..], &[mark]].concat();
        let mut spilled = Spilled::default();
        for (time, mark) in [(30, b'c'), (10, b'a'), (30, b'd'), (20, b'b')] {
            spilled.push(&record(time, mark));
        }
        assert_eq!(spilled.pop_before(10), None);
        let marks: Vec<u8> = std::iter::from_fn(|| spilled.pop_before(31)).map(|bytes| bytes[8]).collect();
        assert_eq!(marks, b"abcd");
        assert!(spilled.is_empty());
    }
}

//! Records of the rings: decoded, and held back while a snapshot is compared.

use crate::capture::heap::wire::{self as heap_wire, CapturedHeap, CapturedSite};
use crate::capture::uprobe::wire::{self as uprobe_wire, CapturedCall};
use crate::capture::wire::{self, Decoder, time_of};
use crate::capture::{Captured, CapturedTouch};
use crate::model::Tid;
use crate::model::hash::IntMap;
use crate::model::stack::{ManagedCode, ManagedFrames};

/// A record of a ring, decoded.
pub(super) enum Incoming<'a> {
    Call(Captured<'a>),
    Touch(CapturedTouch<'a>),
    Allocation(CapturedHeap<'a>, Option<ManagedFrames>),
    Site(CapturedSite<'a>, Option<ManagedFrames>),
    Probed(CapturedCall<'a>),
}

#[derive(Default)]
pub(super) struct RecordDecoder {
    calls: Decoder,
    undecodable: u64,
}

impl RecordDecoder {
    pub fn set_comm(&mut self, tid: Tid, comm: &[u8]) {
        self.calls.set_comm(tid, comm);
    }

    /// Functions of interpreters, by their numbers.
    pub fn codes(&self) -> &IntMap<u64, ManagedCode> {
        &self.calls.codes
    }

    /// None for what completes an earlier record, and for what makes no sense, which is counted.
    pub fn decode<'r>(&mut self, raw: &'r [u8]) -> Option<Incoming<'r>> {
        if uprobe_wire::is_call(raw) {
            // One that makes no sense is found missing by the counts.
            return uprobe_wire::decode(raw).map(Incoming::Probed);
        }
        if wire::is_touch(raw) {
            return wire::touch(raw).map(Incoming::Touch);
        }
        let decoded = match (heap_wire::is_site(raw), heap_wire::is_heap(raw)) {
            (true, _) => heap_wire::decode_site(raw).map(|site| {
                let managed = site.has_frames.then(|| self.calls.managed_before(site.tid, site.stack.sp));
                Incoming::Site(site, managed.flatten())
            }),
            (_, true) => heap_wire::decode(raw).map(|captured| {
                let stack = captured.stack.as_ref().filter(|_| captured.has_frames);
                let managed = stack.and_then(|stack| self.calls.managed_before(captured.event.tid, stack.sp));
                Incoming::Allocation(captured, managed)
            }),
            _ => return self.calls.decode(raw).map(Incoming::Call),
        };
        self.undecodable += u64::from(decoded.is_none());
        decoded
    }

    /// Records that could not be decoded.
    pub fn undecodable(&self) -> u64 {
        self.calls.undecodable + self.undecodable
    }
}

/// Records from after a time (CLOCK_MONOTONIC, ns), kept until a later time is given.
pub(super) struct HeldRecords {
    after: u64,
    records: Vec<Vec<u8>>,
}

impl Default for HeldRecords {
    fn default() -> HeldRecords {
        HeldRecords { after: u64::MAX, records: Vec::new() }
    }
}

impl HeldRecords {
    /// The records that are no longer held.
    pub fn hold_after(&mut self, time_ns: u64) -> Vec<Vec<u8>> {
        self.after = time_ns;
        let (ready, waiting): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.records).into_iter().partition(|raw| time_of(raw) <= Some(time_ns));
        self.records = waiting;
        ready
    }

    /// True if the record is held now.
    pub fn holds(&mut self, raw: &[u8]) -> bool {
        let is_held = self.after != u64::MAX && time_of(raw) > Some(self.after);
        if is_held {
            self.records.push(raw.to_vec());
        }
        is_held
    }

    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }
}

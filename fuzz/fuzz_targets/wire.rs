//! Any bytes as records of the rings, each behind its size (16 bits): of calls, page faults, heaps and probes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vmaudit::capture::wire::{self, Decoder};
use vmaudit::capture::{heap, uprobe};
use vmaudit::ledger::AddressSpaces;

fuzz_target!(|bytes: &[u8]| {
    let mut rest = bytes;
    let mut decoder = Decoder::default();
    let mut spaces = AddressSpaces::new();
    while let Some((size, after)) = rest.split_first_chunk() {
        let (record, after) = after.split_at(usize::from(u16::from_le_bytes(*size)).min(after.len()));
        rest = after;
        wire::time_of(record);
        if wire::is_touch(record) {
            wire::touch(record);
        } else if heap::wire::is_heap(record) {
            heap::wire::decode(record);
        } else if heap::wire::is_site(record) {
            heap::wire::decode_site(record);
        } else if uprobe::wire::is_call(record) {
            uprobe::wire::decode(record);
        } else if let Some(captured) = decoder.decode(record) {
            spaces.apply(&captured.event);
        }
    }
});

//! Decoding of the records of bpf/heap.h. Pure.

use super::counted::SiteKey;
use super::skel::types::vmaudit_heap_brief as Brief;
use crate::capture::arch;
use crate::capture::plain::value_of;
use crate::capture::record::{Record, flag, op, op_of, read};
use crate::model::{Addr, ContextKey, Covers, HeapEvent, HeapOp, MmKey, NoStack, Pid, StackSample, Tid};
use std::mem::{offset_of, size_of};

// A brief record is the beginning of a whole one.
const _: () = assert!(offset_of!(Brief, op) == offset_of!(Record, op));
const _: () = assert!(offset_of!(Brief, function) == offset_of!(Record, ret));
const _: () = assert!(offset_of!(Brief, args) == offset_of!(Record, args));

/// A heap event with what its stack can be made from.
#[derive(Debug)]
pub struct CapturedHeap<'a> {
    pub event: HeapEvent,
    /// Of a free: the address that it returns to.
    pub caller: Option<Addr>,
    pub stack: Option<StackSample<'a>>,
    /// An interpreter's frames on it were sent before.
    pub has_frames: bool,
    /// With --combined: the state of the address space's code for which rules are requested.
    pub code: u64,
}

/// With --combined: the stack that the kernel has a number for.
#[derive(Debug)]
pub struct CapturedSite<'a> {
    pub key: SiteKey,
    pub space: u64,
    pub mm: MmKey,
    pub pid: Pid,
    pub tid: Tid,
    pub stack: StackSample<'a>,
    /// As [`CapturedHeap::has_frames`].
    pub has_frames: bool,
}

/// True for a record that [`decode`] is for.
pub fn is_heap(bytes: &[u8]) -> bool {
    op_of(bytes).is_some_and(|op| (op::ALLOCATED..=op::CONTEXT_MOVED).contains(&op))
}

/// True for a record that [`decode_site`] is for.
pub fn is_site(bytes: &[u8]) -> bool {
    op_of(bytes) == Some(op::SITE)
}

/// The stack of a site; `None` for what is too short.
pub fn decode_site(bytes: &[u8]) -> Option<CapturedSite<'_>> {
    let (record, stack) = read(bytes)?;
    let [code, first, second, space, ..] = record.args;
    Some(CapturedSite {
        key: SiteKey { code, first, second, function: record.ret as u32 },
        space,
        mm: MmKey(record.mm),
        pid: record.pid as Pid,
        tid: record.tid as Tid,
        has_frames: has_frames(&record),
        stack: StackSample { returned: true, ..arch::sample(&record, stack) },
    })
}

/// [`ProbeFunction::covers`](super::ProbeFunction::covers), which the event repeats.
fn covers(code: u64) -> Covers {
    match code {
        0 => Covers::Itself,
        1 => Covers::Descendants,
        _ => Covers::Tree,
    }
}

fn key(address: u64) -> Option<ContextKey> {
    (address != 0).then_some(ContextKey(address))
}

/// One record; `None` for what is too short or of an unknown kind.
pub fn decode(bytes: &[u8]) -> Option<CapturedHeap<'_>> {
    let brief: Brief = value_of(bytes)?;
    let whole: Option<Record> = value_of(bytes);
    let payload = match (&whole, brief.payload) {
        (_, 0) => &[][..],
        (Some(_), length) => bytes[size_of::<Record>()..].get(..length as usize)?,
        (None, _) => return None,
    };
    let [first, second, third, fourth] = brief.args;
    let address = Addr(first);
    let op = match brief.op {
        op::ALLOCATED => HeapOp::Allocated { address, size: second, context: key(third) },
        op::FREED => HeapOp::Freed { address },
        op::RESIZE_BEGUN => HeapOp::ResizeBegun { address },
        op::RESIZE_ENDED => HeapOp::ResizeEnded {
            old: address,
            new: (second != 0).then_some(Addr(second)),
            size: third,
            context: key(fourth),
            failed: brief.flags & flag::HEAP_FAILED != 0,
        },
        op::REFUSED => HeapOp::Refused { size: second },
        op::CONTEXT_CREATED => HeapOp::ContextCreated {
            context: ContextKey(first),
            parent: key(second),
            name: (!payload.is_empty()).then(|| payload.to_vec()),
        },
        op::CONTEXT_RESET => HeapOp::ContextReset { context: ContextKey(first), covers: covers(second) },
        op::CONTEXT_DELETED => HeapOp::ContextDeleted { context: ContextKey(first), covers: covers(second) },
        op::CONTEXT_MOVED => HeapOp::ContextMoved { context: ContextKey(first), parent: key(second) },
        _ => return None,
    };
    let has_stack = matches!(brief.op, op::ALLOCATED | op::RESIZE_ENDED);
    let lost = brief.flags & flag::WITHOUT_STACK != 0 && has_stack;
    let record = whole.filter(|_| has_stack && !lost && !payload.is_empty());
    let event = HeapEvent {
        time_ns: brief.time_ns,
        pid: brief.pid as i32,
        tid: brief.tid as i32,
        mm: MmKey(brief.mm),
        function: brief.function as u32,
        op,
        stack: Err(match (has_stack, lost) {
            (false, _) => NoStack::NotTaken,
            (true, true) => NoStack::Lost,
            (true, false) => NoStack::Unreadable,
        }),
    };
    Some(CapturedHeap {
        event,
        caller: (brief.op == op::FREED && second != 0).then_some(Addr(second)),
        stack: record.as_ref().map(|record| StackSample { returned: true, ..arch::sample(record, payload) }),
        has_frames: record.as_ref().is_some_and(has_frames),
        code: record.as_ref().map_or(0, |record| record.args[4]),
    })
}

fn has_frames(record: &Record) -> bool {
    record.args[5] != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn brief(op: u16, flags: u16, args: [u64; 4]) -> Vec<u8> {
        let mut bytes = vec![0; size_of::<Brief>()];
        bytes[..8].copy_from_slice(&7u64.to_ne_bytes());
        bytes[offset_of!(Brief, op)..][..2].copy_from_slice(&op.to_ne_bytes());
        bytes[offset_of!(Brief, flags)..][..2].copy_from_slice(&flags.to_ne_bytes());
        for (index, arg) in args.iter().enumerate() {
            bytes[offset_of!(Brief, args) + index * 8..][..8].copy_from_slice(&arg.to_ne_bytes());
        }
        bytes
    }

    #[test]
    fn brief_records() {
        let bytes = brief(op::RESIZE_ENDED, flag::HEAP_FAILED | flag::WITHOUT_STACK, [16, 0, 32, 5]);
        assert!(is_heap(&bytes));
        let event = decode(&bytes).expect("decodes").event;
        let expected = HeapOp::ResizeEnded {
            old: Addr(16),
            new: None,
            size: 32,
            context: Some(ContextKey(5)),
            failed: true,
        };
        assert_eq!((event.op, event.stack, event.time_ns), (expected, Err(NoStack::Lost), 7));
        let event = decode(&brief(op::FREED, 0, [16, 0, 0, 0])).expect("decodes").event;
        assert_eq!((event.op, event.stack), (HeapOp::Freed { address: Addr(16) }, Err(NoStack::NotTaken)));
    }

    #[test]
    fn what_is_no_record() {
        assert!(decode(&brief(op::FREED, 0, [1; 4])[..71]).is_none());
        assert!(decode(&brief(op::CONTEXT_MOVED + 1, 0, [1; 4])).is_none());
        assert!(!is_heap(&brief(15, 0, [0; 4])));
        // a payload that is not there
        let mut bytes = brief(op::CONTEXT_CREATED, 0, [1; 4]);
        bytes[offset_of!(Brief, payload)] = 9;
        assert!(decode(&bytes).is_none());
    }
}

//! Records of calls with stacks (bpf/probe.h). Bytes in, [`CapturedCall`]s out; no I/O.

use crate::capture::bpf::skel::types::vmaudit_record as Record;
use crate::capture::wire::read;
use crate::capture::{Registers, arch};
use crate::model::{MmKey, Pid};
use std::mem::offset_of;

/// VMAUDIT_OP_PROBED
const PROBED: u16 = 96;
// enum vmaudit_flag
const FULL: u16 = 1;
const HOLES: u16 = 64;

/// A call of a probed function.
#[derive(Debug)]
pub struct CapturedCall<'a> {
    /// Index in the list of functions.
    pub function: u32,
    pub pid: Pid,
    pub mm: MmKey,
    pub registers: Registers,
    /// Bytes from `registers.sp` upward: the return address first.
    pub stack: &'a [u8],
    pub full: bool,
    pub holes: bool,
}

/// True for a record that [`decode`] is for.
pub fn is_call(bytes: &[u8]) -> bool {
    let at = offset_of!(Record, op);
    bytes.get(at..at + 2).is_some_and(|op| op == PROBED.to_ne_bytes())
}

/// One record; `None` for what is too short.
pub fn decode(bytes: &[u8]) -> Option<CapturedCall<'_>> {
    let (record, stack) = read(bytes)?;
    Some(CapturedCall {
        function: record.ret as u32,
        pid: record.pid as Pid,
        mm: MmKey(record.mm),
        registers: arch::registers(&record),
        stack,
        full: record.flags & FULL != 0,
        holes: record.flags & HOLES != 0,
    })
}

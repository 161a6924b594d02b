//! Records of calls with stacks (bpf/probe.h). Bytes in, [`CapturedCall`]s out; no I/O.

use crate::capture::arch;
use crate::capture::record::{op, op_of, read};
use crate::model::{MmKey, Pid, StackSample};

/// A call of a probed function.
#[derive(Debug)]
pub struct CapturedCall<'a> {
    /// Index in the list of functions.
    pub function: u32,
    pub pid: Pid,
    pub mm: MmKey,
    /// Its bytes have the return address first.
    pub stack: StackSample<'a>,
}

/// True for a record that [`decode`] is for.
pub fn is_call(bytes: &[u8]) -> bool {
    op_of(bytes) == Some(op::PROBED)
}

/// One record; `None` for what is too short.
pub fn decode(bytes: &[u8]) -> Option<CapturedCall<'_>> {
    let (record, stack) = read(bytes)?;
    Some(CapturedCall {
        function: record.ret as u32,
        pid: record.pid as Pid,
        mm: MmKey(record.mm),
        stack: arch::sample(&record, stack),
    })
}

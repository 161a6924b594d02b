//! The records of a perf ring (include/uapi/linux/perf_event.h, PERF_RECORD_*). Pure: bytes in.

use super::arch::{COUNT, UserRegisters};
use crate::sys::perf::abi::{
    PERF_RECORD_COMM, PERF_RECORD_EXIT, PERF_RECORD_FORK, PERF_RECORD_LOST, PERF_RECORD_MISC_COMM_EXEC,
    PERF_RECORD_MMAP2, PERF_RECORD_SAMPLE, PERF_SAMPLE_REGS_ABI_32,
};

/// The fields of every record (perf_event.h, struct sample_id).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleId {
    pub pid: i32,
    pub tid: i32,
    /// CLOCK_MONOTONIC, ns.
    pub time_ns: u64,
}

/// A system call's tracepoint: `struct syscall_trace_enter` or `_exit` (kernel/trace/trace.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call<'a> {
    /// The tracepoint's id.
    pub tracepoint: u16,
    pub number: i32,
    /// At the exit: the result. At the entry: the first argument.
    pub first: i64,
    pub registers: Option<UserRegisters>,
    pub is_32_bit: bool,
    /// From the stack pointer upward, as far as it was there.
    pub stack: &'a [u8],
}

/// A mapping as the kernel has it after a change, merged with its neighbours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapped {
    pub start: u64,
    pub len: u64,
    /// Bytes.
    pub offset: u64,
    pub major: u32,
    pub minor: u32,
    pub inode: u64,
    /// PROT_* and MAP_*
    pub prot: u32,
    pub flags: u32,
    /// A path, perhaps with ` (deleted)`; or `//anon`, `[stack]`, `[vdso]`, …
    pub name: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordBody<'a> {
    Call(Call<'a>),
    Mapped(Mapped),
    Name { pid: i32, tid: i32, exec: bool, name: &'a [u8] },
    Fork { pid: i32, parent: i32, tid: i32, parent_tid: i32 },
    Exit { pid: i32, tid: i32 },
    Lost(u64),
}

/// Reads little by little; every step may find the end.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(head)
    }

    fn u16(&mut self) -> Option<u16> {
        Some(u16::from_ne_bytes(self.take(2)?.try_into().ok()?))
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_ne_bytes(self.take(4)?.try_into().ok()?))
    }

    fn i32(&mut self) -> Option<i32> {
        Some(self.u32()? as i32)
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_ne_bytes(self.take(8)?.try_into().ok()?))
    }
}

/// A record's time: of samples (which begin with task and time) and of all others (which end so).
pub fn time_of(record: &[u8]) -> Option<u64> {
    let kind = u32::from_ne_bytes(record.get(..4)?.try_into().ok()?);
    let at = if kind == PERF_RECORD_SAMPLE { 16 } else { record.len().checked_sub(8)? };
    Some(u64::from_ne_bytes(record.get(at..at + 8)?.try_into().ok()?))
}

/// One record with its header. `has_stack` says which tracepoints have stack bytes. None for what is not used
/// here, or not as the kernel writes it.
pub fn parse<'a>(record: &'a [u8], has_stack: &dyn Fn(u16) -> bool) -> Option<(SampleId, RecordBody<'a>)> {
    let mut bytes = Bytes(record);
    let (kind, misc, size) = (bytes.u32()?, bytes.u16()?, bytes.u16()?);
    if record.len() > usize::from(size) {
        return None;
    }
    if kind == PERF_RECORD_SAMPLE {
        let (pid, tid, time_ns) = (bytes.i32()?, bytes.i32()?, bytes.u64()?);
        return Some((SampleId { pid, tid, time_ns }, RecordBody::Call(call(bytes, has_stack)?)));
    }
    let (body, end) = bytes.0.split_at_checked(bytes.0.len().checked_sub(16)?)?;
    let mut end = Bytes(end);
    let when = SampleId { pid: end.i32()?, tid: end.i32()?, time_ns: end.u64()? };
    let mut body = Bytes(body);
    let what = match kind {
        PERF_RECORD_LOST => {
            body.u64()?;
            RecordBody::Lost(body.u64()?)
        }
        PERF_RECORD_COMM => {
            let (pid, tid) = (body.i32()?, body.i32()?);
            RecordBody::Name {
                pid,
                tid,
                exec: u32::from(misc) & PERF_RECORD_MISC_COMM_EXEC != 0,
                name: until_nul(body.0),
            }
        }
        PERF_RECORD_FORK | PERF_RECORD_EXIT => {
            let (pid, parent, tid, parent_tid) = (body.i32()?, body.i32()?, body.i32()?, body.i32()?);
            match kind {
                PERF_RECORD_FORK => RecordBody::Fork { pid, parent, tid, parent_tid },
                _ => RecordBody::Exit { pid, tid },
            }
        }
        PERF_RECORD_MMAP2 => RecordBody::Mapped(mapped(body)?),
        _ => return None,
    };
    Some((when, what))
}

fn call<'a>(mut bytes: Bytes<'a>, has_stack: &dyn Fn(u16) -> bool) -> Option<Call<'a>> {
    let raw_size = bytes.u32()? as usize;
    let mut raw = Bytes(bytes.take(raw_size)?);
    let tracepoint = raw.u16()?;
    raw.take(6)?;
    let number = raw.i32()?;
    raw.take(4)?;
    let first = raw.u64()? as i64;
    let mut call = Call { tracepoint, number, first, registers: None, is_32_bit: false, stack: &[] };
    let Some(abi) = bytes.u64() else { return Some(call) };
    if abi == 0 {
        return Some(call);
    }
    call.is_32_bit = abi == u64::from(PERF_SAMPLE_REGS_ABI_32);
    let mut registers = [0; COUNT];
    for register in &mut registers {
        *register = bytes.u64()?;
    }
    call.registers = Some(UserRegisters(registers));
    if has_stack(tracepoint) {
        let size = bytes.u64()? as usize;
        call.stack = match bytes.0.split_at_checked(size) {
            Some((copied, mut there)) if there.len() >= 8 => {
                copied.get(..Bytes(there.split_off(..8)?).u64()? as usize)?
            }
            // without what was not there
            _ => bytes.0,
        };
    }
    Some(call)
}

/// Where a sample has its stack bytes: behind header, task, time, raw fields (of a call's exit) and
/// registers, and the number of requested bytes.
const STACK_AT: usize = 8 + 8 + 8 + RAW_EXIT + 8 + 8 * COUNT + 8;
/// With its size, and padded.
const RAW_EXIT: usize = 32;

/// A sample has space for all requested stack bytes, however many were copied: removes the unused space.
/// Everything else is returned as it is.
pub fn without_padding(record: &[u8]) -> &[u8] {
    let requested = || Some(u64::from_ne_bytes(record.get(STACK_AT - 8..STACK_AT)?.try_into().ok()?));
    let there = || Some(u64::from_ne_bytes(record.get(record.len() - 8..)?.try_into().ok()?));
    let is_sample = record.get(..4) == Some(&PERF_RECORD_SAMPLE.to_ne_bytes());
    let (Some(requested), Some(there)) = (requested(), there()) else { return record };
    if !is_sample || record.len() as u64 != STACK_AT as u64 + requested.saturating_add(8) || there > requested
    {
        return record;
    }
    &record[..STACK_AT + there as usize]
}

/// True for the two samples of one call: the same task, fields and registers.
pub fn is_same_call(a: &[u8], b: &[u8]) -> bool {
    let equal = |from: usize, to: usize| a.get(from..to).is_some_and(|part| b.get(from..to) == Some(part));
    equal(8, 16) && equal(24, STACK_AT - 8)
}

/// The tracepoint of a sample.
pub fn tracepoint_of(record: &[u8]) -> Option<u16> {
    if record.get(..4)? != PERF_RECORD_SAMPLE.to_ne_bytes() {
        return None;
    }
    Some(u16::from_ne_bytes(record.get(28..30)?.try_into().ok()?))
}

fn mapped(mut body: Bytes<'_>) -> Option<Mapped> {
    body.take(8)?; // process and thread, which are at the end, too
    let (start, len, offset) = (body.u64()?, body.u64()?, body.u64()?);
    let (major, minor, inode) = (body.u32()?, body.u32()?, body.u64()?);
    body.u64()?; // the inode's generation
    let (prot, flags) = (body.u32()?, body.u32()?);
    Some(Mapped { start, len, offset, major, minor, inode, prot, flags, name: until_nul(body.0).to_vec() })
}

fn until_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|&b| b == 0).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The exit of call 9 with space for `requested` bytes of stack, of which `there` were copied.
    fn sample(requested: usize, there: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        let size = STACK_AT + requested + 8;
        bytes.extend(9u32.to_ne_bytes());
        bytes.extend(2u16.to_ne_bytes());
        bytes.extend((size as u16).to_ne_bytes());
        bytes.extend([7u32, 8].map(u32::to_ne_bytes).concat());
        bytes.extend(1234u64.to_ne_bytes());
        bytes.extend(28u32.to_ne_bytes());
        bytes.extend(173u16.to_ne_bytes());
        bytes.extend([0; 6]);
        bytes.extend([9u32, 0].map(u32::to_ne_bytes).concat());
        bytes.extend((-12i64).to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend(2u64.to_ne_bytes());
        (0..COUNT as u64).for_each(|register| bytes.extend(register.to_ne_bytes()));
        bytes.extend((requested as u64).to_ne_bytes());
        bytes.extend((0..requested).map(|at| at as u8));
        bytes.extend((there as u64).to_ne_bytes());
        assert_eq!(bytes.len(), size);
        bytes
    }

    fn call(bytes: &[u8]) -> Call<'_> {
        match parse(bytes, &|_| true) {
            Some((SampleId { pid: 7, tid: 8, time_ns: 1234 }, RecordBody::Call(call))) => call,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_stack_is_what_was_there_with_and_without_the_unused_space_behind_it() {
        let whole = sample(64, 24);
        let trimmed = without_padding(&whole);
        assert_eq!(trimmed.len(), STACK_AT + 24);
        for bytes in [&whole[..], trimmed] {
            let call = call(bytes);
            assert_eq!((call.tracepoint, call.number, call.first), (173, 9, -12));
            assert_eq!(call.stack, (0..24).collect::<Vec<u8>>());
            assert_eq!(call.registers.map(|registers| registers.sp()), Some(5));
        }
        assert_eq!(time_of(&whole), Some(1234));
        assert_eq!(call(&sample(64, 64)).stack.len(), 64);
        assert!(is_same_call(&whole, &sample(32, 8)));
    }

    #[test]
    fn cut_and_lying_records_are_no_records() {
        let whole = sample(64, 24);
        for length in 0..STACK_AT {
            let cut = &whole[..length];
            // Some are whole samples without a stack: none may be more than is there.
            if let Some((_, RecordBody::Call(call))) = parse(cut, &|_| true) {
                assert!(call.stack.is_empty());
            }
        }
        let mut lying = sample(64, 24);
        let end = lying.len();
        lying[end - 8..].copy_from_slice(&u64::MAX.to_ne_bytes());
        assert_eq!(without_padding(&lying).len(), end);
        assert!(parse(&lying, &|_| true).is_none());
    }
}

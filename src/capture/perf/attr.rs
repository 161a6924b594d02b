//! perf_event_open(2): the attributes of events.

use crate::sys::perf::{self, Attr, abi};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::LazyLock;

/// The most bytes of stack that a sample takes: its size, all in all, has 16 bits.
pub const MAX_STACK_BYTES: u32 = 65_000;

/// What an event reports.
#[derive(Clone, Copy, Debug)]
pub enum EventKind {
    /// A tracepoint: task, time, raw fields, user registers, and at most so many bytes of stack
    /// (a multiple of 8; none at all for 0).
    Tracepoint { id: u64, stack_bytes: u32 },
    /// A tracepoint's task, time and raw fields alone.
    RawFields { id: u64 },
    /// How often a tracepoint was hit, for read(2).
    Count { id: u64 },
    /// Forks, exits, names, executions and mappings. It owns a ring.
    Life { ring_bytes: usize },
    /// Nothing: it only owns a ring.
    Nothing { ring_bytes: usize },
}

/// Which tasks are traced.
#[derive(Clone, Copy, Debug)]
pub enum Inherit {
    /// The task alone.
    None,
    /// Threads that it starts, and their threads.
    Threads,
    /// Its processes, too.
    All,
}

/// An event of the task `tid` while it runs on `cpu` (-1: any), on by itself.
///
/// # Errors
/// As the system call.
pub fn open(kind: EventKind, inherit: Inherit, tid: i32, cpu: i32) -> io::Result<OwnedFd> {
    let mut attr = match kind {
        EventKind::Tracepoint { id, .. } | EventKind::RawFields { id } | EventKind::Count { id } => {
            perf::tracepoint(id)
        }
        EventKind::Life { .. } | EventKind::Nothing { .. } => perf::software(abi::PERF_COUNT_SW_DUMMY),
    };
    attr.sample_type = sampled(abi::PERF_SAMPLE_TID | abi::PERF_SAMPLE_TIME);
    attr.clockid = libc::CLOCK_MONOTONIC;
    attr.set_use_clockid(1);
    // An ordinary user may see nothing of the kernel. System-call tracepoints are the user's.
    attr.set_exclude_kernel(1);
    attr.set_exclude_hv(1);
    attr.set_sample_id_all(1);
    attr.set_watermark(1);
    // The owner's counts (rb_alloc, kernel/events/ring_buffer.c).
    attr.__bindgen_anon_2.wakeup_watermark = match kind {
        EventKind::Life { ring_bytes } | EventKind::Nothing { ring_bytes } => wake_bytes(ring_bytes),
        _ => WAKE_BYTES,
    };
    if *COUNTS_LOSSES {
        attr.read_format = abi::PERF_FORMAT_LOST.into();
    }
    match inherit {
        Inherit::None => {}
        Inherit::Threads => {
            attr.set_inherit(1);
            attr.set_inherit_thread(1);
        }
        Inherit::All => attr.set_inherit(1),
    }
    match kind {
        EventKind::Tracepoint { stack_bytes, .. } => {
            attr.__bindgen_anon_1.sample_period = 1;
            attr.sample_type |= sampled(abi::PERF_SAMPLE_RAW | abi::PERF_SAMPLE_REGS_USER);
            attr.sample_regs_user = super::arch::REGISTERS;
            if stack_bytes > 0 {
                attr.sample_type |= sampled(abi::PERF_SAMPLE_STACK_USER);
                attr.sample_stack_user = stack_bytes;
            }
        }
        EventKind::RawFields { .. } => {
            attr.__bindgen_anon_1.sample_period = 1;
            attr.sample_type |= sampled(abi::PERF_SAMPLE_RAW);
        }
        EventKind::Count { .. } => (attr.sample_type, attr.read_format) = (0, 0),
        EventKind::Life { .. } => add_life(&mut attr),
        EventKind::Nothing { .. } => {}
    }
    Ok(perf::open(&attr, tid, cpu)?)
}

/// Whether this kernel counts, for each event, the records that its ring had no space for (Linux 6.0), and
/// [`perf::lost`] can be read.
pub static COUNTS_LOSSES: LazyLock<bool> = LazyLock::new(|| {
    let mut attr = perf::software(abi::PERF_COUNT_SW_DUMMY);
    attr.set_exclude_kernel(1);
    attr.set_exclude_hv(1);
    attr.read_format = abi::PERF_FORMAT_LOST.into();
    perf::open(&attr, 0, -1).is_ok()
});

fn sampled(what: abi::perf_event_sample_format) -> u64 {
    what.into()
}

fn add_life(attr: &mut Attr) {
    attr.set_mmap(1);
    attr.set_mmap_data(1);
    attr.set_mmap2(1);
    attr.set_comm(1);
    attr.set_comm_exec(1);
    attr.set_task(1);
}

/// A ring wakes its reader when this many bytes wait in it, or, where it is small, an eighth of it: there has
/// to be space for what is written until it is read.
const WAKE_BYTES: u32 = 128 << 10;

fn wake_bytes(ring_bytes: usize) -> u32 {
    u32::try_from(ring_bytes / 8).map_or(WAKE_BYTES, |eighth| eighth.min(WAKE_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_ring_is_to_be_read_before_it_is_full() {
        assert_eq!(wake_bytes(64 << 10), 8 << 10);
        assert_eq!(wake_bytes(1 << 20), WAKE_BYTES);
        assert_eq!(wake_bytes(usize::MAX), WAKE_BYTES);
    }
}

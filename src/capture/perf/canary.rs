//! Whether the kernel still reports calls. A BPF program on a tracepoint decides for everybody: when it
//! returns 0 no other consumer gets the event (kernel/trace/trace_syscalls.c, perf_call_bpf_exit), and
//! nothing says so. Calls of vmaudit's own that change nothing show it.

use super::attr::{self, EventKind, Inherit};
use crate::sys::task;
use std::io::{self, Read};

struct Watch {
    name: &'static str,
    number: i64,
    events: std::fs::File,
}

/// Counts vmaudit's own calls.
pub struct Canary {
    watched: Vec<Watch>,
}

impl Canary {
    /// For the exits of calls by name, number and tracepoint. Each of them has to refuse its first
    /// argument when that is 1.
    ///
    /// # Errors
    /// As perf_event_open(2).
    pub fn new(calls: impl Iterator<Item = (&'static str, i64, u64)>) -> io::Result<Canary> {
        let watch = |(name, number, id)| {
            let events = attr::open(EventKind::Count { id }, Inherit::None, 0, -1)?.into();
            Ok(Watch { name, number, events })
        };
        Ok(Canary { watched: calls.map(watch).collect::<io::Result<_>>()? })
    }

    /// The first call that is not reported any more. To be called by the thread that made it.
    pub fn silenced(&self) -> Option<&'static str> {
        let is_silent = |watch: &&Watch| {
            let before = count(&watch.events);
            // SAFETY: 1 is no page's address and no break: nothing is done.
            unsafe { task::call(watch.number, 1) };
            before.is_some() && before == count(&watch.events)
        };
        self.watched.iter().find(is_silent).map(|watch| watch.name)
    }
}

fn count(mut events: &std::fs::File) -> Option<u64> {
    let mut value = [0; 8];
    events.read_exact(&mut value).ok()?;
    Some(u64::from_ne_bytes(value))
}

//! Threads whose stacks do not fit into a sample. How many bytes of a stack are copied is one number for an
//! event, and the ring has to have space for all of them, whatever is there (perf_output_sample_ustack,
//! kernel/events/core.c): with space for deep stacks in each record, only a small number of records would
//! fit. So a thread whose stack was cut gets events of its own, with larger samples, in addition to those
//! that it has. Where they find no space, the others have the stack as far as it goes.

use super::attr::{self, EventKind, Inherit};
use crate::sys::perf;
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;

/// So many threads at once.
const MOST_THREADS: usize = 16;
/// Each takes an event a call and CPU.
const MANY_CPUS: usize = 16;

pub struct DeepStacks<'a> {
    /// The CPUs, with the event that owns the ring of stacks.
    cpus: Vec<(i32, &'a OwnedFd)>,
    /// The tracepoints of frequent calls.
    tracepoints: Vec<u64>,
    usual_bytes: u32,
    deep_bytes: u32,
    threads: HashMap<i32, Vec<OwnedFd>>,
}

impl<'a> DeepStacks<'a> {
    /// `bytes`: of a usual sample, and of a large one.
    pub fn new(
        cpus: Vec<(i32, &'a OwnedFd)>,
        tracepoints: Vec<u64>,
        (usual_bytes, deep_bytes): (u32, u32),
    ) -> DeepStacks<'a> {
        DeepStacks { cpus, tracepoints, usual_bytes, deep_bytes, threads: HashMap::new() }
    }

    /// A stack was copied, of `there` bytes, as far as is known.
    pub fn copied(&mut self, tid: i32, bytes: usize, there: Option<u64>) {
        let is_cut = bytes as u64 >= u64::from(self.usual_bytes)
            && there.is_some_and(|there| there > u64::from(self.usual_bytes));
        let pays = self.usual_bytes > 0 && self.deep_bytes >= 2 * self.usual_bytes;
        if !is_cut || !pays || self.cpus.len() > MANY_CPUS || self.threads.len() >= MOST_THREADS {
            return;
        }
        if self.threads.contains_key(&tid) {
            return;
        }
        // Refused once, it would be again.
        let events = self.open(tid).unwrap_or_default();
        self.threads.insert(tid, events);
    }

    fn open(&self, tid: i32) -> io::Result<Vec<OwnedFd>> {
        let mut events = Vec::new();
        for &(cpu, ring) in &self.cpus {
            for &id in &self.tracepoints {
                let kind = EventKind::Tracepoint { id, stack_bytes: self.deep_bytes };
                let event = attr::open(kind, Inherit::None, tid, cpu)?;
                perf::set_output(&event, ring)?;
                events.push(event);
            }
        }
        Ok(events)
    }

    pub fn ended(&mut self, tid: i32) {
        self.threads.remove(&tid);
    }
}

//! Which events are printed.

use crate::model::event::VmOp;
use crate::model::hash::IntMap;
use crate::model::{Addr, AddrRange, MmKey, Pid, Tid, VmEvent};
use crate::report::model::Stack;
use regex::Regex;
use std::collections::HashMap;

/// Calls by what they do.
const CLASSES: [(&str, &[&str]); 6] = [
    ("map", &["mmap", "mremap", "brk", "shmat", "remap_file_pages", "io_setup", "map_shadow_stack"]),
    ("unmap", &["munmap", "shmdt", "io_destroy"]),
    ("protect", &["mprotect", "pkey_mprotect"]),
    ("advise", &["madvise", "process_madvise"]),
    ("name", &["prctl"]),
    ("task", &["clone", "execve", "exit", "rename", "seccomp"]),
];

/// What an event has to satisfy; empty lists and None match everything.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    pub tids: Vec<Tid>,
    pub pids: Vec<Pid>,
    pub comms: Vec<Vec<u8>>,
    /// Names as [`VmOp::name`] gives them.
    pub calls: Vec<&'static str>,
    /// Bytes.
    pub min_size: Option<u64>,
    pub max_size: Option<u64>,
    pub addr: Option<AddrRange>,
    pub stack: Option<Regex>,
    pub failed: bool,
    /// Nanoseconds, as `elapsed_ns` of an event.
    pub since_ns: Option<u64>,
    pub until_ns: Option<u64>,
}

/// The calls that a word selects.
///
/// # Errors
/// The words that would do.
pub fn calls_named(word: &str) -> Result<Vec<&'static str>, String> {
    if let Some((_, calls)) = CLASSES.iter().find(|(class, _)| *class == word) {
        return Ok(calls.to_vec());
    }
    let call = CLASSES.iter().flat_map(|(_, calls)| *calls).find(|call| **call == word);
    call.map(|call| vec![*call]).ok_or_else(|| {
        let classes: Vec<&str> = CLASSES.iter().map(|(class, _)| *class).collect();
        let calls: Vec<&str> = CLASSES.iter().flat_map(|(_, calls)| calls.iter().copied()).collect();
        format!("no such call; classes: {}; calls: {}", classes.join(", "), calls.join(", "))
    })
}

impl Filter {
    /// All but the stack, which costs more. `elapsed_ns` counts from [`crate::model::TimeZero`].
    pub fn takes(&self, event: &VmEvent, reach: &Reach, elapsed_ns: u64) -> bool {
        let task = &event.task;
        let any = |matches: bool, list_is_empty: bool| list_is_empty || matches;
        any(self.tids.contains(&task.tid), self.tids.is_empty())
            && any(self.pids.contains(&task.pid), self.pids.is_empty())
            && any(self.comms.contains(&task.comm), self.comms.is_empty())
            && any(self.calls.contains(&event.op.name()), self.calls.is_empty())
            && (!self.failed || event.failed())
            && self.since_ns.is_none_or(|since| elapsed_ns >= since)
            && self.until_ns.is_none_or(|until| elapsed_ns <= until)
            && self.min_size.is_none_or(|least| reach.size.is_some_and(|size| size >= least))
            && self.max_size.is_none_or(|most| reach.size.is_some_and(|size| size <= most))
            && self.addr.is_none_or(|range_of_filter| {
                reach.ranges.iter().any(|range| range.overlaps(range_of_filter))
            })
    }

    /// No later event can match.
    pub fn is_over(&self, elapsed_ns: u64) -> bool {
        self.until_ns.is_some_and(|until| elapsed_ns > until)
    }

    /// Whether a frame's module, function or `file:line` matches.
    pub fn takes_stack(&self, stack: &Stack) -> bool {
        let Some(regex) = &self.stack else { return true };
        stack.frames.iter().any(|frame| {
            let place = frame.file.as_ref().map(|file| match frame.line {
                Some(line) => format!("{file}:{line}"),
                None => file.clone(),
            });
            regex.is_match(&frame.module)
                || frame.symbol.as_ref().is_some_and(|symbol| regex.is_match(symbol))
                || place.is_some_and(|place| regex.is_match(&place))
        })
    }
}

/// The memory that an event is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    pub ranges: [AddrRange; 2],
    /// Requested bytes, or what brk moved by; None for what has no size.
    pub size: Option<u64>,
}

/// What earlier calls show about later ones: where the break was, how long an attached segment is.
#[derive(Default, Debug)]
pub struct Memory {
    breaks: IntMap<MmKey, Addr>,
    segments: HashMap<(MmKey, Addr), AddrRange>,
}

impl Memory {
    /// Takes every event, in order.
    pub fn reach(&mut self, event: &VmEvent) -> Reach {
        let mut reach = Reach { ranges: event.ranges(), size: None };
        reach.size = match &event.op {
            VmOp::Mmap { len, .. }
            | VmOp::Munmap { len, .. }
            | VmOp::Mprotect { len, .. }
            | VmOp::Madvise { len, .. }
            | VmOp::RemapFilePages { len, .. }
            | VmOp::MapShadowStack { len, .. }
            | VmOp::SetVmaName { len, .. } => Some(*len),
            VmOp::Mremap { old_len, new_len, .. } => Some((*old_len).max(*new_len)),
            VmOp::Shmat { mapped, .. } | VmOp::IoSetup { mapped, .. } => mapped.map(AddrRange::len),
            VmOp::Brk { requested, current } => {
                let now = current.unwrap_or(Addr(event.ret as u64));
                let before = self.breaks.insert(event.mm, now).filter(|_| event.ret as u64 == requested.0);
                let before = before.unwrap_or(now);
                let (low, high) = (before.min(now), before.max(now));
                reach.ranges[0] = AddrRange::new(low.page_down().0, high.page_up().0);
                Some(high.0 - low.0)
            }
            VmOp::Shmdt { addr } | VmOp::IoDestroy { ctx: addr } => {
                let segment = self.segments.remove(&(event.mm, *addr)).filter(|_| !event.failed());
                reach.ranges[0] = segment.unwrap_or(reach.ranges[0]);
                segment.map(AddrRange::len)
            }
            _ => None,
        };
        match &event.op {
            VmOp::Shmat { mapped: Some(range), .. } | VmOp::IoSetup { mapped: Some(range), .. }
                if !event.failed() =>
            {
                self.segments.insert((event.mm, range.start), *range);
            }
            VmOp::Exec { brk, .. } => {
                self.breaks.insert(event.mm, *brk);
                self.segments.retain(|(mm, _), _| *mm != event.mm);
            }
            VmOp::Fork { child_mm, child_brk, .. } if *child_mm != event.mm => {
                self.segments.retain(|(mm, _), _| mm != child_mm);
                if let Some(brk) = child_brk.or_else(|| self.breaks.get(&event.mm).copied()) {
                    self.breaks.insert(*child_mm, brk);
                }
                let own = self.segments.iter().filter(|((mm, _), _)| *mm == event.mm);
                let copies: Vec<_> = own.map(|((_, at), range)| ((*child_mm, *at), *range)).collect();
                self.segments.extend(copies);
            }
            _ => {}
        }
        reach
    }
}

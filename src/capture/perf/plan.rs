//! Which tracepoints are opened, and what each of them means.

use super::probe::{self, TracepointIds};
use crate::capture::bpf::tracepoints::{syscall_entry_ids, syscall_exit_ids};
use crate::capture::{CaptureError, arch};
use std::collections::HashMap;

/// The meaning of a tracepoint's sample.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Meaning {
    /// A call that changes an address space returns: the wire record's `op`.
    Changed(u16),
    /// execve or execveat returns, in the new program.
    Executed,
    /// A task is about to be made: by clone, clone3, vfork.
    Clone,
    Clone3,
    Vfork,
    /// The process is about to end by itself.
    Ending,
}

/// How a tracepoint's sample comes by the bytes of the stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stack {
    /// Not at all.
    None,
    /// In the same sample: for calls that are rare.
    Inline,
    /// In a second sample in a ring of its own, so that a call is known even where there is no space
    /// for its stack.
    Apart,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Planned {
    pub id: u16,
    /// The system call's.
    pub number: i64,
    pub meaning: Meaning,
    pub stack: Stack,
    /// A program may make many of the calls in a short time.
    pub is_frequent: bool,
}

/// Calls of which a program may make many in a short time.
const FREQUENT: &[&str] = &["mmap", "munmap", "mremap", "brk", "mprotect", "madvise"];
/// Every thread inherits every event of every CPU, a kilobyte of kernel memory each: on machines with
/// more CPUs, rare calls do with one.
const MANY_CPUS: usize = 16;
/// Results matter, stacks do not.
const WITHOUT_STACK: &[&str] = &["seccomp"];

const EXECUTIONS: &[(&str, i64)] = &[("execve", libc::SYS_execve), ("execveat", libc::SYS_execveat)];
const ENTRIES: &[(&str, i64, Meaning)] = &[
    ("clone", libc::SYS_clone, Meaning::Clone),
    ("clone3", libc::SYS_clone3, Meaning::Clone3),
    ("vfork", libc::SYS_vfork, Meaning::Vfork),
    ("exit_group", libc::SYS_exit_group, Meaning::Ending),
];

/// The tracepoints, and what has to live until they are open.
pub struct Plan {
    pub tracepoints: Vec<Planned>,
    /// How their ids became known, for `-v`.
    pub source: &'static str,
    _prober: Option<TracepointIds>,
}

impl Plan {
    /// # Errors
    /// When tracefs is not readable and trying is refused, too.
    pub fn make(cpus: usize) -> Result<Plan, CaptureError> {
        let (exits, entries, prober) = match from_tracefs() {
            Some((exits, entries)) => (exits, entries, None),
            None => {
                let (exits, entries, found) = by_trying()?;
                if let Some(call) = FREQUENT.iter().find(|name| !exits.contains_key(*name)) {
                    return Err(CaptureError::Silenced { call });
                }
                (exits, entries, Some(found))
            }
        };
        let source = if prober.is_some() { "ids found by trying" } else { "ids from tracefs" };
        Ok(Plan { tracepoints: planned(&exits, &entries, cpus), source, _prober: prober })
    }
}

type Ids = HashMap<&'static str, u64>;

fn from_tracefs() -> Option<(Ids, Ids)> {
    let exits = arch::TRACED.iter().map(|call| call.name).chain(EXECUTIONS.iter().map(|call| call.0));
    let exits: Ids = syscall_exit_ids(&exits.collect::<Vec<_>>()).into_iter().collect();
    let entries: Vec<&'static str> = ENTRIES.iter().map(|call| call.0).collect();
    let entries: Ids = syscall_entry_ids(&entries).into_iter().collect();
    (!exits.is_empty() && !entries.is_empty()).then_some((exits, entries))
}

fn by_trying() -> Result<(Ids, Ids, TracepointIds), CaptureError> {
    let failed = |source| CaptureError::Perf { what: "a system call's tracepoint".to_owned(), source };
    let exits: Vec<(&'static str, i64)> =
        arch::TRACED.iter().map(|call| (call.name, call.number)).chain(EXECUTIONS.iter().copied()).collect();
    let entries = ENTRIES.iter().map(|call| call.1);
    let numbers: Vec<i64> = exits.iter().map(|call| call.1).chain(entries).collect();
    let essential: Vec<i64> =
        exits.iter().filter(|call| FREQUENT.contains(&call.0)).map(|call| call.1).collect();
    let found = probe::find(&numbers, &essential).map_err(|source| match source.raw_os_error() {
        // perf_event_open(2) has no such error.
        Some(libc::EAGAIN) => CaptureError::Process(source),
        _ => failed(source),
    })?;
    if found.exits.is_empty() {
        return Err(failed(std::io::Error::from_raw_os_error(libc::ENOENT)));
    }
    let id = |number: &i64| found.exits.get(number).copied();
    let exits = exits.iter().filter_map(|(name, number)| Some((*name, id(number)?))).collect();
    let entry = |number: &i64| id(number)?.checked_add_signed(found.entry_after_exit?);
    let entries = ENTRIES.iter().filter_map(|(name, number, _)| Some((*name, entry(number)?))).collect();
    Ok((exits, entries, found))
}

fn planned(exits: &Ids, entries: &Ids, cpus: usize) -> Vec<Planned> {
    let mut all = Vec::new();
    let mut add = |id: Option<&u64>, number, meaning, stack| {
        if let Some(id) = id.and_then(|&id| u16::try_from(id).ok()) {
            let is_frequent = |name: &&str| {
                let call = arch::TRACED.iter().find(|call| call.name == *name);
                call.is_some_and(|call| call.number == number && Meaning::Changed(call.op) == meaning)
            };
            let is_frequent = FREQUENT.iter().any(is_frequent);
            all.push(Planned { id, number, meaning, stack, is_frequent });
        }
    };
    for call in arch::TRACED {
        let stack = match call.name {
            name if WITHOUT_STACK.contains(&name) => Stack::None,
            name if FREQUENT.contains(&name) || cpus <= MANY_CPUS => Stack::Apart,
            _ => Stack::Inline,
        };
        add(exits.get(call.name), call.number, Meaning::Changed(call.op), stack);
    }
    for &(name, number) in EXECUTIONS {
        add(exits.get(name), number, Meaning::Executed, Stack::None);
    }
    for &(name, number, meaning) in ENTRIES {
        // clone3's arguments are in memory, most often on the caller's stack.
        let stack = if meaning == Meaning::Clone3 { Stack::Inline } else { Stack::None };
        add(entries.get(name), number, meaning, stack);
    }
    all
}

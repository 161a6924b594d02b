//! The ids of system-call tracepoints where tracefs is not readable: an ordinary user may open the
//! tracepoints of system calls on tasks of his own (kernel/trace/trace_event_perf.c,
//! perf_trace_event_perm, TRACE_EVENT_FL_CAP_ANY), and each sample says which call it was.
//!
//! A short-lived process opens one id after the other on itself and makes the calls that are searched for. A
//! seccomp filter refuses each of them first, so that they do nothing; their exits are reported all the same.

use super::attr::{self, EventKind, Inherit};
use super::remembered;
use super::ring::Ring;
use crate::sys::file::raise_descriptor_limit;
use crate::sys::perf::{self, abi};
use crate::sys::task;
use nix::fcntl::OFlag;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork, pipe2, read};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;

const RING_BYTES: usize = 128 << 10;
/// Ids that are tried before the calls are made and the ring is read.
const BATCH: u64 = 32;
/// That many ids without a tracepoint in a row: there are no more.
const GAP: u64 = 512;
const MAX_ID: u64 = 1 << 16;

/// What was found, and the process that found it: it lives until this is dropped. The kernel takes
/// milliseconds to let go of each of its hundreds of tracepoints, and a process that opens others waits
/// meanwhile.
pub struct TracepointIds {
    /// Tracepoint ids of exits, by system-call number.
    pub exits: HashMap<i64, u64>,
    /// From an exit's id to the entry's of the same call.
    pub entry_after_exit: Option<i64>,
    _prober: Option<OwnedFd>,
}

/// Searches for the exits of the system calls `numbers`; a kernel may not have them all, but those that are
/// `essential`.
///
/// # Errors
/// When there can be no process, or perf_event_open refuses even the first tracepoint.
pub fn find(numbers: &[i64], essential: &[i64]) -> io::Result<TracepointIds> {
    let enough = |found: &TracepointIds| {
        found.entry_after_exit.is_some() && essential.iter().all(|number| found.exits.contains_key(number))
    };
    if let Some(found) = remembered::read().and_then(|text| decode(&text).ok()).filter(enough) {
        return Ok(found);
    }
    let (text, prober) = try_all(numbers)?;
    let found = decode(&text)?;
    if enough(&found) {
        remembered::write(&text);
    }
    Ok(TracepointIds { _prober: Some(prober), ..found })
}

fn try_all(numbers: &[i64]) -> io::Result<(String, OwnedFd)> {
    let (results, to_parent) = pipe2(OFlag::O_CLOEXEC)?;
    let (hold, prober) = pipe2(OFlag::O_CLOEXEC)?;
    // SAFETY: vmaudit has one thread while backends are being set up.
    match unsafe { fork() }? {
        ForkResult::Child => {
            drop((results, prober));
            // Twice, so that its end need not be waited for. SAFETY: as above; leaving by _exit runs nothing
            // of the parent's.
            let forked = unsafe { fork() };
            if let Ok(ForkResult::Child) = forked {
                detach();
                if let Ok((text, events)) = search(numbers) {
                    let mut to_parent = File::from(to_parent);
                    let _ = to_parent.write_all(text.as_bytes());
                    drop(to_parent);
                    // Until vmaudit has opened its own, or is gone.
                    let _ = read(&hold, &mut [0]);
                    drop(events);
                }
            }
            // Why there is no second one. SAFETY: _exit has no preconditions.
            unsafe { libc::_exit(forked.err().map_or(0, |errno| errno as i32)) }
        }
        ForkResult::Parent { child } => {
            drop((to_parent, hold));
            let mut text = String::new();
            let read = File::from(results).read_to_string(&mut text);
            if let WaitStatus::Exited(_, errno @ 1..) = waitpid(child, None)? {
                return Err(io::Error::from_raw_os_error(errno));
            }
            read?;
            Ok((text, prober))
        }
    }
}

/// Closes inherited outputs, whose readers would wait for it, and leaves the terminal's process group.
fn detach() {
    // SAFETY: plain system calls.
    unsafe {
        libc::setsid();
        for fd in 0..=2 {
            libc::close(fd);
        }
    }
}

fn decode(text: &str) -> io::Result<TracepointIds> {
    let mut found = TracepointIds { exits: HashMap::new(), entry_after_exit: None, _prober: None };
    for line in text.lines() {
        let mut words = line.split(' ');
        let (Some(kind), Some(Ok(a))) = (words.next(), words.next().map(str::parse::<i64>)) else { continue };
        match (kind, words.next().and_then(|id| id.parse().ok())) {
            ("exit", Some(id)) => drop(found.exits.insert(a, id)),
            ("entry", _) => found.entry_after_exit = Some(a),
            ("errno", _) => return Err(io::Error::from_raw_os_error(a as i32)),
            _ => {}
        }
    }
    Ok(found)
}

/// What one batch's samples said.
#[derive(Default)]
struct Seen {
    exits: HashMap<i64, u64>,
    entries: HashMap<i64, u64>,
}

/// With CAP_PERFMON every tracepoint of the kernel would open, and each is switched on by rewriting
/// code on all CPUs: minutes, at the expense of everybody. Without it only those of system calls
/// do. (Where perf_event_paranoid is above 2, as some distributions have it, nothing opens without.)
fn give_up_capabilities() {
    const MOST: i32 = 2;
    let level = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid");
    if level.is_ok_and(|level| level.trim().parse().is_ok_and(|level: i32| level > MOST)) {
        return;
    }
    let none = CapabilitySet::empty();
    let _ = set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none });
}

/// The findings, a line each, and what keeps the tracepoints.
fn search(numbers: &[i64]) -> io::Result<(String, Vec<OwnedFd>)> {
    raise_descriptor_limit();
    give_up_capabilities();
    refuse_marked_calls()?;
    let mut open: Vec<OwnedFd> = Vec::new();
    let mut ring: Option<Ring> = None;
    let mut seen = Seen::default();
    let (mut missing, mut refusal) = (0, libc::ENOENT);
    for id in 1..MAX_ID {
        match attr::open(EventKind::RawFields { id }, Inherit::None, 0, -1) {
            Ok(event) => {
                match open.first() {
                    Some(first) => perf::set_output(&event, first)?,
                    None => ring = Some(Ring::map(&event, RING_BYTES)?),
                }
                open.push(event);
                missing = 0;
            }
            Err(error) => match error.raw_os_error() {
                Some(errno @ (libc::EACCES | libc::EPERM)) => (missing, refusal) = (0, errno),
                Some(errno @ (libc::EMFILE | libc::ENFILE | libc::ENOSYS)) => {
                    refusal = errno;
                    break;
                }
                _ => missing += 1,
            },
        }
        if id % BATCH == 0 || missing == GAP {
            observe(numbers, ring.as_mut(), &mut seen);
            let all = numbers.iter().all(|number| seen.exits.contains_key(number));
            if missing == GAP || (all && step(&seen).is_some()) {
                break;
            }
        }
    }
    if open.is_empty() {
        return Ok((format!("errno {refusal}\n"), open));
    }
    let exits = numbers.iter().filter_map(|number| Some((number, seen.exits.get(number)?)));
    let mut text: String = exits.map(|(number, id)| format!("exit {number} {id}\n")).collect();
    if let Some(step) = step(&seen) {
        text += &format!("entry {step}\n");
    }
    Ok((text, open))
}

/// From exit to entry of a call without arguments, whose sample is shorter than an exit's.
fn step(seen: &Seen) -> Option<i64> {
    let (entry, exit) = (seen.entries.get(&libc::SYS_getpid)?, seen.exits.get(&libc::SYS_getpid)?);
    Some(*entry as i64 - *exit as i64)
}

/// Makes the calls and reads what was reported of them.
fn observe(numbers: &[i64], ring: Option<&mut Ring>, seen: &mut Seen) {
    let Some(ring) = ring else { return };
    // What opening the batch has left.
    ring.read(ring.head(), |_| {});
    for &number in numbers {
        // SAFETY: refused before anything is done.
        unsafe { task::call(number, MARK) };
    }
    // It takes no argument, but the filter checks the register of a first argument: without one, that of the
    // last marked call may still be there, and getpid is refused, too. SAFETY: as above.
    unsafe { task::call(libc::SYS_getpid, 0) };
    ring.read(ring.head(), |record| {
        let Some((tracepoint, number, size)) = raw_fields(record) else { return };
        // `struct syscall_trace_exit` has 24 bytes, an entry's 16 and 8 for each argument.
        let into = if size < 24 { &mut seen.entries } else { &mut seen.exits };
        if size < 24 || numbers.contains(&number) || number == libc::SYS_getpid {
            into.insert(number, tracepoint);
        }
    });
}

/// Header, task and time (24 bytes), then the raw fields behind their size.
fn raw_fields(record: &[u8]) -> Option<(u64, i64, u32)> {
    let u32_at = |at: usize| Some(u32::from_ne_bytes(record.get(at..at + 4)?.try_into().ok()?));
    if u32_at(0)? != abi::PERF_RECORD_SAMPLE {
        return None;
    }
    Some((u64::from(u32_at(28)? & 0xffff), i64::from(u32_at(36)? as i32), u32_at(24)?))
}

/// The first argument of calls that are to be refused; no address, and no number anybody uses.
const MARK: u64 = 0x766d_6175_766d_6175;

/// From here on calls with that first argument do nothing, in this process.
fn refuse_marked_calls() -> io::Result<()> {
    let statement = |code: u32, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf, k };
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let unless = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let result = libc::BPF_RET | libc::BPF_K;
    // Both halves of `seccomp_data.args[0]`, which are the same here.
    let mut program = [
        statement(load, 0, 16),
        statement(unless, 3, MARK as u32),
        statement(load, 0, 20),
        statement(unless, 1, MARK as u32),
        statement(result, 0, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32),
        statement(result, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: prctl with integers, then with a filter that outlives the call.
    let refused = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
            || libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) != 0
    };
    if refused { Err(io::Error::last_os_error()) } else { Ok(()) }
}

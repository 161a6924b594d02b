//! Source lines and inlined functions from DWARF, by blazesym, in a thread of their own with a
//! budget: a report must not wait for gigabytes of debugging information.

use crate::model::SourceLine;
use crate::objects::Object;
use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{CodeInfo, Input, Symbolized, Symbolizer};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// One file's addresses to resolve.
pub(super) struct LineJob {
    /// The requesting module: returned with the result.
    pub module: usize,
    /// For notes.
    pub name: String,
    /// The open file with the DWARF sections.
    pub object: Arc<Object>,
    /// Virtual addresses as the file states them, each once.
    pub addresses: Vec<u64>,
    /// Size of its debugging information, bytes.
    pub size: u64,
}

/// A function that the compiler inlined, with its call's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Inlined {
    /// As DWARF has it: mangled where there is a linkage name.
    pub name: String,
    pub location: Option<SourceLine>,
}

/// What DWARF says about an address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Lines {
    /// The function that has machine code of its own, if DWARF gives its bounds and they cover
    /// the address: (name, start).
    pub function: Option<(String, u64)>,
    /// The place in that function.
    pub location: Option<SourceLine>,
    /// Innermost first.
    pub inlined: Vec<Inlined>,
}

/// Limits of the work with DWARF.
#[derive(Clone, Copy, Debug)]
pub struct LineBudget {
    /// All modules together.
    pub time: Duration,
    /// Debugging information of one module that is examined, bytes.
    pub size: u64,
}

/// Addresses per answer: what was found before the time is over counts.
const CHUNK: usize = 64;

/// A module's lines, and whether these are the last.
type Answer = (usize, Vec<(u64, Lines)>, bool);

/// A module that had to be left out, and why.
pub(super) struct Failure {
    pub module: usize,
    pub note: String,
}

/// Resolves all jobs, smallest first, until the time is over. Returns what was found by module, and what had
/// to be left out.
pub(super) fn resolve(
    jobs: Vec<LineJob>,
    budget: LineBudget,
) -> (HashMap<usize, HashMap<u64, Lines>>, Vec<Failure>) {
    let mut failures = Vec::new();
    let (mut small, large): (Vec<_>, Vec<_>) = jobs.into_iter().partition(|job| job.size <= budget.size);
    for job in large {
        let mib = job.size >> 20;
        let note = format!("{}: {mib} MiB of debugging information: names only, no source lines", job.name);
        failures.push(Failure { module: job.module, note });
    }
    let mut found: HashMap<usize, HashMap<u64, Lines>> = HashMap::new();
    if small.is_empty() {
        return (found, failures);
    }
    small.sort_by_key(|job| job.size);
    let mut waiting: Vec<(usize, String)> = small.iter().map(|job| (job.module, job.name.clone())).collect();
    let (sender, receiver) = channel();
    let worker = std::thread::Builder::new().name("dwarf".into()).spawn(move || work(small, &sender));
    if worker.is_ok() {
        collect(&receiver, budget.time, &mut |(module, lines, last)| {
            if last {
                waiting.retain(|(waiting, _)| *waiting != module);
            }
            found.entry(module).or_default().extend(lines);
        });
    }
    for (module, name) in waiting {
        let note = format!("{name}: no source lines: its debugging information is damaged or takes too long");
        failures.push(Failure { module, note });
    }
    (found, failures)
}

fn collect(receiver: &Receiver<Answer>, time: Duration, take: &mut dyn FnMut(Answer)) {
    let deadline = Instant::now() + time;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match receiver.recv_timeout(left) {
            Ok(answer) => take(answer),
            // The worker goes on alone; its result is dropped.
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn work(jobs: Vec<LineJob>, answers: &Sender<Answer>) {
    for job in jobs {
        // blazesym maps the file: if another process truncated it meanwhile, vmaudit would die by SIGBUS, so
        // a file that others can write is copied first.
        let copy = if job.object.is_from_elsewhere() { Some(copy_of(&job.object)) } else { None };
        let fd = match &copy {
            Some(Some(copy)) => Some(copy.as_raw_fd()),
            Some(None) => None,
            None => job.object.raw_fd(),
        };
        let Some(fd) = fd else { continue };
        // The very file that was checked, even if its path is gone; `job.object` keeps it open.
        let path = PathBuf::from(format!("/proc/self/fd/{fd}"));
        // A symbolizer for each file: its caches go when the file is done.
        let symbolizer = Symbolizer::builder()
            .enable_auto_reload(false)
            .enable_code_info(true)
            .enable_inlined_fns(true)
            .enable_demangling(false)
            .build();
        let source = Source::Elf(Elf { debug_syms: true, ..Elf::new(path) });
        let mut chunks = job.addresses.chunks(CHUNK).peekable();
        while let Some(chunk) = chunks.next() {
            let Ok(results) = symbolizer.symbolize(&source, Input::VirtOffset(chunk)) else { break };
            let lines = chunk.iter().zip(results).filter_map(|(&address, result)| match result {
                Symbolized::Sym(sym) => Some((address, lines_of(&sym, address))),
                Symbolized::Unknown(_) => None,
            });
            let last = chunks.peek().is_none();
            if answers.send((job.module, lines.collect(), last)).is_err() {
                return;
            }
        }
    }
}

/// The file's bytes in memory of our own; None for a file that is too large or cannot be read.
fn copy_of(object: &Object) -> Option<File> {
    const LARGEST: u64 = 512 << 20;
    const STEP: u64 = 1 << 20;
    let size = object.size()?;
    if size > LARGEST {
        return None;
    }
    let flags = MFdFlags::MFD_CLOEXEC;
    let mut copy = File::from(memfd_create(c"vmaudit-elf", flags).ok()?);
    let mut at = 0;
    while at < size {
        let step = STEP.min(size - at);
        copy.write_all(&object.read(at, step).ok()?).ok()?;
        at += step;
    }
    Some(copy)
}

fn lines_of(sym: &blazesym::symbolize::Sym<'_>, address: u64) -> Lines {
    let covers = sym.size.is_some_and(|size| address.checked_sub(sym.addr).is_some_and(|d| d < size as u64));
    let inlined = sym.inlined.iter().rev().map(|inlined| Inlined {
        name: inlined.name.to_string(),
        location: inlined.code_info.as_ref().and_then(location),
    });
    Lines {
        function: covers.then(|| (sym.name.to_string(), sym.addr)),
        location: sym.code_info.as_deref().and_then(location),
        inlined: inlined.collect(),
    }
}

/// Line 0 means "no line" (DWARF 5, 6.2.2).
fn location(info: &CodeInfo<'_>) -> Option<SourceLine> {
    let line = info.line.filter(|&line| line != 0)?;
    Some(SourceLine { file: info.to_path().to_string_lossy().into_owned(), line })
}

//! Source lines and inlined functions from DWARF, by blazesym, in a process of their own ([`super::helper`]) with a
//! budget: a report must not wait for gigabytes of debugging information, nor end by it.

use super::helper::{Helper, Outbox, Received, limit_memory};
use crate::model::SourceLine;
use crate::objects::Object;
use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{CodeInfo, Input, Symbolized, Symbolizer};
use nix::sys::signal::Signal;
use nix::sys::wait::WaitStatus;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Inlined {
    /// As DWARF has it: mangled where there is a linkage name.
    pub name: String,
    pub location: Option<SourceLine>,
}

/// What DWARF says about an address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
/// Longer names and paths are none: a string of the debugging information may be as long as that.
const LONGEST_NAME: usize = 64 << 10;
/// Calls inlined into one another at one address; compilers stop long before.
const MOST_INLINED: usize = 256;
/// Longer words of blazesym's are cut, characters.
const LONGEST_REASON: usize = 200;
/// Memory for reading a file, in bytes for each byte of its debugging information, and besides: where that is compressed,
/// it expands to three or four times its size, and what is made of it is about as large again.
const MEMORY_FACTOR: u64 = 16;
const LEAST_MEMORY: u64 = 64 << 20;
const MOST_MEMORY: u64 = 2 << 30;
/// Sections that lead to further files, by paths that the file chooses.
const LINKS: [&[u8]; 3] = [b".gnu_debuglink", b".gnu_debugaltlink", b".debug_sup"];

/// A module that had to be left out, and why.
pub(super) struct Failure {
    pub module: usize,
    pub note: String,
}

/// What the helper says of the file that it reads.
#[derive(Default, Serialize, Deserialize)]
struct Answer {
    lines: Vec<(u64, Lines)>,
    /// The file is done; with what was wrong with it.
    end: Option<Result<(), String>>,
}

/// What was found by module, and what had to be left out.
#[derive(Default)]
pub(super) struct Resolved {
    pub lines: HashMap<usize, HashMap<u64, Lines>>,
    pub failures: Vec<Failure>,
}

/// Resolves all jobs, smallest first, until the time is over.
///
/// A helper process reads the files. If it ends early, the file that it was reading is left out, and another one goes on
/// with the next.
pub(super) fn resolve(jobs: Vec<LineJob>, budget: LineBudget) -> Resolved {
    let mut resolved = Resolved::default();
    let mut small = Vec::with_capacity(jobs.len());
    for job in jobs {
        match refusal(&job, budget) {
            Some(why) => resolved.leave_out(&job, &why),
            None => small.push(job),
        }
    }
    small.sort_by_key(|job| job.size);
    let deadline = Instant::now() + budget.time;
    let mut jobs = small.as_slice();
    while !jobs.is_empty() {
        let why = resolved.ask_helper(&mut jobs, deadline);
        if let [job, rest @ ..] = jobs {
            resolved.leave_out(job, &why);
            jobs = rest;
        }
    }
    resolved
}

/// Why a file is not even begun with.
fn refusal(job: &LineJob, budget: LineBudget) -> Option<String> {
    let object = &job.object;
    if job.size > budget.size {
        return Some(format!("it has {} MiB of debugging information", job.size >> 20));
    }
    let owner = object.owner();
    let is_trusted = owner == Some(0) || owner == Some(nix::unistd::geteuid().as_raw());
    // blazesym would open whatever the path leads to, a device too.
    let link = LINKS.iter().find(|name| object.layout().section(name).is_some())?;
    (!is_trusted || object.is_from_elsewhere()).then(|| {
        let link = String::from_utf8_lossy(link);
        format!("it belongs to another user, and leads to a further file ({link}) that is not opened for that user")
    })
}

impl Resolved {
    fn leave_out(&mut self, job: &LineJob, why: &str) {
        let note = format!("{}: names only, no source lines: {why}", job.name);
        self.failures.push(Failure { module: job.module, note });
    }

    /// Takes what a helper says about `jobs`, from which those that are done are removed. Returns why the first of those
    /// that are left is not.
    fn ask_helper(&mut self, jobs: &mut &[LineJob], deadline: Instant) -> String {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return "no time was left for it".to_owned();
        }
        let files: Vec<_> = jobs.iter().filter_map(|job| job.object.raw_fd()).collect();
        let all = *jobs;
        let mut helper = match Helper::start(&files, left, |outbox| work(all, outbox)) {
            Ok(helper) => helper,
            Err(errno) => {
                return format!("no process to read them could be made: {} ({errno:?})", errno.desc());
            }
        };
        while let [job, rest @ ..] = *jobs {
            let message = match helper.receive(deadline) {
                Received::Message(message) => message,
                Received::Ended(status) => return died(job, status),
                Received::TimeOver => return "reading its debugging information takes too long".to_owned(),
                Received::TooMuch => return "its debugging information says too much".to_owned(),
            };
            let Ok(answer) = serde_json::from_slice::<Answer>(&message) else {
                return "the process that reads them cannot be understood".to_owned();
            };
            self.lines.entry(job.module).or_default().extend(answer.lines);
            if let Some(end) = answer.end {
                *jobs = rest;
                if let Err(why) = end {
                    self.leave_out(job, &format!("its debugging information is damaged: {why}"));
                }
            }
        }
        String::new()
    }
}

/// Bytes that reading a file may take.
fn memory_for(job: &LineJob) -> u64 {
    job.size.saturating_mul(MEMORY_FACTOR).saturating_add(LEAST_MEMORY).min(MOST_MEMORY)
}

fn died(job: &LineJob, status: WaitStatus) -> String {
    let (memory, size) = (memory_for(job) >> 20, job.size);
    match status {
        WaitStatus::Signaled(_, Signal::SIGABRT, _) => format!(
            "reading its {size} bytes of debugging information ended the process that did it (SIGABRT), as more memory than \
             the {memory} MiB that they are given does"
        ),
        WaitStatus::Signaled(_, Signal::SIGBUS, _) => "it was truncated while it was read".to_owned(),
        WaitStatus::Signaled(_, signal, _) => {
            format!("reading its debugging information ended the process that did it ({signal})")
        }
        _ => "the process that reads them ended".to_owned(),
    }
}

/// In the helper process.
fn work(jobs: &[LineJob], outbox: &mut Outbox) {
    for job in jobs {
        let result = catch_unwind(AssertUnwindSafe(|| read(job, outbox)));
        let end = result.unwrap_or_else(|_| Err("its parts contradict each other".to_owned()));
        if answer(outbox, Answer { end: Some(end), ..Answer::default() }).is_err() {
            return;
        }
    }
}

fn answer(outbox: &mut Outbox, answer: Answer) -> io::Result<()> {
    outbox.send(&serde_json::to_vec(&answer)?)
}

fn read(job: &LineJob, outbox: &mut Outbox) -> Result<(), String> {
    let words = |error: &dyn std::fmt::Display| -> String {
        let plain = error.to_string();
        plain.chars().filter(|c| !c.is_control()).take(LONGEST_REASON).collect()
    };
    limit_memory(memory_for(job)).map_err(|error| words(&error))?;
    let Some(fd) = job.object.raw_fd() else { return Ok(()) };
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
    for chunk in job.addresses.chunks(CHUNK) {
        let results =
            symbolizer.symbolize(&source, Input::VirtOffset(chunk)).map_err(|error| words(&error))?;
        let lines = chunk.iter().zip(results).filter_map(|(&address, result)| match result {
            Symbolized::Sym(sym) => Some((address, lines_of(&sym, address))),
            Symbolized::Unknown(_) => None,
        });
        answer(outbox, Answer { lines: lines.collect(), end: None }).map_err(|error| words(&error))?;
    }
    Ok(())
}

fn lines_of(sym: &blazesym::symbolize::Sym<'_>, address: u64) -> Lines {
    let covers = sym.size.is_some_and(|size| address.checked_sub(sym.addr).is_some_and(|d| d < size as u64));
    let inlined = sym.inlined.iter().rev().take(MOST_INLINED).map(|inlined| Inlined {
        name: if is_name(&inlined.name) { inlined.name.to_string() } else { String::new() },
        location: inlined.code_info.as_ref().and_then(location),
    });
    Lines {
        function: (covers && is_name(&sym.name)).then(|| (sym.name.to_string(), sym.addr)),
        location: sym.code_info.as_deref().and_then(location),
        inlined: inlined.collect(),
    }
}

fn is_name(text: &str) -> bool {
    text.len() <= LONGEST_NAME
}

/// Line 0 means "no line" (DWARF 5, 6.2.2).
fn location(info: &CodeInfo<'_>) -> Option<SourceLine> {
    let line = info.line.filter(|&line| line != 0)?;
    let file = info.to_path().to_string_lossy().into_owned();
    is_name(&file).then_some(SourceLine { file, line })
}

//! The text of `strace -f -k -o FILE` as events: a second witness for the ledger, and fixtures
//! from programs that are not at hand. Pure: takes bytes.
//!
//! ```text
//! 16691 munmap(0x7f1978000000, 67108864 <unfinished ...>     effect of an unmapping: here
//! 16693 mmap(0x7f1978000000, 67108864, PROT_NONE, …) = 0x7f1978000000
//! 16691 <... munmap resumed>)             = 0                result: here
//!  > /usr/lib/x86_64-linux-gnu/libc.so.6(__munmap+0xb) [0x101a0b]
//! ```
//!
//! A range can be given away between an unmapping's entry and its return, so an unfinished munmap
//! takes its place at the entry line, a mapping at its return. Task relations come from clone,
//! fork and vfork lines where the trace has them; a thread without one belongs to the first
//! process of the trace.

mod args;
mod flags;
mod frames;
mod relations;

pub use frames::StraceFrame;
use relations::{Kinship, Relations};

use std::collections::HashMap;
use vmaudit::model::{Addr, EventId, MmKey, NoStack, Pid, StackId, Task, Tid, VmEvent, VmOp};

/// A trace line that is not as strace writes it.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("line {line}: {reason}: {text:?}")]
pub struct ParseError {
    /// From 1.
    pub line: usize,
    pub reason: &'static str,
    /// The line, at most 200 bytes of it.
    pub text: String,
}

/// A parsed trace.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StraceLog {
    /// In the order in which the calls took effect, as far as the trace shows. `time_ns` is the place in that
    /// order, unless the trace has time stamps (`-ttt`).
    pub events: Vec<VmEvent>,
    /// Indexed by `StackId`; innermost frame first.
    pub stacks: Vec<Vec<StraceFrame>>,
    /// Lines of calls that do not change an address space, signals, and the like.
    pub ignored_lines: usize,
}

/// Parses a whole trace.
///
/// # Errors
/// A call that is known but whose arguments or result cannot be read, with the line's number. Calls that do
/// not matter here are ignored, whatever their form.
pub fn parse(text: &[u8]) -> Result<StraceLog, ParseError> {
    parse_with(text, Placement::Effect)
}

/// As [`parse`], but unfinished unmappings are placed where they return, as a tracer at syscall exit reports
/// them: a test of the ledger's order rule.
pub fn parse_in_report_order(text: &[u8]) -> Result<StraceLog, ParseError> {
    parse_with(text, Placement::Report)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Placement {
    Effect,
    Report,
}

fn parse_with(text: &[u8], placement: Placement) -> Result<StraceLog, ParseError> {
    let mut parser = Parser::new(placement);
    parser.kin = Relations::find(text);
    for (index, line) in text.split(|&b| b == b'\n').enumerate() {
        parser.line(line).map_err(|reason| ParseError {
            line: index + 1,
            reason,
            text: String::from_utf8_lossy(&line[..line.len().min(200)]).into_owned(),
        })?;
    }
    Ok(parser.finish())
}

/// A call whose return has not come yet.
struct Unfinished {
    name: Vec<u8>,
    args: Vec<u8>,
    /// Its place among the events, where that is at the entry.
    place: Option<usize>,
}

struct Parser {
    placement: Placement,
    /// None: an entry whose return is still to come.
    events: Vec<Option<VmEvent>>,
    unfinished: HashMap<Tid, Unfinished>,
    kin: Relations,
    mm_of: HashMap<Pid, MmKey>,
    first: Option<Pid>,
    next_mm: u64,
    frames: Vec<StraceFrame>,
    /// The event that the frame lines belong to.
    current: Option<usize>,
    stacks: Vec<Vec<StraceFrame>>,
    stack_ids: HashMap<Vec<StraceFrame>, StackId>,
    ignored: usize,
}

/// A line without its task and time.
struct Entry<'a> {
    tid: Tid,
    time_ns: Option<u64>,
    rest: &'a [u8],
}

impl Parser {
    fn new(placement: Placement) -> Parser {
        Parser {
            placement,
            events: Vec::new(),
            unfinished: HashMap::new(),
            kin: Relations::default(),
            mm_of: HashMap::new(),
            first: None,
            next_mm: 0,
            frames: Vec::new(),
            current: None,
            stacks: Vec::new(),
            stack_ids: HashMap::new(),
            ignored: 0,
        }
    }

    fn line(&mut self, line: &[u8]) -> Result<(), &'static str> {
        if line.starts_with(b" > ") {
            if let Some(frame) = frames::parse(&line[3..]) {
                self.frames.push(frame);
            }
            return Ok(());
        }
        self.finish_stack();
        let entry = split_task(line);
        if entry.rest.is_empty() {
            return Ok(());
        }
        self.first.get_or_insert(entry.tid);
        let rest = entry.rest;
        if rest.starts_with(b"+++ ") {
            self.exit(&entry);
        } else if let Some(resumed) = rest.strip_prefix(b"<... ") {
            let Some(begun) = self.unfinished.remove(&entry.tid) else {
                self.ignored += 1;
                return Ok(());
            };
            let tail = find(resumed, b"resumed>").map(|at| &resumed[at + 8..]).ok_or("not a resumed call")?;
            let mut call = begun.args;
            call.extend_from_slice(tail);
            self.call(&entry, &begun.name, &call, begun.place)?;
        } else if let Some(open) = rest.iter().position(|&b| b == b'(').filter(|&at| is_name(&rest[..at])) {
            let (name, args) = (&rest[..open], &rest[open + 1..]);
            match args.strip_suffix(b"<unfinished ...>") {
                Some(args) => {
                    let early = flags::takes_effect_at_entry(name) && self.placement == Placement::Effect
                        || name.starts_with(b"clone")
                        || name.ends_with(b"fork");
                    let place = early.then(|| {
                        self.events.push(None);
                        self.events.len() - 1
                    });
                    let (name, args) = (name.to_vec(), args.to_vec());
                    self.unfinished.insert(entry.tid, Unfinished { name, args, place });
                }
                None => self.call(&entry, name, args, None)?,
            }
        } else {
            // Signals, "strace: Process … attached" and the like.
            self.ignored += 1;
        }
        Ok(())
    }

    /// A call with its result; `text` is all behind the opening parenthesis.
    fn call(
        &mut self,
        entry: &Entry<'_>,
        name: &[u8],
        text: &[u8],
        place: Option<usize>,
    ) -> Result<(), &'static str> {
        if !flags::is_known(name) {
            self.ignored += 1;
            return Ok(());
        }
        let (args, result) = args::split_result(text).ok_or("no result")?;
        // "= ?": the task was killed meanwhile.
        let Some(ret) = args::result(result) else {
            self.ignored += 1;
            return Ok(());
        };
        let task = self.task(entry.tid);
        let mut mm = self.mm(task.pid);
        let op = match name {
            b"execve" | b"execveat" if ret == 0 => {
                self.next_mm += 1;
                mm = MmKey(self.next_mm);
                self.mm_of.insert(task.pid, mm);
                args::exec(args)
            }
            b"clone" | b"clone3" | b"fork" | b"vfork" if ret > 0 => self.fork(ret, mm)?,
            _ => match args::op(name, args)? {
                Some(op) => op,
                None => {
                    self.ignored += 1;
                    return Ok(());
                }
            },
        };
        let time_ns = entry.time_ns.unwrap_or(0);
        let event = VmEvent {
            id: EventId(0),
            time_ns,
            task,
            mm,
            op,
            ret,
            stack: Err(NoStack::NotTaken),
            total_vm: None,
        };
        let place = place.unwrap_or_else(|| {
            self.events.push(None);
            self.events.len() - 1
        });
        if let Some(slot) = self.events.get_mut(place) {
            *slot = Some(event);
        }
        self.current = Some(place);
        Ok(())
    }

    fn fork(&mut self, child: i64, mm: MmKey) -> Result<VmOp, &'static str> {
        let child_tid = Tid::try_from(child).map_err(|_| "not a task id")?;
        let kin = self.kin.of(child_tid);
        let child_mm = if kin == Kinship::Copy { self.mm(child_tid) } else { mm };
        if kin == Kinship::SharesMm {
            self.mm_of.insert(child_tid, mm);
        }
        let child_pid = if kin == Kinship::Thread { self.task(child_tid).pid } else { child_tid };
        let is_thread = kin == Kinship::Thread;
        let (child_sp, child_brk, mappings) = (Addr(0), None, None);
        Ok(VmOp::Fork { child_pid, child_tid, child_mm, child_sp, child_brk, is_thread, mappings })
    }

    fn exit(&mut self, entry: &Entry<'_>) {
        let task = self.task(entry.tid);
        let Some(code) = args::wait_status(entry.rest) else {
            self.ignored += 1;
            return;
        };
        let mm = self.mm(task.pid);
        let group_dead = task.tid == task.pid;
        self.events.push(Some(VmEvent {
            id: EventId(0),
            time_ns: entry.time_ns.unwrap_or(0),
            task,
            mm,
            op: VmOp::Exit { code, group_dead },
            ret: 0,
            stack: Err(NoStack::NotTaken),
            total_vm: None,
        }));
    }

    fn task(&self, tid: Tid) -> Task {
        Task { pid: self.kin.process_of(tid, self.first), tid, comm: Vec::new() }
    }

    fn mm(&mut self, pid: Pid) -> MmKey {
        let next = &mut self.next_mm;
        *self.mm_of.entry(pid).or_insert_with(|| {
            *next += 1;
            MmKey(*next)
        })
    }

    /// The frame lines before belong to the last call.
    fn finish_stack(&mut self) {
        let current = self.current.take();
        if self.frames.is_empty() {
            return;
        }
        let frames = std::mem::take(&mut self.frames);
        let Some(event) = current.and_then(|i| self.events.get_mut(i)).and_then(Option::as_mut) else {
            return;
        };
        let id = match self.stack_ids.get(&frames) {
            Some(&id) => id,
            None => {
                let id = StackId(self.stacks.len() as u32);
                self.stacks.push(frames.clone());
                self.stack_ids.insert(frames, id);
                id
            }
        };
        event.stack = Ok(id);
    }

    fn finish(mut self) -> StraceLog {
        self.finish_stack();
        let mut events: Vec<VmEvent> = self.events.into_iter().flatten().collect();
        for (number, event) in (1u64..).zip(&mut events) {
            event.id = EventId(number);
            if event.time_ns == 0 {
                event.time_ns = number;
            }
        }
        StraceLog { events, stacks: self.stacks, ignored_lines: self.ignored }
    }
}

fn is_name(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'_')
}

fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|w| w == what)
}

/// Takes the task (`123 ` of -o, `[pid 123] ` of stderr) and a time stamp off a line.
fn split_task(line: &[u8]) -> Entry<'_> {
    let mut rest = line.trim_ascii();
    let mut tid = 1;
    let bracket = rest.strip_prefix(b"[pid ").and_then(|r| {
        let end = r.iter().position(|&b| b == b']')?;
        Some((r[..end].trim_ascii(), r[end + 1..].trim_ascii_start()))
    });
    if let Some((number, after)) = bracket {
        tid = args::number(number).and_then(|n| Tid::try_from(n).ok()).unwrap_or(tid);
        rest = after;
    } else if let Some((word, after)) = split_word(rest)
        && word.iter().all(u8::is_ascii_digit)
    {
        tid = args::number(word).and_then(|n| Tid::try_from(n).ok()).unwrap_or(tid);
        rest = after;
    }
    let mut time_ns = None;
    if let Some((word, after)) = split_word(rest)
        && word.first().is_some_and(u8::is_ascii_digit)
        && word.iter().all(|b| b.is_ascii_digit() || matches!(b, b'.' | b':'))
    {
        time_ns = args::seconds(word);
        rest = after;
    }
    Entry { tid, time_ns, rest }
}

fn split_word(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = text.iter().position(|&b| b == b' ')?;
    Some((&text[..end], text[end..].trim_ascii_start()))
}

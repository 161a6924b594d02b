//! Steps → rows. Whatever repeats (threads, files, frames …) is sent once and numbered.

use super::op::{Arguments, bits};
use super::row::{EventRow, ExecRow, ForkRow, ProcessStep, Row, SnapshotKind, StepPosition};
use crate::model::hash::IntMap;
use crate::model::{
    Completeness, FileRef, MmKey, NoStack, Observations, Pid, StackTable, Step, Tid, VmEvent, VmOp,
};
use std::collections::HashMap;
use std::fmt::Write;
use std::hash::Hash;

/// Dictionaries of what may be there without end (files, names) are begun anew at this size:
/// a row more than needed does no harm.
const MAX_KNOWN: usize = 1 << 16;

struct Process {
    id: i64,
    ended: bool,
}

struct Thread {
    id: i64,
    process: i64,
    name: Vec<u8>,
}

/// Numbers what the rows refer to.
#[derive(Default)]
pub(super) struct Encoder {
    processes: IntMap<Pid, Process>,
    threads: IntMap<Tid, Thread>,
    spaces: IntMap<MmKey, i64>,
    files: HashMap<FileRef, i64>,
    names: HashMap<Vec<u8>, i64>,
    next: Next,
    last_event: i64,
    modules: usize,
    frames: usize,
    stacks: usize,
}

/// The next number of each kind.
#[derive(Default)]
struct Next {
    process: i64,
    thread: i64,
    file: i64,
    name: i64,
    snapshot: i64,
}

fn take(next: &mut i64) -> i64 {
    *next += 1;
    *next
}

impl Encoder {
    pub(super) fn step(&mut self, step: &Step, out: &mut Vec<Row>) {
        match step {
            Step::Event(event) => self.event(event, out),
            Step::Found { mm, seen } => {
                let space = self.space(*mm, out);
                self.snapshot(SnapshotKind::Found(space), seen, out);
            }
            Step::Lost { time_ns } => {
                let place = self.place();
                out.push(Row::Loss { place, time_ns: *time_ns as i64 });
            }
            Step::Resync(seen) => self.snapshot(SnapshotKind::Resync, seen, out),
            Step::Snapshot(seen) => self.snapshot(SnapshotKind::Snapshot, seen, out),
            Step::Point(point) => {
                let place = self.place();
                out.push(Row::Point { place, point: point.clone() });
            }
        }
    }

    fn place(&mut self) -> StepPosition {
        StepPosition { id: take(&mut self.next.snapshot), after_event: self.last_event }
    }

    pub(super) fn snapshot(&mut self, kind: SnapshotKind, seen: &Observations, out: &mut Vec<Row>) {
        let place = self.place();
        out.push(Row::Snapshot { place, kind, seen: Box::new(seen.clone()) });
    }

    pub(super) fn event(&mut self, event: &VmEvent, out: &mut Vec<Row>) {
        let id = event.id.0 as i64;
        self.last_event = id;
        let time_ns = event.time_ns as i64;
        let thread = self.thread(event, out);
        let space = self.space(event.mm, out);
        let mut arguments = Arguments::of(&event.op);
        match &event.op {
            VmOp::Mmap { file: Some(file), .. } => arguments.file = Some(self.file(file, out)),
            VmOp::SetVmaName { name: Some(name), .. } => arguments.file = Some(self.name(name, out)),
            VmOp::Fork { child_pid, child_tid, child_mm, child_sp, child_brk, is_thread, mappings } => {
                let child_space = self.space(*child_mm, out);
                out.push(Row::Fork(Box::new(ForkRow {
                    event: id,
                    child: (*child_pid, *child_tid),
                    space: child_space,
                    sp: child_sp.0 as i64,
                    brk: child_brk.and_then(|at| bits(at.0)),
                    is_thread: *is_thread,
                    mappings: mappings.clone(),
                })));
                if !*is_thread {
                    let (parent, name) = (Some(event.task.pid), event.task.comm.clone());
                    self.add_process(*child_pid, out, |pid| ProcessStep::Seen {
                        pid,
                        parent,
                        began_ns: Some(time_ns),
                        name,
                    });
                }
            }
            VmOp::Exec { exe, start_brk, brk, start_stack, compat, mappings } => {
                let exe = exe.as_ref().map(|exe| self.file(exe, out));
                out.push(Row::Exec(Box::new(ExecRow {
                    event: id,
                    exe,
                    start_brk: start_brk.0 as i64,
                    brk: brk.0 as i64,
                    start_stack: start_stack.0 as i64,
                    compat: *compat,
                    mappings: mappings.clone(),
                })));
                let name = event.task.comm.clone();
                self.process_step(event.task.pid, ProcessStep::Exec { time_ns, exe, name }, out);
            }
            VmOp::Exit { code, group_dead } => {
                self.threads.remove(&event.task.tid);
                if *group_dead {
                    let name = event.task.comm.clone();
                    let step = ProcessStep::Ended { time_ns, status: *code, name };
                    self.process_step(event.task.pid, step, out);
                    if let Some(process) = self.processes.get_mut(&event.task.pid) {
                        process.ended = true;
                    }
                }
            }
            _ => {}
        }
        out.push(Row::Event(EventRow {
            id,
            time_ns,
            thread,
            space,
            ret: event.ret,
            stack: match event.stack {
                Ok(stack) => i64::from(stack.0),
                Err(NoStack::NotTaken) => -1,
                Err(NoStack::Lost) => -2,
                Err(NoStack::Unreadable) => -3,
            },
            virt: event.total_vm.and_then(bits),
            arguments,
        }));
    }

    /// Modules, frames and stacks that the table got since the last call.
    pub(super) fn stacks(&mut self, table: &StackTable, out: &mut Vec<Row>) {
        if table.len() == self.stacks && table.modules().len() == self.modules {
            return;
        }
        for (id, info) in table.modules().iter().enumerate().skip(self.modules) {
            out.push(Row::Module { id: id as i64, info: info.clone() });
        }
        self.modules = table.modules().len();
        for (id, frame) in table.frames().iter().enumerate().skip(self.frames) {
            out.push(Row::Frame { id: id as i64, frame: *frame });
        }
        self.frames = table.frames().len();
        for index in self.stacks..table.len() {
            let (frames, completeness) = table.frame_numbers(crate::model::StackId(index as u32));
            let mut text = String::with_capacity(2 + frames.len() * 5);
            text.push('[');
            for (n, frame) in frames.enumerate() {
                let comma = if n == 0 { "" } else { "," };
                // Writing to a String cannot fail.
                let _ = write!(text, "{comma}{frame}");
            }
            text.push(']');
            out.push(Row::Stack {
                id: index as i64,
                completeness: completeness_name(completeness),
                frames: text,
            });
        }
        self.stacks = table.len();
    }

    /// The row of the calling thread under its present name.
    fn thread(&mut self, event: &VmEvent, out: &mut Vec<Row>) -> i64 {
        let task = &event.task;
        let process = match self.processes.get(&task.pid) {
            Some(process) if !process.ended || matches!(event.op, VmOp::Exit { .. }) => process.id,
            // Unknown until now, or the pid was given to another process whose fork was not seen.
            _ => self.add_process(task.pid, out, |pid| ProcessStep::Seen {
                pid,
                parent: None,
                began_ns: None,
                name: task.comm.clone(),
            }),
        };
        if let Some(known) = self.threads.get(&task.tid)
            && known.process == process
            && known.name == task.comm
        {
            return known.id;
        }
        let id = take(&mut self.next.thread);
        let name = task.comm.clone();
        self.threads.insert(task.tid, Thread { id, process, name: name.clone() });
        out.push(Row::Thread { id, process, pid: task.pid, tid: task.tid, name });
        id
    }

    fn add_process(&mut self, pid: Pid, out: &mut Vec<Row>, step: impl FnOnce(Pid) -> ProcessStep) -> i64 {
        let id = take(&mut self.next.process);
        self.processes.insert(pid, Process { id, ended: false });
        out.push(Row::Process { id, step: step(pid) });
        id
    }

    fn process_step(&mut self, pid: Pid, step: ProcessStep, out: &mut Vec<Row>) {
        if let Some(process) = self.processes.get(&pid) {
            out.push(Row::Process { id: process.id, step });
        }
    }

    fn space(&mut self, mm: MmKey, out: &mut Vec<Row>) -> i64 {
        let next = self.spaces.len() as i64 + 1;
        *self.spaces.entry(mm).or_insert_with(|| {
            // Not the key itself: it is an address in the kernel, and recordings are passed on.
            out.push(Row::Space { id: next, mm: if mm.0 == 0 { 0 } else { next } });
            next
        })
    }

    fn file(&mut self, file: &FileRef, out: &mut Vec<Row>) -> i64 {
        number(&mut self.files, file, &mut self.next.file, |id, file| out.push(Row::File { id, file }))
    }

    fn name(&mut self, name: &Vec<u8>, out: &mut Vec<Row>) -> i64 {
        number(&mut self.names, name, &mut self.next.name, |id, name| out.push(Row::VmaName { id, name }))
    }
}

/// The number of a thing; a new one is handed to `add`.
fn number<T: Clone + Eq + Hash>(
    known: &mut HashMap<T, i64>,
    thing: &T,
    next: &mut i64,
    add: impl FnOnce(i64, T),
) -> i64 {
    if let Some(&id) = known.get(thing) {
        return id;
    }
    if known.len() >= MAX_KNOWN {
        known.clear();
    }
    let id = take(next);
    known.insert(thing.clone(), id);
    add(id, thing.clone());
    id
}

pub(super) fn completeness_name(completeness: Completeness) -> &'static str {
    match completeness {
        Completeness::Complete => "complete",
        Completeness::Truncated => "truncated",
        Completeness::Incomplete => "incomplete",
    }
}

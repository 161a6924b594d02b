//! What the kernel's reports mean, one after the other: which process uses which address space, what
//! execve has mapped, where a thread's stack ends. Out come records as bpf/vmaudit.h has them.

use super::arch::{Cloning, cloning, cloning3};
use super::image;
use super::out::{self, Emit, Out};
use super::plan::Meaning;
use super::sample::{Call, Mapped, RecordBody, SampleId};
use crate::capture::Counters;
use crate::capture::record::{RecordWriter, UNKNOWN_STATUS, flag, op, set_comm};
use crate::model::hash::IntMap;
use crate::sys::abi::{MAP_ANONYMOUS, PR_SET_MM, PR_SET_VMA};
use crate::sys::task::share_memory;
use crate::sys::{pidfd, poll};
use std::collections::HashSet;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// Further away than this the end of a thread's stack is that of another one.
const PLAUSIBLE_STACK: u64 = 64 << 20;

/// So many changes of mappings without a call are made by mprotect over many of them, or by calls that are
/// hidden from us.
const MANY_CHANGES: u32 = 8;

#[derive(Default)]
struct Process {
    mm: u64,
    threads: HashSet<i32>,
    /// What it gave to exit_group.
    exit_code: Option<i32>,
    /// execve is under way.
    exec: Option<Exec>,
    handle: Option<OwnedFd>,
}

struct Exec {
    when: SampleId,
    name: Vec<u8>,
    maps: Vec<Mapped>,
}

#[derive(Default)]
struct Thread {
    name: Vec<u8>,
    /// Where its stack ends: the kernel's arguments, or the thread control block. 0: not known.
    stack_end: u64,
    /// The kernel's last word on its mappings.
    mapped: Option<Mapped>,
    /// Changes of its mappings since its last call was reported.
    unexplained: u32,
    /// It is about to make a task; its stack pointer.
    cloning: Option<(Cloning, u64)>,
}

/// A call's stack, as far as it came.
#[derive(Clone, Copy)]
pub enum StackBytes<'a> {
    Copied(&'a [u8]),
    /// There was no space for it.
    Lost,
}

/// All traced tasks.
pub struct Life {
    processes: IntMap<i32, Process>,
    threads: IntMap<i32, Thread>,
    last_mm: u64,
    follow_forks: bool,
    doubts: bool,
    pub counters: Counters,
}

impl Life {
    /// With the first process, whose thread is to become the command.
    pub fn of(pid: i32, follow_forks: bool) -> Life {
        let mut life = Life {
            processes: IntMap::default(),
            threads: IntMap::default(),
            last_mm: 0,
            follow_forks,
            doubts: false,
            counters: Counters::default(),
        };
        let process = life.process(pid);
        process.threads.insert(pid);
        process.handle = pidfd::open(pid).ok();
        life
    }

    /// One that appears without a record of its creation: the parent's record was lost.
    fn process(&mut self, pid: i32) -> &mut Process {
        let last_mm = &mut self.last_mm;
        self.processes.entry(pid).or_insert_with(|| {
            *last_mm += 1;
            Process { mm: *last_mm, ..Process::default() }
        })
    }

    fn thread(&mut self, pid: i32, tid: i32) -> &mut Thread {
        self.process(pid).threads.insert(tid);
        self.threads.entry(tid).or_default()
    }

    /// Takes the next report.
    pub fn take(
        &mut self,
        (when, what): (SampleId, RecordBody<'_>),
        meaning: Option<Meaning>,
        emit: &mut Emit<'_>,
    ) {
        match what {
            // By ring, not by task: `Losses` counts them.
            RecordBody::Lost(_) => {}
            RecordBody::Mapped(mapped) => match &mut self.process(when.pid).exec {
                Some(exec) => exec.maps.push(mapped),
                None => self.mapped(when, mapped),
            },
            RecordBody::Name { pid, tid, exec, name } => {
                self.named(SampleId { pid, tid, ..when }, exec, name, emit);
            }
            RecordBody::Fork { .. } => self.forked(when, &what, emit),
            RecordBody::Exit { pid, tid } => self.exited(SampleId { pid, tid, ..when }, emit),
            RecordBody::Call(call) => {
                let Some(meaning) = meaning else { return };
                if meaning == Meaning::Executed {
                    if call.first == 0 {
                        self.executed(when, Some(&call), emit);
                    }
                    return;
                }
                self.executed(when, None, emit);
                let stack = StackBytes::Copied(call.stack);
                match meaning {
                    Meaning::Changed(op) => self.changed(when, op, (&call, stack), emit),
                    Meaning::Ending => self.process(when.pid).exit_code = Some(call.first as i32),
                    _ => self.about_to_clone(when, meaning, &call),
                }
            }
        }
    }

    fn mapped(&mut self, when: SampleId, mapped: Mapped) {
        let thread = self.thread(when.pid, when.tid);
        thread.unexplained += 1;
        let doubtful = thread.unexplained >= MANY_CHANGES;
        if doubtful {
            thread.unexplained = 0;
        }
        thread.mapped = Some(mapped);
        self.doubts |= doubtful;
    }

    /// True when mappings changed since the last call, and calls that would explain it were not reported.
    pub fn has_doubts(&mut self) -> bool {
        std::mem::take(&mut self.doubts)
    }

    /// A call whose stack came apart.
    pub fn changed(
        &mut self,
        when: SampleId,
        op: u16,
        call: (&Call<'_>, StackBytes<'_>),
        emit: &mut Emit<'_>,
    ) {
        let (call, stack) = call;
        self.executed(when, None, emit);
        let Some(registers) = call.registers else { return };
        let args = registers.args();
        let ret = call.first;
        let done = !(-4095..0).contains(&ret);
        match op {
            op::PRCTL if args[0] != PR_SET_VMA && args[0] != PR_SET_MM => return,
            op::SECCOMP if ret != -i64::from(libc::EBUSY) => return,
            op::PRCTL if args[0] == PR_SET_VMA && args[4] != 0 => {
                let name = text_at(when.pid, args[4]);
                Out(emit).name(&out::record(when, 0, op), &name.unwrap_or_default());
            }
            _ => {}
        }
        self.counters.seen += 1;
        let mm = self.process(when.pid).mm;
        self.counters.without_stack += u64::from(matches!(stack, StackBytes::Lost));
        let thread = self.thread(when.pid, when.tid);
        let mut record = out::record(when, mm, op);
        (record.ret, record.args) = (ret, args);
        registers.put_into(&mut record);
        thread.unexplained = 0;
        let mapped = thread.mapped.take().filter(|_| done);
        if let Some(mapped) = mapped {
            let at = ret as u64;
            let holds = mapped.start <= at && at - mapped.start < mapped.len;
            match op {
                op::MMAP if args[3] & MAP_ANONYMOUS == 0 && holds => {
                    Out(emit).mapped_file(&mut record, &mapped);
                }
                op::SHMAT if mapped.start == at => set_range(&mut record, &mapped),
                op::IO_SETUP if mapped.name.starts_with(b"/[aio]") => set_range(&mut record, &mapped),
                _ => {}
            }
        }
        let bytes = match stack {
            StackBytes::Copied(bytes) => bytes,
            StackBytes::Lost => {
                record.flags |= flag::WITHOUT_STACK;
                &[]
            }
        };
        let to_end = stack_above(thread, registers.sp());
        let bytes = match to_end.and_then(|left| bytes.get(..left as usize)) {
            Some(whole) if !bytes.is_empty() => {
                record.flags |= flag::STACK_FULL;
                whole
            }
            _ => bytes,
        };
        Out(emit).write(record, bytes);
    }

    /// How much stack a thread has above `sp`, where that is known.
    pub fn stack_above(&self, tid: i32, sp: u64) -> Option<u64> {
        stack_above(self.threads.get(&tid)?, sp)
    }

    fn named(&mut self, who: SampleId, exec: bool, name: &[u8], emit: &mut Emit<'_>) {
        self.executed(who, None, emit);
        self.thread(who.pid, who.tid).name = name.to_vec();
        if exec {
            self.process(who.pid).exec = Some(Exec { when: who, name: name.to_vec(), maps: Vec::new() });
            return;
        }
        let mut record = out::record(who, self.process(who.pid).mm, op::RENAME);
        set_comm(&mut record, name);
        Out(emit).write(record, &[]);
    }

    /// To be called when all reports until now were taken: a 32-bit program's execve returns by another
    /// tracepoint.
    pub fn settle(&mut self, emit: &mut Emit<'_>) {
        let waits = |process: &Process| {
            let program = process.exec.as_ref()?.maps.iter().find(|mapped| mapped.inode != 0)?;
            image::is_32_bit(program).then_some(process.exec.as_ref()?.when)
        };
        let waiting: Vec<SampleId> = self.processes.values().filter_map(waits).collect();
        for when in waiting {
            self.executed(when, None, emit);
        }
    }

    /// The new program begins: `call` is execve's return, or not known (it may be a 32-bit program,
    /// whose calls have other tracepoints).
    fn executed(&mut self, when: SampleId, call: Option<&Call<'_>>, emit: &mut Emit<'_>) {
        if call.is_none() && self.processes.get(&when.pid).is_none_or(|process| process.exec.is_none()) {
            return;
        }
        self.last_mm += 1;
        let mm = self.last_mm;
        let process = self.process(when.pid);
        process.mm = mm;
        process.threads = HashSet::from([when.tid]);
        let exec = process.exec.take();
        let when = if call.is_some() { when } else { exec.as_ref().map_or(when, |exec| exec.when) };
        let mut record = out::record(when, mm, op::EXEC);
        let thread = self.threads.entry(when.tid).or_default();
        thread.mapped = None;
        thread.cloning = None;
        if let Some(call) = call {
            // The kernel starts it with the stack pointer at its arguments.
            let sp = call.registers.map_or(0, |registers| registers.sp());
            thread.stack_end = sp;
            record.args[2] = sp;
            record.args[3] = u64::from(call.is_32_bit);
        }
        if let Some(exec) = exec {
            let maps = image::mappings(&exec.maps, &image::first_segment);
            maps.iter().for_each(|mapped| Out(emit).mapping(&record, &mapped.mapping()));
            if let Some(program) = exec.maps.iter().find(|mapped| mapped.inode != 0) {
                if call.is_none() {
                    record.args[3] = u64::from(image::is_32_bit(program));
                }
                Out(emit).mapped_file(&mut record, program);
            }
            record.flags |= flag::LISTED;
            set_comm(&mut record, &exec.name);
        } else {
            set_comm(&mut record, &thread.name);
        }
        self.counters.seen += 1;
        Out(emit).write(record, &[]);
    }

    fn about_to_clone(&mut self, when: SampleId, meaning: Meaning, call: &Call<'_>) {
        let Some(registers) = call.registers else { return };
        let (sp, args) = (registers.sp(), registers.args());
        let cloning = match meaning {
            Meaning::Clone => Some(cloning(args)),
            Meaning::Vfork => Some(Cloning { shares: true, sp: 0, control_block: 0 }),
            _ => args[0]
                .checked_sub(sp)
                .and_then(|at| call.stack.get(usize::try_from(at).ok()?..))
                .and_then(cloning3)
                .or_else(|| cloning3(&memory_at(when.pid, args[0], 64)?)),
        };
        self.thread(when.pid, when.tid).cloning = cloning.map(|cloning| (cloning, sp));
    }

    fn forked(&mut self, when: SampleId, fork: &RecordBody<'_>, emit: &mut Emit<'_>) {
        let &RecordBody::Fork { pid, parent, tid, parent_tid } = fork else { return };
        let by = SampleId { pid: parent, tid: parent_tid, ..when };
        let is_thread = pid == parent;
        if !is_thread && !self.follow_forks {
            return;
        }
        let mm = self.process(parent).mm;
        let maker = self.thread(parent, parent_tid);
        let cloning = maker.cloning.take();
        let (name, parents_end) = (maker.name.clone(), maker.stack_end);
        let shares =
            is_thread || cloning.map_or_else(|| share_memory(pid, parent), |(cloning, _)| cloning.shares);
        let (sp, stack_end) = match cloning {
            Some((cloning, parents)) if cloning.sp == 0 => (parents, parents_end),
            Some((cloning, _)) => (cloning.sp, cloning.control_block.max(cloning.sp)),
            None => (0, parents_end),
        };
        if !is_thread {
            self.last_mm += 1;
            let new = if shares { mm } else { self.last_mm };
            let process = Process { mm: new, handle: pidfd::open(pid).ok(), ..Process::default() };
            self.processes.insert(pid, process);
        }
        self.threads.insert(tid, Thread { stack_end, name: name.clone(), ..Thread::default() });
        let process = self.process(pid);
        process.threads.insert(tid);
        let child_mm = process.mm;
        let mut record = out::record(by, mm, op::FORK);
        record.args = [pid as u64, tid as u64, child_mm, sp, u64::from(is_thread), 0];
        record.ret = i64::from(tid);
        set_comm(&mut record, &name);
        self.counters.seen += 1;
        Out(emit).write(record, &[]);
    }

    fn exited(&mut self, who: SampleId, emit: &mut Emit<'_>) {
        self.executed(who, None, emit);
        let Some(process) = self.processes.get_mut(&who.pid) else { return };
        process.threads.remove(&who.tid);
        self.threads.remove(&who.tid);
        let mut record = out::record(who, process.mm, op::EXIT);
        if process.threads.is_empty() {
            let status = match process.exit_code {
                Some(code) => (code & 0xff) << 8,
                None => exit_status(who.pid, process.handle.as_ref()),
            };
            record.args = [i64::from(status) as u64, 1, 0, 0, 0, 0];
            self.processes.remove(&who.pid);
        }
        self.counters.seen += 1;
        Out(emit).write(record, &[]);
    }
}

fn stack_above(thread: &Thread, sp: u64) -> Option<u64> {
    thread.stack_end.checked_sub(sp).filter(|&left| left < PLAUSIBLE_STACK)
}

fn set_range(record: &mut crate::capture::record::Record, mapped: &Mapped) {
    record.flags |= flag::HAS_AUX;
    record.aux = [mapped.start, mapped.start.saturating_add(mapped.len)];
}

/// The rest of a task's end takes microseconds, unless other tasks use the processor.
const END: Duration = Duration::from_secs(1);

/// The wait status of a process whose last task has just ended, [`UNKNOWN_STATUS`] where it is not known.
fn exit_status(pid: i32, handle: Option<&OwnedFd>) -> i32 {
    if let Some(handle) = handle {
        // Its task reports before it can be waited for.
        poll::wait_readable(handle, Some(END));
    }
    pidfd::exit_status(pid, handle.map(AsFd::as_fd)).unwrap_or(UNKNOWN_STATUS)
}

/// Bytes of a process's memory as it is now; fewer where it ends.
fn memory_at(pid: i32, at: u64, length: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; length];
    let count = crate::rights::read_memory(pid, at, &mut bytes).ok()?;
    bytes.truncate(count);
    Some(bytes)
}

/// A string ended by NUL; what the calls name memory by is constant.
fn text_at(pid: i32, at: u64) -> Option<Vec<u8>> {
    const NAME_MAX: usize = 256;
    let to_page_end = (crate::model::PAGE - at % crate::model::PAGE) as usize;
    let mut bytes = memory_at(pid, at, NAME_MAX.min(to_page_end))?;
    if !bytes.contains(&0) && bytes.len() < NAME_MAX {
        bytes.extend(memory_at(pid, at + bytes.len() as u64, NAME_MAX - bytes.len()).unwrap_or_default());
    }
    let end = bytes.iter().position(|&b| b == 0)?;
    bytes.truncate(end + 1);
    Some(bytes)
}

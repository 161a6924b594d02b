//! execve: whether it has begun another program, or was refused, is not delivered. It is derived from the
//! threads that are left of the process, and from its address space.

use super::emit::TaskKey;
use super::peek;
use super::server::Server;
use super::space::Space;
use super::tasks::Executing;
use crate::capture::record::{self, RecordWriter, flag, op};
use crate::model::{HeldCalls, Mapping, Pid, Tid};
use std::time::Duration;

/// An execve without any call of the new program is examined after so long.
const EXEC_OVERDUE: Duration = Duration::from_millis(50);
/// A thread that has run for so long since then, ns, and does not sleep, is no longer in execve.
const SURELY_OVER: u64 = 2_000_000_000;
/// How often two lists of mappings are compared of which one may just be changing.
const COMPARISONS: usize = 5;

/// What an execve came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Came {
    /// It may still be on its way.
    NotYet,
    /// To nothing: the process goes on as it was.
    Refused,
    NewProgram,
}

impl<C: HeldCalls> Server<C> {
    /// A process that was in execve makes a call, by the thread `tid`: of the new program, if that has
    /// begun.
    pub fn finish_exec(&mut self, pid: Pid, tid: Tid) {
        let Some(process) = self.tasks.processes.get(&pid) else { return };
        let Some(Executing { tid: executes, .. }) = process.executing else { return };
        let old = process.space;
        let came = self.what_exec_came_to(pid, tid, executes, old);
        if came == Came::NotYet {
            return;
        }
        if came == Came::NewProgram {
            self.adopt_earlier_children(pid);
        }
        if let Some(process) = self.tasks.processes.get_mut(&pid) {
            process.executing = None;
        }
        if came == Came::Refused {
            if let Some(space) = self.tasks.spaces.get_mut(&old) {
                space.closed = false;
            }
            self.dispatch_next(old);
            return;
        }
        // The old one's descriptor goes.
        match peek::Maps::open_briefly(pid, self.config.parse_maps).and_then(Space::open) {
            Ok((space, mappings)) => self.program_begins(pid, old, space, mappings),
            Err(_) => {
                // Not to be examined (a setuid program, say).
                self.missed_task();
                self.forget_process(pid);
                self.tasks.passed.insert(pid);
            }
        }
    }

    fn what_exec_came_to(&mut self, pid: Pid, tid: Tid, executes: Tid, old: u64) -> Came {
        // All other threads end before a new program begins, and the one that executes takes over the
        // first one's number (de_thread, fs/exec.c).
        if executes != pid {
            let is_there = peek::family(executes).is_some_and(|(of, _)| of == pid);
            return match (is_there, tid == executes) {
                (true, true) => Came::Refused,
                (true, false) => Came::NotYet,
                (false, _) => Came::NewProgram,
            };
        }
        if tid != executes {
            return Came::NotYet;
        }
        let Some(space) = self.tasks.spaces.get_mut(&old) else { return Came::NewProgram };
        // The old address space is gone, unless other tasks use it, or another process has it open just now.
        if space.maps.from(0).is_err() {
            return Came::NewProgram;
        }
        if peek::layout(pid).is_some_and(|now| now != (space.start_brk, space.arguments)) {
            return Came::NewProgram;
        }
        // Without randomisation the same program lies where it lay; but not all that it had mapped.
        for _ in 0..COMPARISONS {
            let Ok(now) = peek::Maps::open_briefly(pid, self.config.parse_maps) else {
                return Came::NewProgram;
            };
            // One call of another user of the address space may be on its way.
            if now.read().is_ok_and(|now| space.maps.read().is_ok_and(|before| before == now)) {
                return Came::Refused;
            }
        }
        Came::NewProgram
    }

    fn program_begins(&mut self, pid: Pid, old: u64, space: Space, mappings: Vec<Mapping>) {
        let (start_brk, arguments) = peek::layout(pid).unwrap_or((0, 0));
        let is_32_bit = mappings.iter().all(|mapping| mapping.range.end.0 <= 1 << 32);
        let key = self.tasks.add_space(Space { brk: start_brk, start_brk, arguments, is_32_bit, ..space });
        self.leave_space(pid, old);
        if let Some(process) = self.tasks.processes.get_mut(&pid) {
            process.space = key;
        }
        self.tasks.threads.retain(|_, task| task.pid != pid);
        self.tasks.begun.retain(|begun| begun.parent != pid || !begun.new.is_thread);
        let comm = self.tasks.add_thread(pid, pid, 0).comm.clone();
        let who = TaskKey { pid, tid: pid, mm: key };
        let mut record = who.record(op::EXEC);
        record.args = [start_brk, start_brk, arguments, u64::from(is_32_bit), 0, 0];
        // A 32-bit program may have mapped a lot before its first notified call.
        if !is_32_bit {
            mappings.iter().for_each(|mapping| self.records.mapping(&record, mapping));
            record.flags |= flag::LISTED;
        }
        let exe = std::fs::read_link(format!("/proc/{pid}/exe")).ok();
        let exe = exe.map(|path| std::os::unix::ffi::OsStringExt::into_vec(path.into_os_string()));
        if let Some(mapping) = mappings.iter().find(|mapping| exe.as_ref() == Some(&mapping.name))
            && let Some(file) = mapping.file
        {
            record::set_file(&mut record, file, &mapping.name);
        }
        record::set_comm(&mut record, &comm);
        self.records.event(record, &[]);
    }

    /// Programs that make no notified call (32-bit ones, say) are reported all the same.
    pub fn finish_overdue_execs(&mut self) {
        let executing = self.tasks.processes.iter().filter_map(|(&pid, p)| Some((pid, p.executing?)));
        let overdue: Vec<(Pid, Executing)> =
            executing.filter(|(_, executing)| executing.since.elapsed() > EXEC_OVERDUE).collect();
        for (pid, Executing { tid, entry, ran, .. }) in overdue {
            let place = |tid| self.tasks.thread(tid).map(|task| task.thread.place());
            // The thread that executes takes over the first one's number.
            let in_exec = match place(tid).filter(|place| *place != peek::Place::Gone).or_else(|| place(pid))
            {
                Some(peek::Place::Blocked { nr, .. }) => nr == entry,
                // Not by the clock: it may not have been scheduled. An unknown time proves nothing.
                Some(peek::Place::Running) => peek::processor_time(tid)
                    .or_else(|| peek::processor_time(pid))
                    .is_none_or(|now| now.saturating_sub(ran) < SURELY_OVER),
                Some(peek::Place::Gone) | None => false,
            };
            if !in_exec {
                self.finish_exec(pid, tid);
            }
        }
    }
}

//! New threads and processes: requested by clone, seen at their first call or in a list of children.

use super::calls::{self, NewTask};
use super::emit::TaskKey;
use super::peek;
use super::server::Server;
use super::space::{Begun, QueuedCall, Space};
use super::tasks::Process;
use crate::capture::record::{self, RecordWriter, flag, op};
use crate::model::{HeldCall, HeldCalls, Pid, Tid};
use crate::sys::file::leaves_a_few;
use crate::sys::pidfd;
use nix::sys::epoll::{EpollEvent, EpollFlags};
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Tasks that were requested and never seen, kept at most.
const MAX_BEGUN: usize = 4096;
/// Where the kernel does not list children, a child's first call is waited for so long.
const CHILD_SPEAKS: Duration = Duration::from_millis(100);

impl<C: HeldCalls> Server<C> {
    /// The process of a thread; None when it is not watched, or gone.
    pub fn owner(&mut self, tid: Tid) -> Option<Pid> {
        if let Some(pid) = self.tasks.pid_of(tid) {
            return Some(pid);
        }
        let (pid, parent) = peek::family(tid)?;
        if self.tasks.passed.contains(&pid) {
            return None;
        }
        if self.tasks.processes.contains_key(&pid) {
            self.saw_thread(pid, tid);
            return Some(pid);
        }
        if pid == self.tasks.main {
            self.tasks.add_thread(tid, pid, 0);
            self.add_process(pid, 0);
            self.tasks.executes(pid, tid, libc::SYS_execve);
            return Some(pid);
        }
        if self.tasks.passed.contains(&parent) {
            // What its parent requested was not seen: no other's request is taken for that one.
            match self.config.follow_forks {
                true => self.pass_over(pid),
                false => drop(self.tasks.passed.insert(pid)),
            }
            return None;
        }
        let begun = self.find_begun_process(pid, parent);
        match begun {
            Some(begun) if self.config.follow_forks => self.saw_process(pid, begun),
            Some(_) => {}
            None => self.missed_task(),
        }
        if !self.tasks.processes.contains_key(&pid) {
            self.tasks.passed.insert(pid);
            return None;
        }
        self.tasks.pid_of(tid)
    }

    /// A new process that cannot be followed. What is requested later is not taken for the call that made it.
    fn pass_over(&mut self, pid: Pid) {
        self.missed_task();
        self.tasks.passed.insert(pid);
    }

    pub fn missed_task(&self) {
        self.records.queue.lost_tasks.fetch_add(1, Ordering::Relaxed);
    }

    fn add_process(&mut self, pid: Pid, space: u64) {
        // Without one, the process is examined now and then.
        let pidfd = pidfd::open(pid).ok().filter(|pidfd| leaves_a_few(pidfd.as_raw_fd()));
        if let Some(pidfd) = &pidfd {
            let _ = self.epoll.add(pidfd, EpollEvent::new(EpollFlags::EPOLLIN, pid as u64));
        }
        let process = Process { space, pidfd, executing: None, ended_by: None };
        self.tasks.processes.insert(pid, process);
    }

    /// A thread's first call.
    fn saw_thread(&mut self, pid: Pid, tid: Tid) {
        if tid == pid && self.tasks.processes.get(&pid).is_some_and(|p| p.executing.is_some()) {
            // Another thread's execve has given it the leader's number.
            self.tasks.add_thread(tid, pid, 0);
            return;
        }
        let of_process = |begun: &Begun| begun.parent == pid && begun.new.is_thread;
        let numbered = self.tasks.begun.iter().position(|begun| {
            of_process(begun) && begun.new.number_at != 0 && {
                let mut number = [0; 4];
                peek::read_memory(pid, begun.new.number_at, &mut number) == 4
                    && i32::from_ne_bytes(number) == tid
            }
        });
        let index = numbered.or_else(|| self.tasks.begun.iter().position(of_process));
        let begun = index.map(|index| self.tasks.begun.remove(index));
        self.thread_begins(pid, tid, begun);
    }

    fn thread_begins(&mut self, pid: Pid, tid: Tid, begun: Option<Begun>) {
        let Some(key) = self.tasks.space_of(pid) else { return };
        let new = begun.map(|begun| begun.new).unwrap_or_default();
        let comm = self.tasks.add_thread(tid, pid, new.control_block).comm.clone();
        let parent_tid = begun.map_or(pid, |begun| begun.parent_tid);
        let brk = self.tasks.spaces.get(&key).map_or(0, |space| space.brk);
        let mut record = TaskKey { pid, tid: parent_tid, mm: key }.record(op::FORK);
        record.args = [pid as u64, tid as u64, key, new.sp, 1, brk];
        record.ret = i64::from(tid);
        record::set_comm(&mut record, &comm);
        self.records.event(record, &[]);
    }

    /// The call that requested a process that is seen for the first time.
    fn find_begun_process(&mut self, pid: Pid, parent: Pid) -> Option<Begun> {
        let begun = &self.tasks.begun;
        let of_parent: Vec<usize> =
            (0..begun.len()).filter(|&i| !begun[i].new.is_thread && begun[i].parent == parent).collect();
        let index = match of_parent[..] {
            [one] => Some(one),
            // Its parent has ended already: one that has, too.
            [] => (0..begun.len())
                .find(|&i| !begun[i].new.is_thread && !self.tasks.processes.contains_key(&begun[i].parent)),
            [first, ..] => {
                let lists = |&i: &usize| {
                    let begun = &begun[i];
                    peek::children(begun.parent, begun.parent_tid).is_some_and(|pids| pids.contains(&pid))
                };
                of_parent.iter().copied().find(lists).or(Some(first))
            }
        };
        index.map(|index| self.tasks.begun.remove(index))
    }

    /// A new process: shares its parent's address space, or has a copy.
    fn saw_process(&mut self, pid: Pid, begun: Begun) {
        let Some(parent) = self.tasks.spaces.get_mut(&begun.space) else {
            return self.pass_over(pid);
        };
        let (brk, start_brk, arguments) = (parent.brk, parent.start_brk, parent.arguments);
        let is_32_bit = parent.is_32_bit;
        let mut listed = None;
        let key = if begun.new.shares_space {
            parent.users += 1;
            begun.space
        } else {
            if parent.running.as_ref().is_some_and(|running| {
                matches!(running.what, QueuedCall::Fork) && running.call.tid == begun.parent_tid
            }) {
                parent.running = None;
            }
            match peek::Maps::open(pid, self.config.parse_maps).and_then(Space::open) {
                Ok((space, mappings)) => {
                    // No call shows what a driver keeps from forks (VM_DONTCOPY), or that MADV_DONTFORK was
                    // refused, and one that was taken for over may have come about before the fork. The
                    // child has not changed anything yet: its calls wait.
                    let differs =
                        is_32_bit || parent.keeps_from_forks || !parent.shadow.agrees_with(&mappings);
                    listed = differs.then_some(mappings);
                    self.tasks.add_space(Space { brk, start_brk, arguments, is_32_bit, ..space })
                }
                Err(_) => return self.pass_over(pid),
            }
        };
        self.add_process(pid, key);
        let control_block = match begun.new.control_block {
            0 => self.tasks.thread(begun.parent_tid).map_or(0, |task| task.control_block),
            own => own,
        };
        let comm = self.tasks.add_thread(pid, pid, control_block).comm.clone();
        let who = TaskKey { pid: begun.parent, tid: begun.parent_tid, mm: begun.space };
        let mut record = who.record(op::FORK);
        if let Some(mappings) = listed {
            mappings.iter().for_each(|mapping| self.records.mapping(&record, mapping));
            record.flags |= flag::LISTED;
        }
        record.args = [pid as u64, pid as u64, key, begun.new.sp, 0, brk];
        record.ret = i64::from(pid);
        record::set_comm(&mut record, &comm);
        self.records.event(record, &[]);
        self.dispatch_next(begun.space);
    }

    /// What a call that creates a task requests.
    pub fn new_task(&self, call: &HeldCall) -> NewTask {
        let read = |at: u64, into: &mut [u8]| peek::read_memory(call.tid, at, into);
        let new = calls::new_task(call.nr, &call.args, read);
        // A 32-bit program gives the description of a segment in place of its control block.
        NewTask { control_block: if call.is_32_bit { 0 } else { new.control_block }, ..new }
    }

    /// A call that makes a task is about to go on.
    pub fn note_clone(&mut self, key: u64, pid: Pid, call: &HeldCall) {
        let begun = Begun { parent: pid, parent_tid: call.tid, space: key, new: self.new_task(call) };
        if self.tasks.begun.len() >= MAX_BEGUN {
            self.tasks.begun.remove(0);
        }
        self.tasks.begun.push(begun);
    }

    /// The thread has returned from the calls by which it made tasks.
    pub fn finish_clones(&mut self, tid: Tid) {
        while let Some(index) = self.tasks.begun.iter().position(|begun| begun.parent_tid == tid) {
            let begun = self.tasks.begun.remove(index);
            if begun.new.is_thread {
                let mut number = [0; 4];
                let read = begun.new.number_at != 0
                    && peek::read_memory(tid, begun.new.number_at, &mut number) == number.len();
                let new = i32::from_ne_bytes(number);
                let is_new = read && new > 0 && self.tasks.thread(new).is_none();
                if is_new && peek::family(new).is_some_and(|(pid, _)| pid == begun.parent) {
                    self.thread_begins(begun.parent, new, Some(begun));
                }
            } else {
                self.adopt_child(begun);
            }
        }
    }

    /// Searches for the child that this call created. False: there is none, or it cannot be seen.
    fn adopt_child(&mut self, begun: Begun) -> bool {
        let children = peek::children(begun.parent, begun.parent_tid).unwrap_or_default();
        // Those that have ended stay in the list until they are waited for.
        let is_new = |pid: &&Pid| {
            !self.tasks.processes.contains_key(pid)
                && !self.tasks.passed.contains(pid)
                && !peek::is_zombie(**pid)
        };
        let Some(&child) = children.iter().find(is_new) else { return false };
        if self.config.follow_forks {
            self.saw_process(child, begun);
        } else {
            self.tasks.passed.insert(child);
        }
        true
    }

    /// A process has begun another program. Children that it requested before, and that have made no call
    /// yet, use the address space that it leaves, or have a copy: they come first.
    pub fn adopt_earlier_children(&mut self, pid: Pid) {
        let (unmet, others): (Vec<Begun>, Vec<Begun>) = std::mem::take(&mut self.tasks.begun)
            .into_iter()
            .partition(|b| b.parent == pid && !b.new.is_thread);
        self.tasks.begun = others;
        for begun in unmet {
            // Its thread has ended in the execve; its children are now those of the one that executed.
            if !self.adopt_child(Begun { parent_tid: pid, ..begun }) {
                self.tasks.begun.push(begun);
            }
        }
    }

    /// Whether a fork that was continued `age` ago is over: its child is there, or `returned` and there is
    /// none.
    pub fn fork_is_over(&mut self, key: u64, tid: Tid, returned: bool, age: Duration) -> bool {
        let of_thread = |begun: &Begun| begun.parent_tid == tid && begun.space == key && !begun.new.is_thread;
        let Some(index) = self.tasks.begun.iter().position(of_thread) else { return true };
        let begun = self.tasks.begun[index];
        self.tasks.begun.remove(index);
        if self.adopt_child(begun) {
            return true;
        }
        // Where the kernel does not list children, the child's first call shows; but not for ever.
        let is_gone = || peek::family(tid).is_none();
        if returned && (age > CHILD_SPEAKS || peek::children(begun.parent, tid).is_some() || is_gone()) {
            return true;
        }
        self.tasks.begun.push(begun);
        false
    }
}

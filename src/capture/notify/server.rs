//! The thread that serves the target: it takes each notified call, notes it with its stack, lets it
//! go on, and finds out what it did.
//!
//! Calls that may change an address space run one at a time in it. The next one's notification, or the
//! current maps, show that the one before is over. Whatever happens, each call is continued as it was made.

use super::NotifyConfig;
use super::calls::{self, Kind};
use super::effect::Effect;
use super::emit::{self, RecordQueue};
use super::peek;
use super::queue::Queue;
use super::space::{InCall, QueuedCall, Sleeps};
use super::tasks::Tasks;
use crate::capture::record::{self, Record, flag, op};
use crate::model::{Arrival, Ended, HeldCall, HeldCalls, Pid};
use crate::sys::clock::monotonic_ns;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long to wait before checking again whether a call is over, while another one waits for it.
const FIRST_POLL: Duration = Duration::from_micros(50);
const LAST_POLL: Duration = Duration::from_millis(2);
/// The same while no call waits.
pub const NOBODY_WAITS: Duration = Duration::from_millis(2);
const NOTHING_RUNS: Duration = Duration::from_secs(1);
/// How often a thread's name is read, ns: it can be changed without a notified call.
const NAME_AGE: u64 = 10_000_000;
/// While calls come one after the other, everything else is handled at least so often.
const AT_LEAST: Duration = Duration::from_millis(10);
/// … but polling takes at most one part in so many of the time.
const POLL_SHARE: u32 = 4;
/// Calls wait for the one before them until its thread has slept in it for so long, without ever being
/// woken: what it sleeps for may be waiting for them (a page fault that another thread of the program
/// serves). A thread that is merely not let run is waited for.
const GIVE_UP: Duration = Duration::from_secs(10);
/// How often to examine that.
const SLEEP_POLL: Duration = Duration::from_secs(1);
/// When all tasks are gone, their ends are waited for at most so long.
const LAST_ENDS: Duration = Duration::from_secs(10);

/// What the epoll instance reports: a request of the reader, or the end of the process of that number.
const FROM_READER: u64 = 0;

pub struct Server<C> {
    pub calls: C,
    pub records: RecordQueue,
    pub config: NotifyConfig,
    pub epoll: Epoll,
    pub tasks: Tasks,
    queue: Arc<Queue>,
    rounds: u32,
    last_poll: Instant,
    snapshot_duration: Duration,
}

/// Dropped after the server, also when that fails: the calls that it held have been continued.
struct EndOfServer(Arc<Queue>);

impl Drop for EndOfServer {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.report_trouble(|| {
                "vmaudit's thread that watches system calls has failed: what was called after that is not known"
                    .to_owned()
            });
            self.0.lost.fetch_add(1, Ordering::Relaxed);
        }
        self.0.end();
    }
}

impl<C: HeldCalls> Server<C> {
    /// `main` is the process whose first call is the first of its program.
    pub fn new(calls: C, queue: Arc<Queue>, config: NotifyConfig, main: Pid) -> io::Result<Server<C>> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        epoll.add(&queue.call, EpollEvent::new(EpollFlags::EPOLLIN, FROM_READER))?;
        let records = RecordQueue::new(Arc::clone(&queue));
        Ok(Server {
            calls,
            records,
            config,
            epoll,
            tasks: Tasks::new(main),
            queue,
            rounds: 0,
            last_poll: Instant::now(),
            snapshot_duration: Duration::ZERO,
        })
    }

    /// Until no task is left, or the reader stops it. Whatever happens, no call is left without an answer,
    /// and the reader is notified.
    pub fn run(self) {
        let _end = EndOfServer(Arc::clone(&self.queue));
        self.serve();
    }

    fn serve(mut self) {
        while !self.queue.stop.load(Ordering::Relaxed) {
            let (others, patience) = (self.epoll.0.as_raw_fd(), self.patience());
            match self.calls.next(others, patience) {
                Ok(Arrival::Call(call)) => {
                    self.rounds = 0;
                    self.arrive(call);
                    if self.last_poll.elapsed()
                        > AT_LEAST.max(self.snapshot_duration.saturating_mul(POLL_SHARE))
                    {
                        self.receive(EpollTimeout::ZERO);
                        self.poll_calls();
                    }
                }
                Ok(Arrival::Other) => self.receive(EpollTimeout::ZERO),
                Ok(Arrival::Nothing) => self.poll_calls(),
                Ok(Arrival::NoTaskLeft) => {
                    self.drain_exits();
                    break;
                }
                // The listener itself failed: the keeper takes over when this end is dropped.
                Err(error) => {
                    self.queue.report_trouble(|| {
                        format!(
                            "receiving system calls failed ({error}): what was called after that is not known"
                        )
                    });
                    self.records.lost();
                    break;
                }
            }
            self.queue.unsettled.store(self.tasks.is_unsettled(), Ordering::Relaxed);
        }
    }

    /// All tasks have ended: waits until the kernel says so of each process.
    fn drain_exits(&mut self) {
        let begun = Instant::now();
        while self.tasks.any_process() && begun.elapsed() < LAST_ENDS {
            self.receive(EpollTimeout::from(10u8));
            self.find_ended();
        }
    }

    fn patience(&mut self) -> Duration {
        if self.tasks.somebody_waits() {
            self.rounds += 1;
            return FIRST_POLL.saturating_mul(1 << self.rounds.min(6)).min(LAST_POLL);
        }
        if self.tasks.is_unsettled() {
            NOBODY_WAITS.saturating_mul(1 << self.rounds.min(6))
        } else {
            NOTHING_RUNS
        }
    }

    /// Requests of the reader, and ends of processes.
    fn receive(&mut self, timeout: EpollTimeout) {
        let mut ready = [EpollEvent::empty(); 32];
        let count = self.epoll.wait(&mut ready, timeout).unwrap_or(0);
        let mut requests = None;
        for event in &ready[..count] {
            match event.data() {
                FROM_READER => requests = Some(self.queue.requests()),
                pid => self.process_ended(pid as Pid),
            }
        }
        if let Some(requests) = requests {
            self.poll_calls();
            self.queue.settled(requests);
        }
    }

    /// Checks whether calls that were continued are over.
    pub fn poll_calls(&mut self) {
        self.rounds += 1;
        let begun = Instant::now();
        self.finish_overdue_execs();
        self.find_ended();
        for key in self.tasks.busy_spaces() {
            self.conclude(key, false);
            self.give_up(key);
            self.dispatch_next(key);
        }
        self.last_poll = Instant::now();
        self.snapshot_duration = self.last_poll - begun;
    }

    /// A call that others have waited for too long is counted as lost.
    fn give_up(&mut self, key: u64) {
        let Some(space) = self.tasks.spaces.get_mut(&key) else { return };
        if space.waiting.is_empty() {
            return;
        }
        let Some(InCall { call, what, .. }) = space.running.take_if(is_blocked) else { return };
        if let QueuedCall::Effect { .. } = what {
            if let Ok(mappings) = space.maps.read() {
                space.shadow.renew(&mappings);
            }
            self.records.lost();
        }
        self.queue.report_trouble(|| {
            format!(
                "system call {} of thread {} has slept for {GIVE_UP:?} while other calls waited for it; they went \
                 on, and what it did may be reported wrongly",
                call.nr, call.tid
            )
        });
    }

    fn arrive(&mut self, call: HeldCall) {
        let Some(pid) = self.owner(call.tid) else { return self.pass(&call) };
        self.finish_exec(pid, call.tid);
        let Some(key) = self.tasks.space_of(pid) else { return self.pass(&call) };
        if self.tasks.running_tid(key) == Some(call.tid) {
            self.conclude(key, true);
        }
        self.has_returned(key, call.tid);
        self.finish_clones(call.tid);
        self.refresh_name(call.tid, pid, key);
        self.take(key, pid, call);
        self.dispatch_next(key);
    }

    /// A call of a process that is not watched.
    fn pass(&mut self, call: &HeldCall) {
        match calls::kind(call.nr, &call.args) {
            Kind::Exit | Kind::ExitGroup => drop(self.calls.end(call)),
            _ => drop(self.calls.go_on(call.id)),
        }
    }

    fn take(&mut self, key: u64, pid: Pid, call: HeldCall) {
        match calls::kind(call.nr, &call.args) {
            Kind::Memory(_) | Kind::ExitGroup | Kind::Exec => self.wait_turn(key, pid, call),
            Kind::Clone => {
                if self.new_task(&call).shares_space {
                    self.note_clone(key, pid, &call);
                    self.calls.go_on(call.id);
                } else {
                    self.wait_turn(key, pid, call);
                }
            }
            Kind::Rename => {
                self.tasks.name_is_stale(call.tid);
                self.calls.go_on(call.id);
            }
            Kind::Seccomp => {
                self.seccomp(key, pid, &call);
                self.calls.go_on(call.id);
            }
            Kind::Exit => self.exit(key, pid, &call),
            Kind::Other => drop(self.calls.go_on(call.id)),
        }
    }

    /// A listener of its own is refused as long as ours is there.
    fn seccomp(&mut self, key: u64, pid: Pid, call: &HeldCall) {
        let [operation, flags, ..] = call.args;
        let has_listener = flags & libc::SECCOMP_FILTER_FLAG_NEW_LISTENER != 0;
        if operation == u64::from(libc::SECCOMP_SET_MODE_FILTER) && has_listener {
            let (mut record, stack) = self.note(key, pid, call, op::SECCOMP);
            record.ret = i64::from(-libc::EBUSY);
            self.records.event(record, &stack);
        }
    }

    /// exit of one thread, or of the last one.
    fn exit(&mut self, key: u64, pid: Pid, call: &HeldCall) {
        match self.calls.end(call) {
            Ended::Thread => self.thread_ended(pid, call, key),
            Ended::Process(_) => self.close(key, pid, call),
        }
    }

    fn close(&mut self, key: u64, pid: Pid, call: &HeldCall) {
        self.tasks.note_status(pid, call);
        if let Some(space) = self.tasks.spaces.get_mut(&key).filter(|space| space.users == 1) {
            space.closed = true;
        }
    }

    /// Begins the call if none is running in its address space, else lets it wait.
    fn wait_turn(&mut self, key: u64, pid: Pid, call: HeldCall) {
        if self.tasks.running_tid(key).is_some() {
            self.conclude(key, false);
        }
        let Some(space) = self.tasks.spaces.get_mut(&key) else { return self.pass(&call) };
        if space.closed || space.running.is_some() || !space.waiting.is_empty() {
            space.waiting.push_back(call);
            return;
        }
        self.begin(key, pid, call);
    }

    /// Begins what waits, as far as it can.
    pub fn dispatch_next(&mut self, key: u64) {
        loop {
            let Some(space) = self.tasks.spaces.get_mut(&key) else { return };
            if space.closed || space.running.is_some() {
                return;
            }
            let Some(call) = space.waiting.pop_front() else { return };
            match self.tasks.pid_of(call.tid).filter(|_| self.calls.is_held(call.id)) {
                Some(pid) => self.begin(key, pid, call),
                None => drop(self.calls.go_on(call.id)),
            }
        }
    }

    fn begin(&mut self, key: u64, pid: Pid, call: HeldCall) {
        self.compare(key);
        let what = match calls::kind(call.nr, &call.args) {
            Kind::ExitGroup => {
                // A thread that has not returned yet never will.
                if let Some(space) = self.tasks.spaces.get_mut(&key) {
                    space.to_compare.append(&mut space.unproven);
                }
                self.compare(key);
                // An earlier thread's exit_group may have been received before: both end here.
                match self.calls.end(&call) {
                    Ended::Thread => {}
                    Ended::Process(_) => self.close(key, pid, &call),
                }
                return;
            }
            Kind::Exec => {
                self.tasks.executes(pid, call.tid, call.entry);
                self.calls.go_on(call.id);
                return;
            }
            Kind::Clone => {
                self.note_clone(key, pid, &call);
                QueuedCall::Fork
            }
            Kind::Memory(op) => {
                let (mut record, stack) = self.note(key, pid, &call, op);
                let name = self.note_name(op, &call);
                let Some(space) = self.tasks.spaces.get_mut(&key) else { return self.pass(&call) };
                let expected = space.expect(op, &call, name.as_deref());
                if let super::effect::Expected::Known(ret) = expected {
                    record.ret = ret;
                    self.calls.go_on(call.id);
                    self.report(key, record, &stack, &Effect::of(ret), name);
                    return;
                }
                QueuedCall::Effect { expected: Box::new(expected), record: Box::new(record), stack }
            }
            _ => return self.pass(&call),
        };
        let (sp, below_stack) = match &what {
            QueuedCall::Effect { record, .. } if self.tasks.has_others(pid, call.tid) => {
                (record.sp, peek::below_stack(call.tid, record.sp))
            }
            _ => (0, Vec::new()),
        };
        let Some(space) = self.tasks.spaces.get_mut(&key) else { return self.pass(&call) };
        let since = Instant::now();
        space.running =
            Some(InCall { call, since, processor_time: None, sleeps: None, below_stack, sp, what });
        if !self.calls.go_on(call.id) {
            // Its task was killed.
            self.tasks.forget_fork(key, call.tid);
            if let Some(space) = self.tasks.spaces.get_mut(&key) {
                space.running = None;
            }
        }
    }

    /// The record of a call, without its result, and its stack.
    fn note(&mut self, key: u64, pid: Pid, call: &HeldCall, op: u16) -> (Record, Vec<u8>) {
        let mut record = emit::TaskKey { pid, tid: call.tid, mm: key }.record(op);
        (record.args, record.ip, record.flags) = (call.args, call.ip, flag::FEW_REGISTERS);
        let sp = self.tasks.thread(call.tid).and_then(|task| emit::stack_pointer(&task.thread));
        let Some(sp) = sp else {
            record.flags |= flag::STACK_UNREADABLE;
            return (record, Vec::new());
        };
        record.sp = sp;
        let control_block = self.tasks.thread(call.tid).map_or(0, |task| task.control_block);
        let Some(space) = self.tasks.spaces.get_mut(&key) else { return (record, Vec::new()) };
        let end = space.stack_end(sp, control_block);
        let stack = emit::copy_stack(&mut record, end, self.config.stack_bytes);
        (record, stack)
    }

    /// The name that prctl gives to a mapping.
    fn note_name(&self, op: u16, call: &HeldCall) -> Option<Vec<u8>> {
        let at = call.args[4];
        if op != op::PRCTL || at == 0 {
            return None;
        }
        let mut bytes = [0; 256];
        let mut len = peek::read_memory(call.tid, at, &mut bytes);
        if len == 0 {
            // It may end just before a page that is not there.
            let most = (crate::model::PAGE - at % crate::model::PAGE).min(256) as usize;
            len = peek::read_memory(call.tid, at, &mut bytes[..most]);
        }
        let name = &bytes[..len];
        Some(name[..name.iter().position(|&b| b == 0).unwrap_or(len)].to_vec())
    }

    fn refresh_name(&mut self, tid: i32, pid: Pid, key: u64) {
        let Some(task) = self.tasks.thread_mut(tid) else { return };
        let now = monotonic_ns();
        if now.saturating_sub(task.named_ns) < NAME_AGE {
            return;
        }
        task.named_ns = now;
        let Some(comm) = task.thread.comm() else { return };
        if comm != task.comm {
            task.comm.clone_from(&comm);
            let mut record = emit::TaskKey { pid, tid, mm: key }.record(op::RENAME);
            record::set_comm(&mut record, &comm);
            self.records.event(record, &[]);
        }
    }
}

/// The thread of the call has slept in it for `GIVE_UP` at least. To be called often.
fn is_blocked(running: &mut InCall) -> bool {
    let now = Instant::now();
    let seen_at = running.sleeps.map_or(running.since, |sleeps| sleeps.seen_at);
    if now - seen_at < SLEEP_POLL {
        return false;
    }
    let switches = peek::sleeping(running.call.tid);
    running.sleeps = Some(match running.sleeps {
        // Checks that are far apart say nothing of the time between: vmaudit itself may not have run.
        Some(before) if before.switches == switches && switches.is_some() => Sleeps {
            seen_at: now,
            slept: before.slept + (now - before.seen_at).min(SLEEP_POLL * 2),
            switches,
        },
        _ => Sleeps { seen_at: now, slept: Duration::ZERO, switches },
    });
    running.sleeps.is_some_and(|sleeps| sleeps.slept > GIVE_UP)
}

#[cfg(test)]
mod tests;

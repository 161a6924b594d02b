//! The server with threads of the test itself, which are released and run for a while: how far a running
//! thread is with its call only the kernel knows.

use super::*;
use crate::capture::notify::peek::{Maps, processor_time};
use crate::capture::notify::results::{LIKELY_BACK, SURELY_BACK};
use crate::capture::notify::space::Space;
use crate::capture::notify::tasks::Process;
use crate::model::{Addr, AddrRange, Mapping, PAGE, Prot, Sharing, Tid};
use std::collections::HashMap;
use std::sync::atomic::AtomicU32;
use std::thread::JoinHandle;

/// Every call goes on, and none comes by itself.
struct Calls;

impl HeldCalls for Calls {
    fn next(&mut self, _: i32, _: Duration) -> io::Result<Arrival> {
        Ok(Arrival::Nothing)
    }
    fn go_on(&mut self, _: u64) -> bool {
        true
    }
    fn is_held(&self, _: u64) -> bool {
        true
    }
    fn has_begun(&self, _: u64) -> bool {
        true
    }
    fn end(&mut self, _: &HeldCall) -> Ended {
        Ended::Thread
    }
}

fn mappings_of(bytes: &[u8]) -> Vec<Mapping> {
    let text = String::from_utf8_lossy(bytes);
    let mapping = |line: &str| {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let hex = |text| u64::from_str_radix(text, 16).ok();
        let prot = Prot { read: rest.starts_with('r'), write: &rest[1..2] == "w", exec: &rest[2..3] == "x" };
        Some(Mapping {
            range: AddrRange { start: Addr(hex(start)?), end: Addr(hex(end)?) },
            prot,
            sharing: Sharing::Private,
            offset: 0,
            file: None,
            name: rest.split_ascii_whitespace().nth(4).unwrap_or_default().as_bytes().to_vec(),
        })
    };
    text.lines().filter_map(mapping).collect()
}

const RUNS: u32 = 0;
const CALLS: u32 = 1;
const CALLED: u32 = 2;
const ENDS: u32 = 3;

/// A thread that runs all the time, and unmaps its page on request.
struct Runner {
    tid: Tid,
    page: u64,
    state: Arc<AtomicU32>,
    thread: Option<JoinHandle<()>>,
}

impl Runner {
    fn new() -> Runner {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new page at an unused address.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), PAGE as usize, libc::PROT_NONE, flags, -1, 0) };
        assert_ne!(page, libc::MAP_FAILED);
        let page = page as u64;
        let state = Arc::new(AtomicU32::new(RUNS));
        let own = Arc::clone(&state);
        let (sender, receiver) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            sender.send(nix::unistd::gettid().as_raw()).expect("the test waits");
            loop {
                match own.load(Ordering::Acquire) {
                    CALLS => {
                        // SAFETY: the page of `new`, which nothing uses.
                        assert_eq!(unsafe { libc::munmap(page as *mut libc::c_void, PAGE as usize) }, 0);
                        own.store(CALLED, Ordering::Release);
                    }
                    ENDS => return,
                    _ => std::hint::spin_loop(),
                }
            }
        });
        Runner { tid: receiver.recv().expect("a number"), page, state, thread: Some(thread) }
    }

    /// That it is about to unmap its page.
    fn call(&self) -> HeldCall {
        let args = [self.page, PAGE, 0, 0, 0, 0];
        let nr = libc::SYS_munmap;
        HeldCall { id: self.page, tid: self.tid, nr, entry: nr, is_32_bit: false, args, ip: 0 }
    }

    fn unmaps(&self) {
        self.state.store(CALLS, Ordering::Release);
        while self.state.load(Ordering::Acquire) != CALLED {
            std::thread::yield_now();
        }
    }

    /// The server polls again and again, while the thread runs for so long, ns.
    fn runs_for(&self, time: u64, server: &mut Server<Calls>) {
        let ran = || processor_time(self.tid).expect("the thread is there");
        let begun = ran();
        while ran() - begun < time {
            server.poll_calls();
        }
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        self.state.store(ENDS, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn server(runners: &[&Runner]) -> (Server<Calls>, Arc<Queue>, u64) {
    let queue = Arc::new(Queue::new(1 << 20).expect("a queue"));
    let own = std::process::id() as Pid;
    let config =
        NotifyConfig { stack_bytes: PAGE, queue_bytes: 1 << 20, follow_forks: true, parse_maps: mappings_of };
    let mut server = Server::new(Calls, Arc::clone(&queue), config, own).expect("a server");
    let (space, _) = Maps::open(own, mappings_of).and_then(Space::open).expect("maps can be read");
    let key = server.tasks.add_space(space);
    server.tasks.processes.insert(own, Process { space: key, pidfd: None, executing: None, ended_by: None });
    for runner in runners {
        server.tasks.add_thread(runner.tid, own, 0);
    }
    (server, queue, key)
}

/// The results of unmapping, by thread.
fn results(queue: &Queue) -> HashMap<Tid, i64> {
    let taken = queue.take();
    let records = taken.iter().filter_map(|bytes| record::read(bytes));
    records.filter(|(r, _)| r.op == op::MUNMAP).map(|(r, _)| (r.tid as Tid, r.ret)).collect()
}

/// However long its thread has run since: a virtual machine's processor can be stopped without notice.
#[test]
fn a_call_that_nobody_waits_for_is_not_taken_for_refused() {
    let runner = Runner::new();
    let (mut server, queue, _) = server(&[&runner]);
    server.arrive(runner.call());
    runner.runs_for(3 * LIKELY_BACK, &mut server);
    assert_eq!(results(&queue), HashMap::new());
    runner.unmaps();
    server.poll_calls();
    assert_eq!(results(&queue), HashMap::from([(runner.tid, 0)]));
    assert_eq!(queue.lost.load(Ordering::Relaxed), 0);
}

/// The waiting call goes on at last; what the first one did after that is lost, and reported as lost.
#[test]
fn a_call_that_comes_about_after_it_was_given_up_counts_as_lost() {
    let (first, second) = (Runner::new(), Runner::new());
    let (mut server, queue, key) = server(&[&first, &second]);
    server.arrive(first.call());
    server.arrive(second.call());
    first.runs_for(3 * LIKELY_BACK, &mut server);
    assert_eq!(results(&queue), HashMap::new());
    first.runs_for(SURELY_BACK, &mut server);
    let refused = HashMap::from([(first.tid, crate::capture::notify::effect::REFUSED)]);
    assert_eq!(results(&queue), refused);
    first.unmaps();
    second.unmaps();
    server.poll_calls();
    assert_eq!(results(&queue), HashMap::from([(second.tid, 0)]));
    assert_eq!(queue.lost.load(Ordering::Relaxed), 0);
    // The first thread's next call, of the same kind.
    server.arrive(first.call());
    assert_eq!(queue.lost.load(Ordering::Relaxed), 1);
    let space = server.tasks.spaces.get(&key).expect("the address space");
    assert!(space.shadow.at(first.page).is_none() && space.unproven.is_empty());
}

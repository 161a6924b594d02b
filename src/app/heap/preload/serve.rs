//! The threads that processes with the library depend on: none of them waits for vmaudit's own work.

use super::heaps::Preloaded;
use crate::capture::preload::{Area, Armed, Arrival, Hub, Unwilling};
use crate::model::Pid;
use crate::session::say::say;
use crate::sys::clock::monotonic_ns;
use rustix::io::Errno;
use rustix::thread::futex;
use rustix::time::{ClockId, Timespec};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::Duration;

/// How exact the time of an allocation is known.
const TICK: Duration = Duration::from_millis(4);
/// How long at most until it is seen that a process has ended, or that all is over.
const GLANCE: Duration = Duration::from_millis(20);
/// How long a process that is woken waits at most until its connection is taken.
const WAKING: Duration = Duration::from_millis(2);
/// Failures of processes that are said one by one.
const MOST_SAID: u32 = 10;

/// How long at most until a process is seen that has rung and that is one of too many to be waited for.
const LATE: Duration = Duration::from_millis(1);

/// A process, for as long as it counts.
struct Served {
    pid: Pid,
    control: u64,
    area: Weak<Area>,
}

/// What the threads share.
#[derive(Default)]
struct Shared {
    over: AtomicBool,
    served: Mutex<Vec<Served>>,
}

/// Until it is dropped.
pub struct Service {
    shared: Arc<Shared>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Service {
    /// Serves the processes of a hub, and those that sleep.
    ///
    /// # Errors
    /// When no thread can be made.
    pub fn start(
        heaps: &Arc<Mutex<Preloaded>>,
        hub: Hub,
        sleeping: Vec<Armed>,
        start_ns: u64,
    ) -> io::Result<Service> {
        let shared = Arc::new(Shared::default());
        let mut service = Service { shared: Arc::clone(&shared), threads: Vec::new() };
        let mut spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
            service.threads.push(thread::Builder::new().name(name.to_owned()).spawn(work)?);
            io::Result::Ok(())
        };
        let own = Arc::clone(&shared);
        spawn("clock", Box::new(move || own.keep_time(start_ns)))?;
        let (own, counted) = (Arc::clone(&shared), Arc::clone(heaps));
        spawn("unwind rules", Box::new(move || own.publish_rules(&counted)))?;
        let mut listening = Listening { shared, heaps: Arc::clone(heaps), hub, sleeping, failures: 0 };
        spawn("listener", Box::new(move || listening.run()))?;
        Ok(service)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.shared.over.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// The processes see by it that vmaudit is there, too.
    fn keep_time(&self, start_ns: u64) {
        while !self.over.load(Relaxed) {
            let milliseconds = monotonic_ns().saturating_sub(start_ns) / 1_000_000;
            let milliseconds = u32::try_from(milliseconds).unwrap_or(u32::MAX);
            let mut served = self.served.lock().unwrap_or_else(PoisonError::into_inner);
            served
                .retain(|each| each.area.upgrade().inspect(|area| area.publish_time(milliseconds)).is_some());
            drop(served);
            thread::sleep(TICK);
        }
    }

    fn areas(&self) -> Vec<Arc<Area>> {
        let served = self.served.lock().unwrap_or_else(PoisonError::into_inner);
        served.iter().filter_map(|each| each.area.upgrade()).collect()
    }

    fn publish_rules(&self, heaps: &Mutex<Preloaded>) {
        while !self.over.load(Relaxed) {
            let areas = self.areas();
            let rung: Vec<u32> = areas.iter().map(|area| area.bell().rung.load(Acquire)).collect();
            let some = heaps.lock().unwrap_or_else(PoisonError::into_inner).answer(wake);
            if !some {
                wait_for_one(&areas, &rung);
            }
        }
    }
}

/// Until one of the processes rings, or not for long.
fn wait_for_one(areas: &[Arc<Area>], rung: &[u32]) {
    const MOST: usize = 128;
    let words: Vec<futex::Wait> = areas
        .iter()
        .zip(rung)
        .take(MOST)
        .map(|(area, &rung)| {
            let mut word = futex::Wait::new();
            word.uaddr = futex::WaitPtr::new((&raw const area.bell().rung).cast_mut().cast());
            word.val = u64::from(rung);
            word.flags = futex::WaitFlags::SIZE_U32;
            word
        })
        .collect();
    let patience = if areas.len() > MOST { LATE } else { GLANCE };
    let until = Timespec::try_from(Duration::from_nanos(monotonic_ns()) + patience).unwrap_or_default();
    let waited = match words.is_empty() {
        true => Err(Errno::NOSYS),
        false => futex::waitv(&words, futex::WaitvFlags::empty(), Some(&until), ClockId::Monotonic).map(drop),
    };
    // Before Linux 5.16 there is no waiting for several.
    if waited == Err(Errno::NOSYS) {
        thread::sleep(if words.is_empty() { GLANCE } else { LATE });
    }
}

/// Wakes a thread of a process, whose request is answered.
pub fn wake(state: &AtomicU32) {
    let _ = futex::wake(state, futex::Flags::empty(), 1);
}

/// The thread that processes speak to.
struct Listening {
    shared: Arc<Shared>,
    heaps: Arc<Mutex<Preloaded>>,
    hub: Hub,
    sleeping: Vec<Armed>,
    failures: u32,
}

impl Listening {
    fn run(&mut self) {
        while !self.shared.over.load(Relaxed) {
            let time = if self.sleeping.is_empty() { GLANCE } else { WAKING };
            for begun in self.hub.wait(time) {
                match begun {
                    Ok(arrival) => self.begin(arrival),
                    Err((pid, error)) => self.failed(pid, &error.to_string()),
                }
            }
            self.wake();
            self.take_forked();
        }
        self.sleeping.iter().for_each(Armed::leave);
    }

    fn begin(&mut self, arrival: Arrival) {
        self.sleeping.retain(|process| process.pid != arrival.pid);
        let Arrival { pid, control, .. } = arrival;
        let served = Served { pid, control, area: Arc::downgrade(&arrival.area) };
        self.shared.served.lock().unwrap_or_else(PoisonError::into_inner).push(served);
        let mut heaps = self.heaps.lock().unwrap_or_else(PoisonError::into_inner);
        heaps.finish_ended();
        heaps.add(arrival);
    }

    /// Children of fork that find no way to vmaudit have rung their parent's bell.
    fn take_forked(&mut self) {
        let served = self.shared.served.lock().unwrap_or_else(PoisonError::into_inner);
        let mut waiting = Vec::new();
        for parent in served.iter() {
            let Some(area) = parent.area.upgrade() else { continue };
            for slot in &area.bell().forked {
                let (number, pid) = (slot.number.load(Acquire), slot.pid.load(Acquire) as Pid);
                if number != 0 && pid != 0 {
                    waiting.push((Arc::clone(&area), number, candidates(parent, pid)));
                }
            }
        }
        drop(served);
        for (area, number, candidates) in waiting {
            let taken = candidates.iter().find_map(|child| Some((child, child.take(number).ok()??)));
            if let Some((child, connection)) = taken.filter(|(child, _)| self.hub.is_selected(child.pid)) {
                match self.hub.begin(connection, child.pid, true) {
                    Ok(arrival) => self.begin(Arrival { control: child.control(), ..arrival }),
                    Err(error) => self.failed(child.pid, &error.to_string()),
                }
            }
            // It waits no longer where it may not be inspected, or is none.
            for slot in &area.bell().forked {
                let _ = slot.number.compare_exchange(number, 0, AcqRel, Relaxed);
            }
        }
    }

    fn wake(&mut self) {
        if let Ok(mut heaps) = self.heaps.try_lock() {
            heaps.finish_ended();
            self.sleeping.extend(heaps.take_asleep());
        }
        for process in std::mem::take(&mut self.sleeping) {
            match process.wake() {
                Ok(None) => self.sleeping.push(process),
                Ok(Some(connection)) => match self.hub.begin(connection, process.pid, false) {
                    Ok(arrival) => self.begin(Arrival { control: process.control(), ..arrival }),
                    Err(error) => self.failed(process.pid, &error.to_string()),
                },
                Err(Unwilling::CountsFor(other)) => {
                    self.failed(process.pid, &format!("it counts for vmaudit {other}, until that one ends"));
                }
                // It has ended, or is another program by now.
                Err(Unwilling::Refused(_)) => {}
            }
        }
    }

    fn failed(&mut self, pid: Pid, why: &str) {
        let mut heaps = self.heaps.lock().unwrap_or_else(PoisonError::into_inner);
        // A program that executes another one may be refused as both.
        if heaps.refused.insert(pid, why.to_owned()).is_some_and(|known| known == why) {
            return;
        }
        drop(heaps);
        self.failures += 1;
        if self.failures <= MOST_SAID {
            say(format_args!("process {pid} could not begin to count: {why}"));
        }
    }
}

/// Who may be a child that is called so where it runs.
fn candidates(parent: &Served, pid: Pid) -> Vec<Armed> {
    let children = std::fs::read_dir(format!("/proc/{}/task", parent.pid)).into_iter().flatten().flatten();
    let children = children.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    let children: Vec<Pid> = children
        .flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect();
    [pid].into_iter().chain(children).map(|pid| Armed::forked(pid, parent.control)).collect()
}

//! The threads that processes with the library depend on: none of them waits for vmaudit's own work.

use super::heaps::Preloaded;
use crate::capture::preload::{Armed, Bell, Listener, Settings};
use crate::session::say::say;
use crate::sys::clock::monotonic_ns;
use crate::sys::poll;
use rustix::thread::futex;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// How exact the time of an allocation is known.
const TICK: Duration = Duration::from_millis(4);
/// How long at most until it is seen that a process has ended, or that all is over.
const GLANCE: Duration = Duration::from_millis(20);

/// Until it is dropped.
pub struct Service {
    over: Arc<AtomicBool>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Service {
    /// # Errors
    /// When no thread can be made.
    pub fn start(
        heaps: &Arc<Mutex<Preloaded>>,
        listener: Listener,
        sleeping: Vec<Armed>,
        (settings, start_ns): (Settings, u64),
    ) -> io::Result<Service> {
        let over = Arc::new(AtomicBool::new(false));
        let bell = Arc::new(Bell::new()?);
        let mut threads = Vec::new();
        let mut spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
            threads.push(thread::Builder::new().name(name.to_owned()).spawn(work)?);
            io::Result::Ok(())
        };
        let (stop, clock) = (Arc::clone(&over), Arc::clone(&bell));
        spawn("clock", Box::new(move || keep_time(&clock, start_ns, &stop)))?;
        let (stop, rung, counted) = (Arc::clone(&over), Arc::clone(&bell), Arc::clone(heaps));
        spawn("unwind rules", Box::new(move || publish_rules(&counted, &rung, &stop)))?;
        let (stop, counted) = (Arc::clone(&over), Arc::clone(heaps));
        spawn(
            "listener",
            Box::new(move || listen(&counted, (&listener, &bell), (sleeping, settings), &stop)),
        )?;
        Ok(Service { over, threads })
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.over.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// The processes see by it that vmaudit is there, too.
fn keep_time(bell: &Bell, start_ns: u64, over: &AtomicBool) {
    while !over.load(Relaxed) {
        let milliseconds = monotonic_ns().saturating_sub(start_ns) / 1_000_000;
        bell.publish_time(u32::try_from(milliseconds).unwrap_or(u32::MAX));
        thread::sleep(TICK);
    }
}

fn publish_rules(heaps: &Mutex<Preloaded>, bell: &Bell, over: &AtomicBool) {
    while !over.load(Relaxed) {
        let rung = bell.rung().load(Acquire);
        let some = heaps.lock().unwrap_or_else(PoisonError::into_inner).answer(wake);
        if !some && bell.rung().load(Acquire) == rung {
            let patience = futex::Timespec::try_from(GLANCE).ok();
            let _ = futex::wait(bell.rung(), futex::Flags::empty(), rung, patience.as_ref());
        }
    }
}

pub fn wake(state: &AtomicU32) {
    let _ = futex::wake(state, futex::Flags::empty(), 1);
}

fn listen(
    heaps: &Mutex<Preloaded>,
    (listener, bell): (&Listener, &Bell),
    (mut sleeping, settings): (Vec<Armed>, Settings),
    over: &AtomicBool,
) {
    while !over.load(Relaxed) {
        if poll::wait_readable(listener.as_fd(), Some(GLANCE)) {
            let only = heaps.lock().unwrap_or_else(PoisonError::into_inner).only.clone();
            let is_selected = |pid| only.as_ref().is_none_or(|only| only.contains(&pid));
            match listener.accept(settings, bell, is_selected) {
                Ok(Some(arrival)) => {
                    let mut heaps = heaps.lock().unwrap_or_else(PoisonError::into_inner);
                    heaps.finish_ended();
                    sleeping.retain(|process| process.pid != arrival.pid);
                    heaps.add(arrival);
                }
                Ok(None) => {}
                Err(error) => say(format_args!("a process could not begin to count: {error}")),
            }
        }
        {
            let mut heaps = heaps.lock().unwrap_or_else(PoisonError::into_inner);
            heaps.finish_ended();
            sleeping.extend(heaps.take_asleep());
        }
        // A process that has connected is served by this thread alone, and is not woken again.
        sleeping.retain(|process| process.wake(listener.name()).is_ok());
    }
    sleeping.iter().for_each(Armed::leave);
}

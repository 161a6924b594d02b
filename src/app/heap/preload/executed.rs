//! Programs that were executed and did not load the library.

use super::heaps::Preloaded;
use crate::heap::report::HeapReport;
use crate::model::{Observations, Pid, VmEvent, VmOp};
use crate::session::say::say;
use crate::session::sink::{Context, Sink};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// What each process executed last.
pub struct Executed {
    heaps: Arc<Mutex<Preloaded>>,
    programs: BTreeMap<Pid, String>,
}

impl Sink for Executed {
    fn snapshot(&mut self, seen: &Observations, _: &mut Context<'_>) {
        let mut heaps = self.heaps.lock().unwrap_or_else(PoisonError::into_inner);
        heaps.examined(seen.pid, &seen.mappings);
    }

    fn event(&mut self, event: &VmEvent, _: &mut Context<'_>) {
        if let VmOp::Fork { child_pid, is_thread: false, .. } = &event.op {
            self.heaps.lock().unwrap_or_else(PoisonError::into_inner).begun(*child_pid);
        }
        let VmOp::Exec { exe, .. } = &event.op else { return };
        let mut heaps = self.heaps.lock().unwrap_or_else(PoisonError::into_inner);
        heaps.executed(event.task.pid, event.time_ns);
        heaps.begun(event.task.pid);
        let path = exe.as_ref().map(|exe| String::from_utf8_lossy(&exe.path).into_owned());
        self.programs.insert(event.task.pid, path.unwrap_or_default());
    }
}

impl Executed {
    pub fn new(heaps: Arc<Mutex<Preloaded>>) -> Executed {
        Executed { heaps, programs: BTreeMap::new() }
    }

    pub fn has(&self, pid: Pid) -> bool {
        self.programs.contains_key(&pid)
    }

    /// Says which of them are not in the report.
    pub fn say_uncounted(&self, report: &HeapReport) {
        let mut uncounted: BTreeMap<&str, usize> = BTreeMap::new();
        let counted = |pid: &Pid| report.processes.iter().any(|process| process.pid == *pid);
        let heaps = self.heaps.lock().unwrap_or_else(PoisonError::into_inner);
        let is_unknown = |pid: &Pid| !counted(pid) && !heaps.refused.contains_key(pid);
        for (_, program) in self.programs.iter().filter(|(pid, _)| is_unknown(pid)) {
            *uncounted.entry(program).or_default() += 1;
        }
        for (program, count) in uncounted {
            let times = if count == 1 { String::new() } else { format!(" ({count} processes)") };
            say(format_args!(
                "{program}{times} was not counted: it is statically linked, gets other rights, or runs where \
                 the library cannot be opened (--method uprobes sees it)"
            ));
        }
    }
}

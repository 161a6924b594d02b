//! Names of code that was made at run time, from perf maps.
//!
//! A name counts if it was in force when the frame was captured. While a process runs, a frame that is seen
//! for the first time gets the newest name that the map has for its address; where the map says that other
//! code has replaced it since, frames from then on are different ones ([`ModuleInfo::generated`] with another
//! number). Where the map comes later (a JVM writes it at its exit, or on request), only those frames are
//! named at whose address the code has not changed.

mod file;
mod new_code;
mod perf_map;

use crate::attribution::rules::generated_function;
use crate::model::hash::IntMap;
use crate::model::{Frame, FrameKind, FunctionName, MmKey, ModuleId, Pid, StackTable};
use crate::sys::{clock, memory};
use crate::unwind::{GeneratedFrame, SeenCode, Unwinder};
use file::MapFile;
use new_code::NewCode;
use std::collections::HashMap;

/// Where there is no map, it is searched for again after this time.
const AGAIN_NS: u64 = 500_000_000;
/// Code before an address that is compared, bytes: the call, and what leads to it.
const COMPARED: usize = 32;
/// Frames that wait for a name, of all processes.
const MOST_WAITING: usize = 1 << 18;

/// A frame without a name yet.
struct Waiting {
    frame: Frame,
    code: [u8; COMPARED],
}

#[derive(Default)]
struct Process {
    pid: Pid,
    map: Option<MapFile>,
    tried_ns: u64,
    /// Addresses that frames were named by, or wait for names.
    known: HashMap<u64, (ModuleId, Option<SeenCode>)>,
    waiting: Vec<Waiting>,
}

/// The perf maps of all processes.
#[derive(Default)]
pub struct GeneratedCode {
    processes: IntMap<MmKey, Process>,
    waiting: usize,
    /// Maps of processes that end, of which no frame was seen yet.
    early: IntMap<Pid, MapFile>,
}

impl GeneratedCode {
    /// A stack of a process was unwound, and these are its frames in generated code. False where other code has taken
    /// the place of one of them: then they have to be other frames.
    #[must_use]
    pub fn seen(
        &mut self,
        (mm, pid, time_ns): (MmKey, Pid, u64),
        unwinder: &Unwinder,
        stacks: &mut StackTable,
    ) -> bool {
        let early = self.early.remove(&pid);
        let process = self.processes.entry(mm).or_default();
        process.pid = pid;
        process.map = process.map.take().or(early);
        let frames = unwinder.generated_frames();
        let is_other = |seen: &GeneratedFrame| {
            let known = process.known.get(&seen.frame.address);
            known.is_some_and(|(module, code)| Some(*module) == seen.frame.module && *code != seen.code)
        };
        if frames.iter().any(is_other) || !process.renew() {
            return false;
        }
        for &GeneratedFrame { frame, code } in frames {
            let Some(module) = frame.module else { continue };
            if process.known.get(&frame.address) == Some(&(module, code)) {
                continue;
            }
            process.known.insert(frame.address, (module, code));
            // A runtime's own tables know what is there now; a perf map contains what was written.
            if let Some(found) = code.and_then(|code| unwinder.name_code(pid, code)) {
                let name = FunctionName { linkage: found.name.clone(), name: found.name, offset: 0 };
                stacks.name_generated(&frame, name, found.place);
                continue;
            }
            if process.name(&frame, time_ns, stacks) || self.waiting >= MOST_WAITING {
                continue;
            }
            if let Some(code) = code_before(pid, frame.address) {
                self.waiting += 1;
                process.waiting.push(Waiting { frame, code });
            }
        }
        true
    }

    /// Names what can be named by now. To be called while the process is there.
    fn name_waiting(&mut self, mm: MmKey, stacks: &mut StackTable) {
        let Some(process) = self.processes.get_mut(&mm) else { return };
        process.tried_ns = 0;
        let _ = process.renew();
        if process.map.is_none() {
            return;
        }
        self.waiting -= process.waiting.len();
        for Waiting { frame, code } in std::mem::take(&mut process.waiting) {
            if code_before(process.pid, frame.address) == Some(code) {
                process.name(&frame, u64::MAX, stacks);
            }
        }
    }

    /// As [`GeneratedCode::name_waiting`], of all.
    pub fn name_all_waiting(&mut self, stacks: &mut StackTable) {
        let all: Vec<MmKey> = self
            .processes
            .iter()
            .filter(|(_, process)| !process.waiting.is_empty())
            .map(|(&mm, _)| mm)
            .collect();
        all.into_iter().for_each(|mm| self.name_waiting(mm, stacks));
    }

    /// Opens a process' perf map while the process is there. False where it has none.
    pub fn open_map(&mut self, pid: Pid) -> bool {
        if self.processes.values().any(|process| process.pid == pid && process.map.is_some()) {
            return true;
        }
        let Some(mut map) = MapFile::open(pid) else { return false };
        map.grow(&mut |_, _| {});
        self.early.insert(pid, map);
        true
    }

    /// Which maps were not read whole: sentences.
    pub fn notes(&self) -> Vec<String> {
        let maps = self.processes.values().filter_map(|process| process.map.as_ref());
        let mut notes: Vec<String> = maps.chain(self.early.values()).filter_map(MapFile::note).collect();
        notes.sort_unstable();
        notes
    }

    /// Another program runs there now.
    pub fn forget(&mut self, mm: MmKey) {
        if let Some(process) = self.processes.remove(&mm) {
            self.waiting -= process.waiting.len();
        }
    }
}

impl Process {
    /// Reads what is new in the map. False where it names other code at an address that is known.
    fn renew(&mut self) -> bool {
        if self.map.is_none() {
            let now = clock::monotonic_ns();
            if self.tried_ns != 0 && now.saturating_sub(self.tried_ns) < AGAIN_NS {
                return true;
            }
            self.tried_ns = now;
            self.map = MapFile::open(self.pid);
            if let Some(map) = &mut self.map {
                map.grow(&mut |_, _| {});
            }
            return true;
        }
        let Some(map) = &mut self.map else { return true };
        let mut new = NewCode::default();
        map.grow(&mut |start, end| new.add(start, end));
        if new.is_empty() {
            return true;
        }
        new.join();
        // Named before, which counts for frames from before.
        let before = self.known.len();
        let waiting = &self.waiting;
        let waits = |address: u64| waiting.iter().any(|waiting| waiting.frame.address == address);
        self.known.retain(|&address, _| !new.covers(address) || waits(address));
        self.known.len() == before
    }

    /// Of a frame that was there at a time; false where it is not known what was at its address then.
    fn name(&self, frame: &Frame, time_ns: u64, stacks: &mut StackTable) -> bool {
        // In the call, which may be a function's last instruction.
        let back = u64::from(frame.kind != FrameKind::InstructionPointer);
        let entry = self.map.as_ref().and_then(|map| map.map.at(frame.address.wrapping_sub(back)));
        let Some(entry) = entry.filter(|entry| entry.was_in_force(time_ns)) else { return false };
        let offset = frame.address - entry.start;
        let linkage = entry.name.clone();
        let (name, begins) = match generated_function(&linkage) {
            Some(function) => (function.name, function.place),
            None => (linkage.clone(), None),
        };
        stacks.name_generated(frame, FunctionName { name, linkage, offset }, begins);
        true
    }
}

fn code_before(pid: Pid, address: u64) -> Option<[u8; COMPARED]> {
    let mut code = [0; COMPARED];
    let from = address.checked_sub(COMPARED as u64)?;
    memory::read_whole(pid, from, &mut code).then_some(code)
}

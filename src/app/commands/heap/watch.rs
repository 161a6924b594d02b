//! What is known of the heaps while events come.

use super::combined::Combined;
use super::probes::Probes;
use crate::app::heap::identity::{ProcessIdentity, read_known};
use crate::app::probed::ProbedProcesses;
use crate::capture::heap::HeapCounters;
use crate::capture::heap::wire::{CapturedHeap, CapturedSite};
use crate::capture::newcomers::Newcomer;
use crate::heap::{HeapLedger, Heaps, LedgerOptions};
use crate::ledger::AddressSpaces;
use crate::model::arenas::KnownBlock;
use crate::model::hash::IntMap;
use crate::model::{Addr, HeapEvent, HeapOp, MmKey, Observations, Pid, StackId, StackSample, VmEvent, VmOp};
use crate::objects::{FileKey, OpenRequest};
use crate::session::sink::{Context, Sink};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

/// The heaps of all processes, with their identities.
pub struct HeapWatch {
    pub heaps: Heaps,
    pub probes: Arc<Probes>,
    pub processes: Arc<ProbedProcesses>,
    pub known: IntMap<Pid, ProcessIdentity>,
    /// Those of processes that have ended.
    pub ended: Vec<HeapLedger>,
    /// With --combined.
    pub combined: Option<Combined>,
    /// What each process has mapped of files with probes: base names, functions.
    pub probed: IntMap<Pid, BTreeMap<String, usize>>,
    /// Files with code that each has mapped.
    pub code: IntMap<Pid, HashSet<FileKey>>,
    /// Which state of the mappings was searched for files.
    generations: IntMap<MmKey, u64>,
    lost: u64,
    /// Frees of an allocator's own.
    pub own_frees: u64,
}

impl HeapWatch {
    pub fn new(options: LedgerOptions, probes: Arc<Probes>, processes: Arc<ProbedProcesses>) -> HeapWatch {
        HeapWatch {
            heaps: Heaps::new(options),
            probes,
            processes,
            known: IntMap::default(),
            ended: Vec::new(),
            combined: None,
            probed: IntMap::default(),
            code: IntMap::default(),
            generations: IntMap::default(),
            lost: 0,
            own_frees: 0,
        }
    }

    /// Blocks of a process, with the sites that hold them.
    pub fn known_blocks(&self, pid: Pid) -> Vec<KnownBlock> {
        let ledgers = self.heaps.ledgers();
        let ledger = ledgers.iter().find(|ledger| ledger.pid == pid);
        ledger.map(|ledger| ledger.known_blocks().collect()).unwrap_or_default()
    }

    /// `caller` is where a free returns to.
    fn take(&mut self, event: &HeapEvent, caller: Option<Addr>, spaces: &AddressSpaces) {
        if let (HeapOp::Freed { address }, Some(caller)) = (&event.op, caller)
            && !self.heaps.ledger(event.mm).is_some_and(|ledger| ledger.holds(*address))
            && self.is_within_allocator((event.mm, event.function), caller, spaces)
        {
            self.own_frees += 1;
            return;
        }
        self.heaps.apply(event);
    }

    /// The allocator's file calls its own free: when a thread ends, glibc frees the blocks that it had
    /// kept for that thread. They were freed before.
    fn is_within_allocator(&self, (mm, function): (MmKey, u32), at: Addr, spaces: &AddressSpaces) -> bool {
        let regions = spaces.executable_regions(mm);
        let file = regions
            .iter()
            .find(|(range, _, _)| range.contains(at))
            .map(|(_, _, file)| FileKey::from(&**file));
        file.is_some() && file == self.probes.file_of(function)
    }

    /// A process that is watched from now on.
    fn begin(&mut self, pid: Pid, time_ns: u64, attached: bool) {
        let known = ProcessIdentity { since_ns: time_ns, attached, ..read_known(pid) };
        self.known.insert(pid, known);
    }

    /// A step in the life of a process; mappings are `cover`'s.
    fn follow(&mut self, event: &VmEvent) {
        let pid = event.task.pid;
        match &event.op {
            VmOp::Fork { child_pid, child_mm, is_thread: false, .. } => {
                // Most are known by now; not those of the time between the marks and the probes.
                let (child, time_ns) = (*child_pid, event.time_ns);
                self.processes.seen_later(Newcomer::Forked { pid: child, parent: pid, time_ns });
                if self.combined.is_some() {
                    // Whose copies are whose only the kernel could know: the child starts with nothing.
                    self.heaps.exec(*child_pid, *child_mm);
                } else {
                    self.heaps.fork(event.mm, *child_mm, *child_pid);
                }
                self.generations.remove(child_mm);
                let parent = self.known.get(&pid).cloned().unwrap_or_default();
                let child = ProcessIdentity { since_ns: event.time_ns, attached: false, ..parent };
                self.known.insert(*child_pid, child);
                let probed = self.probed.get(&pid).cloned().unwrap_or_default();
                self.probed.insert(*child_pid, probed);
                let code = self.code.get(&pid).cloned().unwrap_or_default();
                self.code.insert(*child_pid, code);
            }
            VmOp::Exec { .. } => {
                if let Some(combined) = &mut self.combined {
                    combined.forget(pid);
                }
                self.heaps.exec(pid, event.mm);
                self.probed.remove(&pid);
                self.code.remove(&pid);
                self.generations.remove(&event.mm);
                self.begin(pid, event.time_ns, false);
            }
            VmOp::Exit { code, group_dead: true } => {
                if let Some(combined) = &mut self.combined {
                    combined.snapshot(&mut self.heaps);
                    combined.forget(pid);
                }
                // The kernel has taken its address space away already.
                let mm = self.heaps.ledgers().iter().find(|ledger| ledger.pid == pid).map(|ledger| ledger.mm);
                self.ended.extend(mm.and_then(|mm| self.heaps.exit(pid, mm)));
                if let Some(known) = self.known.get_mut(&pid) {
                    known.ended = Some(*code);
                    known.until_ns = Some(event.time_ns);
                }
            }
            _ => {}
        }
    }

    /// Probes files that are mapped and were not seen before.
    fn cover(&mut self, mm: MmKey, pid: Pid, context: &mut Context<'_>) {
        let (spaces, files) = (context.spaces, context.unwinder.files_mut());
        let Some(generation) = spaces.module_generation(mm) else { return };
        if self.generations.insert(mm, generation) == Some(generation) {
            return;
        }
        for (range, _, file) in spaces.executable_regions(mm) {
            self.code.entry(pid).or_default().insert(FileKey::from(&*file));
            if !self.probes.is_new(&file) {
                self.note_probed(pid, FileKey::from(&*file));
                continue;
            }
            let request = OpenRequest { file: &file, range, pid: Some(pid), build_id: None };
            if let Ok(object) = files.open(&request) {
                let name = file.path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
                self.probes.cover(FileKey::from(&*file), &object, &String::from_utf8_lossy(name));
            }
            self.note_probed(pid, FileKey::from(&*file));
        }
    }

    fn note_probed(&mut self, pid: Pid, key: FileKey) {
        if let Some((name, count)) = self.probes.probed_in(key) {
            self.probed.entry(pid).or_default().insert(name, count);
        }
    }

    /// Adds to the ledgers what was counted in the kernel by now.
    pub fn snapshot(&mut self) {
        if let Some(combined) = &mut self.combined {
            combined.snapshot(&mut self.heaps);
        }
    }

    /// Adds to the ledgers what was lost since the last time.
    pub fn note_losses(&mut self, counters: HeapCounters) {
        let lost =
            counters.lost_allocations + counters.lost_frees + counters.lost_others + counters.untracked;
        self.heaps.lost(lost.saturating_sub(self.lost));
        self.lost = lost;
    }
}

impl Sink for HeapWatch {
    fn found(&mut self, mm: MmKey, seen: &Observations, context: &mut Context<'_>) {
        self.begin(seen.pid, seen.begun_ns, true);
        self.heaps.begin(mm, seen.pid);
        self.cover(mm, seen.pid, context);
    }

    /// What became of processes; and files that are mapped since are probed.
    fn event(&mut self, event: &VmEvent, context: &mut Context<'_>) {
        self.follow(event);
        self.cover(event.mm, event.task.pid, context);
    }

    fn allocated(&mut self, captured: &CapturedHeap<'_>, context: &mut Context<'_>) {
        let event = &captured.event;
        if let (Some(combined), Some(stack)) = (&mut self.combined, &captured.stack)
            && captured.code != 0
        {
            // The kernel needs the innermost address itself.
            let stack = StackSample { returned: false, ..*stack };
            combined.publish(event.mm, captured.code, &context.unwinder.plain_rules(event.mm, &stack));
        }
        self.take(event, captured.caller, context.spaces);
    }

    fn site(&mut self, site: &CapturedSite<'_>, stack: StackId) {
        if let Some(combined) = &mut self.combined {
            combined.name(site.key, stack, (site.space, site.mm, site.pid));
        }
    }
}

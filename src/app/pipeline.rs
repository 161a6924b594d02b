//! One event's way: decode, unwind against the modules mapped at that time, apply to the ledger.

use super::complete::complete;
use super::dump::Dump;
use super::heap::watch::HeapWatch;
use super::live_events::LiveEvents;
use super::record::Record;
use super::top::Newest;
use crate::capture::heap::wire as heap_wire;
use crate::capture::uprobe::wire::CapturedCall;
use crate::capture::wire::{self, Decoder, time_of};
use crate::capture::{Captured, CapturedTouch};
use crate::ledger::AddressSpaces;
use crate::model::{
    Completeness, MmKey, Observations, Pid, SizePoint, StackId, StackSample, StackTable, VmEvent, VmOp,
};
use crate::objects::Root;
use crate::store::FrameNames;
use crate::touch::Touches;
use crate::unwind::{ExecMapping, SpaceState, Unwinder};
use std::collections::BTreeSet;

/// What was counted on the way.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub events: u64,
    pub stacks: u64,
    pub truncated: u64,
    pub incomplete: u64,
}

/// The state between the ring and the report.
pub struct Pipeline {
    decoder: Decoder,
    pub spaces: AddressSpaces,
    pub unwinder: Unwinder,
    pub stacks: StackTable,
    pub tally: Tally,
    /// Who asked for a seccomp listener of its own and was refused: `PID (NAME)`.
    pub listener_refused: BTreeSet<String>,
    /// Names of 32-bit programs: their calls take entries that are not traced.
    pub compat: BTreeSet<String>,
    /// With --touch.
    pub touches: Option<Touches>,
    /// With `vmaudit heap`.
    pub heap: Option<Box<HeapWatch>>,
    /// What sees the calls, as the report calls it.
    pub backend: String,
    dump: Option<Dump>,
    /// Prints events while they come.
    pub live: Option<LiveEvents>,
    pub record: Option<Record>,
    /// Keeps the newest reservations, for `vmaudit top`.
    pub newest: Option<Newest>,
    /// Names that a recording brought along: files are not asked then.
    pub recorded_names: Option<FrameNames>,
    /// Records from after this time wait (CLOCK_MONOTONIC, ns).
    hold_after: u64,
    held: Vec<Vec<u8>>,
    undecodable: u64,
}

impl Pipeline {
    pub fn new(backend: &str, dump: Option<Dump>) -> Pipeline {
        Pipeline {
            decoder: Decoder::default(),
            spaces: AddressSpaces::new(),
            unwinder: Unwinder::default(),
            stacks: StackTable::default(),
            tally: Tally::default(),
            listener_refused: BTreeSet::new(),
            compat: BTreeSet::new(),
            touches: None,
            heap: None,
            backend: backend.to_owned(),
            dump,
            live: None,
            record: None,
            newest: None,
            recorded_names: None,
            hold_after: u64::MAX,
            held: Vec::new(),
            undecodable: 0,
        }
    }

    /// A process that ran before it was traced, as it was found: `mm` is what its events carry. To
    /// be told before any of its events.
    pub fn found(&mut self, mm: MmKey, seen: &Observations) {
        for thread in &seen.threads {
            self.decoder.set_comm(thread.tid, &thread.comm);
        }
        if let Some(record) = &mut self.record {
            record.found(mm, seen, &self.stacks);
        }
        if let Some(live) = &mut self.live {
            live.found(mm, seen);
        }
        if let Some(newest) = &mut self.newest {
            newest.found(mm, seen);
        }
        self.spaces.start_observed(mm, seen);
        // Its files are opened while it lives: a program that was replaced on disk is found no other
        // way, and the first stack may be that of a child that has ended since.
        self.renew_modules(mm, seen.pid);
        if let Some(heap) = &mut self.heap {
            heap.begin(seen.pid, seen.begun_ns, true);
            heap.heaps.begin(mm, seen.pid);
            heap.cover(mm, seen.pid, (&self.spaces, self.unwinder.files_mut()));
        }
    }

    /// Files are looked for in this process' root, too, also after its end: others of its container
    /// live shortly.
    pub fn look_in_root_of(&mut self, pid: Pid) {
        if let Ok(root) = Root::of(pid) {
            self.unwinder.files_mut().add_root(root);
        }
    }

    /// Events were lost before this time.
    pub fn note_loss(&mut self, time_ns: u64) {
        if let Some(record) = &mut self.record {
            record.lost(time_ns, &self.stacks);
        }
        self.spaces.note_loss(time_ns);
    }

    /// After a loss: `seen` is what the kernel shows of a process since. False where calls changed some of
    /// it meanwhile.
    pub fn resync(&mut self, seen: &Observations) -> bool {
        if let Some(record) = &mut self.record {
            record.resync(seen, &self.stacks);
        }
        self.spaces.resync(seen.pid, seen)
    }

    /// A look that a report may be made from, with the ledger as it is now.
    pub fn note_look(&mut self, seen: &Observations) {
        if let Some(record) = &mut self.record {
            record.look(seen, &self.stacks);
        }
    }

    /// What a look came to.
    pub fn note_point(&mut self, point: &SizePoint) {
        if let Some(record) = &mut self.record {
            record.point(point);
        }
    }

    /// The newest look at a process was worth nothing.
    pub fn forget_look(&mut self, pid: Pid) {
        if let Some(record) = &mut self.record {
            record.discard_look(pid);
        }
    }

    /// Nothing was started, so nothing is recorded.
    pub fn abandon_record(&mut self) {
        if let Some(record) = self.record.take() {
            record.abandon();
        }
    }

    /// To be called now and then, also while nothing happens.
    pub fn tick(&mut self) {
        if let Some(record) = &mut self.record {
            record.tick();
        }
    }

    /// From now on records of a later time wait, until a later time is given: a look is compared
    /// with what was reported by then, not with what a busy process did since. `u64::MAX` ends it.
    pub fn hold_after(&mut self, time_ns: u64) {
        self.hold_after = time_ns;
        let (ready, waiting): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.held).into_iter().partition(|raw| time_of(raw) <= Some(time_ns));
        self.held = waiting;
        for raw in ready {
            self.take(&raw);
        }
    }

    /// True when a record waits.
    pub fn is_holding(&self) -> bool {
        !self.held.is_empty()
    }

    /// Takes one record of the ring.
    pub fn record(&mut self, raw: &[u8]) {
        if self.hold_after == u64::MAX || time_of(raw) <= Some(self.hold_after) {
            self.take(raw);
        } else {
            self.held.push(raw.to_vec());
        }
    }

    fn take(&mut self, raw: &[u8]) {
        if wire::is_touch(raw) {
            self.touch(raw);
            return;
        }
        if heap_wire::is_site(raw) {
            self.site(raw);
            return;
        }
        if heap_wire::is_heap(raw) {
            self.allocation(raw);
            return;
        }
        let Some(captured) = self.decoder.decode(raw) else { return };
        let Captured { mut event, stack } = captured;
        self.tally.events += 1;
        if let Some(stack) = stack {
            let (id, completeness) = self.unwind(event.mm, event.task.pid, &stack);
            event.stack = Ok(id);
            self.count(completeness);
        }
        complete(&mut event);
        self.note(&event);
        if let Some(dump) = &mut self.dump {
            dump.event(&event, &self.stacks);
        }
        if let Some(live) = &mut self.live {
            live.event(&event);
        }
        if let Some(newest) = &mut self.newest {
            newest.event(&event);
        }
        if let Some(record) = &mut self.record {
            record.event(&event, &self.stacks);
        }
        self.spaces.apply(&event);
        if let Some(touches) = &mut self.touches {
            touches.follow(&event, &self.spaces);
        }
        self.follow_heap(&event);
    }

    /// Takes an allocation, a free …: the ledger of mappings is not told.
    fn allocation(&mut self, raw: &[u8]) {
        let Some(captured) = heap_wire::decode(raw) else {
            self.undecodable += 1;
            return;
        };
        let mut event = captured.event;
        if let Some(stack) = captured.stack {
            let (id, completeness) = self.unwind(event.mm, event.pid, &stack);
            event.stack = Ok(id);
            self.count(completeness);
            if let Some(combined) = self.heap.as_mut().and_then(|heap| heap.combined.as_mut())
                && captured.code != 0
            {
                combined.teach(event.mm, captured.code, &self.unwinder.plain_rules(event.mm, &stack));
            }
        }
        if let Some(heap) = &mut self.heap {
            heap.event(&event, captured.caller, &self.spaces);
        }
    }

    /// Takes the stack of what the kernel counts.
    fn site(&mut self, raw: &[u8]) {
        let Some(site) = heap_wire::decode_site(raw) else {
            self.undecodable += 1;
            return;
        };
        let (id, completeness) = self.unwind(site.mm, site.pid, &site.stack);
        self.count(completeness);
        if let Some(combined) = self.heap.as_mut().and_then(|heap| heap.combined.as_mut()) {
            combined.name(site.key, id, (site.space, site.mm, site.pid));
        }
    }

    /// Tells the heaps what became of processes, and probes files that are mapped since.
    fn follow_heap(&mut self, event: &VmEvent) {
        let Some(heap) = &mut self.heap else { return };
        heap.follow(event);
        heap.cover(event.mm, event.task.pid, (&self.spaces, self.unwinder.files_mut()));
    }

    /// Takes a page fault. It is no call: the ledger is asked, not told.
    fn touch(&mut self, raw: &[u8]) {
        let Some(CapturedTouch { mut touch, stack }) = wire::touch(raw) else { return };
        if self.touches.is_none() {
            return;
        }
        touch.stack = Ok(self.unwind(touch.mm, touch.pid, &stack).0);
        if let Some(touches) = &mut self.touches {
            touches.touch(&touch, &self.spaces);
        }
    }

    /// The stack of a probed call. It is no event: nothing is told.
    pub fn stack_of_call(&mut self, call: &CapturedCall<'_>) -> StackId {
        let (id, completeness) = self.unwind(call.mm, call.pid, &call.stack);
        self.count(completeness);
        id
    }

    /// Prints the events that came since the last time. False when nobody reads them any more.
    pub fn print_live(&mut self) -> bool {
        match &mut self.live {
            Some(live) => live.flush(&self.stacks, self.unwinder.files_mut()),
            None => true,
        }
    }

    /// Says where events were lost.
    pub fn note_live_loss(&mut self) {
        if let Some(live) = &mut self.live {
            live.lost();
        }
    }

    /// Tells the ledger an event of a recording.
    pub fn replay(&mut self, event: &VmEvent) {
        self.tally.events += 1;
        if let Ok(stack) = event.stack {
            let completeness = self.stacks.frame_numbers(stack).1;
            self.count(completeness);
        }
        match &event.op {
            VmOp::SeccompListenerBusy => self.note_refused_listener(event),
            VmOp::Exec { compat: true, .. } => self.note_compat(event),
            _ => {}
        }
        self.spaces.apply(event);
    }

    /// Records that could not be decoded.
    pub fn undecodable(&self) -> u64 {
        self.decoder.undecodable + self.undecodable
    }

    /// Writes out what the dump still holds.
    pub fn finish_dump(&mut self) -> std::io::Result<()> {
        self.dump.as_mut().map_or(Ok(()), Dump::finish)
    }

    fn unwind(&mut self, mm: MmKey, pid: Pid, captured: &StackSample<'_>) -> (StackId, Completeness) {
        self.renew_modules(mm, pid);
        self.unwinder.unwind_interned(mm, captured, &mut self.stacks)
    }

    /// Tells the unwinder what is mapped now, where that has changed.
    fn renew_modules(&mut self, mm: MmKey, pid: Pid) {
        if let Some(generation) = self.spaces.module_generation(mm)
            && !self.unwinder.is_current(mm, generation)
        {
            let regions = self.spaces.executable_regions(mm);
            let modules = regions.iter().map(|(range, offset, file)| ExecMapping {
                range: *range,
                offset: *offset,
                file: Some(&**file),
            });
            self.unwinder.set_modules(SpaceState { mm, generation, pid }, modules, &mut self.stacks);
        }
    }

    fn count(&mut self, completeness: Completeness) {
        self.tally.stacks += 1;
        match completeness {
            Completeness::Complete => {}
            Completeness::Truncated => self.tally.truncated += 1,
            Completeness::Incomplete => self.tally.incomplete += 1,
        }
    }

    fn note_refused_listener(&mut self, event: &VmEvent) {
        let name = String::from_utf8_lossy(&event.task.comm);
        self.listener_refused.insert(format!("{} ({name})", event.task.pid));
    }

    fn note_compat(&mut self, event: &VmEvent) {
        self.compat.insert(String::from_utf8_lossy(&event.task.comm).into_owned());
    }

    fn note(&mut self, event: &VmEvent) {
        match &event.op {
            VmOp::SeccompListenerBusy => self.note_refused_listener(event),
            VmOp::Exec { compat, .. } => {
                if *compat {
                    self.note_compat(event);
                }
                self.unwinder.forget(event.mm);
            }
            VmOp::Fork { child_mm, is_thread: false, .. } if *child_mm != event.mm => {
                self.unwinder.fork(event.mm, *child_mm);
            }
            _ => {}
        }
    }
}

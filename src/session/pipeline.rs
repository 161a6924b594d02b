//! The path of an event: decode, unwind against the modules mapped at that time, apply to the ledger.

use super::complete::Completion;
use super::generated::GeneratedCode;
use super::incoming::{HeldRecords, Incoming, RecordDecoder};
use super::known::Known;
use super::managed::{Managed, Walked};
use super::sink::{Context, Sink};
use crate::attribution::DataRules;
use crate::attribution::rules::code_tables;
use crate::capture::heap::wire::{CapturedHeap, CapturedSite};
use crate::capture::uprobe::wire::CapturedCall;
use crate::capture::{Captured, CapturedTouch, CopiedStack};
use crate::ledger::AddressSpaces;
use crate::model::stack::ManagedFrames;
use crate::model::{
    Addr, Completeness, MmKey, NoStack, Observations, Pid, SizePoint, StackId, StackSample, StackTable,
    SymbolizedStacks, VmEvent, VmOp,
};
use crate::store::FrameNames;
use crate::sys::memory;
use crate::sys::untrusted_open::Root;
use crate::unwind::{ExecMapping, SpaceState, Unwinder};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

/// What was counted on the way.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub events: u64,
    pub stacks: u64,
    pub truncated: u64,
    pub incomplete: u64,
    /// Stacks sent as numbers that were no longer valid.
    pub outdated: u64,
}

/// The state between the ring and the report.
pub struct Pipeline {
    decoder: RecordDecoder,
    pub spaces: AddressSpaces,
    pub unwinder: Unwinder,
    pub stacks: StackTable,
    pub tally: Tally,
    /// Processes that were refused a seccomp listener of their own: `PID (NAME)`.
    pub listener_refused: BTreeSet<String>,
    /// Names of 32-bit programs: their calls take entries that are not traced.
    pub compat: BTreeSet<String>,
    /// What sees the calls, as the report calls it.
    pub backend: String,
    /// What is known of libraries and programs, as data.
    pub rules: &'static DataRules,
    sinks: Vec<Rc<RefCell<dyn Sink>>>,
    /// Names from a recording: files are not read then.
    pub recorded_names: Option<FrameNames>,
    held: HeldRecords,
    /// What the backend need not send again.
    pub known: Known,
    pub managed: Managed,
    /// Of the record that is being taken; 0: of none.
    time_ns: u64,
    pub completion: Completion,
    generated: GeneratedCode,
}

impl Pipeline {
    pub fn new(backend: &str) -> Pipeline {
        Pipeline {
            decoder: RecordDecoder::default(),
            spaces: AddressSpaces::new(),
            unwinder: unwinder(),
            stacks: StackTable::default(),
            tally: Tally::default(),
            listener_refused: BTreeSet::new(),
            compat: BTreeSet::new(),
            backend: backend.to_owned(),
            rules: DataRules::built_in(),
            sinks: Vec::new(),
            recorded_names: None,
            held: HeldRecords::default(),
            known: Known::default(),
            managed: Managed::default(),
            time_ns: 0,
            completion: Completion::default(),
            generated: GeneratedCode::default(),
        }
    }

    /// From now on `sink` is called. It may not be borrowed while records are processed.
    pub fn add_sink(&mut self, sink: Rc<RefCell<dyn Sink>>) {
        self.sinks.push(sink);
    }

    fn for_each_sink(&mut self, mut call: impl FnMut(&mut dyn Sink, &mut Context<'_>)) {
        let mut context =
            Context { spaces: &self.spaces, stacks: &self.stacks, unwinder: &mut self.unwinder };
        for sink in &self.sinks {
            call(&mut *sink.borrow_mut(), &mut context);
        }
    }

    /// A process that ran before it was traced, as it was found: `mm` is the key in its events. To be called
    /// before any of its events.
    pub fn found(&mut self, mm: MmKey, seen: &Observations) {
        for thread in &seen.threads {
            self.decoder.set_comm(thread.tid, &thread.comm);
        }
        self.spaces.start_observed(mm, seen);
        self.time_ns = 0;
        // Its files are opened while it lives: a program that was replaced on disk is found no other
        // way, and the first stack may be that of a child that has ended since.
        self.renew_modules(mm, seen.pid);
        self.for_each_sink(|sink, context| sink.found(mm, seen, context));
    }

    /// Files are searched for in this process' root, too, also after its end: other processes of its
    /// container are short-lived.
    pub fn search_root_of(&mut self, pid: Pid) {
        if let Ok(root) = Root::of(pid) {
            self.unwinder.files_mut().add_root(root);
        }
    }

    /// Events were lost.
    pub fn note_lost_events(&mut self) {
        self.for_each_sink(|sink, _| sink.lost());
    }

    /// Events were lost before this time.
    pub fn note_loss(&mut self, time_ns: u64) {
        self.for_each_sink(|sink, context| sink.lost_before(time_ns, context));
        self.spaces.note_loss(time_ns);
    }

    /// After a loss: `seen` is what the kernel shows of a process since. False where calls changed some of
    /// it meanwhile.
    pub fn resync(&mut self, seen: &Observations) -> bool {
        self.for_each_sink(|sink, context| sink.resynced(seen, context));
        self.spaces.resync(seen.pid, seen)
    }

    /// A snapshot that a report may be made from, with the ledger as it is now.
    pub fn note_snapshot(&mut self, seen: &Observations) {
        self.for_each_sink(|sink, context| sink.snapshot(seen, context));
    }

    /// What a snapshot came to.
    pub fn note_point(&mut self, point: &SizePoint) {
        self.for_each_sink(|sink, _| sink.point(point));
    }

    /// The newest snapshot of a process was worth nothing.
    pub fn discard_snapshot(&mut self, pid: Pid) {
        self.spaces.settle(pid, false);
        self.for_each_sink(|sink, _| sink.snapshot_discarded(pid));
    }

    /// Names that the report uses.
    pub fn note_names(&mut self, names: &SymbolizedStacks) {
        self.for_each_sink(|sink, context| sink.named(names, context));
    }

    /// Nothing was started.
    pub fn abandon(&mut self) {
        self.for_each_sink(|sink, _| sink.abandoned());
    }

    /// To be called regularly, also while nothing happens. False when no sink needs more.
    pub fn turn(&mut self) -> bool {
        let mut goes_on = true;
        self.for_each_sink(|sink, context| goes_on &= sink.turn(context));
        goes_on
    }

    /// From now on records of a later time wait, until a later time is given: a snapshot is compared
    /// with what was reported by then, not with what a busy process did since. `u64::MAX` ends it.
    pub fn hold_after(&mut self, time_ns: u64) {
        for raw in self.held.hold_after(time_ns) {
            self.take(&raw);
        }
    }

    /// True when a record waits.
    pub fn is_holding(&self) -> bool {
        !self.held.is_empty()
    }

    /// Takes one record of the ring.
    pub fn record(&mut self, raw: &[u8]) {
        if !self.held.holds(raw) {
            self.take(raw);
        }
    }

    fn take(&mut self, raw: &[u8]) {
        match self.decoder.decode(raw) {
            Some(Incoming::Call(captured)) => self.call(captured),
            Some(Incoming::Touch(captured)) => self.touch(captured),
            Some(Incoming::Allocation(captured, managed)) => self.allocation(captured, managed.as_ref()),
            Some(Incoming::Site(site, managed)) => self.site(&site, managed.as_ref()),
            Some(Incoming::Probed(call)) => self.probed(&call),
            None => {}
        }
    }

    fn call(&mut self, captured: Captured<'_>) {
        let Captured { mut event, stack, known, sp, managed, left } = captured;
        self.tally.events += 1;
        self.time_ns = event.time_ns;
        if let Some(mut stack) = stack {
            stack.left = left.as_ref().map(CopiedStack::as_left);
            event.stack = Ok(self.unwind_managed((event.mm, event.task.pid), &stack, managed.as_ref()));
            if let Some(again) = self.unwinder.repeated() {
                self.known.publish((event.mm, event.task.pid), &again);
            }
        }
        if let Some(number) = known {
            self.renew_modules(event.mm, event.task.pid);
            let known = self.known.stack(number).ok_or(NoStack::Lost);
            event.stack = known.map(|known| known.id);
            if let (Ok(known), Some(managed)) = (known, &managed) {
                let pointers = known.pointers(sp);
                let walked = Walked { stack: known.id, pointers: &pointers };
                event.stack = Ok(self.compose(&walked, managed));
            }
            match event.stack {
                Ok(_) => self.count(Completeness::Complete),
                Err(_) => self.tally.outdated += 1,
            }
        }
        self.completion.complete(&mut event);
        self.note(&event);
        self.spaces.apply(&event);
        self.for_each_sink(|sink, context| sink.event(&event, context));
    }

    /// With the managed frames that are on it.
    fn unwind_managed(
        &mut self,
        (mm, pid): (MmKey, Pid),
        stack: &StackSample<'_>,
        managed: Option<&ManagedFrames>,
    ) -> StackId {
        let (id, completeness) = match managed {
            None => self.unwind(mm, pid, stack),
            Some(managed) => {
                let (id, completeness, pointers) = self
                    .unwind_by(mm, pid, |unwinder, stacks| unwinder.unwind_with_pointers(mm, stack, stacks));
                (self.compose(&Walked { stack: id, pointers: &pointers }, managed), completeness)
            }
        };
        self.count(completeness);
        id
    }

    fn compose(&mut self, walked: &Walked<'_>, managed: &ManagedFrames) -> StackId {
        self.managed.compose(walked, managed, self.decoder.codes(), &mut self.stacks)
    }

    /// The ledger of mappings does not get it.
    fn allocation(&mut self, mut captured: CapturedHeap<'_>, managed: Option<&ManagedFrames>) {
        let (mm, pid) = (captured.event.mm, captured.event.pid);
        if let Some(stack) = &captured.stack {
            captured.event.stack = Ok(self.unwind_managed((mm, pid), stack, managed));
        }
        self.for_each_sink(|sink, context| sink.allocated(&captured, context));
    }

    fn site(&mut self, site: &CapturedSite<'_>, managed: Option<&ManagedFrames>) {
        let id = self.unwind_managed((site.mm, site.pid), &site.stack, managed);
        self.for_each_sink(|sink, _| sink.site(site, id));
    }

    /// A page fault is no call: the ledger is queried, not changed.
    fn touch(&mut self, captured: CapturedTouch<'_>) {
        let CapturedTouch { mut touch, stack } = captured;
        touch.stack = Ok(self.unwind(touch.mm, touch.pid, &stack).0);
        self.for_each_sink(|sink, context| sink.touched(&touch, context));
    }

    /// A call of a probed function is no event: the ledger is not changed.
    fn probed(&mut self, call: &CapturedCall<'_>) {
        let (id, completeness) = self.unwind(call.mm, call.pid, &call.stack);
        self.count(completeness);
        self.for_each_sink(|sink, _| sink.probed(call, id));
    }

    /// Applies an event of a recording.
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
        self.decoder.undecodable()
    }

    fn unwind(&mut self, mm: MmKey, pid: Pid, captured: &StackSample<'_>) -> (StackId, Completeness) {
        self.unwind_by(mm, pid, |unwinder, stacks| unwinder.unwind_interned(mm, captured, stacks))
    }

    fn unwind_by<T>(
        &mut self,
        mm: MmKey,
        pid: Pid,
        unwind: impl Fn(&mut Unwinder, &mut StackTable) -> T,
    ) -> T {
        self.renew_modules(mm, pid);
        self.unwinder.read_code_of(mm, pid);
        let found = unwind(&mut self.unwinder, &mut self.stacks);
        let time_ns = self.time_ns;
        let is_same = |generated: &mut GeneratedCode, unwinder: &Unwinder, stacks: &mut StackTable| {
            unwinder.generated_frames().is_empty() || generated.seen((mm, pid, time_ns), unwinder, stacks)
        };
        if is_same(&mut self.generated, &self.unwinder, &mut self.stacks) {
            return found;
        }
        self.unwinder.renew_generated(mm, &mut self.stacks);
        let found = unwind(&mut self.unwinder, &mut self.stacks);
        let _ = is_same(&mut self.generated, &self.unwinder, &mut self.stacks);
        found
    }

    /// Finds a runtime's tables of generated code where there is such code.
    fn find_code_tables(&mut self, mm: MmKey, pid: Pid) {
        if self.unwinder.has_code_tables(pid) {
            return;
        }
        for (mark, find) in code_tables() {
            if !self.unwinder.is_exported(mm, mark) {
                continue;
            }
            let mut read = |at: Addr, into: &mut [u8]| memory::read_whole(pid, at.0, into);
            let unwinder = &self.unwinder;
            let tables = find(&mut |name| unwinder.variable(mm, name), &mut read);
            self.unwinder.set_code_tables(pid, tables);
            return;
        }
    }

    /// A process is about to end. False where it has no perf map.
    pub fn open_perf_map(&mut self, pid: Pid) -> bool {
        self.generated.open_map(pid)
    }

    /// A process is about to end, or stacks are to be named: what perf maps say by now.
    pub fn name_all_generated(&mut self) {
        self.generated.name_all_waiting(&mut self.stacks);
    }

    /// Which perf maps were not read whole: sentences.
    pub fn generated_notes(&self) -> Vec<String> {
        self.generated.notes()
    }

    /// Gives the unwinder the current mappings, where they have changed.
    fn renew_modules(&mut self, mm: MmKey, pid: Pid) {
        if let Some(generation) = self.spaces.module_generation(mm)
            && !self.unwinder.is_current(mm, generation)
        {
            let regions = self.spaces.executable_regions(mm);
            let files = regions.iter().map(|(range, offset, file)| ExecMapping {
                range: *range,
                offset: *offset,
                file: Some(&**file),
            });
            let generated = self.spaces.generated_code(mm);
            let modules =
                files.chain(generated.iter().map(|&range| ExecMapping { range, offset: 0, file: None }));
            let state = SpaceState { mm, generation, pid };
            let has_generated = !generated.is_empty();
            if !self.unwinder.set_modules(state, modules, &mut self.stacks) {
                self.known.forget(mm);
            }
            if has_generated {
                self.find_code_tables(mm, pid);
            }
            self.managed.refresh(mm, self.time_ns, &self.unwinder);
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
                self.generated.forget(event.mm);
                self.unwinder.set_code_tables(event.task.pid, None);
                self.known.forget(event.mm);
            }
            VmOp::Fork { child_mm, is_thread: false, .. } if *child_mm != event.mm => {
                self.known.forget(*child_mm);
                self.unwinder.fork(event.mm, *child_mm);
            }
            _ => {}
        }
    }
}

/// An unwinder that reads code which was made at run time in the memory of its process.
pub fn unwinder() -> Unwinder {
    let mut unwinder = Unwinder::default();
    unwinder.read_code_with(Box::new(memory::read_whole));
    unwinder
}

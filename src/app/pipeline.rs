//! One event's way: decode, unwind against the modules mapped at that time, apply to the ledger.

use super::complete::complete;
use super::dump::Dump;
use crate::capture::wire::{self, Decoder};
use crate::capture::{Captured, CapturedTouch, Registers};
use crate::ledger::AddressSpaces;
use crate::model::{Completeness, MmKey, Pid, StackId, StackTable, VmEvent, VmOp};
use crate::touch::Touches;
use crate::unwind::{CapturedStack, ExecMapping, SpaceState, Unwinder};

/// What was counted on the way.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub events: u64,
    pub stacks: u64,
    pub truncated: u64,
    pub incomplete: u64,
    /// Programs in the target that asked for a seccomp listener of their own and were refused.
    pub listener_refused: u64,
    /// 32-bit programs: their calls take entries that are not traced.
    pub compat: u64,
}

/// The state between the ring and the report.
pub struct Pipeline {
    decoder: Decoder,
    pub spaces: AddressSpaces,
    pub unwinder: Unwinder,
    pub stacks: StackTable,
    pub tally: Tally,
    /// With --touch.
    pub touches: Option<Touches>,
    dump: Option<Dump>,
}

impl Pipeline {
    pub fn new(dump: Option<Dump>) -> Pipeline {
        Pipeline {
            decoder: Decoder::default(),
            spaces: AddressSpaces::new(),
            unwinder: Unwinder::default(),
            stacks: StackTable::default(),
            tally: Tally::default(),
            touches: None,
            dump,
        }
    }

    /// Takes one record of the ring.
    pub fn record(&mut self, raw: &[u8]) {
        if wire::is_touch(raw) {
            self.touch(raw);
            return;
        }
        let Some(captured) = self.decoder.decode(raw) else { return };
        let Captured { mut event, registers, stack, full } = captured;
        self.tally.events += 1;
        if let Some(r) = registers {
            let (id, completeness) = self.unwind(event.mm, event.task.pid, &captured_stack(r, stack, full));
            event.stack = Ok(id);
            self.tally.stacks += 1;
            match completeness {
                Completeness::Complete => {}
                Completeness::Truncated => self.tally.truncated += 1,
                Completeness::Incomplete => self.tally.incomplete += 1,
            }
        }
        complete(&mut event);
        self.note(&event);
        if let Some(dump) = &mut self.dump {
            dump.event(&event, &self.stacks);
        }
        self.spaces.apply(&event);
        if let Some(touches) = &mut self.touches {
            touches.follow(&event, &self.spaces);
        }
    }

    /// Takes a page fault. It is no call: the ledger is asked, not told.
    fn touch(&mut self, raw: &[u8]) {
        let Some(CapturedTouch { mut touch, registers, stack, full }) = wire::touch(raw) else { return };
        if self.touches.is_none() {
            return;
        }
        touch.stack = Ok(self.unwind(touch.mm, touch.pid, &captured_stack(registers, stack, full)).0);
        if let Some(touches) = &mut self.touches {
            touches.touch(&touch, &self.spaces);
        }
    }

    /// Records that could not be decoded.
    pub fn undecodable(&self) -> u64 {
        self.decoder.undecodable
    }

    /// Writes out what the dump still holds.
    pub fn finish_dump(&mut self) -> std::io::Result<()> {
        self.dump.as_mut().map_or(Ok(()), Dump::finish)
    }

    fn unwind(&mut self, mm: MmKey, pid: Pid, captured: &CapturedStack<'_>) -> (StackId, Completeness) {
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
        self.unwinder.unwind_interned(mm, captured, &mut self.stacks)
    }

    fn note(&mut self, event: &VmEvent) {
        match &event.op {
            VmOp::SeccompListenerBusy => self.tally.listener_refused += 1,
            VmOp::Exec { compat, .. } => {
                self.tally.compat += u64::from(*compat);
                self.unwinder.forget(event.mm);
            }
            VmOp::Fork { child_mm, is_thread: false, .. } if *child_mm != event.mm => {
                self.unwinder.fork(event.mm, *child_mm);
            }
            _ => {}
        }
    }
}

fn captured_stack(r: Registers, bytes: &[u8], full: bool) -> CapturedStack<'_> {
    CapturedStack {
        ip: r.ip,
        sp: r.sp,
        bp: r.bp,
        bx: r.bx,
        r12: r.r12,
        r13: r.r13,
        r14: r.r14,
        r15: r.r15,
        bytes,
        full,
    }
}

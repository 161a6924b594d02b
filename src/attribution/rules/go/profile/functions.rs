//! Names and lines of addresses, by the tables that each Go program has for its own stacks (`pclntab`), stripped
//! or not.
//!
//! Source: src/runtime/symtab.go, `findfunc`, `pcvalue`, `step`; src/runtime/symtabinl.go, `inlinedCall`.
//!
//! In a stack of the runtime's each address represents one function, also where that was compiled into its
//! caller: the caller has an address of its own then, at which nothing that was compiled into it stands.

use super::module::Module;
use crate::attribution::rules::peek::Peek;
use crate::model::Addr;
use crate::model::hash::IntMap;
use crate::model::heap::runtime::{OwnFrame, OwnFunction};

/// `_PCDATA_InlTreeIndex`, `_FUNCDATA_InlTree`.
const INLINED_INDEX: u32 = 2;
const INLINED_TREE: u32 = 3;
/// Steps of a table of values: no function is so long.
const MOST_STEPS: usize = 1 << 20;

pub struct Functions<'m> {
    module: &'m Module,
    frames: IntMap<u64, OwnFrame>,
}

/// A function as the index and its record have it.
#[derive(Clone, Copy, Debug)]
struct Record {
    at: u64,
    /// From the beginning of the program's code.
    start: u64,
}

impl<'m> Functions<'m> {
    pub fn of(module: &'m Module) -> Functions<'m> {
        Functions { module, frames: IntMap::default() }
    }

    /// The frame of a return address.
    pub fn frame(&mut self, at: u64, peek: &mut Peek<'_, '_>) -> OwnFrame {
        if let Some(known) = self.frames.get(&at) {
            return known.clone();
        }
        let mut frame = OwnFrame { at: Addr(at), ..OwnFrame::default() };
        // The call is before the address that it returns to.
        if let Some(offset) = at.checked_sub(1).and_then(|call| self.offset(call))
            && let Some(record) = self.record(offset, peek)
        {
            frame.function = self.function(record, offset, peek);
            (frame.file, frame.line) = self.line(record, offset, peek).unzip();
        }
        self.frames.insert(at, frame.clone());
        frame
    }

    /// Where a function of that name begins and the next one does.
    pub fn by_name(&self, name: &str, peek: &mut Peek<'_, '_>) -> Option<(u64, u64)> {
        for number in 0..self.count() {
            let (start, record) = self.entry(number, peek)?;
            let found = self.name_of(Record { at: record, start }, peek);
            if found.as_deref() == Some(name) {
                let (end, _) = self.entry(number + 1, peek)?;
                return Some((self.module.text.start.0 + start, self.module.text.start.0 + end));
            }
        }
        None
    }

    fn offset(&self, at: u64) -> Option<u64> {
        self.module.text.contains(Addr(at)).then(|| at - self.module.text.start.0)
    }

    /// The last entry is the end of the last function.
    fn count(&self) -> u64 {
        self.module.index.len.saturating_sub(1)
    }

    /// Of the index: where a function begins, and the address of its record.
    fn entry(&self, number: u64, peek: &mut Peek<'_, '_>) -> Option<(u64, u64)> {
        let at = self.module.index.at.checked_add(number.checked_mul(8)?)?;
        let (start, record) = (peek.u32(at)?, peek.u32(at + 4)?);
        Some((u64::from(start), self.module.functions.at.checked_add(u64::from(record))?))
    }

    fn record(&self, offset: u64, peek: &mut Peek<'_, '_>) -> Option<Record> {
        let (mut low, mut high) = (0, self.count());
        while low + 1 < high {
            let middle = low + (high - low) / 2;
            match self.entry(middle, peek)?.0 <= offset {
                true => low = middle,
                false => high = middle,
            }
        }
        let (start, at) = self.entry(low, peek)?;
        (start <= offset && u64::from(peek.u32(at)?) == start).then_some(Record { at, start })
    }

    fn name(&self, number: u32, peek: &mut Peek<'_, '_>) -> Option<String> {
        let number = u64::from(number);
        let name = (number < self.module.names.len).then(|| peek.string(self.module.names.at + number))??;
        Some(shortened(&name)).filter(|name| !name.is_empty())
    }

    fn name_of(&self, record: Record, peek: &mut Peek<'_, '_>) -> Option<String> {
        let number = peek.u32(record.at + 4)?;
        self.name(number, peek)
    }

    fn function(&self, record: Record, offset: u64, peek: &mut Peek<'_, '_>) -> Option<OwnFunction> {
        let from_start = offset + 1 - record.start;
        let inlined = self.inlined(record, offset, peek);
        let (name, inlined) = match inlined {
            Some(name) => (name, true),
            None => (self.name_of(record, peek)?, false),
        };
        Some(OwnFunction { name, offset: from_start, inlined })
    }

    /// What was compiled into the function at that place.
    fn inlined(&self, record: Record, offset: u64, peek: &mut Peek<'_, '_>) -> Option<String> {
        // Behind a line of the beginning come funcID, flag, a byte of padding and nfuncdata.
        let fixed = if self.module.has_start_lines { 44 } else { 40 };
        let tables = peek.u32(record.at + 28)?;
        let trees = peek.u8(record.at + fixed - 1)?;
        if tables <= INLINED_INDEX || u32::from(trees) <= INLINED_TREE {
            return None;
        }
        let index = peek.u32(record.at + fixed + u64::from(INLINED_INDEX) * 4)?;
        let tree = peek.u32(record.at + fixed + (u64::from(tables) + u64::from(INLINED_TREE)) * 4)?;
        if tree == u32::MAX {
            return None;
        }
        let number = u64::try_from(self.value(index, record, offset, peek)?).ok()?;
        let (len, name_at) = if self.module.has_start_lines { (16, 4) } else { (20, 12) };
        let call = self.module.function_data.checked_add(u64::from(tree))?.checked_add(number * len)?;
        let name = peek.u32(call + name_at)?;
        self.name(name, peek)
    }

    fn line(&self, record: Record, offset: u64, peek: &mut Peek<'_, '_>) -> Option<(String, u32)> {
        let (files, lines, unit) =
            (peek.u32(record.at + 20)?, peek.u32(record.at + 24)?, peek.u32(record.at + 32)?);
        let file = u64::try_from(self.value(files, record, offset, peek)?).ok()?;
        let line = u32::try_from(self.value(lines, record, offset, peek)?).ok()?;
        let entry = u64::from(unit).checked_add(file)?;
        let name = (entry < self.module.units.len).then(|| peek.u32(self.module.units.at + entry * 4))??;
        let name = u64::from(name);
        let file = (name < self.module.files.len).then(|| peek.string(self.module.files.at + name))??;
        Some((file, line))
    }

    /// The value that a table of the function has at a place in it.
    fn value(&self, table: u32, record: Record, offset: u64, peek: &mut Peek<'_, '_>) -> Option<i32> {
        if table == 0 {
            return None;
        }
        let mut at = u64::from(table);
        let mut next = |peek: &mut Peek<'_, '_>| {
            let mut value: u32 = 0;
            for shift in (0..35).step_by(7) {
                let byte = (at < self.module.values.len).then(|| peek.u8(self.module.values.at + at))??;
                at += 1;
                value |= u32::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
                if byte & 0x80 == 0 {
                    return Some(value);
                }
            }
            None
        };
        let (mut place, mut value) = (record.start, -1i32);
        for step in 0..MOST_STEPS {
            let delta = next(peek)?;
            if delta == 0 && step > 0 {
                return None;
            }
            value = value.wrapping_add((delta >> 1) as i32 ^ -((delta & 1) as i32));
            place = place.saturating_add(u64::from(next(peek)?) * QUANTUM);
            if offset < place {
                return Some(value).filter(|&value| value >= 0);
            }
        }
        None
    }
}

/// `sys.PCQuantum`: of instructions.
const QUANTUM: u64 = if cfg!(target_arch = "x86_64") { 1 } else { 4 };

/// `main.gen[go.shape.int_0]` as Go prints it: `main.gen[...]`.
fn shortened(name: &str) -> String {
    match (name.find('['), name.rfind(']')) {
        (Some(from), Some(to)) if from < to => format!("{}[...]{}", &name[..from], &name[to + 1..]),
        _ => name.to_owned(),
    }
}

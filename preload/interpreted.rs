//! The functions of an interpreter that are on the calling thread's stack: read where the interpreter has them, by the
//! offsets that vmaudit publishes ([`Interpreter`]), without calling it and without its locks.
//!
//! What is read belongs to this thread, which is in the middle of an allocation: its state, the chain of its frames,
//! and the code that these run, which they keep alive. Only the search for the state goes through what other threads
//! change: each address is checked before it is read ([`sys::is_readable`]). The state is forgotten when its block is
//! freed.

use super::area::*;
use super::memory::{self, Area};
use super::setup;
use super::stacks;
use super::sys;
use super::thread::{Level, MOST_FRAMES, Thread};
use super::walk::{self, Native, Registers, mix};
use core::sync::atomic::Ordering::*;

/// Frames that are taken.
const MOST: usize = MOST_INTERPRETED;
/// Frames that are examined for where the last one belongs, and threads of a list.
const MOST_EXAMINED: usize = 4096;
/// Combinations of a stack and what is interpreted on it that a thread remembers.
const PAIRS: usize = 1024;
/// Allocations of a thread without a state: so many search for one each, then one of so many.
const OFTEN: u32 = 64;
const SELDOM: u32 = 4096;
/// The state's block may begin so far before it: what a debugging allocator puts there.
const BEFORE_STATE: u64 = 64;

/// A function that runs.
#[repr(C)]
#[derive(Clone, Copy)]
struct Running {
    code: u64,
    number: u64,
    at: u64,
    /// On the thread's own stack, in the frame of the function that evaluates it and those before; 0: as the next.
    under: u64,
}

#[repr(C)]
struct Pair {
    hash: u64,
    native: u32,
    what: u32,
    stack: u32,
}

/// A frame of the stack that was composed last: a return address and 0, or what stands for a function's code, and the place in it
/// with [`INTERPRETED`].
#[repr(C)]
#[derive(Clone, Copy)]
struct Item {
    what: (u64, u64),
    node: u32,
}

const INTERPRETED: u64 = 1 << 63;
/// More than a return address is, and no code's number.
const CUT: (u64, u64) = (0, INTERPRETED);

/// Of a thread; zeros at first.
#[repr(C)]
pub struct Interpreted {
    /// [`Head::interpreted`], of which the rest is; 0: of none.
    version: u32,
    count: u32,
    is_cut: u32,
    /// Stacks since a state was searched for in vain.
    without: u32,
    offsets: [u16; OFFSETS],
    runtime: u64,
    code_type: u64,
    /// The list of states as it was when it was searched: the only interpreter, its newest state, states so far.
    interpreter: u64,
    newest: u64,
    made: u64,
    running: [Running; MOST],
    /// The outermost frame first.
    items: [Item; MOST_FRAMES + MOST + 1],
    item_count: usize,
    pairs: [Pair; PAIRS],
}

#[inline(always)]
unsafe fn word(at: u64) -> u64 {
    unsafe { (at as *const u64).read_unaligned() }
}

#[inline(always)]
unsafe fn byte(at: u64) -> u8 {
    unsafe { *(at as *const u8) }
}

/// What others may free meanwhile.
fn checked(at: u64) -> Option<u64> {
    (at >= 4096 && at & 7 == 0 && sys::is_readable(at)).then(|| unsafe { word(at) })
}

fn control_block() -> u64 {
    let at: u64;
    unsafe { core::arch::asm!("mov {o}, qword ptr fs:[0]", o = out(reg) at, options(pure, nomem, nostack)) };
    at
}

/// A block that is freed may be the thread's state.
#[inline(always)]
pub fn freed(thread: &mut Thread, block: u64) {
    // Without a state, no block is as near to it.
    if thread.state.wrapping_sub(block) <= BEFORE_STATE {
        forget(thread);
    }
}

#[cold]
#[inline(never)]
fn forget(thread: &mut Thread) {
    if thread.state != 0 {
        setup::heed(thread.state, false);
        setup::heed(thread.state - DEBUGGED, false);
    }
    thread.state = 0;
    if !thread.memory.is_null() {
        unsafe { (*thread.memory).interpreted.version = 0 };
    }
}

/// What a debugging allocator of Python's puts before a block.
const DEBUGGED: u64 = 16;

/// Of another area, or of the parent before a fork.
pub fn begin(thread: &mut Thread) {
    thread.state = 0;
    if !thread.memory.is_null() {
        let own = unsafe { &mut (*thread.memory).interpreted };
        own.version = 0;
        own.item_count = 0;
        own.pairs.iter_mut().for_each(|pair| pair.stack = 0);
    }
}

/// The number of the stack that is `native` with what is interpreted on it.
#[inline(never)]
pub fn stack_of(thread: &mut Thread, registers: &Registers, function: u8, native: Native) -> u32 {
    let area = memory::area();
    let code = area.head().code.load(Acquire);
    let with = match native.node {
        0 => None,
        _ => interpreted_on(thread, registers, function, native),
    };
    with.unwrap_or_else(|| stacks::number(area, native.node, function as u32 | native.flags, code))
}

/// None: nothing is interpreted, or nothing that is to be believed.
fn interpreted_on(thread: &mut Thread, registers: &Registers, function: u8, native: Native) -> Option<u32> {
    let area = memory::area();
    let version = area.head().interpreted.load(Acquire);
    if version == 0 {
        return None;
    }
    let own = unsafe { &mut (*thread.memory).interpreted };
    if own.version != version || !own.is_same_list() || (thread.state == 0 && own.is_due()) {
        find(thread, own, version);
    }
    if thread.state == 0 {
        return None;
    }
    let hash = match own.read(thread.state, registers.sp()) {
        Chain::Nothing => return None,
        Chain::Broken => {
            area.head().doubts.broken_frames.fetch_add(1, Relaxed);
            return None;
        }
        Chain::Read(hash) => hash,
    };
    let what = function as u32 | native.flags;
    let at = pair_at(native.node, hash);
    let pair = &own.pairs[at];
    if pair.hash == hash && pair.native == native.node && pair.what == what && pair.stack != 0 {
        return Some(pair.stack);
    }
    if !native.is_newest {
        walk::walk(thread, registers, function);
    }
    let stack = compose(thread, native)?;
    let own = unsafe { &mut (*thread.memory).interpreted };
    let number = stacks::number(area, stack, what, area.head().code.load(Acquire));
    own.pairs[at] = Pair { hash, native: native.node, what, stack: number };
    Some(number)
}

#[inline(always)]
fn pair_at(native: u32, hash: u64) -> usize {
    spread(hash ^ native as u64, PAIRS.trailing_zeros()) & (PAIRS - 1)
}

enum Chain {
    Nothing,
    /// Something is not what it should be: nothing of it is to be believed.
    Broken,
    /// Into `running`; a number that stands for all of it.
    Read(u64),
}

impl Interpreted {
    #[inline(always)]
    fn offset(&self, of: usize) -> u64 {
        self.offsets[of] as u64
    }

    /// A state may become the thread's own after it was made: where none was found, the search is repeated, ever more
    /// seldom.
    #[inline(always)]
    fn is_due(&mut self) -> bool {
        self.without += 1;
        self.without < OFTEN || self.without.is_power_of_two() || self.without.is_multiple_of(SELDOM)
    }

    /// No state was added since.
    #[inline(always)]
    fn is_same_list(&self) -> bool {
        // SAFETY: variables of the file that has the interpreter; `interpreter` is one, as `find` has checked.
        unsafe {
            word(self.runtime + self.offset(INTERPRETERS)) == self.interpreter
                && (self.interpreter == 0
                    || word(self.interpreter + self.offset(THREADS)) == self.newest
                        && word(self.interpreter + self.offset(THREADS) - 8) == self.made)
        }
    }

    /// Ends the functions that one function of the interpreter's own evaluates.
    #[inline(always)]
    fn close(&mut self, open: &mut bool, under: u64) {
        if *open && self.count > 0 {
            self.running[self.count as usize - 1].under = under;
        }
        *open = false;
    }

    #[inline(always)]
    fn read(&mut self, state: u64, sp: u64) -> Chain {
        let [code_at, previous, instruction, owner, first_line, names, object_type, object_size, code_bytes] =
            [CODE, PREVIOUS, INSTRUCTION, OWNER, FIRST_LINE, NAMES, OBJECT_TYPE, OBJECT_SIZE, CODE_BYTES]
                .map(|of| self.offset(of));
        let foreign = self.offset(FOREIGN_OWNER);
        let (runs, entries) = (self.offsets[RUN_FRAME] != NO_OFFSET, self.offsets[ENTRY] != NO_OFFSET);
        let (run_frame, run_previous, entry) =
            (self.offset(RUN_FRAME), self.offset(RUN_PREVIOUS), self.offset(ENTRY));
        self.count = 0;
        let (mut open, mut cut, mut hash) = (false, false, 0);
        let (mut last_code, mut last_number) = (0, 0);
        // SAFETY: the state is the calling thread's, and so is all that it leads to.
        unsafe {
            let mut run = word(state + self.offset(STATE_FRAME));
            let mut frame = if runs { word(run + run_frame) } else { run };
            for _ in 0..MOST_EXAMINED {
                if frame == 0 {
                    break;
                }
                let at = frame;
                frame = word(at + previous);
                if byte(at + owner) as u64 >= foreign {
                    if open {
                        hash = mix(hash, at.wrapping_sub(sp));
                    }
                    self.close(&mut open, at);
                    if cut {
                        break;
                    }
                    continue;
                }
                if self.count as usize == MOST {
                    cut = true;
                    if entries {
                        hash = mix(hash, run.wrapping_sub(sp));
                        self.close(&mut open, run);
                    }
                    if !open {
                        break;
                    }
                    continue;
                }
                let code = word(at + code_at) & !7;
                if code != last_code {
                    if code < 4096 || word(code + object_type) != self.code_type {
                        return Chain::Broken;
                    }
                    let name = |number: u64| word(code + names + 8 * number);
                    // Of its address, and of what would be another one if other code were there now.
                    let parts = code
                        ^ word(code + object_size).rotate_left(48)
                        ^ name(0).rotate_left(7)
                        ^ name(1).rotate_left(19)
                        ^ name(2).rotate_left(31)
                        ^ name(3).rotate_left(43);
                    last_number = mix(parts, word(code + first_line).rotate_left(9));
                    last_code = code;
                }
                let position = word(at + instruction).wrapping_sub(code).wrapping_sub(code_bytes);
                hash = mix(hash, last_number ^ position.rotate_left(40));
                self.running[self.count as usize] =
                    Running { code, number: last_number, at: position, under: 0 };
                self.count += 1;
                open = true;
                if entries && byte(at + entry) != 0 {
                    hash = mix(hash, run.wrapping_sub(sp));
                    self.close(&mut open, run);
                    run = word(run + run_previous);
                    if frame != 0 && word(run + run_frame) != frame {
                        return Chain::Broken;
                    }
                }
            }
        }
        self.is_cut = cut as u32;
        match self.count {
            0 => Chain::Nothing,
            _ => Chain::Read(mix(hash, cut as u64 + 1)),
        }
    }
}

/// The thread's state: again where the list of states has changed.
#[cold]
#[inline(never)]
fn find(thread: &mut Thread, own: &mut Interpreted, version: u32) {
    let head = memory::area().head();
    let from = &head.interpreter;
    let is_new = own.version != version;
    own.version = version;
    for (to, from) in own.offsets.iter_mut().zip(&from.offsets) {
        *to = from.load(Relaxed);
    }
    (own.runtime, own.code_type) = (from.runtime.load(Relaxed), from.code_type.load(Relaxed));
    (own.interpreter, own.newest, own.made) = (0, 0, 0);
    let first = checked(own.runtime + own.offset(INTERPRETERS)).unwrap_or(0);
    let in_file = from.start.load(Relaxed)..from.end.load(Relaxed);
    own.interpreter = first;
    let threads = first.wrapping_add(own.offset(THREADS));
    // Not begun yet; or there are more, whose lists other threads may free.
    if !in_file.contains(&first) {
        head.doubts.several.fetch_add((first != 0) as u64, Relaxed);
        own.interpreter = 0;
        thread.state = 0;
        return;
    }
    (own.newest, own.made) = (checked(threads).unwrap_or(0), checked(threads - 8).unwrap_or(0));
    let is_own = |state: u64| checked(state + own.offset(THREAD_ID)) == Some(control_block());
    if !is_new && thread.state != 0 && is_own(thread.state) {
        return;
    }
    let (mut state, mut found, mut count) = (own.newest, 0, 0);
    thread.state = 0;
    for _ in 0..MOST_EXAMINED {
        if state == 0 {
            break;
        }
        if is_own(state) {
            (found, count) = (state, count + 1);
        }
        state = checked(state + own.offset(THREAD_NEXT)).unwrap_or(0);
    }
    // CPython 3.11 has its creator's number in a state until its thread runs.
    if count == 1 {
        (thread.state, own.without) = (found, 0);
        setup::heed(found, true);
        setup::heed(found - DEBUGGED, true);
    }
}

/// The node of the stack that was walked last, with the functions where they belong. From the outermost frame on, what is as it
/// was the last time has the node that it had.
fn compose(thread: &mut Thread, native: Native) -> Option<u32> {
    // SAFETY: it is there; its levels are no part of what is interpreted.
    let (own, levels) = unsafe {
        let memory = thread.memory;
        let levels: &[Level] = &*(&raw const (*memory).levels);
        (&mut *(&raw mut (*memory).interpreted), levels.get(..(*memory).len)?)
    };
    let mut composed = Composed { area: memory::area(), node: 0, count: 0, is_same: true };
    let mut level = 0usize;
    let count = own.count as usize;
    let mut rest = count;
    while let Some(end) = (0..rest).rev().find(|&end| own.running[end].under != 0) {
        let start =
            (0..end).rev().find(|&before| own.running[before].under != 0).map_or(0, |before| before + 1);
        let under = own.running[end].under;
        // The frame in whose memory they are. Where the outermost one that was found ends is not known.
        let first = level.saturating_sub(1);
        let host = levels[first..].iter().position(|level| level.sp <= under).map(|at| first + at);
        let is_outside = host == Some(0) && native.flags & (INCOMPLETE | TRUNCATED) != 0;
        let after = if is_outside { 0 } else { host.map_or(0, |host| host + 1) };
        if host.is_none() || after < level || level > 1 && levels[level - 2].sp <= under {
            // They belong to another stack: a signal's, or one that the thread has made itself.
            composed.area.head().doubts.broken_frames.fetch_add(1, Relaxed);
            own.item_count = 0;
            return None;
        }
        for of in &levels[level..after] {
            composed.push(own, (of.ip, 0), |_| Some(of.ip))?;
        }
        level = after;
        if own.is_cut != 0 && end + 1 == count {
            composed.push(own, CUT, |_| Some(interpreted_word(0, 0)))?;
        }
        for running in (start..=end).rev() {
            let Running { code, number, at, .. } = own.running[running];
            composed.push(own, (number, at | INTERPRETED), |own| {
                let description = describe(memory::area(), own, (code, number));
                (description != 0).then(|| interpreted_word(description, at))
            })?;
        }
        rest = start;
    }
    for of in &levels[level..] {
        composed.push(own, (of.ip, 0), |_| Some(of.ip))?;
    }
    own.item_count = composed.count;
    Some(composed.node)
}

/// A stack as far as it is composed.
struct Composed {
    area: Area,
    node: u32,
    count: usize,
    /// All of it is as it was the last time.
    is_same: bool,
}

impl Composed {
    /// One frame more. None where there is no space.
    fn push(
        &mut self,
        own: &mut Interpreted,
        what: (u64, u64),
        word: impl FnOnce(&Interpreted) -> Option<u64>,
    ) -> Option<()> {
        let is_known = self.count < own.item_count;
        let known = *own.items.get(self.count)?;
        self.is_same &= is_known && known.what == what;
        if self.is_same {
            self.node = known.node;
        } else {
            // What was there is not the former stack any more.
            own.item_count = own.item_count.min(self.count);
            let word = word(own)?;
            self.node = Some(stacks::child(self.area, self.node, word)).filter(|&node| node != 0)?;
            own.items[self.count] = Item { what, node: self.node };
        }
        self.count += 1;
        Some(())
    }
}

/// The number under which a code's description is in the area; 0: there is no space for it.
fn describe(area: Area, own: &Interpreted, (code, number): (u64, u64)) -> u32 {
    let head = area.head();
    let (text_type, bytes_type) =
        (head.interpreter.text_type.load(Relaxed), head.interpreter.bytes_type.load(Relaxed));
    // SAFETY: the code is running, and keeps what it consists of.
    unsafe {
        let name = |at: u64| word(code + own.offset(NAMES) + 8 * at);
        let text = |text: u64| -> (u64, u64) {
            if text < 4096 || word(text + own.offset(OBJECT_TYPE)) != text_type {
                return (0, 0);
            }
            let (length, state) = (word(text + own.offset(TEXT_LENGTH)), word(text + own.offset(TEXT_STATE)));
            let width = state >> 2 & 7;
            if state & 1 << 5 == 0 || !matches!(width, 1 | 2 | 4) {
                return (0, 0);
            }
            let at = if state & 1 << 6 != 0 { TEXT_ASCII } else { TEXT_OTHER };
            let bytes = length.saturating_mul(width).min(NAME_MOST as u64);
            (text + own.offset(at), bytes | width << 32)
        };
        let (file, qualified, table) = (text(name(0)), text(name(2)), name(3));
        let lines = match table >= 4096 && word(table + own.offset(OBJECT_TYPE)) == bytes_type {
            true => Some(word(table + own.offset(OBJECT_SIZE))).filter(|&length| length <= LINES_MOST as u64),
            false => None,
        };
        let parts = [
            (file.0, file.1 as u32 as usize),
            (qualified.0, qualified.1 as u32 as usize),
            (table + own.offset(BYTES_DATA), lines.unwrap_or(0) as usize),
        ];
        let (first_line, traceable) =
            (word(code + own.offset(FIRST_LINE)), word(code + own.offset(TRACEABLE)));
        let header = [
            first_line as u32 as u64 | (traceable as u32 as u64) << 32,
            file.1,
            qualified.1,
            lines.unwrap_or(u64::MAX),
        ];
        let words = |length: usize| length.div_ceil(8);
        let len = header.len() + parts.iter().map(|part| words(part.1)).sum::<usize>();
        stacks::text(area, (len, number), |mut at| {
            if let Some(word) = header.get(at) {
                return *word;
            }
            at -= header.len();
            for (from, length) in parts {
                if at < words(length) {
                    let mut bytes = [0; 8];
                    for (to, index) in bytes.iter_mut().zip(at * 8..length) {
                        *to = byte(from + index as u64);
                    }
                    return u64::from_ne_bytes(bytes);
                }
                at -= words(length);
            }
            0
        })
    }
}

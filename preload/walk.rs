//! The walk along a thread's own stack, by the rules of each place in code ([`rules`]).

use super::area::{self, *};
use super::interpreted;
use super::memory::{self, Area, reach};
use super::pages::ADDRESS_BITS;
use super::rules::{self, Learned};
use super::setup;
use super::stacks::{child, number};
use super::sys;
use super::thread::{MEMO_WORDS, MOST_FRAMES, Memo, Memory, Memos, Thread};
use core::sync::atomic::{AtomicU32, Ordering::*};

/// Registers as a hook finds them, in the order in which it pushes them.
#[repr(C)]
pub struct Registers {
    pub bp: u64,
    pub bx: u64,
    pub r12: u64,
    pub r13: u64,
    pub r14: u64,
    pub r15: u64,
    /// Where the hook returns to.
    pub ip: u64,
}

impl Registers {
    #[inline(always)]
    pub fn sp(&self) -> u64 {
        self as *const Registers as u64 + size_of::<Registers>() as u64
    }
}

/// How long the clock may stand still before vmaudit is not queried any more.
const PATIENCE_MS: u64 = 2000;
/// How often that, of one that is there and does not answer.
const PATIENCE_TIMES: u32 = 15;
/// Along one stack.
const MAX_REQUESTS: u32 = 64;

/// There is no answer: vmaudit is gone, or stopped.
static NO_ANSWER: AtomicU32 = AtomicU32::new(0);

/// Whoever has sent a new area gives answers.
pub fn begin() {
    NO_ANSWER.store(0, Relaxed);
}

/// For where rbp was saved: nowhere, it is the register; or its value is compared already.
const BP_REGISTER: u64 = 0;
const BP_KNOWN: u64 = 1;

/// The number of the stack that called a hook; 0: it has none.
#[inline(always)]
pub fn stack_of(thread: &mut Thread, registers: &Registers, function: u8) -> u32 {
    let area = memory::area();
    let sp = registers.sp();
    if (sp < thread.stack_start || sp >= thread.stack_end) && !find_stack(thread, sp) {
        area.head().doubts.without_stack.fetch_add(1, Relaxed);
        return 0;
    }
    let code = area.head().code.load(Relaxed);
    // SAFETY: it is there.
    let set = unsafe { Memory::memos(thread.memory, key_of(registers)) };
    let memo = &set.memos[set.last & 1];
    let is_native = area.head().interpreted.load(Relaxed) == 0;
    if is_native && memo.stack != 0 && memo.is_of(registers, function, code) {
        return memo.stack;
    }
    find_number(thread, registers, function)
}

#[inline(never)]
fn find_number(thread: &mut Thread, registers: &Registers, function: u8) -> u32 {
    let area = memory::area();
    let code = area.head().code.load(Relaxed);
    // SAFETY: it is there.
    let set = unsafe { Memory::memos(thread.memory, key_of(registers)) };
    let last = set.last & 1;
    let known = [last, last ^ 1].into_iter().find(|&of| set.memos[of].is_of(registers, function, code));
    if let Some(of) = known {
        set.last = of;
        let memo = &mut set.memos[of];
        if area.head().interpreted.load(Relaxed) != 0 {
            let native = Native { node: memo.node, flags: memo.flags, is_newest: false };
            return interpreted::stack_of(thread, registers, function, native);
        }
        if memo.stack == 0 {
            memo.stack = number(area, memo.node, function as u32 | memo.flags, code);
        }
        return memo.stack;
    }
    let native = walk(thread, registers, function);
    if area.head().interpreted.load(Relaxed) != 0 {
        return interpreted::stack_of(thread, registers, function, native);
    }
    let stack = number(area, native.node, function as u32 | native.flags, code);
    // SAFETY: as above.
    let memo = unsafe { Memory::memos(thread.memory, key_of(registers)) }.newest();
    if memo.ip != 0 {
        memo.stack = stack;
    }
    stack
}

/// A stack without what is interpreted on it.
#[derive(Clone, Copy)]
pub struct Native {
    /// 0: there was no space.
    pub node: u32,
    /// How it ends: [`INCOMPLETE`], [`TRUNCATED`].
    pub flags: u32,
    /// It is the one that was walked last.
    pub is_newest: bool,
}

#[inline(always)]
fn key_of(registers: &Registers) -> u64 {
    registers.ip ^ registers.sp() << 7
}

impl Memo {
    /// Whether the walk would read the same again.
    #[inline(always)]
    fn is_of(&self, registers: &Registers, function: u8, code: u32) -> bool {
        let sp = registers.sp();
        if self.ip != registers.ip
            || self.sp != sp
            || (self.bp ^ registers.bp) & self.bp_mask != 0
            || self.code != code
            || self.what != function as u32
        {
            return false;
        }
        let mut at = 0;
        let len = (self.len as usize).min(MEMO_WORDS);
        while at < len && unsafe { *((sp + self.at[at] as u64) as *const u64) } == self.word[at] {
            at += 1;
        }
        at == len
    }
}

impl Memos {
    /// In the place of the one that was of use before the last one.
    #[inline(always)]
    fn next(&mut self) -> &mut Memo {
        self.last = self.last & 1 ^ 1;
        &mut self.memos[self.last]
    }

    fn newest(&mut self) -> &mut Memo {
        &mut self.memos[self.last & 1]
    }
}

/// A thread may run on a stack that it has made itself.
#[cold]
#[inline(never)]
fn find_stack(thread: &mut Thread, sp: u64) -> bool {
    // There was no memory to walk with.
    if thread.memory.is_null() {
        return false;
    }
    match sys::mapping_of(sp) {
        Some((start, end)) => {
            (thread.stack_start, thread.stack_end) = (start, end);
            true
        }
        None => false,
    }
}

#[inline(always)]
pub fn mix(hash: u64, word: u64) -> u64 {
    let mixed = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ mixed >> 29
}

/// Leaves the stack's frames in the thread's memory, and what was read for that in a memo.
#[inline(never)]
pub fn walk(thread: &mut Thread, registers: &Registers, function: u8) -> Native {
    let (code, first) = (memory::area().head().code.load(Acquire), registers.sp());
    // SAFETY: it is there.
    let last = unsafe { &*thread.memory };
    let known = if last.stack_end == thread.stack_end && last.code == code { last.len } else { 0 };
    let (mut walked, mut may_change) = walk_to(thread, registers, code, known);
    if walked.is_none() {
        // With what is known it is too deep: that has to go.
        (walked, may_change) = walk_to(thread, registers, code, 0);
    }
    let native = walked.unwrap_or(Native { node: 0, flags: INCOMPLETE, is_newest: true });
    // SAFETY: it is there, and the memos are no part of the rest.
    let (memory, memo) = unsafe { (&*thread.memory, Memory::memos(thread.memory, key_of(registers)).next()) };
    (memo.ip, memo.stack) = (0, 0);
    // What could not be requested may be known the next time.
    if !may_change && native.node != 0 && memo.note(memory, first) {
        (memo.sp, memo.bp, memo.node, memo.flags) = (first, registers.bp, native.node, native.flags);
        (memo.code, memo.what) = (code, function as u32);
        memo.ip = registers.ip;
    }
    native
}

/// Whether a walk from the last of these frames outwards would find them again: it would read the same words, in this order. If
/// not, how many of them are outside of the first one that has another caller.
fn leads_on(memory: &Memory, known: usize) -> Result<(), usize> {
    // SAFETY: the frame that comes first is on the stack now, and so is each whose return address is as it was.
    let is_there = |at: u64, word: u64| at == 0 || unsafe { *(at as *const u64) } == word;
    for (index, level) in memory.levels[..known].iter().enumerate().rev() {
        let (return_at, ip) = match index.checked_sub(1) {
            Some(outer) => (memory.levels[outer].sp - 8, memory.levels[outer].ip),
            None => (memory.end_at, memory.end),
        };
        let is_same = is_there(level.through_at, level.through)
            && is_there(level.saved_at, level.saved)
            && is_there(return_at, ip);
        if !is_same {
            return Err(index);
        }
    }
    Ok(())
}

/// Walks up to a frame that is known, or to the end. None where there are more frames than space for them. True where another
/// walk may find more.
fn walk_to(
    thread: &mut Thread,
    registers: &Registers,
    code: u32,
    mut known: usize,
) -> (Option<Native>, bool) {
    let area = memory::area();
    let head = area.head();
    // SAFETY: it is there; nothing below has another reference to it.
    let memory = unsafe { &mut *thread.memory };
    let first_sp = registers.sp();
    let (mut ip, mut sp, mut bp) = (registers.ip, first_sp, registers.bp);
    let (mut fresh, mut requests) = (0, 0);
    let (mut flags, mut may_change, mut end) = (0, false, (0, 0));
    const LAST: usize = 2 * MOST_FRAMES - 1;
    loop {
        while known > 0 && memory.levels[known - 1].sp < sp {
            known -= 1;
        }
        if known > 0 {
            let level = &memory.levels[known - 1];
            if level.sp == sp && level.ip == ip && (level.bp == bp || !level.bp_matters) {
                match leads_on(memory, known) {
                    Ok(()) => {
                        (flags, end) = (memory.flags, (memory.end_at, memory.end));
                        break;
                    }
                    Err(fewer) => known = fewer,
                }
            }
        }
        if fresh == MOST_FRAMES {
            (flags, known) = (TRUNCATED, 0);
            break;
        }
        let level = &mut memory.levels[LAST - fresh];
        fresh += 1;
        (level.ip, level.sp, level.bp) = (ip, sp, bp);
        (level.saved_at, level.through_at, level.uses_bp, level.bp_matters) = (0, 0, false, false);
        // The innermost address is behind a call, too: that of the hook.
        let mut rule = rules::find(ip, code);
        if rule == 0 && !is_generated(head, ip) {
            rule = learn(thread, (ip, sp, bp), code, &mut requests);
        }
        // No jump by a table: what comes next cannot be predicted along different stacks.
        let kind = kind_of(rule);
        let is_through = kind == THROUGH_BP;
        let goes_on = matches!(kind, BY_SP | BY_BP) || is_through;
        if !goes_on {
            known = 0;
            if kind != ROOT {
                flags = INCOMPLETE;
                may_change = kind != STOP && !is_generated(head, ip);
            }
            break;
        }
        (flags, may_change) = (INCOMPLETE, true);
        level.uses_bp = kind != BY_SP;
        // SAFETY: what is read is above the hook's frame and in the stack.
        let read = |at: u64| {
            let is_in = at >= first_sp && at <= thread.stack_end - 8;
            is_in.then(|| unsafe { *(at as *const u64) })
        };
        let mut cfa = (if kind == BY_SP { sp } else { bp }).wrapping_add(cfa_of(rule) as u64);
        if is_through {
            let Some(word) = read(cfa) else { break };
            (level.through_at, level.through) = (cfa, word);
            cfa = word;
        }
        if cfa <= sp || cfa > thread.stack_end || cfa & 7 != 0 {
            break;
        }
        let saved = bp_of(rule);
        if saved != 0 || is_through {
            let at = (if is_through { bp } else { cfa }).wrapping_add((saved * 8) as u64);
            let Some(word) = read(at) else { break };
            (level.saved_at, level.saved) = (at, word);
            bp = word;
        }
        let Some(next) = read(cfa - 8) else { break };
        if next >> ADDRESS_BITS != 0 {
            break;
        }
        (flags, may_change) = (0, false);
        (ip, sp) = (next, cfa);
        if ip < 4096 {
            (known, end) = (0, (cfa - 8, next));
            break;
        }
    }
    if may_change {
        known = 0;
    }
    if known + fresh > MOST_FRAMES {
        memory.stack_end = 0;
        return (None, false);
    }
    memory.levels.copy_within(LAST + 1 - fresh.., known);
    (memory.len, memory.flags, memory.code) = (known + fresh, flags, code);
    (memory.end_at, memory.end) = end;
    memory.stack_end = if may_change { 0 } else { thread.stack_end };
    let (mut node, mut matters) = match known {
        0 => (0, false),
        known => (memory.levels[known - 1].node, memory.levels[known - 1].bp_matters),
    };
    let mut has_space = known == 0 || node != 0;
    for level in &mut memory.levels[known..known + fresh] {
        node = if has_space { child(area, node, level.ip) } else { 0 };
        has_space &= node != 0;
        matters = level.uses_bp || level.saved_at == 0 && matters;
        (level.node, level.bp_matters) = (node, matters);
    }
    (Some(Native { node, flags, is_newest: true }), may_change)
}

impl Memo {
    /// Notes all words that the walk has read. False where there is no space for them.
    fn note(&mut self, memory: &Memory, first_sp: u64) -> bool {
        if memory.len > MEMO_WORDS {
            return false;
        }
        let mut words = 0;
        let (at, word) = (&mut self.at, &mut self.word);
        let mut put = |address: u64, value: u64| {
            if words < MEMO_WORDS {
                (at[words], word[words]) = ((address - first_sp) as u32, value);
            }
            words += 1;
        };
        self.bp_mask = 0;
        // Where rbp was saved: of compilers that use it for anything, it says something new with each call, and counts
        // only where a frame is found by it.
        let (mut bp_from, mut bp) = (BP_REGISTER, 0);
        let levels = &memory.levels[..memory.len];
        for (index, level) in levels.iter().enumerate().rev() {
            if level.uses_bp {
                match bp_from {
                    BP_KNOWN => {}
                    BP_REGISTER => self.bp_mask = u64::MAX,
                    at => put(at, bp),
                }
                bp_from = BP_KNOWN;
            }
            if level.through_at != 0 {
                put(level.through_at, level.through);
            }
            if level.saved_at != 0 {
                (bp_from, bp) = (level.saved_at, level.saved);
            }
            if let Some(outer) = index.checked_sub(1) {
                put(levels[outer].sp - 8, levels[outer].ip);
            }
        }
        if memory.end_at != 0 {
            put(memory.end_at, memory.end);
        }
        self.len = words as u32;
        words <= MEMO_WORDS
    }
}

#[inline(always)]
fn find(area: Area, key: u64) -> u64 {
    let tables = (area.head().rule_tables.load(Acquire) as usize).min(RULE_TABLES.len());
    if !reach(RULE_PART, in_all(&RULE_TABLES, tables) * size_of::<area::Rule>()) {
        return 0;
    }
    for at in probes(&RULE_TABLES[..tables], key, RULE_PROBES) {
        let rule = area.rule(at);
        let known = rule.key.load(Acquire);
        if known == key {
            return rule.body.load(Relaxed);
        }
        if known == 0 {
            return 0;
        }
    }
    0
}

fn is_generated(head: &Head, address: u64) -> bool {
    let len = (head.generated_len.load(Acquire) as usize).min(GENERATED);
    let within =
        |range: &area::Range| (range.start.load(Relaxed)..range.end.load(Relaxed)).contains(&address);
    head.generated.iter().take(len).any(within)
}

/// The rule of a place that was on no stack before; 0: none so far.
#[cold]
#[inline(never)]
fn learn(thread: &mut Thread, at: (u64, u64, u64), code: u32, requests: &mut u32) -> u64 {
    let (place, _, _) = at;
    let learned = rules::learn(place, code);
    let mut is_answered = |flags| {
        *requests += 1;
        *requests <= MAX_REQUESTS && request_rules(thread, at, (code, flags))
    };
    match learned {
        Learned::Rule { body, is_new } => {
            if is_new && is_answered(REQUEST_MODULE) {
                rules::is_seen(place);
            }
            body
        }
        Learned::Nothing if is_answered(0) => {
            let body = find(memory::area(), rule_key(place, false, code));
            // Code that is generated comes and goes.
            if !is_generated(memory::area().head(), place) {
                rules::learned(place, body, code);
            }
            body
        }
        Learned::Nothing => 0,
    }
}

/// vmaudit unwinds the stack from here outwards, and publishes the rules along it, or only looks at what is mapped
/// ([`REQUEST_MODULE`]). False where it does not answer: after the first time nothing is requested any more.
#[cold]
#[inline(never)]
fn request_rules(thread: &mut Thread, (ip, sp, bp): (u64, u64, u64), (code, flags): (u32, u32)) -> bool {
    let area = memory::area();
    if NO_ANSWER.load(Relaxed) != 0 {
        return false;
    }
    let free = |&number: &usize| {
        if !reach(REQUEST_PART, (number + 1) * size_of::<area::Request>()) {
            return false;
        }
        let state = &area.request(number).state;
        state.compare_exchange(REQUEST_FREE, REQUEST_TAKEN, Acquire, Relaxed).is_ok()
    };
    let Some(number) = (0..REQUESTS).find(free) else {
        area.head().doubts.unanswered.fetch_add(1, Relaxed);
        return false;
    };
    let request = area.request(number);
    let below_end = thread.stack_end.saturating_sub(sp);
    let len = if flags & REQUEST_MODULE == 0 { copy_stack(thread, sp, request) } else { 0 };
    let all = thread.stack_end.saturating_sub(sp).min(below_end);
    request.len.store(len as u32, Relaxed);
    request.flags.store(flags | if all == len as u64 { REQUEST_TO_END } else { 0 }, Relaxed);
    request.code.store(code, Relaxed);
    request.ip.store(ip, Relaxed);
    request.sp.store(sp, Relaxed);
    request.bp.store(bp, Relaxed);
    request.state.store(REQUEST_WAITS, Release);
    area.head().doubts.requests.fetch_add(1, Relaxed);
    setup::ring();
    let mut tick = memory::bell().tick.load(Relaxed);
    let mut left = PATIENCE_TIMES;
    while request.state.load(Acquire) == REQUEST_WAITS {
        if sys::wait(&request.state, REQUEST_WAITS, PATIENCE_MS) {
            let now = memory::bell().tick.load(Relaxed);
            left -= 1;
            if now == tick || left == 0 {
                // A later answer finds a request whose thread does not wait: it stays taken.
                NO_ANSWER.store(1, Relaxed);
                setup::give_up();
                area.head().doubts.unanswered.fetch_add(1, Relaxed);
                return false;
            }
            tick = now;
        }
    }
    request.state.store(REQUEST_FREE, Release);
    true
}

/// How many bytes that are. The thread's mapping may have been one with the next one's stack when it was
/// read, and end before a guard page that was made since: each page is read as soon as it is known that it
/// can be.
fn copy_stack(thread: &mut Thread, sp: u64, request: &Request) -> usize {
    let count = (thread.stack_end.saturating_sub(sp)).min(REQUEST_BYTES as u64) as usize / 8;
    for (word, to) in request.bytes.iter().take(count).enumerate() {
        let at = sp + word as u64 * 8;
        if (word == 0 || at.is_multiple_of(PAGE)) && !sys::is_readable(at) {
            thread.stack_end = at;
            return word * 8;
        }
        // SAFETY: can be read, as of just now.
        to.store(unsafe { *(at as *const u64) }, Relaxed);
    }
    count * 8
}

const PAGE: u64 = sys::PAGE as u64;

//! The walk along a thread's own stack, by rules that vmaudit publishes.

use super::area::{self, *};
use super::interpreted;
use super::memory::{self, Area, reach};
use super::pages::ADDRESS_BITS;
use super::setup;
use super::stacks::intern;
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

/// Whom a new area is from gives answers.
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
    let last = set.last & 1;
    let memo = &set.memos[last];
    if memo.is_of(registers, function, code) {
        return with_interpreted(thread, registers, function, memo.stack);
    }
    let stack = set.other(last, registers, function, code);
    if stack != 0 {
        return with_interpreted(thread, registers, function, stack);
    }
    let stack = walk(thread, registers, function);
    with_interpreted(thread, registers, function, stack)
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
    /// The stack that the other one is of, which is the last one then; 0: none.
    #[inline(never)]
    fn other(&mut self, last: usize, registers: &Registers, function: u8, code: u32) -> u32 {
        let other = &self.memos[last ^ 1];
        if !other.is_of(registers, function, code) {
            return 0;
        }
        let stack = other.stack;
        self.last = last ^ 1;
        stack
    }

    /// In the place of the one that was of use before the last one.
    #[inline(always)]
    fn next(&mut self) -> &mut Memo {
        self.last = self.last & 1 ^ 1;
        &mut self.memos[self.last]
    }
}

#[inline(always)]
fn with_interpreted(thread: &mut Thread, registers: &Registers, function: u8, stack: u32) -> u32 {
    match memory::area().head().interpreted.load(Relaxed) {
        0 => stack,
        _ => interpreted::stack_of(thread, registers, function, stack),
    }
}

/// Leaves the stack's frames, and how it ends, in the thread's memory.
pub fn walk_again(thread: &mut Thread, registers: &Registers, function: u8) {
    walk(thread, registers, function);
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

#[inline(never)]
fn walk(thread: &mut Thread, registers: &Registers, function: u8) -> u32 {
    let area = memory::area();
    let head = area.head();
    let code = head.code.load(Acquire);
    // SAFETY: it is there, and the memos are no part of the rest.
    let memo = unsafe { Memory::memos(thread.memory, key_of(registers)) }.next();
    let (frames, pointers) =
        unsafe { (&mut *(&raw mut (*thread.memory).frames), &mut *(&raw mut (*thread.memory).pointers)) };
    let first_sp = registers.sp();
    let (mut ip, mut sp, mut bp) = (registers.ip, first_sp, registers.bp);
    let mut hash = mix(code as u64, function as u64);
    let (mut len, mut words, mut requests) = (0, 0, 0);
    let (mut flags, mut may_change) = (0, false);
    (memo.ip, memo.bp_mask) = (0, 0);
    // Where rbp was saved: of compilers that use it for anything, it says something new with each call, and counts
    // only where a frame is found by it.
    let mut bp_from = BP_REGISTER;
    let mut note = |memo: &mut Memo, address: u64, word: u64| {
        if words < MEMO_WORDS {
            memo.at[words] = (address - first_sp) as u32;
            memo.word[words] = word;
        }
        words += 1;
    };
    loop {
        (frames[len], pointers[len]) = (ip, sp);
        len += 1;
        hash = mix(hash, ip);
        if len == MOST_FRAMES {
            flags = TRUNCATED;
            break;
        }
        // The innermost address is behind a call, too: that of the hook.
        let key = rule_key(ip, false, code);
        let mut rule = find(area, key);
        if rule == 0 && requests < MAX_REQUESTS && !is_generated(head, ip) {
            requests += 1;
            if request_rules(thread, (ip, sp, bp), code) {
                rule = find(area, key);
            }
        }
        // No jump by a table: what comes next cannot be predicted along different stacks.
        let kind = kind_of(rule);
        let base = if kind == BY_SP { sp } else { bp };
        if kind > BY_BP || kind == 0 {
            if kind != ROOT {
                flags = INCOMPLETE;
                may_change = kind != STOP && !is_generated(head, ip);
            }
            break;
        }
        if kind == BY_BP {
            match bp_from {
                BP_KNOWN => {}
                BP_REGISTER => memo.bp_mask = u64::MAX,
                at => note(memo, at, bp),
            }
            bp_from = BP_KNOWN;
        }
        let cfa = base.wrapping_add(cfa_of(rule) as u64);
        if cfa <= sp || cfa > thread.stack_end || cfa & 7 != 0 {
            (flags, may_change) = (INCOMPLETE, true);
            break;
        }
        let saved = bp_of(rule);
        if saved != 0 {
            let at = cfa.wrapping_add((saved * 8) as u64);
            if at < first_sp || at > thread.stack_end - 8 {
                (flags, may_change) = (INCOMPLETE, true);
                break;
            }
            // SAFETY: above the hook's frame and in the stack, as is the return address.
            (bp, bp_from) = (unsafe { *(at as *const u64) }, at);
        }
        ip = unsafe { *((cfa - 8) as *const u64) };
        note(memo, cfa - 8, ip);
        sp = cfa;
        if ip < 4096 {
            break;
        }
        if ip >> ADDRESS_BITS != 0 {
            (flags, may_change) = (INCOMPLETE, true);
            break;
        }
    }
    unsafe { ((*thread.memory).len, (*thread.memory).flags) = (len, flags) };
    let stack = intern(area, (len, hash), (function as u32 | flags, code), |at| frames[at]);
    // What could not be requested may be known the next time.
    if words <= MEMO_WORDS && !may_change && stack != 0 {
        (memo.sp, memo.bp, memo.stack) = (first_sp, registers.bp, stack);
        (memo.code, memo.what, memo.len) = (code, function as u32, words as u32);
        memo.ip = registers.ip;
    }
    stack
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

/// vmaudit unwinds the stack from here outwards, and publishes the rules along it. False where it does not
/// answer: after the first time nothing is requested any more.
#[cold]
#[inline(never)]
fn request_rules(thread: &mut Thread, (ip, sp, bp): (u64, u64, u64), code: u32) -> bool {
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
    let len = copy_stack(thread, sp, request);
    let all = thread.stack_end.saturating_sub(sp).min(below_end);
    request.len.store(len as u32, Relaxed);
    request.flags.store(if all == len as u64 { REQUEST_TO_END } else { 0 }, Relaxed);
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

const PAGE: u64 = 4096;

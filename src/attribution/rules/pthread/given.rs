//! Stacks that the C library did not map: the program, or a runtime, gave them to threads (pthread_attr_setstack), or
//! started threads of its own on them. The C library's own lists say which, or the call that mapped them; neither their size
//! nor their flags do.

use super::shape::{MAX_GUARD, has_flag_of_program};
use super::{CREATORS, is_stack};
use crate::attribution::callpath::CallPath;
use crate::attribution::code::Role;
use crate::attribution::findings::Fix;
use crate::attribution::role::{role_of, role_of_module};
use crate::attribution::rules::app::caller_of;
use crate::attribution::rules::{Advice, Group, RULES, Subject, World};
use crate::ledger::{Region, RegionKind};
use crate::model::observation::HeapInfo;
use crate::model::{Addr, AddrRange, FrameKind, Sharing};

/// True if this code made the call, and is neither the C library's nor an allocator's: by its name, or since it lies in
/// another file than the C library does.
pub fn asked_by_program(path: &CallPath, world: &World<'_>) -> bool {
    let Some(caller) = path.caller_line() else { return false };
    let has_libc =
        || world.fact("has a C library", || world.has_file(|file| role_of_module(file) == Role::Libc));
    let role = role_of(&caller.module, caller.function.as_deref());
    caller.frame.kind != FrameKind::Guess
        && !caller.module.is_empty()
        && matches!(role, Role::Program | Role::Runtime)
        && !path.any(|line| line.is(CREATORS))
        && (caller.function.is_some() || has_libc())
}

/// The given stack, with a guard page below it, that the piece is part of; the piece itself where the program mapped more
/// than stacks with one call. None where no given stack is known.
pub fn span(subject: &Subject<'_>, world: &World<'_>) -> Option<AddrRange> {
    let near = AddrRange { start: subject.range.start, end: subject.range.end.saturating_add(1) };
    let with_guard = world.threads.given_in(near).filter_map(|given| {
        let stack = given.stack?;
        Some(AddrRange { start: guard_below(stack.start, world).unwrap_or(stack.start), end: stack.end })
    });
    with_guard.filter(|stack| stack.contains_range(subject.range)).last().or_else(|| {
        let other = subject.path.is_some_and(|path| asked_by_program(path, world))
            && world.threads.given_in(subject.span).next().is_some();
        other.then_some(subject.range)
    })
}

fn guard_below(start: Addr, world: &World<'_>) -> Option<Addr> {
    let below = Addr(start.0.checked_sub(1)?);
    let hidden = world.hidden_guards(AddrRange { start: below, end: start });
    if let Some(hidden) = hidden.first().filter(|guard| guard.end == start) {
        return Some(hidden.start);
    }
    let guard = world.mapping_at(below)?;
    let is_plain = guard.file.is_none() && guard.name.is_empty() && guard.sharing == Sharing::Private;
    let is_guard = guard.prot.is_none() && guard.range.end == start && guard.range.len() <= MAX_GUARD;
    (is_plain && is_guard).then_some(guard.range.start)
}

/// Where such stacks begin and end in what the program mapped. Where the call is not known, and an allocator has it, that
/// one's own limits count.
pub fn cuts(region: &Region, world: &World<'_>) -> Vec<Addr> {
    let mut given = world.threads.given_in(region.range).filter_map(|given| given.stack).peekable();
    if given.peek().is_none() {
        return Vec::new();
    }
    let is_program_s = match world.record(region) {
        Some(record) => {
            record.stack.ok().and_then(|id| world.path(id)).is_some_and(|path| asked_by_program(path, world))
        }
        None => region.kind == RegionKind::Anonymous && !is_allocator_s(region.range, world),
    };
    if !is_program_s {
        return Vec::new();
    }
    given.flat_map(|stack| [stack.start, stack.end]).collect()
}

/// By headers in it.
fn is_allocator_s(range: AddrRange, world: &World<'_>) -> bool {
    let overlaps = |other: AddrRange| other.start < range.end && range.start < other.end;
    let heap = |heap: &HeapInfo| AddrRange::from_len(heap.at, heap.mprotect_size.max(1));
    world.heaps().iter().any(|found| overlaps(heap(found)))
        || world.input.observations.blocks.iter().any(|block| overlaps(block.range))
}

/// True if a thread that the C library started cannot have had its stack here: it was given none of this, and the
/// program mapped it.
pub fn is_elsewhere(range: AddrRange, path: Option<&CallPath>, world: &World<'_>) -> bool {
    world.threads.given_known()
        && world.threads.given_in(range).next().is_none()
        && path.is_some_and(|path| asked_by_program(path, world))
}

/// True if all stacks of the group are given ones.
pub fn is_given(group: &Group<'_>, world: &World<'_>) -> bool {
    let mut stacks = group.pieces.iter().filter(|piece| is_stack(piece.part)).peekable();
    let by_call = group.path.is_some_and(|path| asked_by_program(path, world));
    let by_flag = group.path.is_none() && !world.threads.given_known();
    stacks.peek().is_some()
        && stacks.all(|piece| {
            by_call
                || world.threads.given_in(piece.range).next().is_some()
                || (by_flag && has_flag_of_program(piece.range.start, world))
        })
}

pub fn advise(group: &Group<'_>, world: &World<'_>) -> Advice {
    let who = group.path.map_or_else(|| "the program".to_owned(), caller_of);
    let stacks = group.pieces.iter().filter(|piece| is_stack(piece.part));
    let alive = stacks.filter(|piece| world.threads.live_in(piece.range).is_some()).count();
    let run = match (group.instances, alive) {
        (_, 0) => "threads that have ended ran on it",
        (1, _) => "a thread runs on it",
        _ => "threads run on it",
    };
    let why = format!(
        "memory that the C library did not map for a thread, but was given as a stack (pthread_attr_setstack): {run}, and \
         {who} mapped it and chose how large it is"
    );
    let mut advice = Advice::why(why + super::sizes::hidden_guards(group));
    if let Some((knob, note)) = RULES.iter().find_map(|rule| rule.stack_size_knob(world)) {
        advice = advice.fix(Fix::new(&knob, 0, 0).note(&note));
    }
    if group.instances > 4 {
        advice = advice.fix(Fix::new("fewer threads", 0, 0).note("each costs the same"));
    }
    advice.wont("ulimit -s, pthread_attr_setstacksize", "they size the stacks that the C library maps")
}

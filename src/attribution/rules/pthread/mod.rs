//! Thread stacks: alive, cached by the C library after their thread's exit, their guard pages; the small stacks that
//! signal handlers run on; and stacks of no thread. A thread is dead when the kernel's list of tasks says so, wherever
//! its stack pointer is.
//!
//! glibc: `allocate_stack` (nptl/allocatestack.c), inlined into `pthread_create`, maps
//! size + guard with MAP_STACK and opens all but the guard by mprotect. musl maps without
//! MAP_STACK. Exited threads' stacks stay mapped in a cache of up to 40 MiB.

pub(super) mod advice;
mod fibres;
mod given;
mod maker;
mod shape;
mod sizes;

use super::{Advice, Claim, Group, Rule, Subject, World};
use crate::attribution::call::{MAP_STACK, MmapCall};
use crate::attribution::callpath::Line;
use crate::attribution::category::{Category, CategoryInfo, Evidence, Instance, Merge};
use crate::attribution::world::Left;
use crate::ledger::{Region, ThreadRecord};
use crate::model::{Addr, AddrRange, Sign};
use advice::advise;
use shape::{cuts, is_guard, is_mapped_as_stack, is_musl_stack, shape, stack_span};

pub const THREAD_STACK: Category = Category(&CategoryInfo {
    id: "thread-stack",
    color: 0xa272ef,
    name: "thread stacks",
    one: "thread stack",
    many: "thread stacks",
});

/// Mapped as stacks, but no thread began on them: of fibres, coroutines, interpreters.
pub const FIBRE_STACK: Category = Category(&CategoryInfo {
    id: "fibre-stack",
    color: 0xd16ba5,
    name: "stacks of no thread (fibres)",
    one: "stack of no thread",
    many: "stacks of no thread",
});

pub const LIVE: &str = "thread stack";
pub const GUARD: &str = "guard";
/// In the C library's cache, for the next thread.
pub const CACHED: &str = "cached stack of an exited thread";
/// The C library keeps it until somebody joins the thread.
pub const UNJOINED: &str = "stack of an exited thread that was not joined";
/// One of these.
pub const EXITED: &str = "stack of an exited thread";
pub const SIGNAL: &str = "signal stack";
pub const FIBRE: &str = "stack";

/// A thread's own, whether that is alive or not.
fn is_stack(part: &str) -> bool {
    [LIVE, CACHED, UNJOINED, EXITED].contains(&part)
}

/// Of findings, where no call is known: not those that the C library mapped.
const GIVEN: &str = "given stacks";

const CREATORS: &[&str] = &[
    "pthread_create",
    "__pthread_create_2_1",
    "__pthread_create",
    "__pthread_create_internal",
    "allocate_stack",
    "allocate_thread_stack",
    "thrd_create",
];

/// A MAP_STACK mapping of at most this size, outside pthread_create, is a sigaltstack.
const MAX_SIGNAL_STACK: u64 = 256 << 10;

pub struct PthreadRule;

impl Rule for PthreadRule {
    fn id(&self) -> &'static str {
        "pthread"
    }

    fn surroundings(&self) -> &'static [(&'static str, &'static [&'static str])] {
        const { &[("stack limit", &[THREAD_STACK.0.id]), ("threads", &[THREAD_STACK.0.id])] }
    }

    fn categories(&self) -> &'static [Category] {
        &[THREAD_STACK, FIBRE_STACK]
    }

    fn signs(&self) -> &'static [Sign] {
        maker::SIGNS
    }

    fn by_name(&self, subject: &Subject<'_>, world: &World<'_>) -> Option<Claim> {
        let name = subject.anon_name()?;
        // nptl/nptl-stack.c: "pthread stack: TID", "pthread user stack: TID", "unused stack"
        let text = String::from_utf8_lossy(name);
        let rest = text.trim_start().strip_prefix("glibc: ").filter(|rest| rest.contains("stack"))?;
        let claim = claim(subject, world, Evidence::Name, 0);
        Some(match rest.starts_with("unused") && !is_guard(subject, world) {
            // the name goes when the thread has ended, joined or not (`start_thread`)
            true => Claim { part: exited(subject, world), ..claim },
            false => claim,
        })
    }

    fn knows(&self, line: &Line) -> bool {
        line.is(CREATORS) || (line.mentions("stack_overflow") && line.mentions("handler"))
    }

    fn by_stack(&self, subject: &Subject<'_>, world: &World<'_>, at: usize) -> Option<Claim> {
        let call = subject.call.filter(MmapCall::is_anonymous)?;
        let path = subject.path?;
        if call.has(MAP_STACK) {
            return Some(claim(subject, world, Evidence::Stack, at));
        }
        // without the flag only the call that pthread_create itself makes, not what it calls
        let direct = path.lines.get(path.caller()..at)?.iter().all(|l| l.is(CREATORS));
        direct.then(|| claim(subject, world, Evidence::Stack, at))
    }

    /// The C library's block for a thread that has ended: its stack is kept for the next one.
    fn by_header(&self, subject: &Subject<'_>, world: &World<'_>) -> Option<Claim> {
        if !subject.is_private_anonymous() || subject.record.is_some() {
            return None;
        }
        let span = stack_span(subject, world)?;
        if world.threads.ended_in(span).is_none() || world.threads.live_in(span).is_some() {
            return None;
        }
        let part = if is_guard(subject, world) { GUARD } else { exited(subject, world) };
        Some(Claim::new(THREAD_STACK, Evidence::Header, part).instance(Instance::At(span.start)))
    }

    fn by_thread(&self, subject: &Subject<'_>, world: &World<'_>) -> Option<Claim> {
        if !subject.is_private_anonymous() {
            return None;
        }
        let span = stack_span(subject, world)?;
        let known = world.threads.live_in(span).is_some() || started(subject, span, world).is_some();
        known.then(|| claim(subject, world, Evidence::Thread, 0).instance(Instance::At(span.start)))
    }

    fn by_shape(&self, subject: &Subject<'_>, world: &World<'_>) -> Option<Claim> {
        if !subject.is_private_anonymous() {
            return None;
        }
        if subject.call.is_some_and(|c| c.is_anonymous() && c.has(MAP_STACK)) {
            return Some(claim(subject, world, Evidence::Shape, 0));
        }
        if subject.record.is_some() {
            return is_musl_stack(subject, world).then(|| claim(subject, world, Evidence::Shape, 0));
        }
        let shape = shape(subject, world)?;
        // Threads' stacks are known by now, living or ended: others only resemble them.
        let no_thread = world.threads.are_all_known() && !shape.signal;
        if no_thread && !is_mapped_as_stack(shape.span, world) {
            return None;
        }
        let part = match (is_guard(subject, world), shape.signal, no_thread) {
            (true, ..) => GUARD,
            (false, true, _) => SIGNAL,
            (false, false, true) => FIBRE,
            (false, false, false) => LIVE,
        };
        let category = if no_thread { FIBRE_STACK } else { THREAD_STACK };
        Some(Claim::new(category, Evidence::Shape, part).instance(Instance::At(shape.span.start)))
    }

    fn cuts(&self, region: &Region, world: &World<'_>) -> Vec<Addr> {
        cuts(region, world)
    }

    fn advise(&self, group: &Group<'_>, world: &World<'_>) -> Advice {
        match group.category == FIBRE_STACK {
            true => fibres::advise(group, world),
            false => advise(group, world),
        }
    }
}

fn claim(subject: &Subject<'_>, world: &World<'_>, evidence: Evidence, entry: usize) -> Claim {
    let span = stack_span(subject, world).unwrap_or(subject.range);
    let live = world.threads.live_in(span);
    let started = started(subject, span, world);
    let thread = live.or(started.map(|t| t.tid));
    let by_creator = subject.path.is_some_and(|p| p.any(|l| l.is(CREATORS)));
    let flagged = subject.call.is_some_and(|c| c.has(MAP_STACK));
    let not_begun = flagged && !by_creator && thread.is_none();
    let signal = not_begun && span.len() <= MAX_SIGNAL_STACK;
    let no_thread = not_begun && !signal && world.threads.starts_known();
    let part = if is_guard(subject, world) {
        GUARD
    } else if live.is_some() {
        LIVE
    } else if started.is_some_and(|t| t.exited_ns.is_some()) {
        exited(subject, world)
    } else if signal {
        SIGNAL
    } else if no_thread {
        FIBRE
    } else {
        LIVE
    };
    let category = if no_thread { FIBRE_STACK } else { THREAD_STACK };
    let given = subject.record.is_none() && world.threads.given_in(span).next().is_some();
    let merge = if given { Merge::ByKind(GIVEN) } else { Merge::ByCaller(entry) };
    Claim::new(category, evidence, part).thread(thread).merge(merge)
}

/// The thread that was started here since the memory was mapped.
fn started<'a>(subject: &Subject<'_>, span: AddrRange, world: &'a World<'_>) -> Option<&'a ThreadRecord> {
    let found = world.threads.started_since(span, subject.record)?;
    (!given::is_elsewhere(span, subject.path, world)).then_some(found)
}

/// What a stack is whose thread has ended.
fn exited(subject: &Subject<'_>, world: &World<'_>) -> &'static str {
    let span = stack_span(subject, world).unwrap_or(subject.range);
    match world.threads.ended_in(span) {
        Some(Left::Cached) => CACHED,
        Some(Left::Unjoined) => UNJOINED,
        Some(Left::Unknown) | None => EXITED,
    }
}

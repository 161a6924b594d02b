//! Thread stacks: alive, cached by the C library after their thread's exit, their guard pages;
//! and the small stacks that signal handlers run on.
//!
//! glibc: `allocate_stack` (nptl/allocatestack.c), inlined into `pthread_create`, maps
//! size + guard with MAP_STACK and opens all but the guard by mprotect. musl maps without
//! MAP_STACK. Exited threads' stacks stay mapped in a cache of up to 40 MiB.

pub(super) mod advice;
mod shape;

use super::{Advice, Claim, Group, Rule, Subject, World};
use crate::attribution::call::{MAP_STACK, MmapCall};
use crate::attribution::callpath::Line;
use crate::attribution::category::{Category, Evidence, Instance, Merge};
use crate::ledger::Region;
use crate::model::Addr;
use advice::advise;
use shape::{cuts, is_guard, is_musl_stack, shape, stack_span};

pub const THREAD_STACK: Category = Category {
    id: "thread-stack",
    color: 0xa272ef,
    name: "thread stacks",
    one: "thread stack",
    many: "thread stacks",
};

pub const LIVE: &str = "thread stack";
pub const GUARD: &str = "guard";
pub const CACHED: &str = "cached stack of an exited thread";
pub const SIGNAL: &str = "signal stack";

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
        const { &[("stack limit", &[THREAD_STACK.id]), ("threads", &[THREAD_STACK.id])] }
    }

    fn categories(&self) -> &'static [Category] {
        &[THREAD_STACK]
    }

    fn by_name(&self, subject: &Subject<'_>, world: &World<'_>) -> Option<Claim> {
        let name = subject.anon_name()?;
        // nptl/nptl-stack.c: "pthread stack: TID", "pthread user stack: TID", "unused stack"
        let text = String::from_utf8_lossy(name);
        let rest = text.trim_start().strip_prefix("glibc: ").filter(|rest| rest.contains("stack"))?;
        let claim = claim(subject, world, Evidence::Name, 0);
        Some(match rest.starts_with("unused") && !is_guard(subject, world) {
            true => Claim { part: CACHED, ..claim },
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

    fn by_thread(&self, subject: &Subject<'_>, world: &World<'_>) -> Option<Claim> {
        if !subject.is_private_anonymous() {
            return None;
        }
        let span = stack_span(subject, world)?;
        let known =
            world.live_thread_in(span).is_some() || world.started_since(span, subject.record).is_some();
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
        // exited for sure only if every living thread is known to be elsewhere
        let known = world.stack_pointers_known();
        let part = match (is_guard(subject, world), shape.signal, known) {
            (true, ..) => GUARD,
            (false, true, _) => SIGNAL,
            (false, false, true) => CACHED,
            (false, false, false) => LIVE,
        };
        Some(Claim::new(THREAD_STACK, Evidence::Shape, part).instance(Instance::At(shape.span.start)))
    }

    fn cuts(&self, region: &Region, world: &World<'_>) -> Vec<Addr> {
        cuts(region, world)
    }

    fn advise(&self, group: &Group<'_>, world: &World<'_>) -> Advice {
        advise(group, world)
    }
}

fn claim(subject: &Subject<'_>, world: &World<'_>, evidence: Evidence, entry: usize) -> Claim {
    let span = stack_span(subject, world).unwrap_or(subject.range);
    let live = world.live_thread_in(span);
    let started = world.started_since(span, subject.record);
    let thread = live.or(started.map(|t| t.tid));
    let by_creator = subject.path.is_some_and(|p| p.any(|l| l.is(CREATORS)));
    let flagged = subject.call.is_some_and(|c| c.has(MAP_STACK));
    let part = if is_guard(subject, world) {
        GUARD
    } else if live.is_some() {
        LIVE
    } else if started.is_some_and(|t| t.exited_ns.is_some()) {
        CACHED
    } else if started.is_none() && !by_creator && flagged && span.len() <= MAX_SIGNAL_STACK {
        SIGNAL
    } else {
        LIVE
    };
    Claim::new(THREAD_STACK, evidence, part).thread(thread).merge(Merge::ByCaller(entry))
}

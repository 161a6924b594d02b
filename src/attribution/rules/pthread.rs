//! Thread stacks: alive, cached by the C library after their thread's exit, their guard pages;
//! and the small stacks that signal handlers run on.
//!
//! glibc: `allocate_stack` (nptl/allocatestack.c), inlined into `pthread_create`, maps
//! size + guard with MAP_STACK and opens all but the guard by mprotect. musl maps without
//! MAP_STACK. Exited threads' stacks stay mapped in a cache of up to 40 MiB.

use super::{Advice, Claim, Group, Rule, Subject, World};
use crate::attribution::call::{MAP_NORESERVE, MAP_STACK, MmapCall};
use crate::attribution::callpath::Line;
use crate::attribution::category::{Category, Evidence, Instance, Merge};
use crate::attribution::findings::Fix;
use crate::attribution::units::exact_size;
use crate::model::{AddrRange, Mapping, PAGE, Prot, Sharing};

pub const THREAD_STACK: Category =
    Category { id: "thread-stack", name: "thread stacks", one: "thread stack", many: "thread stacks" };

const LIVE: &str = "thread stack";
pub const GUARD: &str = "guard";
const CACHED: &str = "cached stack of an exited thread";
const SIGNAL: &str = "signal stack";

const CREATORS: &[&str] = &[
    "pthread_create",
    "__pthread_create_2_1",
    "__pthread_create",
    "__pthread_create_internal",
    "allocate_stack",
    "allocate_thread_stack",
    "thrd_create",
];

/// Guards are small; a larger PROT_NONE range below is somebody's reservation.
const MAX_GUARD: u64 = 1 << 20;
/// A MAP_STACK mapping of at most this size, outside pthread_create, is a sigaltstack.
const MAX_SIGNAL_STACK: u64 = 256 << 10;

pub struct PthreadRule;

impl Rule for PthreadRule {
    fn id(&self) -> &'static str {
        "pthread"
    }

    fn categories(&self) -> &'static [Category] {
        &[THREAD_STACK]
    }

    fn by_name(&self, subject: &Subject<'_>, world: &World<'_>) -> Option<Claim> {
        let name = subject.anon_name()?;
        let text = String::from_utf8_lossy(name);
        let is_stack = text.contains("glibc: pthread") && text.contains("stack");
        is_stack.then(|| claim(subject, world, Evidence::Name, 0))
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
        let known = world.live_thread_in(span).is_some() || world.started_thread_in(span).is_some();
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
        // a guard below a stack of the size that this process gives its threads
        let (guard, stack) = guarded(subject, world)?;
        let limit = world.input.observations.stack_limit;
        let usual = Some(stack.range.len()) == limit || stack.range.len() == 8 << 20;
        let like_a_live_one = || has_live_stack_of(world, stack.range.len());
        (guard.range.len() <= 64 << 10 && (usual || like_a_live_one())).then(|| {
            let span = AddrRange { start: guard.range.start, end: stack.range.end };
            // exited for sure only if every living thread is known to be elsewhere
            let known = world.stack_pointers_known();
            let part = match (subject.is_reserved(), known) {
                (true, _) => GUARD,
                (false, true) => CACHED,
                (false, false) => LIVE,
            };
            Claim::new(THREAD_STACK, Evidence::Shape, part).instance(Instance::At(span.start))
        })
    }

    fn advise(&self, group: &Group<'_>, world: &World<'_>) -> Advice {
        advise(group, world)
    }
}

/// The whole stack with its guard: the call's span, or guard and stack VMAs around the piece.
fn stack_span(subject: &Subject<'_>, world: &World<'_>) -> Option<AddrRange> {
    if subject.record.is_some() {
        return Some(subject.span);
    }
    if let Some((guard, stack)) = guarded(subject, world) {
        return Some(AddrRange { start: guard.range.start, end: stack.range.end });
    }
    (!subject.is_reserved()).then_some(subject.range)
}

/// The adjoining pair (guard, stack) that the subject is one of.
fn guarded<'a>(subject: &Subject<'_>, world: &World<'a>) -> Option<(&'a Mapping, &'a Mapping)> {
    let vma = subject.region.vma;
    let own = world.mappings().get(vma)?;
    let (guard, stack) = if own.prot.is_none() { (own, world.above(vma)?) } else { (world.below(vma)?, own) };
    let plain = |m: &Mapping| m.file.is_none() && m.name.is_empty() && m.sharing == Sharing::Private;
    let fits = guard.prot.is_none() && stack.prot == Prot::RW && guard.range.len() <= MAX_GUARD;
    (fits && plain(guard) && plain(stack)).then_some((guard, stack))
}

/// musl (src/thread/pthread_create.c): mmap(PROT_NONE) without MAP_STACK or NORESERVE, all but
/// two guard pages opened. Its stacks are one frame long, so nothing else tells.
fn is_musl_stack(subject: &Subject<'_>, world: &World<'_>) -> bool {
    let plain = |c: MmapCall| c.is_anonymous() && c.prot.is_none() && !c.has(MAP_NORESERVE);
    let whole = |(guard, stack): (&Mapping, &Mapping)| {
        guard.range.len() == 2 * PAGE
            && guard.range.start == subject.span.start
            && stack.range.end == subject.span.end
    };
    subject.shape_may_decide()
        && subject.call.is_some_and(plain)
        && guarded(subject, world).is_some_and(whole)
}

fn has_live_stack_of(world: &World<'_>, len: u64) -> bool {
    let pid = world.input.observations.pid;
    let sps = world.input.observations.threads.iter().filter(|t| t.tid != pid);
    sps.filter_map(|t| t.stack_pointer).any(|sp| {
        let at = world.mappings().partition_point(|m| m.range.end <= sp);
        world.mappings().get(at).is_some_and(|m| m.range.contains(sp) && m.range.len() == len)
    })
}

fn claim(subject: &Subject<'_>, world: &World<'_>, evidence: Evidence, entry: usize) -> Claim {
    let span = stack_span(subject, world).unwrap_or(subject.range);
    let live = world.live_thread_in(span);
    let started = world.started_thread_in(span);
    let thread = live.or(started.map(|t| t.tid));
    let by_creator = subject.path.is_some_and(|p| p.any(|l| l.is(CREATORS)));
    let flagged = subject.call.is_some_and(|c| c.has(MAP_STACK));
    let part = if subject.is_reserved() {
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

/// glibc keeps stacks of this many bytes in all (nptl/allocatestack.c).
const CACHE: u64 = 40 << 20;
/// The size that advice is about.
const SMALL: u64 = 1 << 20;

fn advise(group: &Group<'_>, world: &World<'_>) -> Advice {
    let cached = group.instances_with(CACHED);
    let signal = group.part(SIGNAL);
    if signal.virt > 0 && group.part(LIVE).virt == 0 && cached == 0 {
        let mut advice = Advice::why(
            "a small stack of its own for signal handlers, so that a stack overflow can be reported",
        );
        advice.title = Some(if group.instances == 1 {
            "signal stack".to_string()
        } else {
            format!("{} signal stacks", group.instances)
        });
        return advice;
    }
    let each = group.pieces.iter().filter(|p| p.part != GUARD).map(|p| p.footprint.virt).max().unwrap_or(0);
    let mut why = format!(
        "every thread gets address space for its deepest possible call chain, {} each, when it is \
         created; only the pages that it really used are resident",
        exact_size(each)
    );
    let by_limit = world.input.observations.stack_limit == Some(each);
    if by_limit {
        why += " (the size is that of `ulimit -s`)";
    }
    if cached > 0 {
        let whose = match (cached, group.instances) {
            (1, 1) => "its thread has exited".to_string(),
            (1, _) => "one of them belonged to a thread that has exited".to_string(),
            (n, all) if n == all => "their threads have exited".to_string(),
            (n, _) => format!("{n} of them belonged to threads that have exited"),
        };
        why += &format!("; {whose}: the C library keeps up to 40 MiB of such stacks for the next threads");
    }
    let mut advice = Advice::why(why);
    let saves = scaled(group, SMALL, each).saturating_sub(kept_instead(group, world, each));
    let smaller = if by_limit {
        Fix::new("ulimit -s 1024 (or pthread_attr_setstacksize)", saves, 0)
    } else {
        Fix::new("a smaller pthread_attr_setstacksize (or the runtime's own setting)", saves, 0)
    };
    let smaller = match smaller.saves_virt {
        0 => smaller.note("too small a stack crashes the program"),
        _ => smaller.note("figure for 1 MiB stacks; too small a stack crashes the program"),
    };
    advice = advice.fix(smaller);
    if cached > 0 {
        // A detached thread cannot unmap the stack that it still runs on: the last one stays.
        let others = |bytes: u64| bytes / cached * (cached - 1);
        let saved = group.part(CACHED);
        let (virt, rss) = (others(saved.virt), others(saved.rss));
        if virt > 0 {
            let fix = Fix::new("GLIBC_TUNABLES=glibc.pthread.stack_cache_size=0", virt, rss);
            advice = advice.fix(fix.note("unmaps a stack when the next thread has exited"));
        }
    }
    if group.instances > 4 {
        advice = advice.fix(Fix::new("fewer threads", 0, 0).note("each costs the same"));
    }
    advice
}

/// A full cache holds more of smaller stacks: what those would take that do not fit now.
fn kept_instead(group: &Group<'_>, world: &World<'_>, each: u64) -> u64 {
    let cached = group.part(CACHED).virt;
    if cached == 0 || cached.saturating_add(each) < CACHE {
        return 0;
    }
    let threads = &world.input.reconciled.threads;
    let exited = threads.iter().filter(|t| t.exited_ns.is_some() && t.initial_sp.is_some()).count() as u64;
    let kept = exited.min(CACHE / SMALL);
    kept.saturating_sub(group.instances_with(CACHED)) * SMALL
}

/// What stacks of `to` bytes instead of `from` would save of what is unused now.
fn scaled(group: &Group<'_>, to: u64, from: u64) -> u64 {
    if from <= to {
        return 0;
    }
    let saved = u128::from(group.footprint.virt) * u128::from(from - to) / u128::from(from);
    u64::try_from(saved).unwrap_or(u64::MAX).min(group.unused())
}

//! Why thread stacks are there, and which knob makes them smaller: the C library's, Rust's, OpenMP's.

use super::shape::{UNLIMITED, USUAL};
use super::{CACHED, GUARD, LIVE, SIGNAL};
use crate::attribution::callpath::Line;
use crate::attribution::category::Evidence;
use crate::attribution::findings::Fix;
use crate::attribution::rules::{Advice, Group, RULES, World};
use crate::attribution::units::exact_size;

/// glibc keeps stacks of this many bytes in all (nptl/allocatestack.c).
const CACHE: u64 = 40 << 20;
/// The size that advice is about.
const SMALL: u64 = 1 << 20;

/// Who started the threads, where their stacks tell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Maker {
    OpenMp,
    Rust,
    Other,
}

const OPENMP_MODULES: &[&str] = &["libgomp", "libomp", "libiomp"];

fn is_openmp(line: &Line) -> bool {
    let by_module = OPENMP_MODULES.iter().any(|m| line.module.starts_with(m));
    by_module || line.function.as_deref().is_some_and(|f| f.starts_with("GOMP_") || f.starts_with("__kmp"))
}

fn is_rust(line: &Line) -> bool {
    line.mentions("std::thread::") || (line.mentions("std::sys::") && line.mentions("Thread"))
}

impl Maker {
    fn of(group: &Group<'_>, each: u64) -> Maker {
        // no other library was seen to give each thread of 2 MiB a signal stack
        let like_rust = || each == UNLIMITED && group.part(SIGNAL).virt > 0;
        match group.path {
            Some(path) if path.any(is_openmp) => Maker::OpenMp,
            Some(path) if path.any(is_rust) => Maker::Rust,
            None if like_rust() => Maker::Rust,
            _ => Maker::Other,
        }
    }
}

/// The size of one stack, without its guard: that of the largest, or of those that a snapshot shows as
/// one mapping since they have no guards.
fn size_of_one(group: &Group<'_>, world: &World<'_>) -> u64 {
    let stacks = || group.pieces.iter().filter(|p| p.part != GUARD);
    let largest = stacks().map(|p| p.footprint.virt).max().unwrap_or(0);
    let usual = world.input.observations.stack_limit.unwrap_or(USUAL);
    let by_shape = stacks().all(|p| p.evidence == Evidence::Shape) && group.record.is_none();
    if by_shape && largest > usual && largest.is_multiple_of(usual.max(1)) { usual } else { largest }
}

pub fn advise(group: &Group<'_>, world: &World<'_>) -> Advice {
    let cached = group.instances_with(CACHED);
    if group.part(SIGNAL).virt > 0 && group.part(LIVE).virt == 0 && cached == 0 {
        return signal_stacks(group);
    }
    let each = size_of_one(group, world);
    let maker = Maker::of(group, each);
    let mut advice = Advice::why(why(group, world, (maker, each)));
    if maker == Maker::OpenMp {
        advice.title = Some(match group.instances {
            1 => "stack of an OpenMP thread".to_string(),
            n => format!("{n} stacks of OpenMP threads"),
        });
    }
    let signal = group.instances_with(SIGNAL);
    if signal > 0 {
        let stacks = match group.instances - signal {
            1 => "thread stack".to_string(),
            n => format!("{n} thread stacks"),
        };
        let plural = if signal == 1 { "" } else { "s" };
        advice.title = Some(format!("{stacks}, {signal} signal stack{plural}"));
    }
    let saves = scaled(group, SMALL, each).saturating_sub(kept_instead(group, world, each));
    let note = match saves {
        0 => "too small a stack crashes the program",
        _ => "figure for 1 MiB stacks; too small a stack crashes the program",
    };
    let own = RULES.iter().find_map(|rule| rule.stack_size_knob(world));
    let smaller = match maker {
        Maker::Rust => "RUST_MIN_STACK=1048576 (or thread::Builder::stack_size)",
        Maker::OpenMp => "OMP_STACKSIZE=1M (ulimit -s 1024 does the same)",
        Maker::Other if by_limit(world, each) => "ulimit -s 1024 (or pthread_attr_setstacksize)",
        Maker::Other => own.map_or("a smaller pthread_attr_setstacksize", |(knob, _)| knob),
    };
    let note =
        if matches!(own, Some((knob, _)) if knob == smaller) { own.map_or(note, |o| o.1) } else { note };
    advice = advice.fix(Fix::new(smaller, saves, 0).note(note));
    match maker {
        Maker::Rust => {
            advice =
                advice.wont("ulimit -s", "Rust's std passes a size of its own (2 MiB) to pthread_create");
        }
        Maker::OpenMp if group.instances > 1 => {
            let all_but_one = group.unused() / group.instances * (group.instances - 1);
            let fewer = "figure for one thread beside the first; each that goes takes its malloc arena along";
            advice = advice.fix(Fix::new("OMP_NUM_THREADS=2", all_but_one, 0).note(fewer));
        }
        Maker::Other if !by_limit(world, each) && world.input.observations.stack_limit.is_some() => {
            let why = "the size was not taken from it: the program or its runtime chose it";
            advice = advice.wont("ulimit -s", why);
        }
        Maker::OpenMp | Maker::Other => {}
    }
    if cached > 0 {
        // A detached thread cannot unmap the stack that it still runs on: the last one stays.
        let others = |bytes: u64| bytes / cached * (cached - 1);
        let saved = group.part(CACHED);
        let (virt, rss) = (others(saved.virt), others(saved.rss));
        // The tunable came with 2.34.
        if virt > 0 && world.libc_version().is_none_or(|version| version >= (2, 34)) {
            let fix = Fix::new("GLIBC_TUNABLES=glibc.pthread.stack_cache_size=0", virt, rss);
            advice = advice.fix(fix.note("unmaps a stack when the next thread has exited"));
        }
    }
    if group.instances > 4 && maker != Maker::OpenMp {
        advice = advice.fix(Fix::new("fewer threads", 0, 0).note("each costs the same"));
    }
    advice
}

/// True where glibc took the size from RLIMIT_STACK.
fn by_limit(world: &World<'_>, each: u64) -> bool {
    let seen = world.input.observations;
    match seen.stack_limit {
        Some(limit) => limit == each,
        None => seen.limits.known && each == UNLIMITED,
    }
}

fn signal_stacks(group: &Group<'_>) -> Advice {
    let mut advice =
        Advice::why("a small stack of its own for signal handlers, so that a stack overflow can be reported");
    advice.title = Some(match group.instances {
        1 => "signal stack".to_string(),
        n => format!("{n} signal stacks"),
    });
    advice
}

fn why(group: &Group<'_>, world: &World<'_>, (maker, each): (Maker, u64)) -> String {
    let mut why = format!(
        "every thread gets address space for its deepest possible call chain, {} each, when it is \
         created; only the pages that it really used are resident",
        exact_size(each)
    );
    let seen = world.input.observations;
    if maker == Maker::Rust && group.path.is_none() {
        why += " (2 MiB and a signal stack for each are what Rust's std gives its threads)";
    } else if maker == Maker::Rust {
        why += " (the size is that of Rust's std, which also gives each thread a signal stack of its own)";
    } else if seen.stack_limit == Some(each) {
        why += " (the size is that of `ulimit -s`)";
    } else if by_limit(world, each) {
        why += " (with `ulimit -s unlimited`, glibc takes 2 MiB)";
    }
    if maker == Maker::OpenMp {
        why += "; OpenMP starts as many as there are processors, and keeps them for the next parallel region";
    } else if group.path.is_none()
        && let Some(library) = OPENMP_MODULES.iter().find(|m| world.has_file(|f| f.starts_with(**m)))
    {
        why += &format!(
            "; {library} is loaded: OpenMP's threads may be among them (OMP_NUM_THREADS, OMP_STACKSIZE)"
        );
    }
    if group.pieces.iter().any(|p| p.part == GUARD && p.footprint.reserved == 0) {
        why += "; their guards are pages inside of the mapping (MADV_GUARD_INSTALL, glibc from 2.42 on): maps \
                shows neighbours as one line";
    }
    if group.pieces.iter().any(|p| p.part != GUARD && p.footprint.virt > each) {
        why += "; stacks without guards are one mapping to the kernel: how many there are, only their threads tell";
    }
    let cached = group.instances_with(CACHED);
    if cached > 0 {
        let whose = match (cached, group.instances) {
            (1, 1) => "its thread has exited".to_string(),
            (1, _) => "one of them belonged to a thread that has exited".to_string(),
            (n, all) if n == all => "their threads have exited".to_string(),
            (n, _) => format!("{n} of them belonged to threads that have exited"),
        };
        why += &format!("; {whose}: the C library keeps up to 40 MiB of such stacks for the next threads");
    }
    why
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

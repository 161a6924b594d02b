//! Why thread stacks are there, and which knob makes them smaller: the C library's, Rust's, OpenMP's.

use super::maker::{Maker, OPENMP_MODULES, RUST_STACK, UV_POOL};
use super::shape::UNLIMITED;
use super::sizes::{Sizes, hidden_guards};
use super::{CACHED, EXITED, SIGNAL, UNJOINED, given, is_stack};
use crate::attribution::findings::Fix;
use crate::attribution::footprint::Footprint;
use crate::attribution::rules::glibc::{MARK, is_libc};
use crate::attribution::rules::{Advice, Group, RULES, World};
use crate::attribution::units::{exact_size, size};

/// glibc keeps stacks of this many bytes in all (nptl/allocatestack.c).
const CACHE: u64 = 40 << 20;
/// The size that advice is about.
const SMALL: u64 = 1 << 20;

/// How the notes below begin.
const FIGURE: &str = "figure for 1 MiB stacks";
const LIMIT: &str = "ulimit -s 1024 (or pthread_attr_setstacksize)";
const UNLESS_OWN: &str =
    "figure for 1 MiB stacks, if the program sets no size itself; too small a stack crashes the program";
const RAISED: &str = "figure for 1 MiB stacks, if the C library chose the size: it goes by the limit that held when the \
                      program started, and servers raise their own; too small a stack crashes the program";
const UNLIKE_UV: &str = "figure for 1 MiB stacks, without the four of libuv's pool, which may have 8 MiB of their own; too \
                         small a stack crashes the program";
/// What libuv gives the threads of its pool since 1.45, and how many they are unless set (src/threadpool.c).
const UV_STACK: u64 = 8 << 20;
const UV_THREADS: u64 = 4;

pub fn advise(group: &Group<'_>, world: &World<'_>) -> Advice {
    let [cached, unjoined, left] = [CACHED, UNJOINED, EXITED].map(|part| group.instances_with(part));
    let none = !group.pieces.iter().any(|piece| is_stack(piece.part));
    if group.part(SIGNAL).virt > 0 && none {
        return signal_stacks(group);
    }
    if given::is_given(group, world) {
        return given::advise(group, world);
    }
    let sizes = Sizes::of(group, world);
    let makers = Makers::of(group, &sizes, world);
    let mut advice = Advice::why(why(group, world, (&makers, &sizes)));
    for (maker, one, many) in [
        (Maker::OpenMp, "stack of an OpenMP thread", "stacks of OpenMP threads"),
        (Maker::Uv, "stack of libuv's pool", "stacks of libuv's pool"),
    ] {
        if makers.only(maker) {
            advice.title = Some(match group.instances {
                1 => one.to_string(),
                n => format!("{n} {many}"),
            });
        }
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
    for fix in smaller(group, world, (&makers, &sizes)) {
        advice = advice.fix(fix);
    }
    if makers.has(Maker::Rust) && !makers.by_limit {
        let why = match sizes.all().all(|size| makers.is(size, Maker::Rust) && size == RUST_STACK) {
            true => "Rust's std passes a size of its own (2 MiB) to pthread_create",
            false => "Rust's std passes the size that was set for its threads to pthread_create",
        };
        advice = advice.wont("ulimit -s", why);
    } else if makers.only(Maker::Uv) {
        advice =
            advice.wont("ulimit -s", "libuv passes a size of its own (8 MiB) for the threads of its pool");
    } else if makers.only(Maker::Other) && !makers.by_limit && world.input.observations.stack_limit.is_some()
    {
        let why = "the size was not taken from it: the program or its runtime chose it";
        advice = advice.wont("ulimit -s", why);
    }
    if makers.only(Maker::OpenMp) && group.instances > 1 {
        let all_but_one = group.unused() / group.instances * (group.instances - 1);
        let fewer = "figure for one thread beside the first; each that goes takes its malloc arena along";
        advice = advice.fix(Fix::new("OMP_NUM_THREADS=2", all_but_one, 0).note(fewer));
    }
    if makers.only(Maker::Uv) && group.instances > 1 {
        // in the place of a stack that was kept another one is
        let all_but_one = match cached {
            0 => group.unused() / group.instances * (group.instances - 1),
            _ => 0,
        };
        let note = "files, names of hosts and compression are worked on one after the other then; each thread that \
                    goes takes its malloc arena along";
        advice = advice.fix(Fix::new("UV_THREADPOOL_SIZE=1", all_but_one, 0).note(note));
    }
    if unjoined > 0 {
        let note = "only then is the stack of a thread that has ended given to the next one, or unmapped";
        advice = advice.fix(Fix::new("pthread_join or pthread_detach for each thread", 0, 0).note(note));
    }
    // The tunable came with 2.34.
    let has_tunable = world.libc_version().is_none_or(|version| version >= (2, 34));
    if cached + left > 0 && has_tunable && keeps_stacks(group, world) {
        // what was not joined stays: only of what is kept is it known
        let Footprint { virt, rss, .. } = group.part(CACHED);
        let fix = Fix::new("GLIBC_TUNABLES=glibc.pthread.stack_cache_size=0", virt, rss);
        advice = advice
            .fix(fix.note("unmaps a stack when its thread is joined; the last detached one keeps its own"));
    }
    if group.instances > 4 && !makers.only(Maker::OpenMp) {
        advice = advice.fix(Fix::new("fewer threads", 0, 0).note("each costs the same"));
    }
    advice
}

/// The code that chose the sizes of a group's stacks.
struct Makers {
    /// Of each size.
    all: Vec<(u64, Maker)>,
    /// Some sizes were taken from RLIMIT_STACK.
    by_limit: bool,
}

impl Makers {
    fn of(group: &Group<'_>, sizes: &Sizes, world: &World<'_>) -> Makers {
        let all: Vec<(u64, Maker)> = sizes.all().map(|size| (size, Maker::of(group, size, world))).collect();
        let limit = |(size, maker): &(u64, Maker)| *maker == Maker::Other && by_limit(world, *size);
        Makers { by_limit: all.iter().any(limit), all }
    }

    fn has(&self, maker: Maker) -> bool {
        self.all.iter().any(|(_, own)| *own == maker)
    }

    fn only(&self, maker: Maker) -> bool {
        !self.all.is_empty() && self.all.iter().all(|(_, own)| *own == maker)
    }

    fn is(&self, size: u64, maker: Maker) -> bool {
        self.all.contains(&(size, maker))
    }
}

/// What makes the stacks smaller: one knob for each code that chose a size, with what its own stacks would
/// save.
fn smaller(group: &Group<'_>, world: &World<'_>, (makers, sizes): (&Makers, &Sizes)) -> Vec<Fix> {
    let limit = |size: u64| makers.is(size, Maker::Other) && by_limit(world, size);
    let chosen = |size: u64| makers.is(size, Maker::Other) && !by_limit(world, size);
    let rust =
        |default: bool| move |size: u64| makers.is(size, Maker::Rust) && (size == RUST_STACK) == default;
    let locked = is_locked(group, world);
    let fix = |knob: &str, saves: u64| {
        let note = match saves {
            0 => "too small a stack crashes the program",
            _ => "figure for 1 MiB stacks; too small a stack crashes the program",
        };
        match locked {
            true => Fix::new(knob, saves, saves).note(note),
            false => Fix::new(knob, saves.min(group.unused()), 0).note(note),
        }
    };
    let kept = kept_instead(group, world, sizes.largest());
    let mut out = Vec::new();
    if sizes.all().any(rust(true)) {
        let knob = "RUST_MIN_STACK=1048576 (or thread::Builder::stack_size)";
        out.push(fix(knob, sizes.saves(SMALL, rust(true)).saturating_sub(kept)));
    }
    if sizes.all().any(rust(false)) {
        let knob = "a smaller thread::Builder::stack_size, or RUST_MIN_STACK, whichever set it";
        out.push(fix(knob, sizes.saves(SMALL, rust(false)).saturating_sub(kept)));
    }
    if makers.has(Maker::OpenMp) {
        let own = |size| makers.is(size, Maker::OpenMp);
        let knob = "OMP_STACKSIZE=1M (ulimit -s 1024 does the same)";
        out.push(fix(knob, sizes.saves(SMALL, own).saturating_sub(kept)));
    }
    if makers.by_limit {
        let saves = sizes.saves(SMALL, limit).saturating_sub(kept);
        // maps does not show which stacks are those of libuv's pool
        let of_uv = group.path.is_none() && limit(UV_STACK) && world.has_mark(UV_POOL);
        let found = match of_uv {
            true => fix(LIMIT, saves.saturating_sub(UV_THREADS * (UV_STACK - SMALL))),
            false => fix(LIMIT, saves),
        };
        out.push(match found.saves_virt {
            _ if of_uv => found.note(UNLIKE_UV),
            0 => found,
            // a size that is the limit's may be the program's own: slapd sets 8 MiB itself
            _ => found.note(UNLESS_OWN),
        });
    }
    if sizes.all().any(chosen) {
        out.extend(match RULES.iter().find_map(|rule| rule.stack_size_knob(world)) {
            // sizes do not show which stacks are the runtime's
            Some((knob, note)) => Some(Fix::new(&knob, 0, 0).note(&note)),
            None => match sizes.saves(SMALL, chosen).saturating_sub(kept) {
                // small as they are
                0 => None,
                saves if may_have_raised_limit(world) => Some(fix(LIMIT, saves).note(RAISED)),
                saves => Some(fix("a smaller pthread_attr_setstacksize", saves)),
            },
        });
    }
    if kept > 0 {
        let counted = format!(
            "{FIGURE}, of which the C library then keeps up to {} more for the next threads",
            size(kept)
        );
        out.iter_mut().for_each(|fix| fix.note = fix.note.replacen(FIGURE, &counted, 1));
    }
    out
}

/// True where glibc took the size from RLIMIT_STACK.
fn by_limit(world: &World<'_>, each: u64) -> bool {
    let seen = world.input.observations;
    match seen.stack_limit {
        Some(limit) => limit == each,
        None => seen.limits.known && each == UNLIMITED,
    }
}

/// Without a limit from the start glibc's own size is 2 MiB. One that has other stacks, and no limit now, has chosen
/// them, or has lifted its limit itself. Of a process that was not examined the limit is not known.
fn may_have_raised_limit(world: &World<'_>) -> bool {
    world.input.observations.stack_limit.is_none() && world.has_file(is_libc)
}

/// `lo` in VmFlags: the program has locked its memory, and all pages of its stacks are there.
fn is_locked(group: &Group<'_>, world: &World<'_>) -> bool {
    let mut stacks = group.pieces.iter().filter(|piece| is_stack(piece.part)).peekable();
    let locked = |at| world.detail_at(at).is_some_and(|detail| detail.flags.has("lo"));
    stacks.peek().is_some() && stacks.all(|piece| locked(piece.range.start))
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

fn why(group: &Group<'_>, world: &World<'_>, (makers, sizes): (&Makers, &Sizes)) -> String {
    let mut why = format!(
        "every thread gets address space for its deepest possible call chain, {}, when it is \
         created; {}",
        sizes.words(),
        match is_locked(group, world) {
            true => "it is locked in memory (mlock, mlockall), so that all of it is resident",
            false => "only the pages that it really used are resident",
        }
    );
    let (mixed, limit) = (sizes.all().count() > 1, world.input.observations.stack_limit);
    if makers.has(Maker::Rust) && group.path.is_none() {
        why += " (2 MiB and a signal stack for each are what Rust's std gives its threads)";
    } else if makers.only(Maker::Rust) && sizes.largest() == RUST_STACK {
        why += " (the size is that of Rust's std, which also gives each thread a signal stack of its own)";
    }
    if makers.by_limit {
        why += &match (limit, mixed) {
            (Some(limit), true) => format!(" (those of {} have the size of `ulimit -s`)", exact_size(limit)),
            (Some(_), false) => " (the size is that of `ulimit -s`)".to_string(),
            (None, _) => " (with `ulimit -s unlimited`, glibc takes 2 MiB)".to_string(),
        };
    }
    if makers.only(Maker::OpenMp) {
        why += "; OpenMP starts as many as there are processors, and keeps them for the next parallel region";
    } else if group.path.is_none()
        && let Some(library) = OPENMP_MODULES.iter().find(|m| world.has_file(|f| f.starts_with(**m)))
    {
        why += &format!(
            "; {library} is loaded: OpenMP's threads may be among them (OMP_NUM_THREADS, OMP_STACKSIZE)"
        );
    }
    why += hidden_guards(group);
    if sizes.merged {
        why += "; stacks without guards are one mapping to the kernel: how many there are, only their threads tell";
    }
    why + &of_exited(group, world)
}

/// Of the stacks whose threads have ended.
fn of_exited(group: &Group<'_>, world: &World<'_>) -> String {
    let [cached, unjoined, left] = [CACHED, UNJOINED, EXITED].map(|part| group.instances_with(part));
    let exited = cached + unjoined + left;
    let mut out = match (exited, group.instances) {
        (0, _) => return String::new(),
        (1, 1) => "; its thread has exited".to_string(),
        (1, _) => "; one of them belonged to a thread that has exited".to_string(),
        (n, all) if n == all => "; their threads have exited".to_string(),
        (n, _) => format!("; {n} of them belonged to threads that have exited"),
    };
    if unjoined > 0 {
        let them = if unjoined == 1 { "it" } else { "them" };
        let which = match (unjoined, exited) {
            (n, all) if n == all => format!(", and nobody has joined {them}"),
            (n, _) => format!("; {n} of these nobody has joined"),
        };
        out += &which;
        out += " (pthread_join, pthread_detach): until then the C library leaves the stack mapped";
    }
    if !keeps_stacks(group, world) {
        return out;
    }
    let rest = if unjoined > 0 { "; the others" } else { ":" };
    if left > 0 {
        out += rest;
        out += " the C library leaves a stack mapped until its thread is joined, and keeps up to 40 MiB of those for the \
                next threads; which it is here is not known";
    } else if cached > 0 {
        out += rest;
        out += " the C library keeps up to 40 MiB of such stacks for the next threads";
    }
    out
}

/// Only glibc keeps stacks of threads that have ended: musl unmaps them, those of joinable ones when they are joined.
fn keeps_stacks(group: &Group<'_>, world: &World<'_>) -> bool {
    let by_path = || group.path.is_some_and(|path| path.any(|line| is_libc(&line.module)));
    world.has_file(is_libc) || world.has_mark(MARK) || by_path()
}

/// A full cache holds more of smaller stacks: what those of this group would take that do not fit now. All of the process
/// share one cache, whoever made them.
fn kept_instead(group: &Group<'_>, world: &World<'_>, each: u64) -> u64 {
    let own = group.instances_with(CACHED);
    let (all, held) = world.threads.cached().unwrap_or((own, group.part(CACHED).virt));
    if own == 0 || held.saturating_add(each) < CACHE {
        return 0;
    }
    // those that were there at once, as far as they fit
    let (fits, living) = (CACHE / SMALL, world.threads.living());
    let kept = world.threads.stacks_at_once().map_or(fits, |most| most.saturating_sub(living).min(fits));
    let more = kept.saturating_sub(all).saturating_mul(SMALL);
    more.saturating_mul(own).div_ceil(all.max(own))
}

//! Where thread stacks lie, found without the call that made them: by guard VMAs, by guard pages that maps
//! does not show, by VmFlags, by stack pointers where neighbours were merged.
//!
//! MAP_STACK sets VM_NOHUGEPAGE since Linux 6.7 (include/linux/mman.h, `calc_vm_flag_bits`): `nh` in VmFlags,
//! on the stack and on its guard. glibc from 2.42 on installs the guard with MADV_GUARD_INSTALL: no VMA of
//! its own, neighbouring stacks are one VMA.

use super::given;
use crate::attribution::call::{MAP_NORESERVE, MAP_STACK, MmapCall};
use crate::attribution::rules::glibc::is_libc;
use crate::attribution::rules::musl::{DEFAULT_STACK, is_stack_guard, uses_musl};
use crate::attribution::rules::{Subject, World};
use crate::ledger::{Region, RegionKind};
use crate::model::{Addr, AddrRange, Mapping, Overcommit, PAGE, Prot, Sharing};

/// Guards are small; a larger PROT_NONE range below is another reservation.
pub const MAX_GUARD: u64 = 1 << 20;
/// PTHREAD_STACK_MIN: what is smaller is no thread's stack, but a signal handler's.
pub const MIN_STACK: u64 = 16 << 10;
/// The usual limit (`ulimit -s`), by which glibc sizes stacks.
pub const USUAL: u64 = 8 << 20;
/// What glibc takes where that is unlimited (ARCH_STACK_DEFAULT_SIZE).
pub const UNLIMITED: u64 = 2 << 20;

/// The whole stack with its guard: the call's span, a part between two guards, or the guard and stack VMAs
/// next to the piece.
pub fn stack_span(subject: &Subject<'_>, world: &World<'_>) -> Option<AddrRange> {
    if let Some(given) = given::span(subject, world) {
        return Some(given);
    }
    if let Some(slot) = slot(subject.region, subject.range.start, world) {
        return Some(slot);
    }
    if subject.record.is_some() {
        return Some(subject.span);
    }
    if let Some((guard, stack)) = guarded(subject, world) {
        let start = guard.range.start;
        // a VMA may hold more than the stack (see `musl`): then it was cut
        return Some(match (subject.is_reserved(), subject.range.start == stack.range.start) {
            (true, _) => AddrRange { start, end: stack.range.end },
            (false, true) => AddrRange { start, end: subject.range.end },
            (false, false) => subject.range,
        });
    }
    (!subject.is_reserved()).then_some(subject.range)
}

/// The adjoining pair (guard, stack) that the subject is one of.
pub fn guarded<'a>(subject: &Subject<'_>, world: &World<'a>) -> Option<(&'a Mapping, &'a Mapping)> {
    let vma = subject.region.vma;
    let own = world.mappings().get(vma)?;
    let (guard, stack) = if own.prot.is_none() { (own, world.above(vma)?) } else { (world.below(vma)?, own) };
    let plain = |m: &Mapping| m.file.is_none() && m.name.is_empty() && m.sharing == Sharing::Private;
    let fits = guard.prot.is_none() && stack.prot == Prot::RW && guard.range.len() <= MAX_GUARD;
    (fits && plain(guard) && plain(stack)).then_some((guard, stack))
}

/// True if the piece is a guard: inaccessible as mapped, or made so by MADV_GUARD_INSTALL.
pub fn is_guard(subject: &Subject<'_>, world: &World<'_>) -> bool {
    subject.is_reserved() || is_hidden_guard(subject, world)
}

fn is_hidden_guard(subject: &Subject<'_>, world: &World<'_>) -> bool {
    let guards = world.hidden_guards(subject.range);
    guards.len() == 1 && guards.iter().all(|guard| guard.contains_range(subject.range))
}

/// Where a region that holds stacks is cut: at hidden guards, and between stacks without any.
pub fn cuts(region: &Region, world: &World<'_>) -> Vec<Addr> {
    let given = given::cuts(region, world);
    if !given.is_empty() {
        return given;
    }
    if let Some(end) = end_of_stack(region, world) {
        return vec![end];
    }
    if !may_hold_stacks(region, world) {
        return Vec::new();
    }
    let guards = world.hidden_guards(region.range);
    if !guards.is_empty() {
        return guards.iter().flat_map(|guard| [guard.start, guard.end]).collect();
    }
    let Some(each) = merged_stacks(region, world) else { return Vec::new() };
    let count = region.range.len() / each;
    (1..count).map(|n| region.range.start.saturating_add(n * each)).collect()
}

/// Where a thread's stack ends above its guard, if that is not the end of the VMA: without MAP_STACK in their flags the
/// kernel makes one VMA of it and what was mapped right above. The C library's block for the thread lies in the stack's
/// last page (glibc nptl/allocatestack.c, musl src/thread/pthread_create.c), also where the program gave it the memory.
fn end_of_stack(region: &Region, world: &World<'_>) -> Option<Addr> {
    let own = world.mappings().get(region.vma)?;
    let guard = world.below(region.vma)?;
    let plain = |m: &Mapping| m.file.is_none() && m.name.is_empty() && m.sharing == Sharing::Private;
    let is_guarded = guard.prot.is_none() && guard.range.len() <= MAX_GUARD && plain(guard);
    let is_whole = own.range == region.range && own.prot == Prot::RW && plain(own);
    if !is_guarded || !is_whole || world.record(region).is_some() {
        return None;
    }
    let end = world.threads.only_block_in(region.range)?.saturating_add(1).page_up();
    (end < region.range.end).then_some(end)
}

/// The part of a region, cut as [`cuts`] says, that is one stack with its guard.
fn slot(region: &Region, at: Addr, world: &World<'_>) -> Option<AddrRange> {
    if !may_hold_stacks(region, world) {
        return None;
    }
    let guards = world.hidden_guards(region.range);
    if !guards.is_empty() {
        let above = guards.partition_point(|guard| guard.start <= at);
        let own = guards.get(above.checked_sub(1)?)?;
        let end = guards.get(above).map_or(region.range.end, |next| next.start);
        return Some(AddrRange { start: own.start.max(region.range.start), end });
    }
    let each = merged_stacks(region, world)?;
    let number = at.0.saturating_sub(region.range.start.0) / each;
    Some(AddrRange::from_len(region.range.start.saturating_add(number * each), each))
}

/// Readable, writable, unnamed memory of its own; by flags or by its call, a stack's.
fn may_hold_stacks(region: &Region, world: &World<'_>) -> bool {
    let own = region.kind == RegionKind::Anonymous
        && region.sharing == Sharing::Private
        && region.prot == Prot::RW
        && world.mappings().get(region.vma).is_some_and(|m| m.file.is_none() && m.name.is_empty());
    own && match world.record(region) {
        Some(record) => MmapCall::of(&record.op).is_some_and(|c| c.is_anonymous() && c.has(MAP_STACK)),
        None => has_stack_flags(region.range.start, world) != Some(false),
    }
}

/// By VmFlags: `nh` and `ac`, nothing that others set. None where smaps was not read.
pub fn has_stack_flags(at: Addr, world: &World<'_>) -> Option<bool> {
    let flags = &world.detail_at(at)?.flags;
    let others = ["nr", "dd", "dc", "hg", "ht", "sh"];
    Some(flags.has("nh") && flags.has("ac") && !others.iter().any(|flag| flags.has(flag)))
}

/// What the C library maps as a stack has no flag that its program set (`nr`: MAP_NORESERVE).
pub fn has_flag_of_program(at: Addr, world: &World<'_>) -> bool {
    let never = world.input.observations.limits.overcommit == Some(Overcommit::Never);
    !never && world.has_file(is_libc) && world.detail_at(at).is_some_and(|detail| detail.flags.has("nr"))
}

/// True if VmFlags say so of all of it but the guard.
pub fn is_mapped_as_stack(span: AddrRange, world: &World<'_>) -> bool {
    let top = Addr(span.end.0.saturating_sub(PAGE));
    has_stack_flags(top, world) == Some(true)
}

/// As [`equal_stacks`]; what one call mapped is one stack.
fn merged_stacks(region: &Region, world: &World<'_>) -> Option<u64> {
    if world.record(region).is_some() {
        return None;
    }
    equal_stacks(region.range, world)
}

/// The length of the stacks without guards that were merged into `range`: threads' stack pointers lie
/// in it, each in a stack of its own. None where there is one at most.
fn equal_stacks(range: AddrRange, world: &World<'_>) -> Option<u64> {
    let pointers = world.threads.live_places_in(range);
    // without a limit the size is a guess, which one thread alone cannot confirm
    if world.input.observations.stack_limit.is_none() && pointers.len() < 2 {
        return None;
    }
    let by_limit = world.input.observations.stack_limit.unwrap_or(UNLIMITED);
    let by_count = range.len().checked_div(pointers.len() as u64)?;
    // glibc adds the guard to the size, also where it is no VMA
    [by_limit, by_limit.saturating_add(PAGE), by_count].into_iter().find(|&each| {
        let fits = each >= MIN_STACK && each.is_multiple_of(PAGE) && range.len().is_multiple_of(each);
        let fits = fits && each < range.len();
        let number = |sp: Addr| sp.0.saturating_sub(range.start.0) / each.max(1);
        fits && pointers.windows(2).all(|pair| number(pair[0]) < number(pair[1]))
    })
}

/// musl (src/thread/pthread_create.c): mmap(PROT_NONE) without MAP_STACK or NORESERVE, all but two guard
/// pages opened. Its stacks are one frame long, so there is no other evidence.
pub fn is_musl_stack(subject: &Subject<'_>, world: &World<'_>) -> bool {
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

/// What a snapshot alone shows of a stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// With its guard.
    pub span: AddrRange,
    /// A signal handler's, too small for a thread.
    pub signal: bool,
}

/// A stack by flags, guard, size; of a piece that no call is known of.
pub fn shape(subject: &Subject<'_>, world: &World<'_>) -> Option<Shape> {
    if !world.hidden_guards(subject.region.range).is_empty() && may_hold_stacks(subject.region, world) {
        let span = slot(subject.region, subject.range.start, world)?;
        let flagged = has_stack_flags(subject.range.start, world) == Some(true);
        return (flagged && span.len() >= MIN_STACK).then_some(Shape { span, signal: false });
    }
    if let Some((guard, stack)) = guarded(subject, world) {
        return by_guard(subject, world, (guard, stack));
    }
    if subject.is_reserved() || has_stack_flags(subject.range.start, world) != Some(true) {
        return None;
    }
    // no guard VMA: its pages, or `gu` (MADV_GUARD_INSTALL), or stacks made without one
    let len = subject.range.len();
    let whole = len.is_multiple_of(world.input.observations.stack_limit.unwrap_or(USUAL).max(USUAL));
    let fits =
        len >= MIN_STACK && (subject.has_flag("gu") || whole || world.threads.has_stack_in_vma_of(len));
    fits.then_some(Shape { span: subject.range, signal: false })
}

/// A guard below a stack: of the size that this process gives its threads, or with the flags of both.
fn by_guard(subject: &Subject<'_>, world: &World<'_>, (guard, stack): (&Mapping, &Mapping)) -> Option<Shape> {
    if !subject.is_reserved() && subject.range.start != stack.range.start {
        return None; // cut off: see `musl`
    }
    let (len, small_guard) = (stack.range.len(), guard.range.len() <= 64 << 10);
    let span = AddrRange { start: guard.range.start, end: stack.range.end };
    let guard_flagged = world.detail_at(guard.range.start).is_some_and(|d| d.flags.has("nh"));
    if guard_flagged && has_stack_flags(stack.range.start, world) == Some(true) {
        return Some(Shape { span, signal: len < MIN_STACK });
    }
    // 2 MiB: Rust's, and glibc's where the limit is unlimited
    let of_rust = len == UNLIMITED && guard.range.len() == PAGE;
    let of_musl = || {
        let whole = subject.is_reserved() || subject.range.len() == DEFAULT_STACK;
        whole && is_stack_guard(guard) && len >= DEFAULT_STACK && uses_musl(world)
    };
    let usual = Some(len) == world.input.observations.stack_limit || len == USUAL || of_rust || of_musl();
    (small_guard && (usual || world.threads.has_stack_in_vma_of(len)))
        .then_some(Shape { span, signal: false })
}

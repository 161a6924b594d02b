//! What each call does to an address space, in pages as the kernel does it (mm/mmap.c,
//! mm/mprotect.c, mm/madvise.c, ipc/shm.c, fs/aio.c; Linux 6.12).

use super::Ledger;
use super::advice::purges;
use super::origins::{FileTable, Removal};
use super::piece::{Attributes, Owner};
use super::reports::Report;
use crate::ledger::names::file_kind;
use crate::ledger::region::RegionKind;
use crate::ledger::vma_names::may_name_memory;
use crate::model::addr::page_up;
use crate::model::event::VmOp;
use crate::model::{Addr, AddrRange, FileRef, PAGE, Prot, Sharing, USER_END, VmEvent};
use crate::sys::abi::refused::{EINVAL, ENOMEM};
use crate::sys::abi::{
    MAP_ANONYMOUS, MAP_FIXED, MAP_FIXED_NOREPLACE, MAP_GROWSDOWN, MAP_HUGE_MASK, MAP_HUGE_SHIFT, MAP_HUGETLB,
    MAP_SHARED, MAP_SHARED_VALIDATE, MAP_TYPE, PR_SET_MM_BRK, PROT_GROWSDOWN, SHM_EXEC, SHM_RDONLY,
    SHM_REMAP,
};

const HUGE_2M: u64 = 2 << 20;

/// A perf event's ring is kept from forks by its driver (VM_DONTCOPY in perf_mmap, kernel/events/core.c), as
/// if by MADV_DONTFORK. It lies on the device of nameless files, whose major number is 0.
const PERF_RING: &[u8] = b"/anon_inode:[perf_event]";

impl Ledger {
    pub(super) fn apply_done(&mut self, call: &Report<'_>, files: &mut FileTable) {
        if !is_possible(call.event) {
            return;
        }
        let ret = Addr(call.event.ret as u64);
        match &call.event.op {
            VmOp::Mmap { .. } => self.mmap(call, files),
            VmOp::Munmap { addr, len } => self.unmap(call, pages(*addr, *len)),
            VmOp::Mremap { .. } => self.mremap(call),
            VmOp::Brk { requested, current } => self.brk(call, *requested, *current),
            VmOp::Mprotect { addr, len, prot, .. } => {
                let range = self.mprotect_range(pages(*addr, *len), *prot);
                self.mprotect(call, range, Prot::from_mmap_bits(*prot));
            }
            VmOp::Madvise { addr, len, advice } => self.madvise(call, pages(*addr, *len), *advice),
            VmOp::Shmat { flags, mapped, .. } => self.shmat(call, *flags, *mapped),
            VmOp::Shmdt { addr } => self.shmdt(call, *addr),
            VmOp::RemapFilePages { addr, len, pgoff, .. } => {
                let start = addr.page_down();
                self.remap_file_pages(call, AddrRange::from_len(start, len & !(PAGE - 1)), *pgoff);
            }
            VmOp::IoSetup { mapped, .. } => self.io_setup(call, *mapped),
            VmOp::IoDestroy { ctx } => self.io_destroy(call, *ctx),
            VmOp::MapShadowStack { len, .. } => {
                let range = AddrRange::from_len(ret, page_up(*len));
                self.vacate(call, range);
                let attr = Attributes::anonymous(Prot::RW, Sharing::Private, RegionKind::ShadowStack);
                self.map(call, range, attr);
            }
            VmOp::SetVmaName { addr, len, name } => {
                self.mapped.name(pages(*addr, *len), name.as_deref().filter(|name| !name.is_empty()));
            }
            VmOp::SetMm { option: PR_SET_MM_BRK, value } => self.brk.set(Addr(*value)),
            VmOp::SetMm { .. }
            | VmOp::ProcessMadvise { .. }
            | VmOp::SeccompListenerBusy
            | VmOp::Fork { .. }
            | VmOp::Exec { .. }
            | VmOp::Exit { .. }
            | VmOp::Rename => {}
        }
    }

    /// Refused calls change nothing, but for those that give up midway.
    pub(super) fn apply_failed(&mut self, call: &Report<'_>) {
        match &call.event.op {
            VmOp::Mprotect { addr, len, prot, .. } => {
                let range = self.mprotect_range(pages(*addr, *len), *prot);
                let done = AddrRange::new(range.start.0, self.mapped.pieces().mapped_until(range).0);
                if call.event.ret == ENOMEM && done != range {
                    // A hole: the VMAs before it are already changed.
                    self.mprotect(call, done, Prot::from_mmap_bits(*prot));
                } else if self.mapped.pieces().overlapping(range).nth(1).is_some() {
                    // Refused for one of several VMAs; which one is not reported.
                    self.doubts.add(range);
                }
            }
            VmOp::Madvise { addr, len, advice } if call.event.ret == ENOMEM => {
                self.madvise(call, pages(*addr, *len), *advice);
            }
            VmOp::SetVmaName { addr, len, name }
                if call.event.ret == EINVAL && name.as_deref().is_none_or(may_name_memory) =>
            {
                self.mapped.name(pages(*addr, *len), name.as_deref().filter(|name| !name.is_empty()));
            }
            VmOp::Mremap { old, old_len, new_len, flags, new_addr } if flags & super::remap::FIXED != 0 => {
                // Before 6.17 the destination was unmapped, and a shrink done, before the last checks.
                self.doubts.add(pages(*new_addr, *new_len));
                if new_len < old_len {
                    let end = page_up(*old_len);
                    let cut = page_up(*new_len).min(end);
                    self.doubts.add(AddrRange::new(old.saturating_add(cut).0, old.saturating_add(end).0));
                }
            }
            _ => {}
        }
    }

    fn mmap(&mut self, call: &Report<'_>, files: &mut FileTable) {
        let VmOp::Mmap { len, prot, flags, offset, file, .. } = &call.event.op else { return };
        let kind = mmap_kind(*flags, file.as_ref());
        let unit = if kind == RegionKind::HugeTlb { huge_page_size(*flags) } else { PAGE };
        let range = AddrRange::from_len(Addr(call.event.ret as u64), round_up(*len, unit));
        if flags & MAP_FIXED != 0 && flags & MAP_FIXED_NOREPLACE == 0 {
            self.discard(range, Removal::Replaced);
        } else {
            self.vacate(call, range);
        }
        let prot = Prot::from_mmap_bits(*prot);
        let attr = Attributes {
            owner: Owner::Unknown,
            prot,
            sharing: sharing_of(*flags),
            kind,
            grows_down: flags & MAP_GROWSDOWN != 0,
            module: prot.exec && file.is_some(),
            file: file.as_ref().map(|f| files.intern(f)),
            offset: if flags & MAP_ANONYMOUS != 0 { 0 } else { *offset },
        };
        self.map(call, range, attr);
        if file.as_ref().is_some_and(|file| file.major == 0 && file.path == PERF_RING) {
            self.advice.keep_from_forks(range);
        }
    }

    /// mm/mmap.c, SYSCALL_DEFINE1(brk).
    fn brk(&mut self, call: &Report<'_>, requested: Addr, current: Option<Addr>) {
        // The result is the break in force; a plain query returns it as well.
        let ret = Addr(call.event.ret as u64);
        let alone = self.reports.alone();
        let Some((old_end, new_end)) = self.brk.call(requested, ret, current.unwrap_or(ret), alone) else {
            return;
        };
        if new_end > old_end {
            let range = AddrRange::new(old_end.0, new_end.0);
            self.vacate(call, range);
            self.map(call, range, Attributes::anonymous(Prot::RW, Sharing::Private, RegionKind::Brk));
        } else if new_end < old_end {
            self.unmap(call, AddrRange::new(new_end.0, old_end.0));
        }
    }

    /// PROT_GROWSDOWN extends the change to the start of a mapping that grows down.
    fn mprotect_range(&self, range: AddrRange, prot: u64) -> AddrRange {
        if prot & PROT_GROWSDOWN == 0 {
            return range;
        }
        match self.mapped.pieces().at(range.start) {
            Some((piece, attr)) if attr.grows_down => AddrRange::new(piece.start.0, range.end.0),
            _ => range,
        }
    }

    fn mprotect(&mut self, call: &Report<'_>, range: AddrRange, prot: Prot) {
        self.mapped.protect(range, prot);
        if call.event.ret == 0 {
            self.doubts.forget(range);
        }
        self.touch(call.event.time_ns, range);
    }

    fn madvise(&mut self, call: &Report<'_>, range: AddrRange, advice: i32) {
        for part in self.mapped.advised(range) {
            self.advice.advise(part, advice);
        }
        if purges(advice) {
            self.touch(call.event.time_ns, range);
        }
    }

    fn shmat(&mut self, call: &Report<'_>, flags: u64, mapped: Option<AddrRange>) {
        // Without the VMA the length is not known: reconcile extends the first page.
        let range = mapped.unwrap_or(AddrRange::from_len(Addr(call.event.ret as u64), PAGE));
        if flags & SHM_REMAP != 0 {
            self.discard(range, Removal::Replaced);
        } else {
            self.vacate(call, range);
        }
        let prot = Prot { read: true, write: flags & SHM_RDONLY == 0, exec: flags & SHM_EXEC != 0 };
        self.map(call, range, Attributes::anonymous(prot, Sharing::Shared, RegionKind::SysvShm));
    }

    /// ipc/shm.c, ksys_shmdt: all of one attachment, wherever mprotect or munmap cut it.
    fn shmdt(&mut self, call: &Report<'_>, addr: Addr) {
        let belongs = |start: Addr, attr: &Attributes| {
            attr.kind == RegionKind::SysvShm && start >= addr && start.0 - addr.0 == attr.offset
        };
        let waiting = self.mapped.limbo().find(call.previous, |p| belongs(p.range.start, &p.attr));
        let whole = AddrRange::new(addr.0, u64::MAX);
        let first = waiting.map(|p| (p.range, p.attr.owner)).or_else(|| {
            self.mapped
                .pieces()
                .overlapping(whole)
                .find(|(r, a)| belongs(r.start, a))
                .map(|(r, a)| (r, a.owner))
        });
        let Some((first, owner)) = first else { return };
        let size = match owner {
            Owner::Event(slot) => self.mapped.origins().get(slot).map_or(0, |o| o.mapped()),
            // Read from maps: the pieces follow each other.
            _ => first.end.0 - addr.0,
        };
        let span = AddrRange::from_len(addr, size.max(first.end.0 - addr.0));
        let mut parts: Vec<AddrRange> = self
            .mapped
            .pieces()
            .overlapping(span)
            .filter(|(r, a)| a.owner == owner && belongs(r.start, a))
            .map(|(r, _)| r)
            .collect();
        if waiting.is_some() {
            parts.push(first);
        }
        for part in parts {
            self.unmap(call, part);
        }
    }

    /// mm/mmap.c, remap_file_pages: emulated since 4.0 by mapping the same file again.
    fn remap_file_pages(&mut self, call: &Report<'_>, range: AddrRange, pgoff: u64) {
        let Some((_, old)) = self.mapped.pieces().at(range.start) else { return };
        let attr = Attributes { offset: pgoff.saturating_mul(PAGE), ..old.clone() };
        self.discard(range, Removal::Replaced);
        self.map(call, range, attr);
    }

    fn io_setup(&mut self, call: &Report<'_>, mapped: Option<AddrRange>) {
        let Some(range) = mapped else {
            self.mapped.add_unplaced_ring(call.event);
            return;
        };
        self.vacate(call, range);
        self.map(call, range, Attributes::anonymous(Prot::RW, Sharing::Shared, RegionKind::AioRing));
    }

    /// fs/aio.c, kill_ioctx: the ring goes, whatever is in flight.
    fn io_destroy(&mut self, call: &Report<'_>, ctx: Addr) {
        let is_ring = |start: Addr, attr: &Attributes| attr.kind == RegionKind::AioRing && start == ctx;
        let waiting = self.mapped.limbo().find(call.previous, |p| is_ring(p.range.start, &p.attr));
        let waiting = waiting.map(|piece| (piece.range, piece.attr.owner));
        let there = || self.mapped.pieces().at(ctx).filter(|(range, attr)| is_ring(range.start, attr));
        let first = waiting.or_else(|| there().map(|(range, attr)| (range, attr.owner)));
        let Some((first, owner)) = first else { return self.mapped.forget_unplaced_ring() };
        // Parts of it may have new owners by now: the call waits long after the ring is gone.
        let size = match owner {
            Owner::Event(slot) => self.mapped.origins().get(slot).map_or(0, |origin| origin.mapped()),
            _ => 0,
        };
        self.unmap(call, AddrRange::from_len(ctx, size.max(first.len())));
    }
}

/// False for a call that is said to have mapped what is not user space. A recording may hold anything, and sums
/// of larger ranges would overflow.
fn is_possible(event: &VmEvent) -> bool {
    let fits = |start: u64, len: u64| start.checked_add(len).is_some_and(|end| end <= USER_END);
    let ret = event.ret as u64;
    match &event.op {
        VmOp::Mmap { len, .. } | VmOp::MapShadowStack { len, .. } => fits(ret, *len),
        VmOp::Mremap { old, old_len, new_len, .. } => fits(old.0, *old_len) && fits(ret, *new_len),
        VmOp::Brk { current, .. } => fits(ret, 0) && current.is_none_or(|current| fits(current.0, 0)),
        VmOp::Shmat { mapped: None, .. } => fits(ret, PAGE),
        VmOp::Shmat { mapped, .. } | VmOp::IoSetup { mapped, .. } => {
            mapped.is_none_or(|range| fits(range.end.0, 0))
        }
        VmOp::RemapFilePages { addr, len, .. } => fits(addr.0, *len),
        VmOp::SetMm { option: PR_SET_MM_BRK, value } => fits(*value, 0),
        _ => true,
    }
}

/// The pages of `[addr, addr + len)`.
pub(super) fn pages(addr: Addr, len: u64) -> AddrRange {
    let start = addr.page_down();
    AddrRange::new(start.0, start.saturating_add(page_up(len)).0)
}

fn round_up(len: u64, unit: u64) -> u64 {
    len.checked_add(unit - 1).map_or(!(unit - 1), |sum| sum & !(unit - 1))
}

fn sharing_of(flags: u64) -> Sharing {
    match flags & MAP_TYPE {
        MAP_SHARED | MAP_SHARED_VALIDATE => Sharing::Shared,
        _ => Sharing::Private,
    }
}

/// Huge page size that the flags request: log2 in bits 26..32, 0 for the default.
pub(super) fn huge_page_size(flags: u64) -> u64 {
    match (flags >> MAP_HUGE_SHIFT) & MAP_HUGE_MASK {
        0 => HUGE_2M,
        log2 @ 12..=40 => 1 << log2,
        _ => HUGE_2M,
    }
}

fn mmap_kind(flags: u64, file: Option<&FileRef>) -> RegionKind {
    if flags & MAP_ANONYMOUS != 0 {
        return match (flags & MAP_HUGETLB != 0, sharing_of(flags)) {
            (true, _) => RegionKind::HugeTlb,
            (false, Sharing::Shared) => RegionKind::SharedAnonymous,
            (false, Sharing::Private) => RegionKind::Anonymous,
        };
    }
    match file {
        Some(f) => file_kind(&f.path, sharing_of(flags)),
        None => RegionKind::File,
    }
}

//! The break (mm/mmap.c, SYSCALL_DEFINE1(brk)).

use crate::model::{Addr, AddrRange, Mapping};

/// mm->brk as far as it is known, not page-aligned.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Break {
    current: Option<Addr>,
    /// As execve left it: what lies below is the kernel's part of `[heap]`.
    at_exec: Option<Addr>,
}

impl Break {
    /// execve's; 0 where it was not seen.
    pub(super) fn of_exec(brk: Addr) -> Break {
        let brk = (brk.0 != 0).then_some(brk);
        Break { current: brk, at_exec: brk }
    }

    pub(super) fn is_known(self) -> bool {
        self.current.is_some()
    }

    /// The end of what execve left of `[heap]`, in whole pages.
    pub(super) fn end_at_exec(self) -> Option<Addr> {
        self.at_exec.map(Addr::page_up)
    }

    /// PR_SET_MM_BRK, or what a child was seen to have.
    pub(super) fn set(&mut self, brk: Addr) {
        self.current = Some(brk);
    }

    /// What maps show of it.
    pub(super) fn see(&mut self, mappings: &[Mapping]) {
        if let Some(heap) = heap_of(mappings) {
            self.current = Some(heap.end);
        }
    }

    /// A call of brk that returned `new`. Gives the page-aligned ends before and after it where it moved the
    /// break. `alone`: no other thread can have moved it.
    pub(super) fn call(
        &mut self,
        requested: Addr,
        ret: Addr,
        new: Addr,
        alone: bool,
    ) -> Option<(Addr, Addr)> {
        let Some(old) = self.current else {
            self.current = Some(new);
            if self.at_exec.is_none() && requested.0 == 0 {
                self.at_exec = Some(new);
            }
            return None;
        };
        let moved = ret == requested;
        // A query, or refused: nothing moved. If another thread has moved it meanwhile, it reports that;
        // without one, the value is right: fork copies mm->brk without a lock.
        if moved || alone {
            self.current = Some(new);
        }
        moved.then(|| (old.page_up(), new.page_up()))
    }
}

/// `[heap]` where maps have one.
pub(super) fn heap_of(mappings: &[Mapping]) -> Option<AddrRange> {
    mappings.iter().rfind(|m| m.is_special("[heap]")).map(|m| m.range)
}

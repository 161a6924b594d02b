//! What is known of an address space before a call, compared with what the kernel shows after it.

use super::effect::{Outcome, Replacement, refused_after};
use super::peek::{self, Gone, Maps, Vma};
use super::shadow::{Shadow, ShadowVma};
use crate::model::{AddrRange, PAGE, Tid};

/// Both of one address space.
pub struct View<'a> {
    pub shadow: &'a mut Shadow,
    pub maps: &'a mut Maps,
    /// The thread that made the call.
    pub tid: Tid,
}

impl View<'_> {
    /// A call that is over, and has not done what it was to do: whatever changed in `ranges`, it has done in part.
    pub fn refused_in(&mut self, ret: i64, ranges: &[AddrRange]) -> Result<Outcome, Gone> {
        let mut in_part = Vec::new();
        for &range in ranges {
            let now = self.maps.areas(range)?;
            in_part.extend(self.shadow.changes(range, &now));
            self.shadow.replace(range, &now);
        }
        Ok(refused_after(ret, in_part))
    }

    /// As `refused_in`, of a call that may have mapped something anywhere.
    pub fn refused_anywhere(&mut self, ret: i64, ranges: &[AddrRange]) -> Result<Outcome, Gone> {
        // Nothing is new where the kernel counts as many pages as were known.
        let known = self.shadow.bytes() / PAGE;
        if peek::total_vm(self.tid) == Some(known) {
            return self.refused_in(ret, ranges);
        }
        let seen = self.maps.read()?;
        let in_part = self.shadow.all_changes(&seen);
        self.shadow.renew(&seen);
        Ok(refused_after(ret, in_part))
    }

    /// From now on the range is known to be as the kernel shows it.
    pub fn reread(&mut self, range: AddrRange) -> Result<(), Gone> {
        let now = self.maps.areas(range)?;
        self.shadow.replace(range, &now);
        Ok(())
    }

    /// All of the range is mapped, with these rights. It may be several VMAs by now: calls that are not notified
    /// (mlock, mseal) divide what one call has mapped.
    pub fn is_mapped(&mut self, range: AddrRange, access: Option<u64>) -> Result<bool, Gone> {
        let mut end = range.start.0;
        for area in self.maps.areas(range)? {
            if area.start != end || access.is_some_and(|access| access != area.access) {
                return Ok(false);
            }
            end = area.end;
        }
        Ok(end == range.end.0)
    }

    /// What stays in `old` is in `target`, too: of several VMAs each (since 6.17), once the call is over.
    pub fn all_are_there(&mut self, old: AddrRange, target: AddrRange, returned: bool) -> Result<bool, Gone> {
        if old.is_empty() {
            return self.is_mapped(target, None);
        }
        let sources = self.maps.vmas(old)?;
        if sources.len() > 1 && !returned {
            return Ok(false);
        }
        for source in sources {
            if self.copy_of(&source, old, target)?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Where a part of `old` is in `target`, too, page for page of the same file.
    fn copy_of(
        &mut self,
        source: &Vma,
        old: AddrRange,
        target: AddrRange,
    ) -> Result<Option<AddrRange>, Gone> {
        let shift = target.start.0.wrapping_sub(old.start.0);
        let (start, end) = (source.area.start.wrapping_add(shift), source.area.end.wrapping_add(shift));
        let copy = Vma { area: ShadowVma { start, end, ..source.area }, ..source.clone() };
        let range = AddrRange::new(start.max(target.start.0), end.min(old.end.0.wrapping_add(shift)));
        let shows_it = |vma: &Vma| copy.shows_the_same(vma, vma.area.start.max(range.start.0));
        let is_there = self.is_mapped(range, None)? && self.maps.vmas(range)?.iter().all(shows_it);
        Ok(is_there.then_some(range))
    }

    /// Up to where what stays in `old` has come to `target`, too: what is there now is the same, and was not
    /// `before`.
    pub fn copied_until(&mut self, old: AddrRange, target: AddrRange, before: &[Vma]) -> Result<u64, Gone> {
        let mut until = old.start.0;
        for source in self.maps.vmas(old)? {
            let Some(copy) = self.copy_of(&source, old, target)? else { continue };
            let place = copy.start.0;
            let was = before.iter().find(|vma| vma.area.start <= place && place < vma.area.end);
            let now = self.maps.at(place)?;
            if !was.zip(now).is_some_and(|(was, now)| was.shows_the_same(&now, place)) {
                until = source.area.end.min(old.end.0);
            }
        }
        Ok(until)
    }

    /// Where the file that `first` begins with ends, mapped without a gap. A call that is not notified may have
    /// divided it by now.
    pub fn end_of_file(&mut self, first: &Vma) -> Result<u64, Gone> {
        let mut end = first.area.end;
        while let Some(next) = self.maps.at(end)? {
            let offset = first.offset.wrapping_add(end - first.area.start);
            if next.area.start != end || next.file != first.file || next.offset != offset {
                break;
            }
            end = next.area.end;
        }
        Ok(end)
    }

    /// All that is mapped in the range could be what replaced it: it may be several VMAs, as in `is_mapped`.
    pub fn may_be(&mut self, replacement: Replacement, range: AddrRange) -> Result<bool, Gone> {
        let vmas = self.maps.vmas(range)?;
        Ok(vmas.iter().all(|vma| replacement.may_be(vma, range.start.0)))
    }

    pub fn is_free_now(&mut self, range: AddrRange) -> Result<bool, Gone> {
        Ok(self.maps.from(range.start.0)?.is_none_or(|vma| vma.area.start >= range.end.0))
    }
}

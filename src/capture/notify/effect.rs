//! The result of a call, which is not delivered: worked out from its arguments, from what was mapped
//! before, and from what the kernel shows afterwards. Calls that change an address space run one
//! at a time, so whatever changed is the one call's work.

use super::peek::{self, Gone, Vma};
use super::shadow::{Change, Shadow, ShadowVma};
use super::view::View;
use crate::model::{AddrRange, PAGE};
use crate::sys::abi::refused::{EINVAL, ENOMEM};

/// Refused, for a reason that cannot be seen (MAX_ERRNO, include/linux/err.h: never a real one).
pub const REFUSED: i64 = -4095;

/// What a call is expected to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Expected {
    /// Whatever it does, this is the result, and no mapping changes, whenever it runs.
    Known(i64),
    /// As `Known`, if it runs in its turn: not after what the others do next. What it has changed in the range
    /// after all is seen once it is over.
    Settles(i64, AddrRange),
    /// A mapping of `len` bytes: at `place`, or wherever there is space.
    Map {
        place: Option<u64>,
        hint: u64,
        len: u64,
        offset: u64,
        access: u64,
        /// What was at `place`.
        before: Option<Vma>,
        /// The mapping that will be there, as far as the arguments say.
        replacement: Replacement,
        huge: bool,
    },
    /// Nothing from `first` (the first mapped address) to `range`'s end.
    Unmap { range: AddrRange, first: u64 },
    /// Other rights at `probe`, the last page that has others now.
    Protect { range: AddrRange, probe: u64, access: u64, hole: bool },
    Remap {
        old: AddrRange,
        new_len: u64,
        place: Option<u64>,
        keeps_old: bool,
        /// What was at `place`, if the old range stays.
        before: Vec<Vma>,
    },
    /// The break moves.
    Brk { from: u64, to: u64 },
    /// The range shows its file from `offset` on, as it did before or not.
    Reorder { range: AddrRange, offset: u64 },
    /// All pieces of an attachment go, one after the other.
    Detach { pieces: Vec<AddrRange> },
    /// A new mapping of unknown size, named so: anywhere, or in place of what was at `place`.
    Appears {
        name: &'static [u8],
        place: Option<u64>,
        /// The segment's number, which is its file's.
        inode: Option<u64>,
    },
    /// The range's name.
    Name { at: u64, name: Option<Vec<u8>> },
}

/// How a new mapping differs from what was in its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Replacement {
    Anonymous,
    /// Of a file from this offset on; its inode, if that could be seen.
    File {
        shared: bool,
        offset: u64,
        inode: Option<u64>,
    },
    /// The arguments say too little.
    Any,
}

impl Replacement {
    pub fn may_be(self, vma: &Vma, place: u64) -> bool {
        match self {
            Replacement::Anonymous => vma.file.is_none() && !vma.is_shared,
            Replacement::File { shared, offset, inode } => {
                vma.is_shared == shared
                    && vma.offset.wrapping_add(place.wrapping_sub(vma.area.start)) == offset
                    && vma.file.is_some_and(|file| inode.is_none_or(|inode| inode == file.inode))
            }
            Replacement::Any => true,
        }
    }
}

/// A result, and the new mapping where there is one.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Effect {
    pub ret: i64,
    pub mapped: Option<(AddrRange, Option<Vma>)>,
    /// What a refused call has changed all the same, before it was refused.
    pub in_part: Vec<Change>,
}

impl Effect {
    pub fn of(ret: i64) -> Effect {
        Effect { ret, ..Effect::default() }
    }
}

/// Whether a call is over, so that what is not there will not come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Over {
    NotYet,
    /// By the clock: enough where the result is the same either way.
    Likely,
    Surely,
}

/// What is known of a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It may still be on its way.
    Pending,
    Done(Effect),
    /// It is not known; the shadow has been renewed from the kernel's maps.
    Unknown,
    Gone,
}

fn done(ret: i64) -> Outcome {
    Outcome::Done(Effect::of(ret))
}

/// What is new was not made by a refused call: the outcome is not known.
pub fn refused_after(ret: i64, in_part: Vec<Change>) -> Outcome {
    if in_part.iter().any(|change| matches!(change, Change::Mapped(_))) {
        return Outcome::Unknown;
    }
    Outcome::Done(Effect { ret, mapped: None, in_part })
}

impl Expected {
    /// Checks whether it has taken effect.
    pub fn check(&self, view: &mut View<'_>, over: Over) -> Outcome {
        self.compare(view, over).unwrap_or(Outcome::Gone)
    }

    /// Where it may change something, as far as its arguments say.
    pub fn ranges(&self) -> Vec<AddrRange> {
        match self {
            Expected::Map { place: Some(place), len, .. } => vec![AddrRange::new(*place, place + len)],
            Expected::Unmap { range, .. }
            | Expected::Protect { range, .. }
            | Expected::Settles(_, range)
            | Expected::Reorder { range, .. } => vec![*range],
            Expected::Remap { old, new_len, place, .. } => {
                let target = place.map(|place| AddrRange::new(place, place + new_len));
                std::iter::once(*old).chain(target).collect()
            }
            Expected::Brk { from, to } => vec![break_range(*from, *to)],
            Expected::Detach { pieces } => pieces.clone(),
            _ => Vec::new(),
        }
    }

    fn compare(&self, view: &mut View<'_>, over: Over) -> Result<Outcome, Gone> {
        let returned = over == Over::Surely;
        let settled = |ret: i64| if over == Over::NotYet { Outcome::Pending } else { done(ret) };
        Ok(match self {
            Expected::Known(ret) => done(*ret),
            Expected::Settles(ret, range) if returned => return view.refused_in(*ret, &[*range]),
            Expected::Settles(ret, _) => settled(*ret),
            Expected::Map { .. } => return self.find_mapping(view, over),
            Expected::Unmap { range, first } => match view.maps.from(*first)? {
                Some(vma) if vma.area.start < range.end.0 => {
                    return self.refused(REFUSED, view, returned);
                }
                _ => {
                    view.shadow.remove(*range);
                    done(0)
                }
            },
            Expected::Protect { range, probe, access, hole } => match view.maps.at(*probe)? {
                Some(vma) if vma.area.access == *access => {
                    view.shadow.protect(*range, *access);
                    done(if *hole { ENOMEM } else { 0 })
                }
                _ => return self.refused(REFUSED, view, returned),
            },
            Expected::Remap { .. } => return self.find_moved(view, returned),
            Expected::Brk { from, to } => {
                let (old, new) = (from.next_multiple_of(PAGE), to.next_multiple_of(PAGE));
                let range = break_range(*from, *to);
                match new > old {
                    true if view.shadow.is_free(range) && view.is_mapped(range, None)? => {
                        view.reread(range)?;
                        done(*to as i64)
                    }
                    false if view.is_free_now(range)? => {
                        view.shadow.remove(range);
                        done(*to as i64)
                    }
                    _ => return self.refused(*from as i64, view, returned),
                }
            }
            Expected::Reorder { range, offset } => {
                if !returned {
                    return Ok(Outcome::Pending);
                }
                let vma = view.maps.at(range.start.0)?;
                let shows = |vma: &Vma| vma.offset.wrapping_add(range.start.0 - vma.area.start) == *offset;
                let ret = if vma.is_some_and(|vma| vma.is_shared && shows(&vma)) { 0 } else { EINVAL };
                return view.refused_in(ret, &[*range]);
            }
            Expected::Detach { pieces } => {
                for piece in pieces {
                    if view.maps.at(piece.start.0)?.is_some() {
                        return self.refused(EINVAL, view, returned);
                    }
                }
                pieces.iter().for_each(|&piece| view.shadow.remove(piece));
                done(0)
            }
            Expected::Appears { name, place: Some(place), inode } => {
                let fits = |vma: &Vma| {
                    vma.area.start == *place
                        && vma.name.starts_with(name)
                        && inode.is_none_or(|inode| vma.file.is_some_and(|file| file.inode == inode))
                };
                match view.maps.at(*place)?.filter(fits) {
                    // The same segment may have been there before.
                    Some(vma) if returned || view.shadow.at(*place).is_none() => {
                        let range = AddrRange::new(*place, view.end_of_file(&vma)?);
                        view.reread(range)?;
                        Outcome::Done(Effect {
                            mapped: Some((range, Some(vma))),
                            ..Effect::of(*place as i64)
                        })
                    }
                    _ if returned => return view.refused_anywhere(REFUSED, &[]),
                    _ => Outcome::Pending,
                }
            }
            Expected::Appears { name, place: None, .. } => {
                if returned && peek::total_vm(view.tid) == Some(view.shadow.bytes() / PAGE) {
                    return Ok(done(REFUSED));
                }
                let seen = view.maps.read()?;
                let unknown = view.shadow.unknown(&seen);
                let named = |range: &&AddrRange| {
                    let mapping = seen.iter().find(|m| m.range.contains(range.start));
                    mapping.is_some_and(|m| m.name.starts_with(name))
                };
                match unknown.iter().find(named) {
                    Some(&range) => {
                        view.shadow.renew(&seen);
                        let vma = view.maps.at(range.start.0)?;
                        Outcome::Done(Effect {
                            mapped: Some((range, vma)),
                            ..Effect::of(range.start.0 as i64)
                        })
                    }
                    None => return self.refused(REFUSED, view, returned),
                }
            }
            Expected::Name { at, name } => {
                let shown = view.maps.at(*at)?.map(|vma| vma.name);
                let shown =
                    shown.as_deref().and_then(|shown| shown.strip_prefix(b"[anon:")?.strip_suffix(b"]"));
                // No mapping depends on it.
                if shown == name.as_deref() { done(0) } else { settled(REFUSED) }
            }
        })
    }

    fn refused(&self, ret: i64, view: &mut View<'_>, returned: bool) -> Result<Outcome, Gone> {
        if returned { view.refused_in(ret, &self.ranges()) } else { Ok(Outcome::Pending) }
    }

    fn find_mapping(&self, view: &mut View<'_>, over: Over) -> Result<Outcome, Gone> {
        let returned = over == Over::Surely;
        let Expected::Map { place, hint, len, offset, access, before, replacement, huge } = self else {
            return Ok(Outcome::Unknown);
        };
        if let Some(place) = *place {
            let end = place + len;
            // Where the VMA was the same before, only the call's return shows that it is done; that it was
            // not refused is then derived from the VMA that it would make. The VMA may be cut already, but
            // not yet replaced.
            let came = |vma: &Vma| {
                let same = |before: &Vma| {
                    before.shows_the_same(vma, place) && (before.area.end >= end || vma.area.end < end)
                };
                !before.as_ref().is_some_and(same)
            };
            let vma = match view.is_mapped(AddrRange::new(place, end), Some(*access))? {
                true => view.maps.at(place)?,
                false => None,
            };
            return match vma {
                Some(vma)
                    if came(&vma)
                        || over != Over::NotYet
                            && view.may_be(*replacement, AddrRange::new(place, end))? =>
                {
                    Ok(mapped(view.shadow, place, *len, vma))
                }
                // It may have unmapped before it failed.
                _ => self.refused(REFUSED, view, returned),
            };
        }
        if *hint != u64::MAX {
            let hinted = (*hint != 0).then_some(*hint).into_iter();
            let places: Vec<u64> = hinted.chain(view.shadow.likely_places(*len, *offset)).collect();
            for place in places {
                let free = place
                    .checked_add(*len)
                    .is_some_and(|end| view.shadow.is_free(AddrRange::new(place, end)));
                if free
                    && let Some(vma) = view.maps.at(place)?
                    && view.is_mapped(AddrRange::new(place, place + len), Some(*access))?
                    && (vma.area.start == place || view.shadow.at(place - 1).is_some())
                {
                    return Ok(mapped(view.shadow, place, *len, vma));
                }
            }
        }
        if peek::total_vm(view.tid) == Some(view.shadow.bytes() / PAGE) {
            return Ok(if returned { done(REFUSED) } else { Outcome::Pending });
        }
        let unknown = view.shadow.unknown(&view.maps.read()?);
        let fits = |range: &AddrRange| range.len() == *len || *huge && range.len() >= *len;
        Ok(match unknown.iter().find(|range| fits(range)) {
            Some(range) => match view.maps.at(range.start.0)? {
                Some(vma) => mapped(view.shadow, range.start.0, range.len(), vma),
                None => Outcome::Pending,
            },
            None if returned => return view.refused_anywhere(REFUSED, &[]),
            // Read while the call was changing something.
            None => Outcome::Pending,
        })
    }

    fn find_moved(&self, view: &mut View<'_>, returned: bool) -> Result<Outcome, Gone> {
        let Expected::Remap { old, new_len, place, keeps_old, before } = self else {
            return Ok(Outcome::Unknown);
        };
        let start = old.start.0;
        if let Some(place) = *place {
            let target = AddrRange::new(place, place.saturating_add(*new_len));
            let vma = view.maps.at(place)?;
            let has_moved = match vma {
                None => false,
                // What moves has left: all of it, also where it was several.
                Some(_) if !keeps_old => view.is_free_now(*old)?,
                Some(vma) => {
                    let was = before.first().filter(|was| was.area.start <= place);
                    let came = was.is_none_or(|was| !was.shows_the_same(&vma, place));
                    // The target was the same before: the only evidence is that the source would be the
                    // same.
                    let is_equal = |source: Vma| {
                        let there = Vma { area: ShadowVma { start: place, ..source.area }, ..source };
                        there.shows_the_same(&vma, place)
                    };
                    (came || returned && view.maps.at(start)?.is_some_and(is_equal))
                        && view.all_are_there(*old, target, returned)?
                }
            };
            if has_moved {
                view.reread(*old)?;
                view.reread(target)?;
                return Ok(done(place as i64));
            }
            if !returned {
                return Ok(Outcome::Pending);
            }
            let now = (view.maps.areas(*old)?, view.maps.areas(target)?);
            let copied = keeps_old.then(|| view.copied_until(*old, target, before)).transpose()?;
            let in_part = view.shadow.parts_of_move((*old, target), copied, (&now.0, &now.1));
            view.shadow.replace(*old, &now.0);
            view.shadow.replace(target, &now.1);
            return Ok(refused_after(REFUSED, in_part));
        }
        if !keeps_old && *new_len < old.len() {
            let tail = AddrRange::new(start + new_len, old.end.0);
            if view.is_free_now(tail)? {
                view.shadow.remove(tail);
                return Ok(done(start as i64));
            }
            return self.refused(REFUSED, view, returned);
        }
        if !keeps_old && let Some(vma) = view.maps.at(start)? {
            let growth = AddrRange::new(old.end.0, start.saturating_add(*new_len));
            if vma.area.end >= growth.start.0
                && view.shadow.is_free(growth)
                && view.is_mapped(growth, None)?
            {
                view.reread(growth)?;
                return Ok(done(start as i64));
            }
            return if returned { view.refused_anywhere(REFUSED, &[*old]) } else { Ok(Outcome::Pending) };
        }
        let seen = view.maps.read()?;
        let unknown = view.shadow.unknown(&seen);
        let came = unknown.iter().find(|range| range.len() == *new_len);
        Ok(match came {
            Some(range) => {
                let place = range.start.0;
                view.reread(*old)?;
                view.reread(*range)?;
                done(place as i64)
            }
            None if returned => return view.refused_anywhere(REFUSED, &[*old]),
            None => Outcome::Pending,
        })
    }
}

fn break_range(from: u64, to: u64) -> AddrRange {
    let (old, new) = (from.next_multiple_of(PAGE), to.next_multiple_of(PAGE));
    AddrRange::new(old.min(new), old.max(new))
}

fn mapped(shadow: &mut Shadow, place: u64, len: u64, vma: Vma) -> Outcome {
    let range = AddrRange::new(place, place.saturating_add(len));
    shadow.insert(ShadowVma { start: place, end: range.end.0, access: vma.area.access });
    Outcome::Done(Effect { mapped: Some((range, Some(vma))), ..Effect::of(place as i64) })
}

#[cfg(test)]
mod tests;

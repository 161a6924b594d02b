//! The result of a call, which is not delivered: worked out from its arguments, from what was mapped
//! before, and from what the kernel shows afterwards. Calls that change an address space run one
//! at a time, so whatever changed is the one call's work.

use super::peek::{Gone, Maps, Vma};
use super::shadow::{Shadow, ShadowVma};
use crate::model::{AddrRange, PAGE};
use crate::sys::abi::refused::{EINVAL, ENOMEM};

/// Refused, for a reason that cannot be seen (MAX_ERRNO, include/linux/err.h: never a real one).
pub const REFUSED: i64 = -4095;

/// What a call is expected to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Expected {
    /// Whatever it does, this is the result, and no mapping changes, whenever it runs.
    Known(i64),
    /// As `Known`, if it runs in its turn: not after what the others do next.
    Settles(i64),
    /// A mapping of `len` bytes: at `place`, or wherever there is room.
    Map {
        place: Option<u64>,
        hint: u64,
        len: u64,
        offset: u64,
        access: u64,
        /// What was at `place`.
        before: Option<Vma>,
        huge: bool,
    },
    /// Nothing from `first` (the first mapped address) to `range`'s end.
    Unmap {
        range: AddrRange,
        first: u64,
    },
    /// Other rights at `probe`, the last page that has others now.
    Protect {
        range: AddrRange,
        probe: u64,
        access: u64,
        hole: bool,
    },
    Remap {
        old: AddrRange,
        new_len: u64,
        place: Option<u64>,
        keeps_old: bool,
    },
    /// The break moves.
    Brk {
        from: u64,
        to: u64,
    },
    /// All pieces of an attachment go, one after the other.
    Detach {
        pieces: Vec<AddrRange>,
    },
    /// A new mapping of unknown size, named so: anywhere, or in place of what was at `place`.
    Appears {
        name: &'static [u8],
        place: Option<u64>,
        before: Option<Vma>,
    },
    /// The range's name.
    Name {
        at: u64,
        name: Option<Vec<u8>>,
    },
}

/// A result, and the new mapping where there is one.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Effect {
    pub ret: i64,
    pub mapped: Option<(AddrRange, Option<Vma>)>,
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
    /// It cannot be told; the shadow has been renewed from what the kernel shows.
    Unknown,
    Gone,
}

fn done(ret: i64) -> Outcome {
    Outcome::Done(Effect { ret, mapped: None })
}

impl Expected {
    /// Looks whether it has come about.
    pub fn check(&self, shadow: &mut Shadow, maps: &mut Maps, over: Over) -> Outcome {
        self.look(shadow, maps, over).unwrap_or(Outcome::Gone)
    }

    fn look(&self, shadow: &mut Shadow, maps: &mut Maps, over: Over) -> Result<Outcome, Gone> {
        let returned = over == Over::Surely;
        let refused = |ret: i64| if returned { done(ret) } else { Outcome::Pending };
        let settled = |ret: i64| if over == Over::NotYet { Outcome::Pending } else { done(ret) };
        Ok(match self {
            Expected::Known(ret) => done(*ret),
            Expected::Settles(ret) => settled(*ret),
            Expected::Map { .. } => return self.look_for_mapping(shadow, maps, over),
            Expected::Unmap { range, first } => match maps.from(*first)? {
                Some(vma) if vma.area.start < range.end.0 => refused(REFUSED),
                _ => {
                    shadow.remove(*range);
                    done(0)
                }
            },
            Expected::Protect { range, probe, access, hole } => match maps.at(*probe)? {
                Some(vma) if vma.area.access == *access => {
                    shadow.protect(*range, *access);
                    done(if *hole { ENOMEM } else { 0 })
                }
                _ => {
                    if returned {
                        // Possibly in part: as far as it came.
                        shadow.renew(&maps.read()?);
                    }
                    refused(REFUSED)
                }
            },
            Expected::Remap { .. } => return self.look_for_moved(shadow, maps, returned),
            Expected::Brk { from, to } => {
                let (old, new) = (from.next_multiple_of(PAGE), to.next_multiple_of(PAGE));
                let range = AddrRange::new(old.min(new), old.max(new));
                let vma = maps.at(range.start.0)?;
                match (new > old, vma) {
                    (true, Some(vma)) if vma.area.end >= new && shadow.is_free(range) => {
                        shadow.insert(ShadowVma { start: old, end: new, access: vma.area.access });
                        done(*to as i64)
                    }
                    (false, None) => {
                        shadow.remove(range);
                        done(*to as i64)
                    }
                    _ => refused(*from as i64),
                }
            }
            Expected::Detach { pieces } => {
                for piece in pieces {
                    if maps.at(piece.start.0)?.is_some() {
                        return Ok(refused(EINVAL));
                    }
                }
                pieces.iter().for_each(|&piece| shadow.remove(piece));
                done(0)
            }
            Expected::Appears { name, place: Some(place), before } => {
                let shown = maps.at(*place)?;
                let fits = |vma: &Vma| vma.area.start == *place && vma.name.starts_with(name);
                match shown.filter(fits) {
                    Some(vma) if over != Over::NotYet || Some(&vma) != before.as_ref() => {
                        let range = AddrRange::new(vma.area.start, vma.area.end);
                        shadow.insert(vma.area);
                        Outcome::Done(Effect { ret: *place as i64, mapped: Some((range, Some(vma))) })
                    }
                    _ => {
                        if returned {
                            shadow.renew(&maps.read()?);
                        }
                        refused(REFUSED)
                    }
                }
            }
            Expected::Appears { name, place: None, .. } => {
                let seen = maps.read()?;
                let news = shadow.news(&seen);
                let named = |range: &&AddrRange| {
                    let mapping = seen.iter().find(|m| m.range.contains(range.start));
                    mapping.is_some_and(|m| m.name.starts_with(name))
                };
                match news.iter().find(named) {
                    Some(&range) => {
                        shadow.renew(&seen);
                        let vma = maps.at(range.start.0)?;
                        Outcome::Done(Effect { ret: range.start.0 as i64, mapped: Some((range, vma)) })
                    }
                    None => refused(REFUSED),
                }
            }
            Expected::Name { at, name } => {
                let shown = maps.at(*at)?.map(|vma| vma.name);
                let shown =
                    shown.as_deref().and_then(|shown| shown.strip_prefix(b"[anon:")?.strip_suffix(b"]"));
                // No mapping depends on it.
                if shown == name.as_deref() { done(0) } else { settled(REFUSED) }
            }
        })
    }

    fn look_for_mapping(&self, shadow: &mut Shadow, maps: &mut Maps, over: Over) -> Result<Outcome, Gone> {
        let returned = over == Over::Surely;
        let Expected::Map { place, hint, len, offset, access, before, huge } = self else {
            return Ok(Outcome::Unknown);
        };
        if let Some(place) = *place {
            let vma = maps.at(place)?;
            let fits = |vma: &Vma| vma.area.end >= place + len && vma.area.access == *access;
            // Where it looked like this before, only its end tells that it was done; that it was not
            // refused is then taken from the arguments. The VMA may be cut already, but not yet replaced.
            let same = |vma: &Vma| before.as_ref().is_some_and(|before| before.shows_the_same(vma, place));
            return Ok(match vma.filter(fits) {
                Some(vma) if same(&vma) && over == Over::NotYet => Outcome::Pending,
                Some(vma) => mapped(shadow, place, *len, vma),
                None if returned => {
                    // A refused MAP_FIXED may have unmapped before it failed.
                    shadow.renew(&maps.read()?);
                    done(REFUSED)
                }
                None => Outcome::Pending,
            });
        }
        if *hint != u64::MAX {
            let hinted = (*hint != 0).then_some(*hint).into_iter();
            let places: Vec<u64> = hinted.chain(shadow.likely_places(*len, *offset)).collect();
            for place in places {
                let free =
                    place.checked_add(*len).is_some_and(|end| shadow.is_free(AddrRange::new(place, end)));
                if free
                    && let Some(vma) = maps.at(place)?
                    && vma.area.end >= place + len
                    && vma.area.access == *access
                    && (vma.area.start == place || shadow.at(place - 1).is_some())
                {
                    return Ok(mapped(shadow, place, *len, vma));
                }
            }
        }
        let news = shadow.news(&maps.read()?);
        Ok(match news[..] {
            [] if returned => done(REFUSED),
            [] => Outcome::Pending,
            [range] if range.len() == *len || *huge && range.len() >= *len => match maps.at(range.start.0)? {
                Some(vma) => mapped(shadow, range.start.0, range.len(), vma),
                None => Outcome::Unknown,
            },
            // Read while the call was changing something.
            _ if !returned => Outcome::Pending,
            _ => {
                shadow.renew(&maps.read()?);
                Outcome::Unknown
            }
        })
    }

    fn look_for_moved(&self, shadow: &mut Shadow, maps: &mut Maps, returned: bool) -> Result<Outcome, Gone> {
        let Expected::Remap { old, new_len, place, keeps_old } = self else { return Ok(Outcome::Unknown) };
        let (start, old_len) = (old.start.0, old.len());
        if place.is_none() && !keeps_old {
            if *new_len < old_len {
                let tail = AddrRange::new(start + new_len, old.end.0);
                let next = maps.from(tail.start.0)?;
                if next.is_none_or(|vma| vma.area.start >= tail.end.0) {
                    shadow.remove(tail);
                    return Ok(done(start as i64));
                }
                return Ok(if returned { done(REFUSED) } else { Outcome::Pending });
            }
            let growth = AddrRange::new(old.end.0, start.saturating_add(*new_len));
            if let Some(vma) = maps.at(start)? {
                if vma.area.end >= growth.end.0 && shadow.is_free(growth) {
                    shadow.insert(ShadowVma {
                        start: growth.start.0,
                        end: growth.end.0,
                        access: vma.area.access,
                    });
                    return Ok(done(start as i64));
                }
                return Ok(if returned { done(REFUSED) } else { Outcome::Pending });
            }
        }
        let was = shadow.clone();
        let target = match *place {
            Some(place) => {
                maps.at(place)?.filter(|vma| vma.area.end >= place + new_len).map(|vma| (place, vma))
            }
            None => {
                let seen = maps.read()?;
                let news = shadow.news(&seen);
                match news.iter().find(|range| range.len() == *new_len) {
                    Some(range) => maps.at(range.start.0)?.map(|vma| (range.start.0, vma)),
                    None => None,
                }
            }
        };
        let left = *keeps_old || maps.at(start)?.is_none();
        Ok(match target {
            Some((place, vma)) if left => {
                if !keeps_old {
                    shadow.remove(*old);
                }
                let access = was.at(start).map_or(vma.area.access, |area| area.access);
                shadow.insert(ShadowVma { start: place, end: place + new_len, access });
                done(place as i64)
            }
            _ if !returned => Outcome::Pending,
            _ if maps.at(start)?.is_some() => {
                shadow.renew(&maps.read()?);
                done(REFUSED)
            }
            _ => {
                shadow.renew(&maps.read()?);
                Outcome::Unknown
            }
        })
    }
}

fn mapped(shadow: &mut Shadow, place: u64, len: u64, vma: Vma) -> Outcome {
    let range = AddrRange::new(place, place.saturating_add(len));
    shadow.insert(ShadowVma { start: place, end: range.end.0, access: vma.area.access });
    Outcome::Done(Effect { ret: place as i64, mapped: Some((range, Some(vma))) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replaced_page_is_told_from_a_cut_vma() {
        let file = crate::model::MappingFile { major: 8, minor: 1, inode: 7 };
        let area = |start, end| ShadowVma { start, end, access: 3 };
        let vma = |area, offset, file| Vma { area, offset, file, is_shared: false, name: Vec::new() };
        let whole = vma(area(0x1000, 0x9000), 0x4000, Some(file));
        assert!(vma(area(0x3000, 0x9000), 0x6000, Some(file)).shows_the_same(&whole, 0x3000));
        assert!(!vma(area(0x3000, 0x9000), 0x4000, Some(file)).shows_the_same(&whole, 0x3000));
        assert!(!vma(area(0x3000, 0x9000), 0, None).shows_the_same(&whole, 0x3000));
        let anonymous = vma(area(0x1000, 0x9000), 0, None);
        assert!(vma(area(0x3000, 0x9000), 0, None).shows_the_same(&anonymous, 0x3000));
        let shared = Vma { is_shared: true, ..anonymous.clone() };
        assert!(!shared.shows_the_same(&anonymous, 0x3000));
    }
}

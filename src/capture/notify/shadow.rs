//! The state of an address space after the last call whose result is known: ranges and access rights. Pure.
//! What a call did is the difference to what the kernel shows afterwards.

use crate::model::addr::page_up;
use crate::model::{AddrRange, Mapping, PAGE};
use std::collections::BTreeMap;

/// PROT_READ 1, PROT_WRITE 2, PROT_EXEC 4.
pub const ACCESS: u64 = 7;

/// A mapped range with its access rights.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShadowVma {
    pub start: u64,
    pub end: u64,
    pub access: u64,
}

impl ShadowVma {
    pub fn of(mapping: &Mapping) -> ShadowVma {
        let bit = |on: bool, value: u64| if on { value } else { 0 };
        let prot = mapping.prot;
        let access = bit(prot.read, 1) | bit(prot.write, 2) | bit(prot.exec, 4);
        ShadowVma { start: mapping.range.start.0, end: mapping.range.end.0, access }
    }
}

/// What a call has done to a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    Unmapped(AddrRange),
    /// To these access rights.
    Protected(AddrRange, u64),
    Mapped(AddrRange),
    /// Moved to there, or, where the old range stays, mapped there as well.
    Moved {
        from: AddrRange,
        to: u64,
        keeps_old: bool,
    },
}

#[derive(Clone, Default, Debug)]
pub struct Shadow {
    /// By start.
    areas: BTreeMap<u64, (u64, u64)>,
    /// Mappings are placed below this address unless a hint says otherwise.
    ceiling: u64,
}

/// Huge pages are this large; large mappings are aligned to them (__thp_get_unmapped_area,
/// mm/huge_memory.c).
const HUGE: u64 = 2 << 20;

impl Shadow {
    /// From what the kernel shows.
    pub fn of(mappings: &[Mapping]) -> Shadow {
        let mut shadow = Shadow::default();
        for mapping in mappings {
            let area = ShadowVma::of(mapping);
            shadow.areas.insert(area.start, (area.end, area.access));
        }
        let stack = mappings.iter().find(|m| m.is_special("[stack]")).map_or(u64::MAX, |m| m.range.start.0);
        shadow.raise_ceiling(stack);
        shadow
    }

    /// The highest end of a mapping below the stack.
    fn raise_ceiling(&mut self, stack: u64) {
        let below = self.areas.range(..stack).next_back().map_or(0, |(_, &(end, _))| end);
        self.ceiling = self.ceiling.max(below);
    }

    pub fn insert(&mut self, area: ShadowVma) {
        self.remove(AddrRange::new(area.start, area.end));
        if area.start < area.end {
            self.areas.insert(area.start, (area.end, area.access));
        }
    }

    pub fn remove(&mut self, range: AddrRange) {
        let (from, to) = (range.start.0, range.end.0);
        if from >= to {
            return;
        }
        for area in self.overlapping(range) {
            self.areas.remove(&area.start);
            if area.start < from {
                self.areas.insert(area.start, (from, area.access));
            }
            if area.end > to {
                self.areas.insert(to, (area.end, area.access));
            }
        }
    }

    pub fn protect(&mut self, range: AddrRange, access: u64) {
        for piece in self.pieces(range) {
            self.insert(ShadowVma { access, ..piece });
        }
    }

    fn overlapping(&self, range: AddrRange) -> Vec<ShadowVma> {
        let (from, to) = (range.start.0, range.end.0);
        let before = self.areas.range(..from).next_back();
        before
            .into_iter()
            .chain(self.areas.range(from..to.max(from)))
            .map(|(&start, &(end, access))| ShadowVma { start, end, access })
            .filter(|area| area.end > from)
            .collect()
    }

    /// What is mapped in the range, cut to it.
    pub fn pieces(&self, range: AddrRange) -> Vec<ShadowVma> {
        let mut pieces = self.overlapping(range);
        for piece in &mut pieces {
            piece.start = piece.start.max(range.start.0);
            piece.end = piece.end.min(range.end.0);
        }
        pieces
    }

    pub fn is_free(&self, range: AddrRange) -> bool {
        self.overlapping(range).is_empty()
    }

    /// No hole in the range.
    pub fn covers(&self, range: AddrRange) -> bool {
        self.pieces(range).iter().map(|piece| piece.end - piece.start).sum::<u64>() == range.len()
    }

    /// The kernel shows the same: the same is mapped, with the same rights. The first thread's stack, which
    /// grows without a call, is left out.
    pub fn agrees_with(&self, mappings: &[Mapping]) -> bool {
        let mut rest = self.clone();
        for mapping in mappings {
            let area = ShadowVma::of(mapping);
            let same = self.covers(mapping.range)
                && self.pieces(mapping.range).iter().all(|piece| piece.access == area.access);
            if !same && !mapping.is_special("[stack]") {
                return false;
            }
            rest.remove(mapping.range);
        }
        rest.areas.is_empty()
    }

    pub fn at(&self, address: u64) -> Option<ShadowVma> {
        let (&start, &(end, access)) = self.areas.range(..=address).next_back()?;
        (address < end).then_some(ShadowVma { start, end, access })
    }

    /// Where the kernel would put `len` bytes: the end of the highest gap that holds them, with and without
    /// the alignment of huge pages (`offset` is the file's). Only likely places: the caller checks what was
    /// mapped there.
    pub fn likely_places(&self, len: u64, offset: u64) -> Vec<u64> {
        let mut places = Vec::new();
        if len >= HUGE
            && let Some(end) = self.highest_gap(len.saturating_add(HUGE))
        {
            let padded = end - len - HUGE;
            places.push(padded + (offset.wrapping_sub(padded) & (HUGE - 1)));
        }
        places.extend(self.highest_gap(len).map(|end| end - len));
        places
    }

    /// The end of the highest gap of at least `len` bytes below the ceiling.
    fn highest_gap(&self, len: u64) -> Option<u64> {
        let mut end = self.ceiling;
        for (&start, &(area_end, _)) in self.areas.range(..self.ceiling).rev() {
            if end.saturating_sub(area_end) >= len {
                return Some(end);
            }
            end = end.min(start);
        }
        (end >= len.saturating_add(PAGE)).then_some(end)
    }

    /// Ranges that `mappings` has and this has not, joined where they touch. The first thread's stack,
    /// which grows without a call, is left out.
    pub fn unknown(&self, mappings: &[Mapping]) -> Vec<AddrRange> {
        let mut unknown: Vec<AddrRange> = Vec::new();
        for mapping in mappings.iter().filter(|m| !m.is_special("[stack]")) {
            let mut at = mapping.range.start.0;
            let known = self.pieces(mapping.range);
            let mut add = |from: u64, to: u64| match unknown.last_mut() {
                Some(last) if last.end.0 == from => *last = AddrRange::new(last.start.0, to),
                _ => unknown.push(AddrRange::new(from, to)),
            };
            for piece in known {
                if piece.start > at {
                    add(at, piece.start);
                }
                at = piece.end;
            }
            if at < mapping.range.end.0 {
                add(at, mapping.range.end.0);
            }
        }
        unknown
    }

    /// All that is mapped.
    pub fn bytes(&self) -> u64 {
        self.areas.iter().map(|(start, (end, _))| end - start).sum()
    }

    /// How the kernel's view of `range` differs.
    pub fn changes(&self, range: AddrRange, now: &[ShadowVma]) -> Vec<Change> {
        let mut after = Shadow::default();
        now.iter().for_each(|&area| after.insert(area));
        let mut changes = Vec::new();
        for before in self.pieces(range) {
            let mut at = before.start;
            for piece in after.pieces(AddrRange::new(before.start, before.end)) {
                if piece.start > at {
                    changes.push(Change::Unmapped(AddrRange::new(at, piece.start)));
                }
                if piece.access != before.access {
                    let range = AddrRange::new(piece.start, piece.end);
                    changes.push(Change::Protected(range, piece.access));
                }
                at = piece.end;
            }
            if at < before.end {
                changes.push(Change::Unmapped(AddrRange::new(at, before.end)));
            }
            after.remove(AddrRange::new(before.start, before.end));
        }
        let new = after.pieces(range).into_iter();
        changes.extend(new.map(|piece| Change::Mapped(AddrRange::new(piece.start, piece.end))));
        changes
    }

    /// What a move that was refused midway has done: it moves one VMA after the other (since 6.17: remap_move,
    /// mm/mremap.c), and before that unmaps what lies at the target, and what is too long. `copied`: up to there at
    /// least, where the old range stays.
    pub fn parts_of_move(
        &self,
        (old, target): (AddrRange, AddrRange),
        copied: Option<u64>,
        (old_now, target_now): (&[ShadowVma], &[ShadowVma]),
    ) -> Vec<Change> {
        let keeps_old = copied.is_some();
        let (left, came) = (self.changes(old, old_now), self.changes(target, target_now));
        let mut there = Shadow::default();
        target_now.iter().for_each(|&area| there.insert(area));
        let (start, place) = (old.start.0, target.start.0);
        let (mut parts, mut moved) = (Vec::new(), Shadow::default());
        let mut moves = |from: u64, to: u64| {
            let at = place + (from - start);
            parts.push(Change::Moved { from: AddrRange::new(from, to), to: at, keeps_old });
            moved.insert(ShadowVma { start: at, end: at + (to - from), access: 0 });
        };
        let mut gone = Vec::new();
        for change in left {
            let Change::Unmapped(range) = change else { continue };
            let cut = range.end.0.min(start.saturating_add(target.len())).max(range.start.0);
            let arrived = AddrRange::new(place + (range.start.0 - start), place + (cut - start));
            if range.start.0 < cut && !keeps_old && there.covers(arrived) {
                moves(range.start.0, cut);
            } else if range.start.0 < cut {
                gone.push(AddrRange::new(range.start.0, cut));
            }
            if cut < range.end.0 {
                gone.push(AddrRange::new(cut, range.end.0));
            }
        }
        if let Some(copied) = copied {
            // In the order of their addresses: where one has come, all before it have.
            let ends = came.iter().filter_map(|change| match change {
                Change::Mapped(range) | Change::Protected(range, _) => Some(range.end.0 - place + start),
                _ => None,
            });
            let until = ends.fold(copied, u64::max);
            for source in old_now.iter().filter(|source| source.start < until) {
                moves(source.start, source.end.min(until));
            }
        }
        parts.extend(gone.into_iter().map(Change::Unmapped));
        parts.extend(came.into_iter().filter(|change| match change {
            Change::Mapped(range) | Change::Protected(range, _) => !moved.covers(*range),
            _ => true,
        }));
        parts
    }

    /// How all that the kernel shows differs; but for the first thread's stack, which grows without a call.
    pub fn all_changes(&self, mappings: &[Mapping]) -> Vec<Change> {
        let stack = mappings.iter().find(|m| m.is_special("[stack]")).map(|m| m.range);
        let mut before = self.clone();
        stack.into_iter().for_each(|stack| before.remove(stack));
        let now: Vec<ShadowVma> =
            mappings.iter().filter(|m| !m.is_special("[stack]")).map(ShadowVma::of).collect();
        before.changes(AddrRange::new(0, u64::MAX), &now)
    }

    /// Takes over what the kernel shows of `range`.
    pub fn replace(&mut self, range: AddrRange, now: &[ShadowVma]) {
        self.remove(range);
        now.iter().for_each(|&area| self.insert(area));
    }

    /// Takes over what the kernel shows.
    pub fn renew(&mut self, mappings: &[Mapping]) {
        let ceiling = self.ceiling;
        *self = Shadow::of(mappings);
        self.ceiling = self.ceiling.max(ceiling);
    }
}

/// The pages of a call's arguments; None where they reach over the end of addresses.
pub fn pages(start: u64, len: u64) -> Option<AddrRange> {
    let len = len.checked_add(PAGE - 1).map(|_| page_up(len))?;
    Some(AddrRange::new(start, start.checked_add(len)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Prot, Sharing};

    fn mapping(start: u64, end: u64, name: &str) -> Mapping {
        Mapping {
            range: AddrRange::new(start, end),
            prot: Prot::RW,
            sharing: Sharing::Private,
            offset: 0,
            file: None,
            name: name.as_bytes().to_vec(),
        }
    }

    #[test]
    fn cuts_and_joins() {
        let mut shadow = Shadow::of(&[mapping(0x1000, 0x9000, "")]);
        shadow.remove(AddrRange::new(0x3000, 0x5000));
        assert!(shadow.is_free(AddrRange::new(0x3000, 0x5000)));
        assert!(shadow.covers(AddrRange::new(0x5000, 0x9000)));
        assert!(!shadow.covers(AddrRange::new(0x2000, 0x6000)));
        shadow.protect(AddrRange::new(0x6000, 0x7000), 1);
        assert_eq!(shadow.at(0x6fff).map(|a| a.access), Some(1));
        assert_eq!(shadow.at(0x7000).map(|a| (a.access, a.end)), Some((3, 0x9000)));
        let seen =
            [mapping(0x1000, 0x4000, ""), mapping(0x5000, 0xb000, ""), mapping(0xc000, 0xd000, "[stack]")];
        let unknown = shadow.unknown(&seen);
        assert_eq!(unknown, [AddrRange::new(0x3000, 0x4000), AddrRange::new(0x9000, 0xb000)]);
    }

    #[test]
    fn agrees_with_what_is_mapped_with_the_same_rights() {
        let maps = [mapping(0x1000, 0x3000, ""), mapping(0x8000, 0x9000, "[stack]")];
        let mut shadow = Shadow::of(&maps);
        assert!(shadow.agrees_with(&maps));
        let grown = [mapping(0x1000, 0x3000, ""), mapping(0x7000, 0x9000, "[stack]")];
        assert!(shadow.agrees_with(&grown));
        let cut = [mapping(0x1000, 0x2000, ""), mapping(0x2000, 0x3000, ""), maps[1].clone()];
        assert!(shadow.agrees_with(&cut));
        let more = [mapping(0x1000, 0x4000, ""), maps[1].clone()];
        let less = [mapping(0x1000, 0x2000, ""), maps[1].clone()];
        assert!(!shadow.agrees_with(&more) && !shadow.agrees_with(&less));
        shadow.protect(AddrRange::new(0x2000, 0x3000), 1);
        assert!(!shadow.agrees_with(&maps));
    }

    #[test]
    fn what_changed_in_a_range() {
        let shadow = Shadow::of(&[mapping(0x1000, 0x9000, ""), mapping(0xa000, 0xb000, "")]);
        let area = |start, end, access| ShadowVma { start, end, access };
        let now = [area(0x1000, 0x3000, 3), area(0x4000, 0x6000, 1), area(0x6000, 0xb000, 3)];
        let range = |start, end| AddrRange::new(start, end);
        let expected = [
            Change::Unmapped(range(0x3000, 0x4000)),
            Change::Protected(range(0x4000, 0x6000), 1),
            Change::Mapped(range(0x9000, 0xa000)),
        ];
        assert_eq!(shadow.changes(range(0x1000, 0xb000), &now), expected);
        let mut renewed = shadow.clone();
        renewed.replace(range(0x1000, 0xb000), &now);
        assert!(renewed.changes(range(0x1000, 0xb000), &now).is_empty());
        assert_eq!(renewed.bytes(), 0x9000);
    }

    #[test]
    fn a_move_that_was_refused_midway_is_recognised_by_its_parts() {
        let shadow = Shadow::of(&[mapping(0x1000, 0x5000, ""), mapping(0x11000, 0x12000, "")]);
        let area = |start, end| ShadowVma { start, end, access: 3 };
        let (old, target) = (AddrRange::new(0x1000, 0x5000), AddrRange::new(0x10000, 0x14000));
        // Two pages have come, a third one has not; the target's second page was replaced.
        let now = (&[area(0x3000, 0x5000)][..], &[area(0x10000, 0x12000)][..]);
        let moved = Change::Moved { from: AddrRange::new(0x1000, 0x3000), to: 0x10000, keeps_old: false };
        assert_eq!(shadow.parts_of_move((old, target), None, now), [moved]);
        // Nothing has come: the target was unmapped, no more.
        let now = (&[area(0x1000, 0x5000)][..], &[][..]);
        let gone = Change::Unmapped(AddrRange::new(0x11000, 0x12000));
        assert_eq!(shadow.parts_of_move((old, target), None, now), [gone]);
        // The part that is too long for the target is unmapped first.
        let short = AddrRange::new(0x10000, 0x13000);
        let now = (&[area(0x1000, 0x4000)][..], &[area(0x11000, 0x12000)][..]);
        let cut = Change::Unmapped(AddrRange::new(0x4000, 0x5000));
        assert_eq!(shadow.parts_of_move((old, short), None, now), [cut]);
    }

    #[test]
    fn what_is_copied_in_part_is_copied_in_order() {
        let shadow = Shadow::of(&[mapping(0x1000, 0x5000, ""), mapping(0x10000, 0x12000, "")]);
        let area = |start, end| ShadowVma { start, end, access: 3 };
        let (old, target) = (AddrRange::new(0x1000, 0x5000), AddrRange::new(0x10000, 0x14000));
        let old_now = [area(0x1000, 0x3000), area(0x3000, 0x4000), area(0x4000, 0x5000)];
        let copy = |start, end, to| Change::Moved { from: AddrRange::new(start, end), to, keeps_old: true };
        // Where the first one came, the same was mapped; that the second one has come shows it.
        let now = (&old_now[..], &[area(0x10000, 0x12000), area(0x12000, 0x13000)][..]);
        let both = [copy(0x1000, 0x3000, 0x10000), copy(0x3000, 0x4000, 0x12000)];
        assert_eq!(shadow.parts_of_move((old, target), Some(0x1000), now), both);
        // Another file's pages show it where the rights are the same.
        let now = (&old_now[..], &[area(0x10000, 0x12000)][..]);
        assert_eq!(shadow.parts_of_move((old, target), Some(0x3000), now), both[..1]);
        assert_eq!(shadow.parts_of_move((old, target), Some(0x1000), now), []);
    }

    #[test]
    fn the_highest_gap_that_is_large_enough() {
        let maps = [
            mapping(0x10_0000, 0x20_0000, ""),
            mapping(0x7000_0000, 0x7010_0000, ""),
            mapping(0x7010_4000, 0x7020_0000, ""),
            mapping(0x7fff_0000, 0x8000_0000, "[stack]"),
        ];
        let shadow = Shadow::of(&maps);
        assert_eq!(shadow.likely_places(0x4000, 0), [0x7010_0000]);
        assert_eq!(shadow.likely_places(0x5000, 0), [0x7000_0000 - 0x5000]);
        let large = shadow.likely_places(0x40_0000, 0);
        assert_eq!(large, [0x7000_0000 - 0x40_0000 - 0x20_0000, 0x7000_0000 - 0x40_0000]);
        // Aligned as the huge pages of the file are.
        let [place, _] = shadow.likely_places(0x40_1000, 0x1000)[..] else { panic!() };
        assert_eq!(place & (HUGE - 1), 0x1000);
    }
}

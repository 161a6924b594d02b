//! How large the stacks of a group are: seldom all the same.

use super::shape::USUAL;
use super::{GUARD, is_stack};
use crate::attribution::category::Evidence;
use crate::attribution::rules::{Group, World};
use crate::attribution::units::exact_size;
use std::collections::BTreeMap;

/// More sizes than that are given as a range.
const MAX_NAMED: usize = 3;

/// Without guards, and how many there are of each.
pub struct Sizes {
    counts: BTreeMap<u64, u64>,
    /// A mapping holds several, since they have no guards.
    pub merged: bool,
}

impl Sizes {
    pub fn of(group: &Group<'_>, world: &World<'_>) -> Sizes {
        let stacks = || group.pieces.iter().filter(|p| is_stack(p.part));
        let mut things: BTreeMap<usize, u64> = BTreeMap::new();
        for piece in stacks() {
            *things.entry(piece.thing).or_default() += piece.footprint.virt;
        }
        let usual = world.input.observations.stack_limit.unwrap_or(USUAL).max(1);
        let by_shape = group.record.is_none() && stacks().all(|p| p.evidence == Evidence::Shape);
        let mut out = Sizes { counts: BTreeMap::new(), merged: false };
        for len in things.into_values() {
            let several = by_shape && len > usual && len.is_multiple_of(usual);
            let (size, count) = if several { (usual, len / usual) } else { (len, 1) };
            out.merged |= several;
            *out.counts.entry(size).or_default() += count;
        }
        out
    }

    pub fn all(&self) -> impl Iterator<Item = u64> {
        self.counts.keys().copied()
    }

    pub fn largest(&self) -> u64 {
        self.counts.keys().next_back().copied().unwrap_or(0)
    }

    /// What stacks of `to` bytes would save, instead of those that are larger.
    pub fn saves(&self, to: u64, whose: impl Fn(u64) -> bool) -> u64 {
        let larger = self.counts.iter().filter(|(size, _)| **size > to && whose(**size));
        larger.map(|(size, count)| (size - to).saturating_mul(*count)).fold(0, u64::saturating_add)
    }

    /// `8 MiB each`, `2 of 8 MiB and 17 of 704 KiB`, `16 KiB to 8 MiB`.
    pub fn words(&self) -> String {
        let mut named: Vec<String> = self
            .counts
            .iter()
            .rev()
            .map(|(size, count)| format!("{count} of {}", exact_size(*size)))
            .collect();
        match (self.counts.len(), self.counts.keys().next(), named.pop()) {
            (1, Some(size), _) => format!("{} each", exact_size(*size)),
            (2..=MAX_NAMED, _, Some(last)) => format!("{} and {last}", named.join(", ")),
            (_, Some(least), _) => format!("{} to {}", exact_size(*least), exact_size(self.largest())),
            (_, None, _) => exact_size(0),
        }
    }
}

/// Of guards that are no mappings of their own.
pub fn hidden_guards(group: &Group<'_>) -> &'static str {
    match group.pieces.iter().any(|p| p.part == GUARD && p.footprint.reserved == 0) {
        true => {
            "; their guards are pages inside of the mapping (MADV_GUARD_INSTALL, glibc from 2.42 on): maps shows neighbours \
             as one line"
        }
        false => "",
    }
}

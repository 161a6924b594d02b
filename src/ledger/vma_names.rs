//! What a program called parts of its memory.

use crate::model::{Addr, AddrRange};
use std::sync::Arc;

const ANON_VMA_NAME_MAX_LEN: usize = 80;

/// Names given by PR_SET_VMA_ANON_NAME to what one call mapped: where, which; sorted and disjoint. They stay where
/// they were given: of memory that mremap moves only maps knows the name.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct VmaNames {
    given: Vec<(AddrRange, Arc<[u8]>)>,
}

impl VmaNames {
    /// None: takes away what was given.
    pub fn set(&mut self, range: AddrRange, name: Option<&Arc<[u8]>>) {
        if range.is_empty() || (name.is_none() && self.given.is_empty()) {
            return;
        }
        let from = self.given.partition_point(|(old, _)| old.end <= range.start);
        let to = self.given.partition_point(|(old, _)| old.start < range.end);
        let mut parts: Vec<(AddrRange, Arc<[u8]>)> = Vec::new();
        for (old, own) in &self.given[from..to] {
            let below = AddrRange { start: old.start, end: range.start };
            let above = AddrRange { start: range.end, end: old.end };
            parts
                .extend([below, above].into_iter().filter(|r| r.start < r.end).map(|r| (r, Arc::clone(own))));
        }
        if let Some(name) = name {
            let at = parts.partition_point(|(part, _)| part.start < range.start);
            parts.insert(at, (range, Arc::clone(name)));
        }
        self.given.splice(from..to, parts);
        self.join(from.saturating_sub(1));
    }

    /// Neighbours of one name are one entry: allocators name what they grow by, step by step.
    fn join(&mut self, from: usize) {
        let mut at = from;
        while let [(first, name), (second, next), ..] = &self.given[at..] {
            if first.end == second.start && name == next {
                let both = AddrRange { start: first.start, end: second.end };
                self.given[at].0 = both;
                self.given.remove(at + 1);
            } else if at > from + 3 {
                return;
            } else {
                at += 1;
            }
        }
    }

    pub fn at(&self, addr: Addr) -> Option<&[u8]> {
        let at = self.given.partition_point(|(range, _)| range.end <= addr);
        self.given.get(at).filter(|(range, _)| range.contains(addr)).map(|(_, name)| &**name)
    }

    /// Where they begin and end.
    pub fn edges(&self) -> impl Iterator<Item = Addr> {
        self.given.iter().flat_map(|(range, _)| [range.start, range.end])
    }

    /// The one that most bytes have.
    pub fn largest(&self) -> Option<&Arc<[u8]>> {
        self.given.iter().max_by_key(|(range, _)| range.len()).map(|(_, name)| name)
    }
}

/// A name that a kernel with CONFIG_ANON_VMA_NAME takes (kernel/sys.c, `prctl_set_vma`). Of one that could not be read
/// it is not known.
pub fn may_name_memory(name: &[u8]) -> bool {
    let allowed = |c: &u8| (0x20..0x7f).contains(c) && !b"\\`$[]".contains(c);
    name.len() < ANON_VMA_NAME_MAX_LEN && name.iter().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn as_page_by_page(steps in prop::collection::vec((0u64..30, 0u64..12, 0usize..4), 0..40)) {
            let names: [Arc<[u8]>; 3] = [b"a", b"b", b"c"].map(|n: &[u8; 1]| Arc::from(n.as_slice()));
            let mut names_by_page: [Option<usize>; 64] = [None; 64];
            let mut found = VmaNames::default();
            for (start, len, which) in steps {
                found.set(AddrRange::new(start, start + len), names.get(which));
                for page in start..start + len {
                    names_by_page[page as usize] = (which < names.len()).then_some(which);
                }
            }
            for (page, name) in names_by_page.iter().enumerate() {
                prop_assert_eq!(found.at(Addr(page as u64)), name.map(|n| &*names[n]));
            }
            let joined = |pair: &[(AddrRange, Arc<[u8]>)]| pair[0].0.end == pair[1].0.start && pair[0].1 == pair[1].1;
            prop_assert!(!found.given.windows(2).any(joined));
        }
    }
}

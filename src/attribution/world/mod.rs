//! What rules may use: the piece in question, and its process.

mod index;
mod reservations;
mod subject;
mod threads;

use super::AuditInput;
use super::category::Claim;
use super::footprint::{Lookup, resident_and_swapped};
use super::rules::RULES;
use crate::model::hash::IntMap;
use crate::model::observation::ResidencySource;
use crate::model::{Addr, AddrRange, Frame, ModuleId};
pub use index::Index;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;
pub use subject::Subject;
pub use threads::{Left, Threads};

/// A process, indexed for rules. The latest lookups and the facts found belong to one thread; another thread uses a
/// [`World::fork`].
pub struct World<'a> {
    index: Arc<Index<'a>>,
    /// Where `Observations::residency` is exact.
    pub resident: Lookup<'a>,
    pub swapped: Lookup<'a>,
    pub purged: Lookup<'a>,
    pub unseen: Lookup<'a>,
    /// By the rules' ids; each list sorted.
    surveys: Arc<[(&'static str, Vec<Surveyed>)]>,
    /// The rule just tried does not handle this level.
    not_for_me: Cell<bool>,
    /// Facts of the process as a whole, by the rules' own names for them: by the addresses of these names,
    /// because tens of thousands of pieces query a dozen each.
    facts: RefCell<IntMap<(usize, usize), bool>>,
    /// Facts of parts of it.
    partial_facts: RefCell<HashMap<(&'static str, About), bool>>,
}

impl<'a> Deref for World<'a> {
    type Target = Index<'a>;

    fn deref(&self) -> &Index<'a> {
        &self.index
    }
}

/// What a fact is about.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum About {
    /// All that is called from nowhere that is known.
    Unknown,
    /// All that is called from this module; None: from outside of all.
    Module(Option<ModuleId>),
    /// All whose stacks have this frame as line number …
    Line(Frame, usize),
}

/// A range and what it is, derived from the process as a whole.
#[derive(Clone, Debug)]
pub struct Surveyed {
    pub range: AddrRange,
    pub claim: Claim,
}

impl<'a> World<'a> {
    pub fn new(input: &'a AuditInput<'a>) -> World<'a> {
        let index = Index::new(input);
        let mut world = World::over(Arc::new(index), Arc::new([]));
        let surveyed = RULES.iter().map(|rule| (rule.id(), rule.survey(&world)));
        world.surveys = surveyed.filter(|(_, found)| !found.is_empty()).collect();
        world
    }

    /// The same process for another thread.
    pub fn fork(&self) -> World<'a> {
        World::over(self.index.clone(), self.surveys.clone())
    }

    fn over(index: Arc<Index<'a>>, surveys: Arc<[(&'static str, Vec<Surveyed>)]>) -> World<'a> {
        let AuditInput { reconciled, observations, .. } = index.input;
        World {
            resident: Lookup::new(&observations.residency.resident),
            swapped: Lookup::new(&observations.residency.swapped),
            purged: Lookup::new(&reconciled.purged),
            unseen: Lookup::new(&reconciled.unseen),
            index,
            surveys,
            not_for_me: Cell::new(false),
            facts: RefCell::default(),
            partial_facts: RefCell::default(),
        }
    }

    /// What this rule's survey says of an address.
    pub fn surveyed(&self, rule: &str, addr: Addr) -> Option<&Surveyed> {
        let found = self.survey_of(rule);
        found.get(found.partition_point(|s| s.range.end <= addr)).filter(|s| s.range.contains(addr))
    }

    /// True if this rule's survey found anything.
    pub fn has_survey(&self, rule: &str) -> bool {
        !self.survey_of(rule).is_empty()
    }

    /// True if this rule's survey found such a thing.
    pub fn survey_has(&self, rule: &str, such: impl Fn(&Claim) -> bool) -> bool {
        self.survey_of(rule).iter().any(|found| such(&found.claim))
    }

    fn survey_of(&self, rule: &str) -> &[Surveyed] {
        self.surveys.iter().find(|(own, _)| *own == rule).map_or(&[], |(_, found)| found)
    }

    /// Where the ranges of this rule's survey begin and end.
    pub fn survey_cuts(&self, rule: &str, within: AddrRange) -> Vec<Addr> {
        let found = self.survey_of(rule);
        let inside = found[found.partition_point(|s| s.range.end <= within.start)..].iter();
        let inside = inside.take_while(|s| s.range.start < within.end);
        inside.flat_map(|s| [s.range.start, s.range.end]).collect()
    }

    /// What a rule answers that has nothing to say on a level of evidence, whatever the piece is.
    pub fn not_for_me<T>(&self) -> Option<T> {
        self.not_for_me.set(true);
        None
    }

    /// True if the last answer was [`World::not_for_me`]; false then, until the next one is.
    pub fn was_not_for_me(&self) -> bool {
        self.not_for_me.take()
    }

    /// Something that is true of the whole process or not: computed once, because tens of thousands of pieces
    /// may query it.
    pub fn fact(&self, name: &'static str, compute: impl FnOnce() -> bool) -> bool {
        let place = (name.as_ptr().addr(), name.len());
        let known = self.facts.borrow().get(&place).copied();
        known.unwrap_or_else(|| {
            let found = compute();
            self.facts.borrow_mut().insert(place, found);
            found
        })
    }

    /// The same of a part of it.
    pub fn fact_about(&self, name: &'static str, about: About, compute: impl FnOnce() -> bool) -> bool {
        let known = self.partial_facts.borrow().get(&(name, about)).copied();
        known.unwrap_or_else(|| {
            let found = compute();
            self.partial_facts.borrow_mut().insert((name, about), found);
            found
        })
    }

    /// True if some rule knows from the layout of the whole process what lies there.
    pub fn is_surveyed(&self, addr: Addr) -> bool {
        self.surveys.iter().any(|(rule, _)| self.surveyed(rule, addr).is_some())
    }

    /// As [`resident_and_swapped`].
    pub fn resident_and_swapped(&self, range: AddrRange) -> (u64, u64) {
        match self.input.observations.residency.source {
            ResidencySource::PagemapScan | ResidencySource::Pagemap => {
                (self.resident.covered(range), self.swapped.covered(range))
            }
            ResidencySource::SmapsProportion | ResidencySource::None => {
                resident_and_swapped(&self.input.observations.residency, range)
            }
        }
    }
}

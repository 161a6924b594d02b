//! What an item is grouped under.

use super::identity::{StackKey, Stacks};
use super::model::By;
use super::side::{Item, Side, hex};
use crate::model::path::base_name;
use crate::report::model::{Finding, Stack};
use std::collections::{BTreeSet, HashMap};

/// Equal on both sides for what is the same thing.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Key {
    pub category: String,
    pub cause: Cause,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Cause {
    Stack(StackKey),
    /// A path, or a name of the kernel's.
    Name(String),
    /// The category is all that is known.
    Category,
    /// Not in any finding.
    NoFinding,
}

/// Gives keys to the items of both sides.
pub(super) struct Keys<'s, 'r> {
    by: By,
    stacks: &'s mut Stacks<'r>,
    /// Categories compared by name, because only one side has stacks for them; or all.
    pub by_name: ByName,
    known: HashMap<(bool, u64, usize), StackKey>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum ByName {
    All,
    These(BTreeSet<String>),
}

impl ByName {
    fn has(&self, category: &str) -> bool {
        match self {
            ByName::All => true,
            ByName::These(categories) => categories.contains(category),
        }
    }

    pub fn of(a: &Side<'_>, b: &Side<'_>) -> ByName {
        if !a.has_stacks() || !b.has_stacks() {
            return ByName::All;
        }
        let (stacked_a, bare_a) = categories(a);
        let (stacked_b, bare_b) = categories(b);
        let only_a = stacked_a.difference(&stacked_b).filter(|c| bare_b.contains(*c));
        let only_b = stacked_b.difference(&stacked_a).filter(|c| bare_a.contains(*c));
        ByName::These(only_a.chain(only_b).map(|c| (*c).to_owned()).collect())
    }
}

/// Categories with, and those without a stack.
fn categories<'a>(side: &Side<'a>) -> (BTreeSet<&'a str>, BTreeSet<&'a str>) {
    let mut found = (BTreeSet::new(), BTreeSet::new());
    for item in &side.items {
        let set = if item.stack().is_some() { &mut found.0 } else { &mut found.1 };
        set.insert(item.region.category.as_str());
    }
    found
}

/// Which of the two sides, for `Keys::key`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Which {
    A,
    B,
}

impl<'s, 'r> Keys<'s, 'r> {
    pub fn new(by: By, stacks: &'s mut Stacks<'r>, by_name: ByName) -> Keys<'s, 'r> {
        Keys { by, stacks, by_name, known: HashMap::new() }
    }

    /// The items' keys, in their order.
    pub fn of(&mut self, which: Which, side: &Side<'r>) -> Vec<Key> {
        let images = image_names(side);
        let places = FindingPlaces::new(side);
        let mut keys = Vec::with_capacity(side.items.len());
        for item in &side.items {
            let cause = match self.by {
                By::Category | By::Address => Cause::Category,
                By::Stack => self.by_stack(which, side, item, &images),
                By::Finding => match places.find(item) {
                    Some(finding) => self.by_finding(which, side, finding),
                    None => Cause::NoFinding,
                },
            };
            keys.push(Key { category: item.region.category.clone(), cause });
        }
        keys
    }

    fn by_stack(&mut self, which: Which, side: &Side<'r>, item: &Item<'_>, images: &Images) -> Cause {
        let region = item.region;
        // The loader's stack is the same for all libraries: its name says more.
        if let Some(name) =
            images.get(&(item.process, region.instance)).filter(|_| region.category == "loader")
        {
            return Cause::Name(name.clone());
        }
        let named = region.path.as_deref().map(|path| path.strip_suffix(" (deleted)").unwrap_or(path));
        if let Some(name) = named.filter(|_| region.category == "file") {
            return Cause::Name(name.to_owned());
        }
        if !self.by_name.has(&region.category)
            && let Some(key) = self.stack_key(which, side, (item.stack(), 0))
        {
            return Cause::Stack(key);
        }
        // A library's segments have a name each; for other mappings the category says more than the path that
        // only some of their pieces have.
        match named {
            Some(name) if region.category != "loader" => Cause::Name(name.to_owned()),
            _ => Cause::Category,
        }
    }

    fn by_finding(&mut self, which: Which, side: &Side<'r>, finding: &Finding) -> Cause {
        let from = finding.caller.and_then(|line| usize::try_from(line).ok()).unwrap_or(0);
        let stack = finding.stack.filter(|_| !self.by_name.has(&finding.category));
        self.stack_key(which, side, (stack, from)).map_or(Cause::Category, Cause::Stack)
    }

    fn stack_key(
        &mut self,
        which: Which,
        side: &Side<'r>,
        (number, from): (Option<u64>, usize),
    ) -> Option<StackKey> {
        let number = number?;
        let stack: &'r Stack = side.report.stacks.get(usize::try_from(number).ok()?)?;
        let stacks = &mut *self.stacks;
        let known = self.known.entry((which == Which::A, number, from));
        Some(known.or_insert_with(|| stacks.key(stack, from)).clone())
    }
}

/// Names of ELF images by (process, instance): a library's bss has no name of its own.
type Images = HashMap<(usize, u64), String>;

fn image_names(side: &Side<'_>) -> Images {
    let mut names = Images::new();
    for item in side.items.iter().filter(|item| item.region.category == "loader") {
        if let Some(path) = item.region.path.as_deref().filter(|path| path.starts_with('/')) {
            names.entry((item.process, item.region.instance)).or_insert_with(|| base_name(path).to_owned());
        }
    }
    names
}

/// The findings of a side by address: (process, start, end, finding), sorted.
pub(super) struct FindingPlaces<'a> {
    places: Vec<(usize, u64, u64, &'a Finding)>,
}

impl<'a> FindingPlaces<'a> {
    pub fn new(side: &Side<'a>) -> FindingPlaces<'a> {
        let mut places = Vec::new();
        for (index, process) in side.processes.iter().enumerate() {
            for finding in &process.findings {
                for range in &finding.ranges {
                    if let (Some(start), Some(end)) = (hex(&range.start), hex(&range.end)) {
                        places.push((index, start, end, finding));
                    }
                }
            }
        }
        places.sort_by_key(|place| (place.0, place.1, place.2));
        FindingPlaces { places }
    }

    /// The finding that an item is part of.
    pub fn find(&self, item: &Item<'_>) -> Option<&'a Finding> {
        let at = self.places.partition_point(|place| (place.0, place.1) <= (item.process, item.start));
        let &(process, _, end, finding) = self.places.get(at.checked_sub(1)?)?;
        let inside = process == item.process && item.end <= end && finding.category == item.region.category;
        inside.then_some(finding)
    }
}

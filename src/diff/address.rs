//! By address: what overlaps, on either side, is one row.

use super::cause::Cause;
use super::changes::Pair;
use super::side::{Item, Side};
use std::collections::HashMap;

/// Groups that lie apart from each other on both sides. A mapping that was cut in two is one group
/// with its halves. Processes are paired by `partners`: index on side B by index on side A.
pub(super) fn groups<'a>(
    a: &Side<'a>,
    b: &Side<'a>,
    partners: &HashMap<usize, usize>,
) -> Vec<(Pair<'a>, Cause)> {
    // An address means something only within one pair of processes.
    let space_of_b: HashMap<usize, usize> = partners.iter().map(|(&a, &b)| (b, a)).collect();
    let beyond = a.processes.len();
    let mut all: Vec<(usize, bool, Item<'a>)> = Vec::with_capacity(a.items.len() + b.items.len());
    all.extend(a.items.iter().map(|&item| (item.process, true, item)));
    all.extend(b.items.iter().map(|&item| {
        let space = space_of_b.get(&item.process).copied().unwrap_or(beyond + item.process);
        (space, false, item)
    }));
    all.sort_by_key(|(space, is_a, item)| (*space, item.start, *is_a));
    let mut groups: Vec<(Pair<'a>, Cause)> = Vec::new();
    let mut end = None;
    for (space, is_a, item) in all {
        let joins = end.is_some_and(|(last_space, last_end)| last_space == space && item.start < last_end);
        if !joins {
            groups.push((Pair::default(), Cause::Category));
        }
        let last = end.filter(|_| joins).map_or(0, |(_, last_end)| last_end);
        end = Some((space, item.end.max(last)));
        if let Some((pair, _)) = groups.last_mut() {
            if is_a { pair.a.add(item) } else { pair.b.add(item) }
        }
    }
    for (pair, cause) in &mut groups {
        let named = pair.b.items.iter().chain(&pair.a.items).find_map(|item| item.region.path.clone());
        if let Some(name) = named {
            *cause = Cause::Name(name);
        }
    }
    groups
}

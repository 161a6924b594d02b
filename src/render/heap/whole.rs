//! All that is known of each stack of a process in one place: what is outstanding and what was allocated in all.

use crate::heap::report::{HeapProcess, HeapRow, HeapSite};
use std::collections::HashMap;

/// A stack's [`HeapRow`] and [`HeapSite`], each with zeroes where the report has none.
#[derive(Clone, PartialEq, Debug, Default)]
pub(in crate::render) struct Whole {
    pub row: HeapRow,
    pub site: HeapSite,
}

type Key<'a> = (Option<u64>, Option<&'a str>, u64);

/// Of each stack and function of the process, in the order of its rows and then of its sites.
pub(in crate::render) fn wholes(p: &HeapProcess) -> Vec<Whole> {
    let mut at: HashMap<Key<'_>, usize> = HashMap::new();
    let mut all: Vec<Whole> = Vec::with_capacity(p.sites.len());
    for row in &p.rows {
        let site = HeapSite {
            stack: row.stack,
            no_stack: row.no_stack.clone(),
            function: row.function,
            allocated_bytes: row.allocated_bytes,
            allocations: row.allocations,
            freed_bytes: row.freed_bytes,
            frees: row.frees,
            ..HeapSite::default()
        };
        at.insert((row.stack, row.no_stack.as_deref(), row.function), all.len());
        all.push(Whole { row: row.clone(), site });
    }
    for site in &p.sites {
        match at.get(&(site.stack, site.no_stack.as_deref(), site.function)) {
            Some(&known) => all[known].site = site.clone(),
            None => all.push(Whole { row: row_of(site), site: site.clone() }),
        }
    }
    all
}

/// Of which nothing is outstanding.
pub(super) fn row_of(site: &HeapSite) -> HeapRow {
    HeapRow {
        stack: site.stack,
        no_stack: site.no_stack.clone(),
        function: site.function,
        allocated_bytes: site.allocated_bytes,
        allocations: site.allocations,
        freed_bytes: site.freed_bytes,
        frees: site.frees,
        ..HeapRow::default()
    }
}

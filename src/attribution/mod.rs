//! Why is it there? Joins the ledger's regions with what was observed from outside and says of
//! each byte what it belongs to, on which evidence, and what would make it smaller.
//!
//! ```text
//! regions ──cut──► pieces ──rules, in order of trust──► claims ──► footprints ──► findings
//! ```
//!
//! Pure: no I/O, no clock. Allocators and runtimes are named in `rules/` and nowhere else.

pub mod call;
pub mod callpath;
pub mod category;
mod classify;
pub mod code;
mod findings;
pub mod footprint;
mod gone;
pub mod role;
pub mod rules;
pub mod units;
pub mod world;

pub use category::UNKNOWN;
pub use category::{Category, CategoryInfo, Claim, Evidence, Instance, Merge};
pub use classify::unused;
pub use findings::{Finding, Fix, NoHelp};
pub use footprint::Footprint;
pub use gone::categories_of_gone;
pub use rules::data::{DataRules, Knob, Mapped, Named, Query, TableRule, each_once, parse as parse_rules};
pub use rules::{
    Placed, bears_on, category_color, category_name, heap_description_of, option_lists, option_separator,
    own_blocks, place_option, translators,
};

use crate::ledger::{Origin, Reconciled};
use crate::model::{AddrRange, Observations, StackTable, SymbolizedStacks, Tid};
use std::collections::BTreeMap;
use world::World;

/// All that is known about one process.
#[derive(Clone, Copy)]
pub struct AuditInput<'a> {
    pub reconciled: &'a Reconciled,
    pub observations: &'a Observations,
    pub stacks: &'a StackTable,
    /// Names for (at least) the stacks of `reconciled.origins`. Without any, rules fall back to
    /// module names and shapes.
    pub symbols: &'a SymbolizedStacks,
    /// What is known of libraries and programs as data.
    pub rules: &'a DataRules,
}

/// A part of one region that is one thing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Piece {
    pub range: AddrRange,
    /// Index into `Reconciled::regions`.
    pub region: usize,
    pub category: Category,
    pub part: &'static str,
    pub evidence: Evidence,
    pub instance: Instance,
    /// The number of the instance: those of a process have consecutive ones, in the order of their first pieces.
    pub thing: usize,
    /// Whose it is: the stack's thread, else the thread that made the call.
    pub thread: Option<Tid>,
    pub merge: Merge,
    pub footprint: Footprint,
    /// As [`Claim::label`].
    pub label: Option<usize>,
    /// Index into `rules::RULES` of the rule that claimed it.
    rule: Option<usize>,
}

/// Bytes by origin; they add up to the total.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Coverage {
    pub traced: u64,
    pub preexisting: u64,
    pub kernel: u64,
    pub unknown: u64,
}

/// One row of the category table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CategoryRow {
    pub category: Category,
    pub footprint: Footprint,
    /// Things (an arena, a stack with its guard, a library), see [`Instance`].
    pub instances: u64,
    /// Pieces of the address space they consist of.
    pub pieces: u64,
}

/// The verdict on one process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attributed {
    /// Sorted, disjoint, together exactly the ledger's regions.
    pub pieces: Vec<Piece>,
    pub totals: Footprint,
    pub coverage: Coverage,
    /// By unused bytes, largest first; they add up to `totals`.
    pub rows: Vec<CategoryRow>,
    /// By unused bytes, largest first.
    pub findings: Vec<Finding>,
}

/// Classifies every byte of the process.
pub fn attribute(input: &AuditInput<'_>) -> Attributed {
    let world = World::new(input);
    let mut found = sums(input, &world);
    found.findings = findings::findings(&world, &found.pieces);
    found
}

/// The same, but for the findings.
pub fn attribute_without_findings(input: &AuditInput<'_>) -> Attributed {
    sums(input, &World::new(input))
}

fn sums(input: &AuditInput<'_>, world: &World<'_>) -> Attributed {
    let pieces = classify::classify(world);
    let mut totals = Footprint::default();
    let mut coverage = Coverage::default();
    for piece in &pieces {
        totals += piece.footprint;
        let origin = input.reconciled.regions.get(piece.region).map(|r| r.origin);
        let bytes = match origin {
            Some(Origin::Event(_)) => &mut coverage.traced,
            Some(Origin::Preexisting) => &mut coverage.preexisting,
            Some(Origin::Kernel) => &mut coverage.kernel,
            Some(Origin::Unknown) | None => &mut coverage.unknown,
        };
        *bytes += piece.footprint.virt;
    }
    let rows = rows(&pieces);
    Attributed { pieces, totals, coverage, rows, findings: Vec::new() }
}

/// The categories alone, without findings: what a snapshot for the timeline needs. They add up to the
/// totals of [`attribute`], as its rows do.
pub fn by_category(input: &AuditInput<'_>) -> BTreeMap<Category, Footprint> {
    let world = World::new(input);
    let mut sums = BTreeMap::new();
    for piece in classify::classify(&world) {
        *sums.entry(piece.category).or_insert_with(Footprint::default) += piece.footprint;
    }
    sums
}

fn rows(pieces: &[Piece]) -> Vec<CategoryRow> {
    let mut by_category: BTreeMap<&'static str, (Category, Footprint, Vec<usize>)> = BTreeMap::new();
    for piece in pieces {
        let new = || (piece.category, Footprint::default(), Vec::new());
        let (_, footprint, things) = by_category.entry(piece.category.id).or_insert_with(new);
        *footprint += piece.footprint;
        things.push(piece.thing);
    }
    let row = |(category, footprint, things): (Category, Footprint, Vec<usize>)| {
        let pieces = things.len() as u64;
        CategoryRow { category, footprint, instances: distinct(things), pieces }
    };
    let mut rows: Vec<CategoryRow> = by_category.into_values().map(row).collect();
    rows.sort_by_key(|r| {
        (std::cmp::Reverse(r.footprint.unused()), std::cmp::Reverse(r.footprint.virt), r.category)
    });
    rows
}

/// How many different ones there are.
fn distinct(mut numbers: Vec<usize>) -> u64 {
    numbers.sort_unstable();
    numbers.dedup();
    numbers.len() as u64
}

//! VmPeak explained: what the ledger knows of the peak, compared with what is mapped now.

use super::model;
use super::stacks::StackNumbers;
use crate::attribution::{Attributed, AuditInput, Category, UNKNOWN, categories_of_gone};
use crate::ledger::{GoneCall, Origin, OriginId, Peak};
use crate::model::{PAGE, StackId};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

/// Shares listed at most: the largest, and those that shrank most.
const MAX_SHARES: usize = 50;
/// Shares whose gone calls are classified, and whose stacks need names: the largest.
pub const MAX_GONE: usize = 1000;

/// What was mapped before tracing began, as the ledger calls it.
pub const PREEXISTING: &str = "preexisting";

/// Which calls: their kind and stack, or what was no call.
type Key = (&'static str, Option<StackId>);
type Parts = BTreeMap<Category, u64>;

/// A part of the peak, with what it is.
struct Share {
    key: Key,
    bytes: u64,
    now: u64,
    parts: Parts,
}

/// `input` and `found` are what is mapped now. Times count from `began_ns`.
pub(super) fn build(
    input: &AuditInput<'_>,
    found: &Attributed,
    (peak, began_ns): (&Peak, u64),
    stacks: &mut StackNumbers,
) -> model::Peak {
    let now = by_call(input, found);
    let (virt, time_ns, on_the_way, shares) = if found.totals.virt > peak.virt {
        // What grew without a call after the last one: it never was as much as it is now.
        let same = |(&key, parts): (&Key, &Parts)| {
            let bytes = parts.values().sum();
            Share { key, bytes, now: bytes, parts: parts.clone() }
        };
        (found.totals.virt, input.observations.at_ns(), 0, now.iter().map(same).collect())
    } else {
        (peak.virt, peak.time_ns, peak.on_the_way, then(input, peak, &now))
    };
    let mut by_category: BTreeMap<String, u64> = BTreeMap::new();
    for (category, bytes) in shares.iter().flat_map(|share| &share.parts) {
        *by_category.entry(category.id.to_owned()).or_default() += bytes;
    }
    let (listed, left) = listed(shares);
    model::Peak {
        virt,
        t_ns: time_ns.saturating_sub(began_ns),
        by_stack: listed.iter().map(|share| share_of(share, stacks)).collect(),
        rest: model::PeakRest {
            stacks: left.len() as u64,
            bytes: left.iter().map(|share| share.bytes).sum(),
            now_bytes: left.iter().map(|share| share.now).sum(),
        },
        on_the_way,
        by_category,
    }
}

/// What is mapped now, by call and category.
fn by_call(input: &AuditInput<'_>, found: &Attributed) -> HashMap<Key, Parts> {
    let mut sums: HashMap<Key, Parts> = HashMap::new();
    for piece in &found.pieces {
        let origin = input.reconciled.regions.get(piece.region).map(|region| region.origin);
        let key = match origin {
            Some(Origin::Event(OriginId(at))) => match input.reconciled.origins.get(at as usize) {
                Some(record) => (record.op.name(), record.stack.ok()),
                None => ("unknown", None),
            },
            Some(Origin::Preexisting) => (PREEXISTING, None),
            Some(Origin::Kernel) => ("kernel", None),
            Some(Origin::Unknown) | None => ("unknown", None),
        };
        *sums.entry(key).or_default().entry(piece.category).or_default() += piece.footprint.virt;
    }
    sums
}

/// The ledger's shares, with categories: what is still there is what it is, what is gone is what
/// its call was for.
fn then(input: &AuditInput<'_>, peak: &Peak, now: &HashMap<Key, Parts>) -> Vec<Share> {
    let mut shares: Vec<Share> = Vec::with_capacity(peak.shares.len());
    let mut gone: Vec<(usize, &GoneCall)> = Vec::new();
    for share in &peak.shares {
        let key = (share.op, share.stack);
        let parts = now.get(&key).cloned().unwrap_or_default();
        // Stacks that grew are the kernel's work, now as then.
        let bytes = share.bytes + if share.op == "kernel" { peak.stack_growth } else { 0 };
        let left: u64 = parts.values().sum();
        if let Some(call) = &share.gone
            && bytes > left
            && shares.len() < MAX_GONE
        {
            gone.push((shares.len(), call));
        }
        shares.push(Share { key, bytes, now: left, parts });
    }
    if peak.stack_growth > 0 && !peak.shares.iter().any(|share| share.op == "kernel") {
        let key = ("kernel", None);
        let parts = now.get(&key).cloned().unwrap_or_default();
        shares.push(Share { key, bytes: peak.stack_growth, now: parts.values().sum(), parts });
    }
    let calls: Vec<&GoneCall> = gone.iter().map(|(_, call)| *call).collect();
    let judged: HashMap<usize, Category> =
        gone.iter().map(|(at, _)| *at).zip(categories_of_gone(input, &calls)).collect();
    for (at, share) in shares.iter_mut().enumerate() {
        if share.bytes >= share.now {
            let largest = share.parts.iter().max_by_key(|(_, bytes)| **bytes).map(|(c, _)| *c);
            // What has gone of what was mapped before tracing began may have been any of it.
            let largest = largest.filter(|_| share.key.0 != PREEXISTING);
            let category = judged.get(&at).copied().or(largest).unwrap_or(UNKNOWN);
            *share.parts.entry(category).or_default() += share.bytes - share.now;
        } else {
            shrink(share);
        }
        share.parts.retain(|_, bytes| *bytes > 0);
    }
    shares
}

/// Less was there than now: of the stack first, which grows by itself, else of each part in
/// proportion.
fn shrink(share: &mut Share) {
    let mut excess = share.now - share.bytes;
    if let Some((_, stack)) = share.parts.iter_mut().find(|(c, _)| c.id == "main-stack") {
        let cut = excess.min(*stack);
        *stack -= cut;
        excess -= cut;
    }
    let all: u64 = share.parts.values().sum();
    let whole = excess;
    for bytes in share.parts.values_mut() {
        let part = u128::from(*bytes) * u128::from(whole) / u128::from(all.max(1));
        let cut = (part as u64 / PAGE * PAGE).min(excess);
        *bytes -= cut;
        excess -= cut;
    }
    for bytes in share.parts.values_mut() {
        let cut = excess.min(*bytes);
        *bytes -= cut;
        excess -= cut;
    }
}

/// Those worth a row, largest first, and the others.
fn listed(mut shares: Vec<Share>) -> (Vec<Share>, Vec<Share>) {
    shares.sort_by_key(|s| (Reverse(s.bytes), s.key));
    let mut lost: Vec<u64> = shares.iter().map(|s| s.bytes.saturating_sub(s.now)).collect();
    lost.sort_unstable_by_key(|&bytes| Reverse(bytes));
    let threshold = lost.get(MAX_SHARES / 2).copied().unwrap_or(0);
    let mut place = 0;
    shares.into_iter().partition(|share| {
        place += 1;
        let shrank = share.bytes.saturating_sub(share.now);
        place <= MAX_SHARES / 2 || shrank > threshold
    })
}

fn share_of(share: &Share, stacks: &mut StackNumbers) -> model::PeakShare {
    let (op, stack) = share.key;
    let largest = share.parts.iter().max_by_key(|(_, bytes)| **bytes);
    model::PeakShare {
        op: op.to_owned(),
        stack: stack.map(|id| stacks.number(id)),
        category: largest.map_or(UNKNOWN, |(category, _)| *category).id.to_owned(),
        bytes: share.bytes,
        now_bytes: share.now,
    }
}

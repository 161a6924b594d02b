//! A ledger at one moment, as a picture.

use super::block::{Block, ContextId, Moment};
use super::{HeapLedger, HeapPoint, SiteId, SiteTotals, Sites, Totals};
use crate::heap::picture::{Amount, ContextRow, Filter, Picture, SiteHistory, SiteRow};
use crate::model::arenas::KnownBlock;
use crate::model::hash::IntMap;
use crate::model::{Addr, Tid};
use std::collections::BTreeMap;

impl HeapLedger {
    /// What is outstanding at `now_ns` of what the filter takes. Goes through all blocks.
    pub fn picture(&self, sites: &Sites, filter: Filter, now_ns: u64) -> Picture {
        let pending = self.pending.iter().filter_map(|p| p.block);
        let blocks = self.blocks.iter().map(|(_, block)| *block).chain(pending);
        self.of_blocks(sites, filter, now_ns, blocks)
    }

    /// The same of blocks that are kept elsewhere: size, site, and when each was allocated (CLOCK_MONOTONIC).
    pub fn picture_of(
        &self,
        sites: &Sites,
        (filter, now_ns): (Filter, u64),
        blocks: impl Iterator<Item = (u64, SiteId, u64)>,
    ) -> Picture {
        let nobody = Tid::default();
        let block = |(size, site, made_ns)| {
            Block::new(size, site, nobody, Moment::at(made_ns, self.options.start_ns))
        };
        self.of_blocks(sites, filter, now_ns, blocks.map(block))
    }

    fn of_blocks(
        &self,
        sites: &Sites,
        filter: Filter,
        now_ns: u64,
        blocks: impl Iterator<Item = Block>,
    ) -> Picture {
        let mut by_site = vec![Amount::default(); self.sites.len()];
        let mut by_context: IntMap<u32, Amount> = IntMap::default();
        let mut outside = Amount::default();
        let mut left_out = Amount::default();
        let sampling = self.options.sampling;
        for block in blocks {
            let made_ns = block.made.ns(self.options.start_ns);
            let site = self.sites.get(block.site.0 as usize);
            let taken = filter.takes(block.size, now_ns.saturating_sub(made_ns))
                && (!filter.leaks_only || site.is_some_and(|site| site.leaks(self.intervals)));
            let Some(amount) = by_site.get_mut(block.site.0 as usize).filter(|_| taken) else {
                left_out.add_block(block.size, made_ns, sampling);
                continue;
            };
            amount.add_block(block.size, made_ns, sampling);
            let context = match block.context() {
                Some(id) => by_context.entry(id.0).or_default(),
                None => &mut outside,
            };
            context.add_block(block.size, made_ns, sampling);
        }
        let (since_newest, growth_ns) = self.growth_since(now_ns);
        // without blocks: filters by their age or size are not for these
        let counted = self.counts && !filter.is_by_block();
        let mut rows = Vec::new();
        for (at, (site, amount)) in self.sites.iter().zip(&mut by_site).enumerate() {
            let leaks = site.leaks(self.intervals);
            if counted {
                let taken = leaks || !filter.leaks_only;
                let part = if taken { &mut *amount } else { &mut left_out };
                part.add(&counted_amount(site));
            }
            if self.counts {
                // the ages of what was counted are not known
                amount.oldest_ns = None;
            }
            let site_id = SiteId(at as u32);
            let Some(known) = sites.get(site_id).filter(|_| !amount.is_none()) else { continue };
            let growth = if growth_ns.is_some() { site.growth(since_newest) } else { 0 };
            let (stack, function, totals) = (known.stack, known.function, site.totals);
            rows.push(SiteRow { site: site_id, stack, function, amount: *amount, totals, growth, leaks });
        }
        if self.counts {
            left_out.oldest_ns = None;
        }
        let mut picture = Picture {
            pid: self.pid,
            mm: self.mm,
            at_ns: now_ns,
            sampling,
            filter,
            rows,
            sites: self.histories(sites),
            contexts: self.context_rows(by_context, outside),
            shown: Amount::default(),
            left_out,
            totals: self.totals,
            peak: self.peak(),
            doubts: self.doubts,
            growth_ns,
            intervals: self.intervals,
            timeline: self.timeline.clone(),
        };
        picture.finish();
        picture
    }

    fn histories(&self, sites: &Sites) -> Vec<SiteHistory> {
        let peak_is_known = self.peak().is_some();
        let every_call = self.options.sampling.mean().is_none() && !self.counts;
        let history = |(at, site): (usize, &SiteTotals)| {
            let known = sites.get(SiteId(at as u32))?;
            let (stack, function, totals) = (known.stack, known.function, site.totals);
            let at_peak = peak_is_known.then(|| site.at_peak(self.peaks));
            let temporary = every_call.then_some(site.temporary);
            (totals != Totals::default()).then_some(SiteHistory {
                stack,
                function,
                totals,
                at_peak,
                temporary,
            })
        };
        self.sites.iter().enumerate().filter_map(history).collect()
    }

    fn peak(&self) -> Option<HeapPoint> {
        Some(self.peak).filter(|peak| !self.counts && peak.bytes >= self.totals.outstanding.bytes)
    }

    /// Since the newest mark, unless that was set a moment ago.
    fn growth_since(&self, now_ns: u64) -> (bool, Option<u64>) {
        match self.marks {
            [Some(newest), Some(before)]
                if now_ns.saturating_sub(newest) < newest.saturating_sub(before) / 2 =>
            {
                (false, Some(now_ns.saturating_sub(before)))
            }
            [newest, _] => (true, newest.map(|at| now_ns.saturating_sub(at))),
        }
    }

    fn context_rows(&self, by_context: IntMap<u32, Amount>, outside: Amount) -> Vec<ContextRow> {
        if by_context.is_empty() {
            return Vec::new();
        }
        let mut rows: BTreeMap<Vec<Option<&[u8]>>, ContextRow> = BTreeMap::new();
        for (id, amount) in by_context {
            let path = self.contexts.path(ContextId(id));
            let row = rows.entry(path).or_default();
            row.contexts += 1;
            row.amount.add(&amount);
        }
        let named = |(path, row): (Vec<Option<&[u8]>>, ContextRow)| {
            let path = path.into_iter().map(|name| name.map(<[u8]>::to_vec)).collect();
            ContextRow { path, ..row }
        };
        let mut rows: Vec<ContextRow> = rows.into_iter().map(named).collect();
        if !outside.is_none() {
            rows.push(ContextRow { amount: outside, ..ContextRow::default() });
        }
        rows
    }

    /// Outstanding blocks, in no order, each with its site as the holder.
    pub fn known_blocks(&self) -> impl Iterator<Item = KnownBlock> {
        self.blocks.iter().map(|(at, block)| KnownBlock { at, requested: block.size, holder: block.site.0 })
    }

    /// True where a block that begins at this address is outstanding.
    pub fn holds(&self, address: Addr) -> bool {
        self.blocks.get(address).is_some()
    }
}

fn counted_amount(site: &SiteTotals) -> Amount {
    let outstanding = site.counted.totals.outstanding;
    let seen = crate::heap::sampling::blocks(outstanding.blocks);
    Amount { bytes: outstanding.bytes, weight: outstanding.blocks, seen, ..Amount::default() }
}

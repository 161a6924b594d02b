//! The life of an address: what each step did, and what is there now (docs/events.md). Built from the
//! ledger's [`Life`], and from the report and the snapshot of the process, where there are such.

use super::calls;
use super::model::{Process, Range, Region, Report, SCHEMA, Stack};
use super::stacks::named_stack;
use super::text::lossy;
use super::words::{call_source, step_in_words};
use crate::ledger::{Life, LifeStep};
use crate::model::observation::{Residency, ResidencySource};
use crate::model::{
    Addr, AddrRange, NoStack, Observations, PAGE, Pid, StackId, StackTable, SymbolizedStacks, VmOp,
};
use serde::Serialize;
use std::collections::HashMap;

/// Everything about one address of one process; one JSON object.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Explanation {
    pub schema: u32,
    pub address: String,
    pub page: Range,
    pub pid: i32,
    pub comm: String,
    /// False where only a snapshot of the process was had: the past is not known then.
    pub traced: bool,
    pub entries: Vec<Entry>,
    /// Steps left out in the middle because there were too many.
    pub omitted: u64,
    /// Steps at this address in programs that the process ran before its last execve.
    pub before_exec: u64,
    pub now: Now,
    /// Other processes in which something happened at the address.
    pub other_pids: Vec<i32>,
    pub stacks: Vec<Stack>,
}

/// A step, or several that were repeated one after the other.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Entry {
    pub times: u64,
    /// When the last step of the last round happened; CLOCK_MONOTONIC and since the command began.
    pub last_ns: u64,
    pub last_elapsed_ns: u64,
    /// The first round.
    pub steps: Vec<Step>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Step {
    /// `mapped`, `replaced`, `unmapped`, `protected`, `advised` …
    pub change: String,
    /// The same in words.
    pub text: String,
    pub event: Option<u64>,
    pub op: Option<String>,
    pub pid: Option<i32>,
    pub tid: Option<i32>,
    pub comm: Option<String>,
    pub time_ns: u64,
    /// Since the command began (attach: since tracing did).
    pub elapsed_ns: u64,
    /// As strace spells it.
    pub call: Option<String>,
    pub result: Option<String>,
    /// What is at the address afterwards; null for nothing.
    pub prot: Option<String>,
    pub path: Option<String>,
    /// Index into `stacks`.
    pub stack: Option<u64>,
    /// Why there is no stack where one would be expected: `lost`, `unreadable`.
    pub no_stack: Option<String>,
}

/// What is at the address in the end.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Now {
    pub mapped: bool,
    /// `exit`, `live`, `periodic` as in the report; `calls`: as far as the calls show.
    pub moment: String,
    /// `resident`, `swapped`, `purged` (given back and not touched since), `untouched`, `unknown`.
    pub page: String,
    /// As in the report; its origin's stack is an index into `stacks`.
    pub region: Option<Region>,
    pub category_name: Option<String>,
    /// Why such memory is there, in plain words.
    pub title: Option<String>,
    pub why: Option<String>,
    /// The nearest regions.
    pub below: Option<Neighbour>,
    pub above: Option<Neighbour>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Neighbour {
    pub region: Region,
    pub category_name: String,
    /// Bytes that are mapped by nothing between it and the address' page or region.
    pub gap: u64,
}

/// What an explanation is made of.
pub struct ExplainInput<'a> {
    pub address: Addr,
    pub pid: Pid,
    pub comm: &'a [u8],
    /// None: the process was not traced.
    pub life: Option<&'a Life>,
    /// What times count from, CLOCK_MONOTONIC.
    pub began_ns: u64,
    /// The report that has the process in it, and the process' place there.
    pub report: Option<(&'a Report, usize)>,
    /// The snapshot that the report was made from.
    pub observations: Option<&'a Observations>,
    pub stacks: &'a StackTable,
    pub names: &'a SymbolizedStacks,
    pub other_pids: Vec<Pid>,
}

/// Puts the explanation together.
pub fn explain(input: &ExplainInput<'_>) -> Explanation {
    let page = AddrRange::from_len(input.address.page_down(), PAGE);
    let mut builder = Builder { input, page, numbers: HashMap::new(), stacks: Vec::new() };
    let entries = input.life.into_iter().flat_map(|life| &life.entries).map(|entry| Entry {
        times: entry.times,
        last_ns: entry.last_ns,
        last_elapsed_ns: entry.last_ns.saturating_sub(input.began_ns),
        steps: entry.steps.iter().map(|step| builder.step(step)).collect(),
    });
    let entries: Vec<Entry> = entries.collect();
    let now = builder.now();
    Explanation {
        schema: SCHEMA,
        address: input.address.to_string(),
        page: Range { start: page.start.to_string(), end: page.end.to_string() },
        pid: input.pid,
        comm: lossy(input.comm),
        traced: input.life.is_some(),
        entries,
        omitted: input.life.map_or(0, |life| life.omitted),
        before_exec: input.life.map_or(0, |life| life.before_exec),
        now,
        other_pids: input.other_pids.clone(),
        stacks: builder.stacks,
    }
}

impl Explanation {
    /// True where the address was never mapped, as far as is known.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && !self.now.mapped
    }
}

struct Builder<'a> {
    input: &'a ExplainInput<'a>,
    page: AddrRange,
    numbers: HashMap<StackId, u64>,
    stacks: Vec<Stack>,
}

impl Builder<'_> {
    fn stack(&mut self, id: StackId) -> u64 {
        let (stacks, input) = (&mut self.stacks, self.input);
        *self.numbers.entry(id).or_insert_with(|| {
            stacks.push(named_stack(id, input.stacks, input.names));
            stacks.len() as u64 - 1
        })
    }

    fn step(&mut self, step: &LifeStep) -> Step {
        let (change, text) = step_in_words(step, self.page.start);
        let event = step.event.as_deref();
        let after = step.after.as_ref();
        Step {
            change: change.to_string(),
            text,
            event: event.map(|event| event.id.0),
            op: event.map(|event| event.op.name().to_string()),
            pid: event.map(|event| event.task.pid),
            tid: event.map(|event| event.task.tid),
            comm: event.map(|event| lossy(&event.task.comm)),
            time_ns: step.time_ns,
            elapsed_ns: step.time_ns.saturating_sub(self.input.began_ns),
            call: event.and_then(call_source),
            result: event.and_then(calls::result),
            prot: after.map(|piece| format!("{}{}", piece.prot, piece.sharing)),
            path: after.and_then(|piece| piece.file.as_ref()).map(|file| lossy(&file.path)),
            stack: event.and_then(|event| event.stack.ok()).map(|id| self.stack(id)),
            no_stack: event.and_then(|event| match event.stack {
                Err(NoStack::Lost) => Some("lost".to_string()),
                Err(NoStack::Unreadable) => Some("unreadable".to_string()),
                Err(NoStack::NotTaken) | Ok(_) => None,
            }),
        }
    }

    fn now(&mut self) -> Now {
        let Some((report, process)) =
            self.input.report.and_then(|(report, index)| Some((report, report.processes.get(index)?)))
        else {
            return self.now_by_calls();
        };
        let at = process.regions.partition_point(|region| address(&region.end) <= self.page.start.0);
        let region = process.regions.get(at).filter(|region| address(&region.start) <= self.page.start.0);
        let (start, end) = match region {
            Some(region) => (address(&region.start), address(&region.end)),
            None => (self.page.start.0, self.page.end.0),
        };
        let below = at.checked_sub(1).and_then(|below| process.regions.get(below));
        let above = process.regions.get(at + usize::from(region.is_some()));
        let neighbour = |region: &Region, gap: u64| Neighbour {
            category_name: category_name(process, region),
            region: Region { origin: None, ..region.clone() },
            gap,
        };
        let finding = region.and_then(|region| {
            let holds = |range: &Range| address(&range.start) <= start && end <= address(&range.end);
            let own =
                |f: &&super::model::Finding| f.category == region.category && f.ranges.iter().any(holds);
            process.findings.iter().find(own)
        });
        Now {
            mapped: region.is_some(),
            moment: process.snapshot.clone(),
            page: self.page_state(process, region).to_string(),
            category_name: region.map(|region| category_name(process, region)),
            title: finding.map(|finding| finding.title.clone()),
            why: finding.map(|finding| finding.why.clone()).filter(|why| !why.is_empty()),
            below: below.map(|below| neighbour(below, start.saturating_sub(address(&below.end)))),
            above: above.map(|above| neighbour(above, address(&above.start).saturating_sub(end))),
            region: region.map(|region| self.region(report, region)),
        }
    }

    /// The region with its stack among those of the explanation.
    fn region(&mut self, report: &Report, region: &Region) -> Region {
        let mut region = region.clone();
        if let Some(origin) = &mut region.origin
            && let Some(number) = origin.stack
        {
            let stack = usize::try_from(number).ok().and_then(|number| report.stacks.get(number));
            origin.stack = stack.map(|stack| match self.stacks.iter().position(|known| known == stack) {
                Some(known) => known as u64,
                None => {
                    self.stacks.push(stack.clone());
                    self.stacks.len() as u64 - 1
                }
            });
        }
        region
    }

    fn now_by_calls(&self) -> Now {
        let last = self.input.life.and_then(|life| life.entries.last()?.steps.last());
        let mapped = last.is_some_and(|step| step.after.is_some());
        let page = if mapped { "unknown" } else { "" };
        Now { mapped, moment: "calls".into(), page: page.into(), ..Now::default() }
    }

    fn page_state(&self, process: &Process, region: Option<&Region>) -> &'static str {
        let (Some(region), Some(seen)) = (region, self.input.observations) else {
            return if region.is_some() { "unknown" } else { "" };
        };
        let Residency { source, resident, swapped, .. } = &seen.residency;
        let holds = |ranges: &[AddrRange]| {
            let at = ranges.partition_point(|range| range.end <= self.page.start);
            ranges.get(at).is_some_and(|range| range.contains(self.page.start))
        };
        match source {
            ResidencySource::None => "unknown",
            ResidencySource::SmapsProportion if region.rss == 0 && region.swap == 0 => self.absent(),
            ResidencySource::SmapsProportion if region.rss == region.virt => "resident",
            ResidencySource::SmapsProportion => "unknown",
            _ if process.residency == "none" => "unknown",
            _ if holds(resident) => "resident",
            _ if holds(swapped) => "swapped",
            _ => self.absent(),
        }
    }

    /// Why a mapped page is not in memory.
    fn absent(&self) -> &'static str {
        let steps = self.input.life.into_iter().flat_map(|life| &life.entries).flat_map(|entry| &entry.steps);
        let mut purged = false;
        for step in steps {
            match step.event.as_deref().map(|event| &event.op) {
                Some(VmOp::Madvise { advice, .. }) if super::words::gives_back(*advice) => purged = true,
                Some(VmOp::Mprotect { .. } | VmOp::Madvise { .. } | VmOp::SetVmaName { .. }) => {}
                // Inherited as it was; all else begins with a page of its own.
                Some(VmOp::Fork { .. }) | None => {}
                Some(_) => purged = false,
            }
        }
        if purged { "purged" } else { "untouched" }
    }
}

fn category_name(process: &Process, region: &Region) -> String {
    let row = process.categories.iter().find(|row| row.id == region.category);
    row.map_or_else(|| region.category.clone(), |row| row.name.clone())
}

/// The report's `"0x…"` as a number.
fn address(text: &str) -> u64 {
    text.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok()).unwrap_or(0)
}

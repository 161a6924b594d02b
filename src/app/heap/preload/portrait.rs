//! What a process has counted, as data for the report.

use super::heaps::{Counting, NodeFrame, Portrait, Preloaded};
use super::sizes::Sizes;
use super::suits::other_names;
use crate::capture::preload::layout::{self, FUNCTIONS};
use crate::capture::preload::{SharedFrame, SharedStack, StackRead};
use crate::heap::ledger::{Doubts, Flow, HeapPoint, Site, SiteId, Totals};
use crate::heap::report::HeapProcessFacts;
use crate::heap::report::model::{Function, Own};
use crate::heap::sampling::{BLOCK, blocks};
use crate::heap::silence::NOT_COUNTED;
use crate::model::{Completeness, NoStack, StackId};
use crate::objects::{FileKey, OpenRequest};
use crate::report::units::thousands;
use crate::symbolize::demangle;
use crate::sys::clock::monotonic_ns;
use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Of a file, after its name.
pub const OTHER_ALLOCATOR: &str = "has an allocator that the library cannot stand before";

/// What was counted of one site.
#[derive(Clone, Copy, Default)]
pub struct SiteCounts {
    totals: Totals,
    at_peak: Flow,
    temporary: u64,
}

impl SiteCounts {
    fn record(&self) -> (Totals, Flow, u64) {
        (self.totals, self.at_peak, self.temporary)
    }
}

impl Preloaded {
    /// Numbers for stacks that are new, and what was counted of each.
    pub fn take_counts(&mut self, process: &mut Counting) -> io::Result<Vec<SiteCounts>> {
        let counted = process.area.counted()?;
        let is_sampled = self.options.sampling.mean().is_some();
        let unit = if is_sampled { 1 } else { BLOCK };
        process.sites.resize(counted.len().max(process.sites.len()), None);
        let mut all = vec![SiteCounts::default(); self.sites.len()];
        for (number, counted) in counted.iter().enumerate() {
            if counted.allocations == 0 {
                continue;
            }
            let Some(site) = self.site(process, number) else { continue };
            if all.len() <= site.0 as usize {
                all.resize(site.0 as usize + 1, SiteCounts::default());
            }
            let Some(SiteCounts { totals, at_peak, temporary }) = all.get_mut(site.0 as usize) else {
                continue;
            };
            totals.allocated.bytes += counted.bytes;
            totals.allocated.blocks += counted.allocations * unit;
            totals.freed.bytes += counted.freed_bytes;
            totals.freed.blocks += counted.frees * unit;
            at_peak.bytes += counted.peak_bytes;
            at_peak.blocks += counted.peak_blocks * unit;
            *temporary += counted.temporary;
        }
        for (number, site) in all.iter_mut().enumerate() {
            let totals = &mut site.totals;
            let outstanding = |allocated: u64, freed: u64| allocated.saturating_sub(freed);
            totals.outstanding = Flow {
                bytes: outstanding(totals.allocated.bytes, totals.freed.bytes),
                blocks: outstanding(totals.allocated.blocks, totals.freed.blocks),
            };
            if totals.allocated != Flow::default() {
                process.ledger.record(SiteId(number as u32), site.record());
            }
        }
        Ok(all)
    }

    /// The owner of a stack of a process.
    fn site(&mut self, process: &mut Counting, number: usize) -> Option<SiteId> {
        if let Some(known) = process.sites.get(number).copied().flatten() {
            return Some(known);
        }
        let site = match process.area.stack(number as u32) {
            StackRead::Whole(stack) => {
                let function = self.function(process, stack.function);
                Site { stack: Ok(self.stack(process, &stack)), function }
            }
            StackRead::NotYet if number != 0 => return None,
            _ => Site { stack: Err(NoStack::Unreadable), function: self.function(process, 0) },
        };
        let id = self.sites.intern(site);
        if let Some(slot) = process.sites.get_mut(number) {
            *slot = Some(id);
        }
        Some(id)
    }

    fn stack(&mut self, process: &mut Counting, stack: &SharedStack) -> StackId {
        let most = stack.frames.iter().map(|frame| frame.node as usize + 1).max().unwrap_or(0);
        if process.frames.0 != stack.code {
            process.frames = (stack.code, Vec::new());
        }
        process.frames.1.resize(process.frames.1.len().max(most), NodeFrame::Unknown);
        let mut frames: Vec<u32> = Vec::with_capacity(stack.frames.len());
        for &SharedFrame { node, word } in &stack.frames {
            let mut known = process.frames.1.get(node as usize).copied().unwrap_or_default();
            if known == NodeFrame::Unknown {
                let frame = match layout::interpreted(word) {
                    Some(of) => process.interpreted.frame(&process.area, of, &mut self.stacks),
                    None => Some(process.returns_to(stack.code, word)),
                };
                let number = frame.map(|frame| self.stacks.frame_number(frame));
                known = number.map_or(NodeFrame::NotShown, NodeFrame::Number);
                if let Some(slot) = process.frames.1.get_mut(node as usize) {
                    *slot = known;
                }
            }
            if let NodeFrame::Number(number) = known {
                frames.push(number);
            }
        }
        let completeness = match stack {
            SharedStack { is_truncated: true, .. } => Completeness::Truncated,
            SharedStack { is_incomplete: true, .. } => Completeness::Incomplete,
            _ => Completeness::Complete,
        };
        self.stacks.intern_numbers(&frames, completeness)
    }

    /// The number of a function in the file that has the real one.
    fn function(&mut self, process: &mut Counting, number: usize) -> u32 {
        if let Some(&known) = process.functions.get(&number) {
            return known;
        }
        let real = process.area.head().real.get(number);
        let address = real.map_or(0, |at| at.load(Relaxed));
        if process.mapping_of(address).is_none() && address != 0 {
            self.read_maps(process);
        }
        let path = process.mapping_of(address).map(|mapping| mapping.name.clone()).unwrap_or_default();
        let module = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        let symbol = FUNCTIONS.get(number).copied().unwrap_or("?");
        let function = Function {
            name: demangle(symbol),
            module: String::from_utf8_lossy(module).into_owned(),
            allocator: if symbol.starts_with("_Z") { "cxx" } else { "libc" }.to_owned(),
        };
        let known = self.functions.iter().position(|each| *each == function);
        let known = known.unwrap_or_else(|| {
            self.functions.push(function);
            self.functions.len() - 1
        }) as u32;
        if address != 0 {
            process.functions.insert(number, known);
        }
        known
    }

    pub fn portrait(&mut self, process: &mut Counting) -> io::Result<Portrait> {
        let all = self.take_counts(process)?;
        let begun = self.options.start_ns;
        let mut outstanding: Vec<(u64, SiteId, u64)> = Vec::new();
        let mut late = Vec::new();
        let mut sizes = Sizes::default();
        let sampling = self.options.sampling;
        process.area.blocks(|block| {
            sizes.add(block.size, block.given, sampling.weight(block.size));
            let made_ns = begun + u64::from(block.milliseconds) * 1_000_000;
            match process.sites.get(block.stack as usize).copied().flatten() {
                Some(site) => outstanding.push((block.size, site, made_ns)),
                None => late.push((block.size, block.stack, made_ns)),
            }
        })?;
        for (size, stack, made_ns) in late {
            let number = stack as usize;
            process.sites.resize(process.sites.len().max(number + 1), None);
            if let Some(site) = self.site(process, number) {
                outstanding.push((size, site, made_ns));
            }
        }
        self.settle(process, all, &outstanding);
        self.judge(process);
        let (incomplete, truncated) = self.cut(process);
        let mut gaps = gaps(process);
        gaps.extend(process.interpreted.refused.iter().cloned());
        gaps.extend(self.uncounted(process));
        let now = process.known.until_ns.unwrap_or_else(monotonic_ns);
        let picture = process.ledger.picture_of(&self.sites, (self.filter, now), outstanding.into_iter());
        let known = &process.known;
        Ok(Portrait {
            facts: HeapProcessFacts {
                watched_ns: Some(now.saturating_sub(known.since_ns)),
                since_ns: known.since_ns,
                gaps,
                container: self.container.clone(),
                ..known.facts()
            },
            picture,
            sizes: sizes.classes(),
            own: Own { memory: process.area.memory()?, mapped: process.area.mapped() },
            forked: process.forked,
            incomplete,
            truncated,
        })
    }

    /// What is outstanding is what the blocks say: while the process runs, the counts were read a moment
    /// before them.
    fn settle(&mut self, process: &mut Counting, mut all: Vec<SiteCounts>, blocks: &[(u64, SiteId, u64)]) {
        let sampling = self.options.sampling;
        all.iter_mut().for_each(|site| site.totals.outstanding = Flow::default());
        all.resize(all.len().max(self.sites.len()), SiteCounts::default());
        for (size, site, _) in blocks {
            let weight = sampling.weight(*size);
            if let Some(SiteCounts { totals, .. }) = all.get_mut(site.0 as usize) {
                totals.outstanding.bytes += weight.bytes;
                totals.outstanding.blocks += weight.blocks;
            }
        }
        for (number, site) in all.iter_mut().enumerate() {
            let totals = &mut site.totals;
            let Totals { allocated, outstanding, .. } = *totals;
            let flow = |allocated: u64, outstanding: u64| {
                let allocated = allocated.max(outstanding);
                (allocated, allocated - outstanding)
            };
            let (bytes, freed_bytes) = flow(allocated.bytes, outstanding.bytes);
            let (made, freed) = flow(allocated.blocks, outstanding.blocks);
            totals.allocated = Flow { bytes, blocks: made };
            totals.freed = Flow { bytes: freed_bytes, blocks: freed };
            if totals.allocated != Flow::default() {
                process.ledger.record(SiteId(number as u32), site.record());
            }
        }
    }

    /// How many allocations have a stack that is not complete, and that is too deep.
    fn cut(&self, process: &Counting) -> (u64, u64) {
        let counted = process.area.counted().unwrap_or_default();
        let mut out = (0, 0);
        for (number, counted) in counted.iter().enumerate().filter(|(_, counted)| counted.allocations > 0) {
            match process.area.is_cut(number as u32) {
                (_, true) => out.1 += counted.allocations,
                (true, _) => out.0 += counted.allocations,
                _ => {}
            }
        }
        if self.options.sampling.mean().is_some() {
            return (blocks(out.0), blocks(out.1));
        }
        out
    }

    /// Libraries with an allocator that is called by other names.
    fn uncounted(&mut self, process: &Counting) -> Vec<String> {
        let mut out = Vec::new();
        for (mapping, file) in process.maps.iter().filter_map(|each| Some((each, each.file_ref()?))) {
            let name = file.path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
            let name = String::from_utf8_lossy(name);
            let key = FileKey::from(&file);
            let found = match self.uncounted.get(&key) {
                Some(known) => known.clone(),
                None => {
                    let (range, pid) = (mapping.range, Some(process.pid));
                    let request = OpenRequest { file: &file, range, pid, build_id: None };
                    let object = self.unwinder.files_mut().open(&request).ok();
                    let is_program = file.path == process.known.exe.as_bytes();
                    object.and_then(|object| other_names(&object, (&name, is_program), &self.descriptions))
                }
            };
            self.uncounted.insert(key, found.clone());
            out.extend(found.map(|symbol| {
                format!(
                    "{name} {OTHER_ALLOCATOR} ({symbol}): what comes from it is in no figure here \
                     (--method uprobes)"
                )
            }));
        }
        out
    }

    fn judge(&self, process: &mut Counting) {
        // More has not happened in any process.
        let read = |from: &AtomicU64| from.load(Relaxed).min(1 << 60);
        let seen = &process.area.head().doubts;
        let (bytes, milliseconds) = process.area.peak();
        let time_ns = self.options.start_ns + u64::from(milliseconds) * 1_000_000;
        let bytes = bytes.max(process.ledger.outstanding_bytes());
        let doubts = Doubts {
            lost_events: 0,
            lost_frees: read(&seen.lost_frees),
            unseen_frees: read(&seen.unseen_frees),
            doubtful_frees: 0,
            refused: read(&seen.refused),
            refused_bytes: seen.refused_bytes.load(Relaxed),
        };
        process.ledger.record_process(HeapPoint { time_ns, bytes, blocks: 0 }, doubts);
    }
}

fn gaps(process: &Counting) -> Vec<String> {
    let doubts = &process.area.head().doubts;
    let read = |from: &AtomicU64| from.load(Relaxed);
    let mut out = Vec::new();
    if process.area.head().begun.load(Relaxed) == 0 {
        out.push(NOT_COUNTED.to_owned());
    }
    let mut say = |count: u64, text: &str| {
        if count > 0 {
            out.push(format!("{} {text}", thousands(count)));
        }
    };
    say(read(&doubts.uncounted), "blocks are in no figure: the library's tables are full");
    say(read(&doubts.without_stack), "allocations were counted without a stack");
    say(
        read(&doubts.broken_frames),
        "allocations are without the interpreter's functions: its frames were not what they should be",
    );
    say(
        read(&doubts.several),
        "allocations are without the interpreter's functions: there are several interpreters in the process",
    );
    say(process.area.claims(), "figures that the process has written cannot be true, and are left out");
    say(read(&doubts.unanswered), "questions for unwind rules were not answered in time: stacks end early");
    out
}

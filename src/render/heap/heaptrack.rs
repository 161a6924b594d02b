//! `-f heaptrack`: a data file as heaptrack's own programs read it (heaptrack_gui, heaptrack_print; file format 3,
//! src/analyze/accumulatedtracedata.cpp of KDE's heaptrack), compressed with Zstandard.
//!
//! Such a file is a list of calls. vmaudit keeps sums of each stack, so the file has calls that add up to them: first those
//! whose block was freed soon, then what was outstanding at the peak, then what is outstanding. Blocks of a stack
//! have its mean size.

use super::function;
use super::whole::{Whole, wholes};
use crate::heap::report::{HeapProcess, HeapReport};
use crate::model::hash::IntMap;
use crate::render::folded::report::NO_MODULE;
use crate::render::style::clean;
use crate::report::PerFrame;
use crate::report::model::Frame;
use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::Arc;

/// heaptrack's version that has this format, as its file says it, and the format's.
const VERSION: &str = "10400 3";

/// What is known of the report's process `p`, as a data file.
///
/// # Errors
/// None in practice: it is written to memory.
pub fn heap_to_heaptrack(report: &HeapReport, p: &HeapProcess) -> io::Result<Vec<u8>> {
    let mut out = zstd::Encoder::new(Vec::new(), zstd::DEFAULT_COMPRESSION_LEVEL)?;
    write(report, p, &mut out)?;
    out.finish()
}

/// Numbers are hexadecimal, those of things begin with 1, in the order in which they are defined.
fn write(report: &HeapReport, p: &HeapProcess, out: &mut impl Write) -> io::Result<()> {
    let command = if p.cmdline.is_empty() { p.comm.clone() } else { p.cmdline.join(" ") };
    writeln!(out, "v {VERSION}\nX {}", clean(&command))?;
    writeln!(
        out,
        "# vmaudit {}: made from sums by stack; the order of calls and the sizes of single blocks are not those of the run",
        env!("CARGO_PKG_VERSION")
    )?;
    if p.attached {
        writeln!(out, "A")?;
    }
    let mut code = Code {
        report,
        strings: HashMap::new(),
        points: HashMap::new(),
        alone: PerFrame::default(),
        traces: IntMap::default(),
    };
    // The first is never allocated: heaptrack takes a free of it that follows another one for that of a temporary block.
    writeln!(out, "a 0 0")?;
    let mut infos = Infos { count: 1 };
    let mut plans = Vec::new();
    for whole in wholes(p) {
        let trace = code.trace(&whole, out)?;
        plans.push(Plan::of(&whole, trace, &mut infos, out)?);
    }
    writeln!(out, "c 0")?;
    passing(&plans, p.totals.peak_bytes, out)?;
    let all = |of: fn(&Plan) -> &Group, sign: char, out: &mut dyn Write| {
        plans.iter().try_for_each(|plan| of(plan).each(|info| writeln!(out, "{sign} {info:x}")))
    };
    let peak_ms = p.totals.peak_ns.unwrap_or(0) / 1_000_000;
    writeln!(out, "c {peak_ms:x}")?;
    all(|plan| &plan.kept, '+', out)?;
    all(|plan| &plan.at_peak, '+', out)?;
    let end_ms = (p.watched_ns.unwrap_or(0) / 1_000_000).max(peak_ms);
    writeln!(out, "c {end_ms:x}")?;
    all(|plan| &plan.at_peak, '-', out)?;
    all(|plan| &plan.at_end, '+', out)?;
    Ok(())
}

/// Blocks of one stack that come and go together: `more` of `size` + 1 bytes, the others of `size`.
#[derive(Default)]
struct Group {
    blocks: u64,
    more: u64,
    /// Numbers of the two sizes.
    infos: [u64; 2],
}

/// How many sizes of stacks are defined.
struct Infos {
    count: u64,
}

impl Infos {
    fn define(&mut self, size: u64, trace: u64, out: &mut impl Write) -> io::Result<u64> {
        writeln!(out, "a {size:x} {trace:x}")?;
        self.count += 1;
        Ok(self.count - 1)
    }
}

impl Group {
    fn of(
        (blocks, bytes): (u64, u64),
        trace: u64,
        infos: &mut Infos,
        out: &mut impl Write,
    ) -> io::Result<Group> {
        let (Some(size), Some(more)) = (bytes.checked_div(blocks), bytes.checked_rem(blocks)) else {
            return Ok(Group::default());
        };
        let small = infos.define(size, trace, out)?;
        let large = if more > 0 { infos.define(size + 1, trace, out)? } else { small };
        Ok(Group { blocks, more, infos: [small, large] })
    }

    fn each(&self, mut one: impl FnMut(u64) -> io::Result<()>) -> io::Result<()> {
        (0..self.blocks).try_for_each(|at| one(self.info(at)))
    }

    /// Of a block of it, by its number.
    fn info(&self, at: u64) -> u64 {
        let [small, large] = self.infos;
        if at < self.more { large } else { small }
    }
}

/// What becomes of the blocks of a stack.
struct Plan {
    /// Freed before the next one.
    temporary: Group,
    /// Freed neither at once nor held at the peak or the end.
    passing: Group,
    /// The same sizes under other numbers: heaptrack recognises temporary blocks by the number.
    passing_too: Group,
    /// The bytes of one.
    passing_size: u64,
    /// Held at the peak, and not at the end.
    at_peak: Group,
    /// Held at both.
    kept: Group,
    /// Held at the end, and not at the peak.
    at_end: Group,
}

impl Plan {
    fn of(whole: &Whole, trace: u64, infos: &mut Infos, out: &mut impl Write) -> io::Result<Plan> {
        let parts = Parts::of(whole);
        let half = (parts.passing.0 / 2, parts.passing.1 / 2);
        let rest = (parts.passing.0 - half.0, parts.passing.1 - half.1);
        let size = rest.1.div_ceil(rest.0.max(1));
        let mut group = |what| Group::of(what, trace, infos, out);
        Ok(Plan {
            temporary: group(parts.temporary)?,
            passing: group(rest)?,
            passing_too: group(half)?,
            passing_size: size,
            at_peak: group(parts.at_peak)?,
            kept: group(parts.kept)?,
            at_end: group(parts.at_end)?,
        })
    }
}

/// Blocks and bytes of a stack by what becomes of them; they add up to all that it allocated.
#[derive(PartialEq, Eq, Debug)]
struct Parts {
    temporary: (u64, u64),
    passing: (u64, u64),
    at_peak: (u64, u64),
    kept: (u64, u64),
    at_end: (u64, u64),
}

impl Parts {
    fn of(Whole { site, .. }: &Whole) -> Parts {
        let all = (site.allocations, site.allocated_bytes);
        let end = (all.0.saturating_sub(site.frees), all.1.saturating_sub(site.freed_bytes));
        let peak = (site.peak_blocks.unwrap_or(0).min(all.0), site.peak_bytes.unwrap_or(0).min(all.1));
        // As many as the number of calls leaves no other way for.
        let blocks = (end.0 + peak.0).saturating_sub(all.0).min(end.0).min(peak.0);
        let bytes = match blocks {
            0 => 0,
            _ if blocks == end.0 => end.1,
            _ if blocks == peak.0 => peak.1.min(end.1),
            _ => (end.1 + peak.1).saturating_sub(all.1).min(end.1).min(peak.1),
        };
        let at_end = less(end, (blocks, bytes));
        let at_peak = less(peak, (blocks, bytes));
        let rest = less(less(less(all, (blocks, bytes)), at_end), at_peak);
        let temporary = site.temporary.unwrap_or(0).min(rest.0);
        let of_rest = u128::from(rest.1) * u128::from(temporary) / u128::from(rest.0.max(1));
        let temporary = (temporary, u64::try_from(of_rest).unwrap_or(rest.1));
        Parts { temporary, passing: less(rest, temporary), at_peak, kept: (blocks, bytes), at_end }
    }
}

/// No bytes without blocks.
fn less(a: (u64, u64), b: (u64, u64)) -> (u64, u64) {
    match a.0.saturating_sub(b.0) {
        0 => (0, 0),
        blocks => (blocks, a.1.saturating_sub(b.1)),
    }
}

/// What was freed soon. A block that is not temporary is held until the next one is there, while that is no more than
/// the peak: freed right after it was allocated, heaptrack would count it as temporary.
fn passing(plans: &[Plan], peak: Option<u64>, out: &mut impl Write) -> io::Result<()> {
    for plan in plans {
        plan.temporary.each(|info| writeln!(out, "+ {info:x}\n- {info:x}"))?;
    }
    let mut held: Option<(u64, u64)> = None;
    let mut next = |info: u64, size: u64| match held.replace((info, size)) {
        Some((last, of)) if peak.is_some_and(|peak| of + size > peak) => {
            writeln!(out, "- {last:x}\n+ {info:x}")
        }
        Some((last, _)) => writeln!(out, "+ {info:x}\n- {last:x}"),
        None => writeln!(out, "+ {info:x}"),
    };
    for plan in plans {
        for at in 0..plan.passing.blocks {
            next(plan.passing.info(at), plan.passing_size)?;
            if at < plan.passing_too.blocks {
                next(plan.passing_too.info(at), plan.passing_size)?;
            }
        }
    }
    match held {
        Some((last, _)) => writeln!(out, "- {last:x}"),
        None => Ok(()),
    }
}

/// What an instruction pointer is written as: the module's string, the offset in it, and the lines.
type Point = (u64, String, Vec<Line>);

/// The strings of function and file, and the line's number.
type Line = (u64, u64, u32);

/// Strings, instruction pointers and traces that have been written, by what they are.
struct Code<'r> {
    report: &'r HeapReport,
    strings: HashMap<String, u64>,
    points: HashMap<Point, u64>,
    /// Instruction pointers of frames that nothing is inlined into.
    alone: PerFrame<'r, u64>,
    /// By the instruction pointer and the trace of its caller.
    traces: IntMap<(u64, u64), u64>,
}

impl<'r> Code<'r> {
    /// 0 for an empty one.
    fn string(&mut self, text: &str, out: &mut impl Write) -> io::Result<u64> {
        let text = clean(text);
        if text.is_empty() {
            return Ok(0);
        }
        if let Some(known) = self.strings.get(&text) {
            return Ok(*known);
        }
        writeln!(out, "s {:x} {text}", text.len())?;
        let number = self.strings.len() as u64 + 1;
        self.strings.insert(text, number);
        Ok(number)
    }

    /// The allocator's caller; for a stack that is not known, a frame that says why.
    fn trace(&mut self, whole: &Whole, out: &mut impl Write) -> io::Result<u64> {
        let report = self.report;
        let Some(stack) = super::stack(report, &whole.row) else {
            let why = format!("[{}: {}]", function(report, &whole.row), super::no_stack(&whole.row));
            let point = self.note(&why, out)?;
            return self.node(point, 0, out);
        };
        let mut parent = 0;
        if stack.completeness != "complete" {
            let point = self.note(&format!("[{} stack]", stack.completeness), out)?;
            parent = self.node(point, 0, out)?;
        }
        // Each frame with those that were inlined into it before it.
        for frames in stack.without_aliases().split_inclusive(|frame| !frame.inlined).rev() {
            let point = match frames {
                [alone] => match self.alone.get(alone) {
                    Some(known) => *known,
                    None => {
                        let point = self.point(frames, out)?;
                        self.alone.note(alone, point);
                        point
                    }
                },
                _ => self.point(frames, out)?,
            };
            parent = self.node(point, parent, out)?;
        }
        Ok(parent)
    }

    fn note(&mut self, text: &str, out: &mut impl Write) -> io::Result<u64> {
        let function = self.string(text, out)?;
        self.define(0, "0".to_owned(), vec![(function, 0, 0)], out)
    }

    /// A frame, after what was inlined into it, innermost first.
    fn point(&mut self, frames: &[Arc<Frame>], out: &mut impl Write) -> io::Result<u64> {
        let Some(last) = frames.last() else { return Ok(0) };
        let module = if last.module == NO_MODULE { 0 } else { self.string(&last.module, out)? };
        let mut lines = Vec::with_capacity(frames.len());
        for frame in frames {
            let name = match (&frame.symbol, &frame.function_start) {
                (Some(symbol), _) => symbol.clone(),
                (None, Some(start)) => format!("fn@{start}"),
                (None, None) => String::new(),
            };
            let file = frame.file.as_deref().unwrap_or_default();
            lines.push((self.string(&name, out)?, self.string(file, out)?, frame.line.unwrap_or(0)));
        }
        let offset = last.offset.strip_prefix("0x").unwrap_or("0").to_owned();
        self.define(module, offset, lines, out)
    }

    fn define(
        &mut self,
        module: u64,
        offset: String,
        lines: Vec<Line>,
        out: &mut impl Write,
    ) -> io::Result<u64> {
        let next = self.points.len() as u64 + 1;
        let key = (module, offset, lines);
        if let Some(known) = self.points.get(&key) {
            return Ok(*known);
        }
        write!(out, "i {} {module:x}", key.1)?;
        for (function, file, line) in &key.2 {
            write!(out, " {function:x} {file:x} {line:x}")?;
        }
        writeln!(out)?;
        self.points.insert(key, next);
        Ok(next)
    }

    fn node(&mut self, point: u64, parent: u64, out: &mut impl Write) -> io::Result<u64> {
        let next = self.traces.len() as u64 + 1;
        if let Some(known) = self.traces.get(&(point, parent)) {
            return Ok(*known);
        }
        writeln!(out, "t {point:x} {parent:x}")?;
        self.traces.insert((point, parent), next);
        Ok(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heap::report::HeapSite;

    fn parts(allocated: (u64, u64), freed: (u64, u64), peak: (u64, u64), temporary: u64) -> Parts {
        let site = HeapSite {
            allocations: allocated.0,
            allocated_bytes: allocated.1,
            frees: freed.0,
            freed_bytes: freed.1,
            peak_blocks: Some(peak.0),
            peak_bytes: Some(peak.1),
            temporary: Some(temporary),
            ..HeapSite::default()
        };
        Parts::of(&Whole { site, ..Whole::default() })
    }

    #[test]
    fn all_blocks_have_a_fate() {
        // ten of which four are left: at the peak there were eight
        let found = parts((10, 1000), (6, 600), (8, 800), 0);
        assert_eq!((found.kept, found.at_end, found.at_peak), ((2, 200), (2, 200), (6, 600)));
        // nothing was ever freed
        let found = parts((3, 300), (0, 0), (3, 300), 0);
        assert_eq!((found.kept, found.at_end, found.at_peak), ((3, 300), (0, 0), (0, 0)));
        // each freed at once
        let found = parts((5, 50), (5, 50), (0, 0), 5);
        assert_eq!((found.temporary, found.passing), ((5, 50), (0, 0)));
    }

    #[test]
    fn they_add_up() {
        for allocations in 1..6u64 {
            for frees in 0..=allocations {
                for peak in 0..=allocations {
                    for temporary in 0..=frees {
                        let bytes = allocations * 7 + 3;
                        let freed = if frees == allocations { bytes } else { frees * 7 };
                        let found = parts((allocations, bytes), (frees, freed), (peak, peak * 7), temporary);
                        let Parts { temporary, passing, at_peak, kept, at_end } = found;
                        let all = [temporary, passing, at_peak, kept, at_end];
                        let sum = all.iter().fold((0, 0), |sum, part| (sum.0 + part.0, sum.1 + part.1));
                        assert_eq!(sum.0, allocations);
                        assert_eq!(kept.0 + at_end.0, allocations - frees);
                        assert_eq!(kept.1 + at_end.1, bytes - freed, "{allocations} {frees} {peak}");
                        assert!(sum.1 <= bytes);
                    }
                }
            }
        }
    }
}

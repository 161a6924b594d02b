//! Pieces → findings: the most important first, why it is there and what to do about it.

use super::call::story;
use super::callpath::CallPath;
use super::category::{Category, Merge};
use super::footprint::Footprint;
use super::rules::RULES;
use super::world::World;
use super::{Piece, distinct};
use crate::ledger::{Doubt, OriginRecord};
use crate::model::heap::own;
use crate::model::{AddrRange, Frame, NoStack, Pid, StackId, Tid};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

/// Something to change. The savings are upper bounds, measured from this run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fix {
    pub knob: String,
    pub saves_virt: u64,
    pub saves_rss: u64,
    pub note: String,
}

impl Fix {
    pub fn new(knob: &str, saves_virt: u64, saves_rss: u64) -> Fix {
        Fix { knob: knob.to_string(), saves_virt, saves_rss, note: String::new() }
    }

    pub fn note(mut self, note: &str) -> Fix {
        self.note = note.to_string();
        self
    }
}

/// A setting that people reach for and that does nothing here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NoHelp {
    pub knob: String,
    /// Why not; a clause that goes on after the knob's name.
    pub why: String,
}

/// What a rule says about a group of pieces.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Advice {
    /// None: the category's own words.
    pub title: Option<String>,
    pub why: String,
    pub fix: Vec<Fix>,
    pub no_help: Vec<NoHelp>,
    /// The creating stack says nothing about the program (start-up): the finding has none.
    pub stack_is_noise: bool,
}

impl Advice {
    pub fn why(why: impl Into<String>) -> Advice {
        Advice { why: why.into(), ..Advice::default() }
    }

    pub fn fix(mut self, fix: Fix) -> Advice {
        self.fix.push(fix);
        self
    }

    /// `knob` will not help, because `why`.
    pub fn wont(mut self, knob: &str, why: &str) -> Advice {
        self.no_help.push(NoHelp { knob: knob.to_string(), why: why.to_string() });
        self
    }
}

/// Pieces of one category that one caller (or the same reason) made.
pub struct Group<'a> {
    pub category: Category,
    pub pieces: Vec<&'a Piece>,
    pub footprint: Footprint,
    pub instances: u64,
    pub by_part: BTreeMap<&'static str, Footprint>,
    /// Of the largest piece that has a traced call.
    pub record: Option<&'a OriginRecord>,
    pub path: Option<&'a CallPath>,
    /// The process that made it, if it was another one: inherited by fork.
    pub inherited_from: Option<Pid>,
    /// What maps calls the VMAs that hold the pieces, one entry a piece that has a name.
    pub names: Vec<&'a [u8]>,
}

impl<'a> Group<'a> {
    /// maps' last column for the pieces that have one.
    pub fn names(&self) -> impl Iterator<Item = &'a [u8]> + '_ {
        self.names.iter().copied()
    }

    pub fn unused(&self) -> u64 {
        self.footprint.unused()
    }

    pub fn part(&self, name: &str) -> Footprint {
        self.by_part.get(name).copied().unwrap_or_default()
    }

    /// Number of things that have a piece of this part.
    pub fn instances_with(&self, part: &str) -> u64 {
        distinct(self.pieces.iter().filter(|p| p.part == part).map(|p| p.thing).collect())
    }
}

/// One ranked finding.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    pub category: Category,
    pub title: String,
    pub why: String,
    pub fix: Vec<Fix>,
    pub no_help: Vec<NoHelp>,
    pub footprint: Footprint,
    pub instances: u64,
    /// Address ranges, neighbours of one thing joined; sorted.
    pub ranges: Vec<AddrRange>,
    /// Threads it belongs to, sorted.
    pub threads: Vec<Tid>,
    pub by_part: Vec<(&'static str, Footprint)>,
    /// Of the largest piece, where several calls by one caller are merged.
    pub stack: Option<StackId>,
    /// The line of `stack` from which outwards the merged calls agree; None: all of it.
    pub caller: Option<usize>,
    /// The life of the largest piece's reservation, in one line.
    pub story: Option<String>,
    pub inherited_from: Option<Pid>,
    pub doubtful: bool,
    /// The id of the rule that is data and says what it is in particular.
    pub rule: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Key {
    /// The number of the frames.
    Caller(usize),
    Stack(StackId),
    NoStack,
    Category,
    Kind(&'static str),
}

/// Ranked by unused bytes; groups without unused bytes are left out.
pub fn findings(world: &World<'_>, pieces: &[Piece]) -> Vec<Finding> {
    let mut numbers: HashMap<(&'static str, Option<usize>, Key), usize> = HashMap::new();
    let mut groups: Vec<Vec<&Piece>> = Vec::new();
    let mut callers: HashMap<Vec<Frame>, usize> = HashMap::new();
    let mut caller_keys: HashMap<(StackId, usize), usize> = HashMap::new();
    // Neighbours belong together, as a rule.
    let mut last = None;
    for piece in pieces {
        let stack = record_of(world, piece).and_then(|r| r.stack.ok());
        let key = match (piece.merge, stack) {
            (Merge::ByCategory, _) => Key::Category,
            (Merge::ByKind(kind), _) => Key::Kind(kind),
            (_, None) => Key::NoStack,
            (Merge::ByStack, Some(id)) => Key::Stack(id),
            (Merge::ByCaller(line), Some(id)) => {
                Key::Caller(*caller_keys.entry((id, line)).or_insert_with(|| {
                    let frames = world.path(id).map(|p| p.frames_from(line)).unwrap_or_default();
                    let next = callers.len();
                    *callers.entry(frames).or_insert(next)
                }))
            }
        };
        let key_of_group = (piece.category.id, piece.label, key);
        let group = match last {
            Some((known, group)) if known == key_of_group => group,
            _ => *numbers.entry(key_of_group).or_insert_with(|| {
                groups.push(Vec::new());
                groups.len() - 1
            }),
        };
        last = Some((key_of_group, group));
        groups[group].push(piece);
    }
    let mut findings: Vec<Finding> = groups.into_iter().filter_map(|pieces| finding(world, pieces)).collect();
    // What is there because of vmaudit comes last: it is not the program's.
    findings.sort_by_key(|f| {
        (
            f.category.id == own::CATEGORY,
            Reverse(f.footprint.unused()),
            Reverse(f.footprint.virt),
            f.ranges.first().copied().unwrap_or_default(),
        )
    });
    findings
}

fn record_of<'a>(world: &World<'a>, piece: &Piece) -> Option<&'a OriginRecord> {
    world.record(world.input.reconciled.regions.get(piece.region)?)
}

fn finding(world: &World<'_>, pieces: Vec<&Piece>) -> Option<Finding> {
    let first = *pieces.first()?;
    let mut footprint = Footprint::default();
    let mut by_part: BTreeMap<&'static str, Footprint> = BTreeMap::new();
    for piece in &pieces {
        footprint += piece.footprint;
        *by_part.entry(piece.part).or_default() += piece.footprint;
    }
    if footprint.unused() == 0 {
        return None;
    }
    let largest = pieces
        .iter()
        .filter_map(|&p| Some((p, record_of(world, p)?)))
        .max_by_key(|(p, _)| (p.footprint.virt, Reverse(p.range.start)));
    let record = largest.map(|(_, record)| record);
    let stack = record.and_then(|r| r.stack.ok());
    let pid = world.input.observations.pid;
    let inherited_from = record.map(|r| r.task.pid).filter(|&maker| maker != pid);
    let instances = distinct(pieces.iter().map(|p| p.thing).collect());
    let group = Group {
        category: first.category,
        footprint,
        instances,
        by_part,
        record,
        path: stack.and_then(|id| world.path(id)),
        inherited_from,
        names: pieces.iter().filter_map(|p| world.maps_name(p.region)).collect(),
        pieces,
    };
    let mut advice = match largest.map_or(first.rule, |(p, _)| p.rule).or(first.rule) {
        Some(rule) => RULES[rule].advise(&group, world),
        None if group.path.is_some() => Advice::why(
            "the call that made it was seen, but its stack ends within the C library: who asked for it is not \
             known, and neither a header nor its shape tells",
        ),
        None if group.record.is_some() => Advice::why(without_stack(&group)),
        None if is_32_bit(world) => Advice::why(
            "the calls of 32-bit programs are not traced, and neither a name nor its shape tells what it is",
        ),
        None if world.input.reconciled.events == 0 => Advice::why(
            "neither a name nor a header nor its shape tells what it is, and no call was traced: only the stack \
             of the call that mapped it would tell",
        ),
        None => Advice::why(
            "nothing explains it: no call was seen that made it, and its shape is not known. \
             It was mapped before tracing began, or events were lost",
        ),
    };
    let rule = match first.label.and_then(|label| world.input.rules.get(label)) {
        Some(rule) => Some(rule.id.clone()),
        None => RULES.iter().find_map(|rule| rule.explain(&group, world, &mut advice)),
    };
    if let Some(pid) = inherited_from {
        advice.why += &format!("; it was made by process {pid} and inherited by fork");
    }
    let title = advice.title.unwrap_or_else(|| match instances {
        1 => first.category.one.to_string(),
        n => format!("{n} {}", first.category.many),
    });
    let mut threads: Vec<Tid> = group.pieces.iter().filter_map(|p| p.thread).collect();
    if advice.stack_is_noise {
        threads.clear();
    }
    threads.sort_unstable();
    threads.dedup();
    let regions = &world.input.reconciled.regions;
    let doubt = |p: &&Piece| regions.get(p.region).and_then(|r| r.doubt);
    let doubtful = group.pieces.iter().filter_map(doubt).any(Doubt::is_of_origin);
    Some(Finding {
        category: group.category,
        title,
        why: advice.why,
        fix: advice.fix,
        no_help: advice.no_help,
        footprint,
        instances,
        ranges: joined_ranges(&group.pieces),
        threads,
        by_part: group.by_part.into_iter().collect(),
        stack: stack.filter(|_| !advice.stack_is_noise),
        caller: largest.and_then(|(piece, _)| match piece.merge {
            Merge::ByCaller(line) => Some(line),
            Merge::ByStack | Merge::ByCategory | Merge::ByKind(_) => None,
        }),
        story: record.filter(|_| !advice.stack_is_noise).map(story),
        inherited_from,
        doubtful,
        rule,
    })
}

fn joined_ranges(pieces: &[&Piece]) -> Vec<AddrRange> {
    let mut sorted: Vec<&&Piece> = pieces.iter().collect();
    sorted.sort_unstable_by_key(|p| p.range);
    let mut out: Vec<(AddrRange, usize)> = Vec::new();
    for piece in sorted {
        match out.last_mut() {
            Some((last, thing)) if last.end == piece.range.start && *thing == piece.thing => {
                last.end = piece.range.end;
            }
            _ => out.push((piece.range, piece.thing)),
        }
    }
    out.into_iter().map(|(range, _)| range).collect()
}

fn without_stack(group: &Group<'_>) -> String {
    let lost = group.record.is_some_and(|record| record.stack == Err(NoStack::Lost));
    let reason = if lost { ", for which the buffer had no space (--ring-bytes)" } else { "" };
    format!(
        "the call that made it was seen, but not its stack{reason}: who asked for it is not known, and neither a header \
         nor its shape tells"
    )
}

/// The kernel puts the first thread's stack of every other program above.
fn is_32_bit(world: &World<'_>) -> bool {
    world.mappings().iter().any(|m| m.is_special("[stack]") && m.range.end.0 <= 1 << 32)
}

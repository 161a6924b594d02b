//! The long tail of libraries and programs: rules that are data (docs/rules.md), tried after those that are
//! code.
//!
//! A function on the stack or a name proves what the memory is; its size and place prove nothing.

mod format;
mod kept;
mod table;

pub use format::{Knob, Mapped, TableRule, parse};
pub use table::{DataRules, Named, Query, each_once};

use super::app::{APP_MMAP, caller_of};
use super::files::FILE;
use super::shared::{MEMFD, SHARED_ANON, SYSV};
use super::{Advice, Claim, Group, Rule, Subject, World};
use crate::attribution::Piece;
use crate::attribution::callpath::{CallPath, Line};
use crate::attribution::category::{Evidence, Instance, Merge};
use crate::attribution::findings::{Fix, NoHelp};
use crate::ledger::RegionKind;
use crate::model::Sharing;
use format::Left;
use std::collections::HashSet;

const ID: &str = "data";

pub struct DataRule;

impl Rule for DataRule {
    fn id(&self) -> &'static str {
        ID
    }

    fn by_name(&self, subject: &Subject<'_>, world: &World<'_>) -> Option<Claim> {
        if !world.input.rules.knows_names() {
            return world.not_for_me();
        }
        if !may_be_claimed(subject, world) {
            return None;
        }
        let query = Query { mapped: mapped(subject), applies: &|rule| world.applies(rule) };
        let rules = world.input.rules;
        let (found, name) = match subject.anon_name() {
            Some(name) => (rules.by_name(&String::from_utf8_lossy(name), query)?, name),
            None if subject.name().is_empty() => return None,
            None => (rules.by_file(&String::from_utf8_lossy(subject.name()), query)?, subject.name()),
        };
        let claim = claim(subject, Evidence::Name, found);
        Some(match subject.record {
            Some(_) => claim,
            None => claim.instance(Instance::Named(name.to_vec())),
        })
    }

    fn knows_here(&self, line: &Line, world: &World<'_>) -> bool {
        world.input.rules.knows(named(line))
    }

    fn by_stack(&self, subject: &Subject<'_>, world: &World<'_>, at: usize) -> Option<Claim> {
        let path = subject.path.filter(|_| may_be_claimed(subject, world))?;
        let lines: Vec<Named<'_>> = path.lines.iter().take(at + 1).map(named).collect();
        let query = Query { mapped: mapped(subject), applies: &|rule| world.applies(rule) };
        let rule = world.input.rules.by_line(&lines, at, query)?;
        Some(claim(subject, Evidence::Stack, rule))
    }

    fn stack_size_knob(&self, world: &World<'_>) -> Option<(String, String)> {
        let rules = world.input.rules.rules().iter().enumerate();
        let mut here = rules.filter(|(at, _)| world.applies(*at)).flat_map(|(_, rule)| &rule.knobs);
        let knob = here.find(|knob| knob.stacks)?;
        Some((knob.knob.clone(), knob.note.clone()))
    }

    fn advise(&self, group: &Group<'_>, world: &World<'_>) -> Advice {
        match group.pieces.first().and_then(|piece| world.input.rules.get(piece.label?)) {
            Some(rule) => advice(rule, group, world),
            None => Advice::why("a rule claimed it that is not there any more"),
        }
    }

    fn explain(&self, group: &Group<'_>, world: &World<'_>, advice: &mut Advice) -> Option<String> {
        let first = group.pieces.first()?;
        let path = group.path?;
        let from = match first.merge {
            Merge::ByCaller(line) => line,
            Merge::ByStack => path.caller(),
            // These have many callers.
            Merge::ByCategory | Merge::ByKind(_) => return None,
        };
        let lines: Vec<Named<'_>> = path.lines.get(from..)?.iter().map(named).collect();
        let rules = world.input.rules;
        let found = rules.explaining(group.category.id, &lines, &|rule| world.applies(rule))?;
        let rule = rules.get(found)?;
        let more = self::advice(rule, group, world);
        advice.title = more.title;
        advice.why = format!("{}; {}", more.why, advice.why);
        // what was said without this knowledge
        let sizes_stacks = |fix: &Fix| {
            let mut knobs = rules.rules().iter().flat_map(|rule| &rule.knobs);
            knobs.any(|knob| knob.stacks && knob.knob == fix.knob)
        };
        advice.fix.retain(|fix| !sizes_stacks(fix));
        advice.fix.splice(0..0, more.fix);
        advice.no_help.extend(more.no_help);
        Some(rule.id.clone())
    }
}

fn advice(rule: &TableRule, group: &Group<'_>, world: &World<'_>) -> Advice {
    let mut why = rule.why.clone();
    let by_stack = group.pieces.first().is_some_and(|piece| piece.label.is_some());
    if let Some(path) = group.path.filter(|_| by_stack) {
        why += &format!("; reserved by {}", caller_of(path));
    }
    let mut advice = Advice::why(why);
    advice.title = Some(match group.instances {
        1 => rule.what.clone(),
        n => format!("{n} {}", rule.many),
    });
    let promises = rule.proven.is_some();
    for knob in &rule.knobs {
        let whole = group.footprint.virt;
        let left_of = |left: Left| match left {
            // a process may hold several copies of a library, and each keeps as many
            Left::Things(number) => Left::Things(number * callers(group, world)),
            other => other,
        };
        let saved = |left: Left| match left {
            Left::Things(number) if knob.threads => kept::gone_with_threads(group, world, number),
            _ => whole.saturating_sub(left_of(left).of(whole, group.instances)),
        };
        let virt = knob.left.filter(|_| promises).map_or(0, saved);
        if knob.left.is_some_and(|left| saved(left) == 0) {
            continue;
        }
        let share = u128::from(group.footprint.rss) * u128::from(virt) / u128::from(whole.max(1));
        let rss = if knob.resident { u64::try_from(share).unwrap_or(0) } else { 0 };
        let mut note = knob.note.clone();
        if !promises {
            note += if note.is_empty() { "not proven" } else { "; not proven" };
        }
        advice = advice.fix(Fix::new(&knob.knob, virt, rss).note(&note));
    }
    let no_help = rule.no_help.iter();
    advice.no_help = no_help.map(|(knob, why)| NoHelp { knob: knob.clone(), why: why.clone() }).collect();
    advice
}

/// Files whose code made the calls.
fn callers(group: &Group<'_>, world: &World<'_>) -> u64 {
    let regions = &world.input.reconciled.regions;
    let of = |piece: &&Piece| {
        let stack = world.record(regions.get(piece.region)?)?.stack.ok()?;
        Some(world.path(stack)?.caller_line()?.module.as_str())
    };
    let files: HashSet<&str> = group.pieces.iter().filter_map(of).collect();
    files.len().max(1) as u64
}

/// The category that it has without the rule: a rule says what it is in particular.
fn claim(subject: &Subject<'_>, evidence: Evidence, rule: usize) -> Claim {
    let (category, part) = match subject.region.kind {
        RegionKind::SysvShm => (SYSV, "segment"),
        RegionKind::SharedAnonymous => (SHARED_ANON, "MAP_SHARED|MAP_ANONYMOUS"),
        RegionKind::File if subject.name().starts_with(b"/memfd:") => (MEMFD, "memfd"),
        RegionKind::File if subject.name().starts_with(b"/dev/shm/") => (SHARED_ANON, "/dev/shm"),
        RegionKind::File => (FILE, "mapped file"),
        RegionKind::Brk => (APP_MMAP, "brk"),
        _ if subject.is_reserved() => (APP_MMAP, "reserved (PROT_NONE)"),
        _ => (APP_MMAP, "mmap"),
    };
    Claim::new(category, evidence, part).merge(Merge::ByCategory).label(rule)
}

/// The kernel's own mappings and images of programs are classified as such, whichever code requested them.
fn may_be_claimed(subject: &Subject<'_>, world: &World<'_>) -> bool {
    match subject.region.kind {
        RegionKind::Anonymous
        | RegionKind::SharedAnonymous
        | RegionKind::SysvShm
        | RegionKind::HugeTlb
        | RegionKind::Brk => true,
        // A file without a link may hold code that was made while the program runs.
        RegionKind::File if subject.name().starts_with(b"/memfd:") => true,
        RegionKind::File => subject.mapping.is_some_and(|mapping| !world.is_image(mapping)),
        RegionKind::Stack | RegionKind::AioRing | RegionKind::ShadowStack | RegionKind::Special => false,
    }
}

fn mapped<'a>(subject: &Subject<'a>) -> Mapped<'a> {
    let caller = subject.path.and_then(CallPath::caller_line);
    Mapped {
        reserved: subject.is_reserved(),
        shared: subject.region.sharing == Sharing::Shared,
        huge: subject.region.kind == RegionKind::HugeTlb,
        caller: caller.map_or("", |line| &line.module),
        bytes: subject.span.len(),
    }
}

fn named(line: &Line) -> Named<'_> {
    Named { module: &line.module, names: [line.function.as_deref(), line.display.as_deref()] }
}

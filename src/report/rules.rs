//! Rules that are data, as a list; and which of them say what of a report's regions.

use super::model::{Process, Region, Report, Stack};
use crate::attribution::{DataRules, Knob, Mapped, Named, Query, TableRule};
use crate::model::path::base_name;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap, HashSet};

/// Categories that memory has without a rule; for others a rule applies only where no stack decided.
const OPEN: [&str; 6] = ["app-mmap", "file", "memfd", "shared-anon", "sysv-shm", "unknown"];
const DECIDED: [&str; 3] = ["kernel", "name", "stack"];

/// What regions without a name have in common of which the rules say the same: stack, bytes of the call, category,
/// protection, rule.
type Alike<'a> = (u64, u64, &'a str, &'a str, Option<&'a str>);

/// The rule's number, and whether it claims the region or explains another one's.
type Said = (usize, bool);

/// A rule, for text and JSON.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct RuleRow {
    pub id: String,
    pub what: String,
    pub why: String,
    pub functions: Vec<String>,
    pub names: Vec<String>,
    pub files: Vec<String>,
    pub explains: Vec<String>,
    pub knobs: Vec<KnobRow>,
    pub source: String,
    /// The program on which it was seen to be true.
    pub proven: Option<String>,
    /// The file that defines it.
    pub file: String,
    pub line: usize,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct KnobRow {
    pub knob: String,
    /// True where the rule says what it leaves.
    pub promises: bool,
    pub note: String,
}

/// What the rules say of a process.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Tested {
    pub pid: i32,
    pub comm: String,
    pub rules: Vec<TestedRule>,
    /// Regions of categories in which a rule could say what they are in particular, and none does.
    pub without: Sum,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct TestedRule {
    pub id: String,
    /// False: it explains what another rule's memory is for.
    pub claims: bool,
    #[serde(flatten)]
    pub sum: Sum,
    /// `0x7f…-0x7f…`, in ascending order.
    pub at: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize)]
pub struct Sum {
    pub regions: u64,
    pub virt: u64,
    pub rss: u64,
}

impl Sum {
    fn add(&mut self, region: &Region) {
        self.regions += 1;
        self.virt = self.virt.saturating_add(region.virt);
        self.rss = self.rss.saturating_add(region.rss);
    }
}

pub fn list(rules: &DataRules) -> Vec<RuleRow> {
    rules.rules().iter().map(row).collect()
}

fn row(rule: &TableRule) -> RuleRow {
    let texts = |patterns: &[_]| patterns.iter().map(ToString::to_string).collect();
    let knob = |knob: &Knob| KnobRow {
        knob: knob.knob.clone(),
        promises: knob.left.is_some() && rule.proven.is_some(),
        note: knob.note.clone(),
    };
    RuleRow {
        id: rule.id.clone(),
        what: rule.what.clone(),
        why: rule.why.clone(),
        functions: texts(&rule.proof.functions),
        names: texts(&rule.proof.names),
        files: texts(&rule.proof.files),
        explains: rule.explains.clone(),
        knobs: rule.knobs.iter().map(knob).collect(),
        source: rule.source.clone(),
        proven: rule.proven.clone(),
        file: rule.file.clone(),
        line: rule.line,
    }
}

/// Which rules say what of a report's regions: as a run with these rules would, but for names that the kernel
/// refused, which no report has: of these only the rules that were there when it was made.
pub fn test(rules: &DataRules, report: &Report) -> Vec<Tested> {
    let stacks: Vec<Vec<Named<'_>>> = report.stacks.iter().map(lines).collect();
    report.processes.iter().map(|process| test_process(rules, process, &stacks)).collect()
}

fn lines(stack: &Stack) -> Vec<Named<'_>> {
    let frames = stack.frames.iter();
    frames.map(|frame| Named { module: &frame.module, names: [frame.symbol.as_deref(), None] }).collect()
}

fn test_process<'a>(rules: &DataRules, process: &'a Process, stacks: &[Vec<Named<'_>>]) -> Tested {
    let code = |region: &&Region| region.prot.contains('x');
    let path = |region: &'a Region| region.path.as_deref().map(base_name);
    let files: HashSet<&str> = process.regions.iter().filter(code).filter_map(path).collect();
    let applicable: Vec<bool> =
        rules.rules().iter().map(|rule| rule.applies(|test| files.iter().any(|file| test(file)))).collect();
    let applies = |rule: usize| applicable.get(rule).copied().unwrap_or_default();
    let mut found: BTreeMap<Said, (Sum, Vec<String>)> = BTreeMap::new();
    let mut without = Sum::default();
    let mut by_call: HashMap<u64, u64> = HashMap::new();
    for region in &process.regions {
        if let Some(origin) = &region.origin {
            *by_call.entry(origin.event).or_default() += region.virt;
        }
    }
    // Tens of thousands of regions have only hundreds of stacks.
    let mut known: HashMap<Alike<'_>, Option<Said>> = HashMap::new();
    for region in &process.regions {
        let stack = region.origin.as_ref().and_then(|origin| origin.stack);
        let lines = stack.and_then(|at| stacks.get(at as usize)).map_or(&[][..], Vec::as_slice);
        let bytes = region.origin.as_ref().and_then(|origin| by_call.get(&origin.event)).copied();
        let bytes = bytes.unwrap_or(region.virt);
        let says = match (&region.path, stack) {
            (None, Some(stack)) => *known
                .entry((stack, bytes, region.category.as_str(), region.prot.as_str(), region.rule.as_deref()))
                .or_insert_with(|| says(rules, region, (lines, bytes), &applies)),
            _ => says(rules, region, (lines, bytes), &applies),
        };
        match says {
            Some(key) => {
                let (sum, at) = found.entry(key).or_default();
                sum.add(region);
                at.push(format!("{}-{}", region.start, region.end));
            }
            None if OPEN.contains(&region.category.as_str()) => without.add(region),
            None => {}
        }
    }
    let tested = found.into_iter().filter_map(|((rule, claims), (sum, at))| {
        Some(TestedRule { id: rules.get(rule)?.id.clone(), claims, sum, at })
    });
    Tested { pid: process.pid, comm: process.comm.clone(), rules: tested.collect(), without }
}

/// A name that the kernel refused is not in the report, but whose it was.
fn refused_name(rules: &DataRules, region: &Region) -> Option<usize> {
    let id = region.rule.as_deref()?;
    rules.rules().iter().position(|rule| rule.id == id && !rule.proof.names.is_empty())
}

fn says(
    rules: &DataRules,
    region: &Region,
    (lines, bytes): (&[Named<'_>], u64),
    applies: &dyn Fn(usize) -> bool,
) -> Option<Said> {
    let caller = lines.iter().find(|line| !line.is_wrapper());
    let mapped = Mapped {
        reserved: region.prot.starts_with("---"),
        shared: region.prot.ends_with('s'),
        huge: region.category == "hugetlb",
        caller: caller.map_or("", |line| line.module),
        bytes,
    };
    let query = Query { mapped, applies };
    let decided = DECIDED.contains(&region.evidence.as_str());
    if OPEN.contains(&region.category.as_str()) || !decided {
        let anon = |path: &str| {
            let inside = path.strip_prefix("[anon:").or_else(|| path.strip_prefix("[anon_shmem:"))?;
            Some(inside.strip_suffix(']')?.to_owned())
        };
        let by_name = |path: &str| match anon(path) {
            Some(name) => rules.by_name(&name, query),
            None => rules.by_file(path, query),
        };
        let by_path = region.path.as_deref().and_then(by_name);
        let by_stack = || (0..lines.len()).find_map(|at| rules.by_line(lines, at, query));
        let claims = by_path.or_else(by_stack).or_else(|| refused_name(rules, region));
        if claims.is_some() {
            return claims.map(|rule| (rule, true));
        }
    }
    rules.explaining(&region.category, lines, applies).map(|rule| (rule, false))
}

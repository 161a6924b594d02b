//! Facts + attribution → [`Report`].

use super::container;
use super::model::{self, Report};
use super::peak;
use super::summary::{self, Seen, Summary};
use super::timeline::Timeline;
use super::verdict::{Counted, judge};
use crate::attribution::role::is_own_generated;
use crate::attribution::{
    Attributed, AuditInput, CategoryRow, Finding, Piece, attribute, attribute_without_findings,
};
use crate::ledger::{Doubt, Origin, OriginId, OriginRecord, Peak};
use crate::model::hash::IntMap;
use crate::model::observation::{ResidencySource, SnapshotMoment};
use crate::model::{
    AddrRange, Completeness, FrameKind, FunctionName, StackId, StackTable, SymbolFrame, SymbolizedStacks, Tid,
};
use crate::touch::{SpaceTouches, Touches};
use std::collections::HashMap;

/// What is true of the whole run.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RunFacts {
    /// `bpf`, `perf`, `notify`, `snapshot`.
    pub backend: String,
    pub events: EventCounts,
    /// Containers that were asked for.
    pub containers: Vec<model::Container>,
}

/// Counted by the event source and the unwinder.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EventCounts {
    pub seen: u64,
    pub lost: u64,
    pub without_stack: u64,
    pub truncated_stacks: u64,
    pub unwind_incomplete: u64,
}

/// What is known of one process beyond ledger and observations.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ProcessFacts {
    pub exit_code: Option<i32>,
    /// The signal that killed it.
    pub signal: Option<i32>,
    /// For a process in a container.
    pub inside: Inside,
    /// Threads ever seen, where that is more than the ledger's records and the living ones.
    pub threads_seen: Option<u64>,
    /// How long it was observed, nanoseconds.
    pub wall_ns: Option<u64>,
    /// It ran already when tracing began.
    pub attached: bool,
    /// Set when the process died without being held and `observations` is the last periodic
    /// snapshot: how long before the death it was taken, nanoseconds.
    pub snapshot_age_ns: Option<u64>,
    /// Nobody looked at it: `observations` are what its calls add up to.
    pub by_calls: bool,
    /// CLOCK_MONOTONIC of the first thing seen: what times in the report count from.
    pub began_ns: u64,
    /// From the ledger; None without one.
    pub peak: Option<Peak>,
    /// Looks at it, where they were asked for.
    pub timeline: Option<Timeline>,
    /// The saved smaps or maps file that `observations` were read from.
    pub source: Option<String>,
}

/// A process as its container sees it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Inside {
    /// The container's name; None outside of containers.
    pub container: Option<String>,
    /// Its number in its own PID namespace.
    pub pid: Option<i32>,
    /// Its share of what is resident: a page that n processes have counts for one n-th.
    pub pss: Option<u64>,
    /// Its threads with names, those of the last snapshot.
    pub threads: Vec<model::NamedThread>,
}

/// One process to report on.
#[derive(Clone, Copy)]
pub struct ProcessAudit<'a> {
    pub input: AuditInput<'a>,
    pub facts: &'a ProcessFacts,
}

/// Attributes every process and puts the report together. The first process is the main one.
/// All inputs have to share one stack table.
pub fn build(run: &RunFacts, processes: &[ProcessAudit<'_>]) -> Report {
    put_together(run, processes, Detail::Regions)
}

/// The same without the regions of the processes and most ranges of their findings: all that the text shows.
pub fn build_for_text(run: &RunFacts, processes: &[ProcessAudit<'_>]) -> Report {
    put_together(run, processes, Detail::Sums)
}

fn put_together(run: &RunFacts, processes: &[ProcessAudit<'_>], detail: Detail) -> Report {
    let mut builder = ReportBuilder { detail, ..ReportBuilder::default() };
    processes.iter().for_each(|audit| builder.add(audit, None));
    let shared = processes.first().map(|p| (p.input.stacks, p.input.symbols));
    builder.finish(run, shared, None)
}

/// Ranges of a finding that the text shows; it counts the others.
pub const RANGES_SHOWN: usize = 3;

/// How much of a process a report holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Detail {
    #[default]
    Regions,
    /// What the text shows: tens of thousands of regions take longer to put into words than all else.
    Sums,
}

/// Classifies every byte of a process, and keeps the sums.
pub fn summarize(audit: &ProcessAudit<'_>, seen: Seen) -> Summary {
    let found = attribute_without_findings(&audit.input);
    let process = process(audit, &found, Detail::Regions, &mut StackNumbers::default());
    Summary::of(process, seen)
}

/// A report that is put together process by process, so that what a process was judged by can go before
/// the next one comes.
#[derive(Default)]
pub struct ReportBuilder {
    detail: Detail,
    stacks: StackNumbers,
    processes: Vec<model::Process>,
}

impl ReportBuilder {
    /// For so many.
    pub fn for_processes(count: usize) -> ReportBuilder {
        ReportBuilder { processes: Vec::with_capacity(count), ..ReportBuilder::default() }
    }

    /// Attributes a process; the first is the main one. With what page faults told of it.
    pub fn add(&mut self, audit: &ProcessAudit<'_>, touch: Option<(&Touches, &SpaceTouches)>) {
        let found = attribute(&audit.input);
        let mut report = process(audit, &found, self.detail, &mut self.stacks);
        if let Some(facts) = touch {
            super::touch::add(&mut report, (audit, &found), facts, &mut self.stacks);
        }
        self.processes.push(report);
    }

    /// A process of which the sums are known.
    pub fn add_summary(&mut self, summary: Summary, facts: &ProcessFacts) {
        let mut process = summary.into_process();
        process.add_facts(facts);
        self.processes.push(process);
    }

    /// `shared`: the table that all stacks were of, and their names.
    pub fn finish(
        self,
        run: &RunFacts,
        shared: Option<(&StackTable, &SymbolizedStacks)>,
        touch: Option<&Touches>,
    ) -> Report {
        let ReportBuilder { stacks, processes, .. } = self;
        Report {
            schema: model::SCHEMA,
            backend: run.backend.clone(),
            events: model::Events {
                seen: run.events.seen,
                lost: run.events.lost,
                without_stack: run.events.without_stack,
                truncated_stacks: run.events.truncated_stacks,
                unwind_incomplete: run.events.unwind_incomplete,
            },
            touch: touch.map(|touches| model::Touch {
                faults: touches.totals.faults,
                sampled: touches.totals.sampled,
                lost: touches.totals.lost,
                unplaced: touches.unplaced(),
            }),
            at_ns: None,
            containers: run.containers.iter().map(|found| container::total(found, &processes)).collect(),
            left_out: summary::left_out(&processes),
            processes,
            stacks: shared.map(|(table, names)| stacks.export(table, names)).unwrap_or_default(),
        }
    }
}

/// Renumbers the stacks that the report refers to, in order of first use.
#[derive(Default)]
pub(super) struct StackNumbers {
    numbers: HashMap<StackId, u64>,
    used: Vec<StackId>,
}

impl StackNumbers {
    pub(super) fn number(&mut self, id: StackId) -> u64 {
        *self.numbers.entry(id).or_insert_with(|| {
            self.used.push(id);
            self.used.len() as u64 - 1
        })
    }

    fn export(&self, table: &StackTable, names: &SymbolizedStacks) -> Vec<model::Stack> {
        self.used.iter().map(|&id| named_stack(id, table, names)).collect()
    }
}

/// A stack with what is known of its frames. One that the table does not have is `incomplete`.
pub fn named_stack(id: StackId, table: &StackTable, names: &SymbolizedStacks) -> model::Stack {
    if id.0 as usize >= table.len() {
        return model::Stack::new(Vec::new(), "incomplete");
    }
    let raw = table.stack(id);
    let named = names.frames(id);
    let frames = if named.is_empty() {
        let unnamed =
            |f| SymbolFrame { frame: f, function: None, bounds: None, location: None, inlined: false };
        raw.frames.iter().map(|&f| frame(&unnamed(f), table)).collect()
    } else {
        named.iter().map(|f| frame(f, table)).collect()
    };
    let completeness = match raw.completeness {
        Completeness::Complete => "complete",
        Completeness::Truncated => "truncated",
        Completeness::Incomplete => "incomplete",
    };
    model::Stack::new(frames, completeness)
}

fn frame(line: &SymbolFrame, table: &StackTable) -> model::Frame {
    let module = line.frame.module.and_then(|m| table.modules().get(m.0 as usize));
    let interpreted = line.frame.kind == FrameKind::Managed;
    let of_program = |function: &FunctionName| !is_own_generated(&function.name);
    let generated =
        module.is_some_and(|m| m.is_generated()) && line.function.as_ref().is_some_and(of_program);
    let unnamed_bounds = line.bounds.filter(|_| line.function.is_none());
    model::Frame {
        module: module.map_or_else(|| "[unknown]".to_string(), |m| m.short_name()),
        build_id: module.and_then(|m| m.build_id.clone()),
        offset: hex(if interpreted {
            line.location.as_ref().map_or(0, |l| l.line.into())
        } else {
            line.frame.address
        }),
        symbol: line.function.as_ref().map(|f| f.name.clone()),
        symbol_offset: line.function.as_ref().map(|f| f.offset),
        role: model::Role::default(),
        file: line.location.as_ref().map(|l| l.file.clone()),
        line: line.location.as_ref().map(|l| l.line),
        inlined: line.inlined,
        function_start: unnamed_bounds.map(|b| hex(b.0)),
        function_offset: unnamed_bounds.map(|b| b.1),
        guess: line.frame.kind == FrameKind::Guess,
        managed: interpreted || generated,
    }
}

/// All that is told of a process but page faults.
fn process(
    audit: &ProcessAudit<'_>,
    found: &Attributed,
    detail: Detail,
    stacks: &mut StackNumbers,
) -> model::Process {
    let ProcessAudit { input, facts } = audit;
    let seen = input.observations;
    let reconciled = input.reconciled;
    let regions = match detail {
        Detail::Regions => regions(input, found, stacks),
        Detail::Sums => Vec::new(),
    };
    let doubt = |p: &Piece| reconciled.regions.get(p.region).and_then(|r| r.doubt);
    let is_doubtful = |p: &&Piece| doubt(p).is_some_and(Doubt::is_of_origin);
    let doubtful = found.pieces.iter().filter(is_doubtful).map(|p| p.footprint.virt).sum();
    let mut process = model::Process {
        pid: seen.pid,
        comm: lossy(&seen.comm),
        exe: lossy(&seen.exe),
        cmdline: seen.cmdline.iter().map(|a| lossy(a)).collect(),
        threads_seen: reconciled.threads.len().max(seen.threads.len()) as u64,
        aslr: seen.aslr,
        totals: model::Totals {
            virt: found.totals.virt,
            rss: found.totals.rss,
            swap: found.totals.swap,
            unused: found.totals.unused(),
            writable: found.totals.writable,
            reserved: found.totals.reserved,
            vm_peak: seen.status.vm_peak,
            purged: found.totals.purged,
            residency_unknown: found.totals.unseen,
        },
        verdict: judge(
            Counted {
                virt: found.totals.virt,
                vm_peak: seen.status.vm_peak,
                rss: found.totals.rss,
                mappings: seen.mappings.len() as u64,
            },
            &seen.limits,
        ),
        surroundings: surroundings(seen),
        coverage: model::Coverage {
            traced: found.coverage.traced,
            preexisting: found.coverage.preexisting,
            kernel: found.coverage.kernel,
            unknown: found.coverage.unknown,
            ledger_drift: reconciled.drift.0,
            doubtful,
        },
        categories: found.rows.iter().map(category).collect(),
        regions,
        findings: {
            let names = ThreadNames::of(input, &found.findings);
            let ranges = if detail == Detail::Regions { usize::MAX } else { RANGES_SHOWN };
            found.findings.iter().map(|f| finding(input, f, (&names, ranges), stacks)).collect()
        },
        peak: facts.peak.as_ref().map(|peak| peak::build(input, found, (peak, facts.began_ns), stacks)),
        events: reconciled.events,
        residency: match seen.residency.source {
            ResidencySource::PagemapScan => "pagemap-scan",
            ResidencySource::Pagemap => "pagemap",
            ResidencySource::SmapsProportion => "smaps-estimate",
            ResidencySource::None => "none",
        }
        .to_string(),
        snapshot: match seen.moment {
            SnapshotMoment::HeldAtExit => "exit",
            SnapshotMoment::Live => "live",
        }
        .to_string(),
        resources: seen.status.resources.map(|used| model::Resources {
            minor_faults: used.minor_faults,
            major_faults: used.major_faults,
            cpu_ns: used.cpu_ns,
            user_ns: used.user_ns,
            system_ns: used.system_ns,
        }),
        gaps: seen.gaps.clone(),
        ..model::Process::default()
    };
    process.add_facts(facts);
    process
}

impl model::Process {
    /// What is known beyond its regions, all but its peak.
    pub(super) fn add_facts(&mut self, facts: &ProcessFacts) {
        self.exit_code = facts.exit_code;
        self.signal = facts.signal;
        self.container = facts.inside.container.clone();
        self.container_pid = facts.inside.pid;
        self.pss = facts.inside.pss;
        self.threads = facts.inside.threads.clone();
        self.threads_seen = self.threads_seen.max(facts.threads_seen.unwrap_or(0));
        self.timeline = facts.timeline.as_ref().map(|t| t.points(facts.began_ns)).unwrap_or_default();
        self.timeline_every = facts.timeline.as_ref().map_or(0, Timeline::every);
        self.zero_ns = facts.began_ns;
        self.wall_ns = facts.wall_ns;
        self.attached = facts.attached;
        self.snapshot_age_ns = facts.snapshot_age_ns;
        self.source = facts.source.clone();
        if self.source.is_some() {
            "file".clone_into(&mut self.snapshot);
        } else if self.snapshot_age_ns.is_some() {
            "periodic".clone_into(&mut self.snapshot);
        } else if facts.by_calls {
            "ledger".clone_into(&mut self.snapshot);
        }
    }
}

fn category(row: &CategoryRow) -> model::CategoryRow {
    model::CategoryRow {
        id: row.category.id.to_string(),
        name: row.category.name.to_string(),
        virt: row.footprint.virt,
        writable: row.footprint.writable,
        rss: row.footprint.rss,
        swap: row.footprint.swap,
        unused: row.footprint.unused(),
        regions: row.instances,
        pieces: row.pieces,
        reserved: row.footprint.reserved,
        purged: row.footprint.purged,
        residency_unknown: row.footprint.unseen,
    }
}

/// maps writes a newline in a name as `\\012`, and a backslash as itself: what is unescaped may be
/// another file's name. True when the kernel would print both alike; then the file's is right.
fn same_escaped(name: &[u8], file: &[u8]) -> bool {
    let escaped = |bytes: &[u8]| -> Vec<u8> {
        bytes.iter().flat_map(|b| if *b == b'\n' { b"\\012".to_vec() } else { vec![*b] }).collect()
    };
    name != file && name.len() <= file.len() && escaped(name) == escaped(file)
}

fn regions(input: &AuditInput<'_>, found: &Attributed, stacks: &mut StackNumbers) -> Vec<model::Region> {
    found.pieces.iter().map(|piece| region(input, piece, stacks)).collect()
}

fn region(input: &AuditInput<'_>, piece: &Piece, stacks: &mut StackNumbers) -> model::Region {
    let source = input.reconciled.regions.get(piece.region);
    let record = source.and_then(|r| match r.origin {
        Origin::Event(OriginId(at)) => input.reconciled.origins.get(at as usize),
        Origin::Preexisting | Origin::Kernel | Origin::Unknown => None,
    });
    let mapping = source.and_then(|r| input.observations.mappings.get(r.vma));
    let name = mapping.map(|m| m.name.as_slice()).filter(|n| !n.is_empty());
    let file = source.and_then(|r| r.file.as_ref()).map(|f| f.path.as_slice()).filter(|p| !p.is_empty());
    model::Region {
        start: hex(piece.range.start.0),
        end: hex(piece.range.end.0),
        prot: source.map(|r| format!("{}{}", r.prot, r.sharing)).unwrap_or_default(),
        category: piece.category.id.to_string(),
        evidence: piece.evidence.as_str().to_string(),
        virt: piece.footprint.virt,
        rss: piece.footprint.rss,
        swap: piece.footprint.swap,
        residency_unknown: piece.footprint.unseen,
        path: match (name, file) {
            (Some(name), Some(file)) if same_escaped(name, file) => Some(lossy(file)),
            (name, file) => name.or(file).map(lossy),
        },
        origin: record.map(|r| origin(input, r, stacks)),
        without_call: record.is_none().then(|| {
            match source.map(|r| r.origin) {
                Some(Origin::Preexisting) => "preexisting",
                Some(Origin::Kernel) => "kernel",
                Some(Origin::Event(_) | Origin::Unknown) | None => "unknown",
            }
            .to_string()
        }),
        part: piece.part.to_string(),
        instance: piece.thing as u64,
        thread: piece.thread,
        rule: piece.label.and_then(|label| Some(input.rules.get(label)?.id.clone())),
        doubt: source.and_then(|r| r.doubt).map(|d| {
            match d {
                Doubt::EventsLost => "events-lost",
                Doubt::StackLost => "stack-lost",
            }
            .to_string()
        }),
    }
}

fn origin(input: &AuditInput<'_>, record: &OriginRecord, stacks: &mut StackNumbers) -> model::Origin {
    model::Origin {
        event: record.event.0,
        op: record.op.name().to_string(),
        tid: record.task.tid,
        comm: lossy(&record.task.comm),
        time_ns: record.time_ns,
        stack: record.stack.ok().map(|id| stacks.number(id)),
        inherited_from: Some(record.task.pid).filter(|&pid| pid != input.observations.pid),
    }
}

/// What the threads of findings are called.
struct ThreadNames<'a>(IntMap<Tid, &'a [u8]>);

impl<'a> ThreadNames<'a> {
    /// As they were traced, else as they are now, else as when they mapped something.
    fn of(input: &AuditInput<'a>, findings: &[Finding]) -> ThreadNames<'a> {
        let mut names = IntMap::default();
        if findings.iter().any(|finding| !finding.threads.is_empty()) {
            let traced = input.reconciled.threads.iter().map(|t| (t.tid, t.comm.as_slice()));
            let live = input.observations.threads.iter().map(|t| (t.tid, t.comm.as_slice()));
            let makers = input.reconciled.origins.iter().map(|r| (r.task.tid, r.task.comm.as_slice()));
            for (tid, name) in traced.chain(live).chain(makers) {
                names.entry(tid).or_insert(name);
            }
        }
        ThreadNames(names)
    }

    fn name(&self, tid: Tid) -> String {
        self.0.get(&tid).copied().map(lossy).unwrap_or_default()
    }
}

fn finding(
    input: &AuditInput<'_>,
    f: &Finding,
    (names, ranges): (&ThreadNames<'_>, usize),
    stacks: &mut StackNumbers,
) -> model::Finding {
    let shown = f.ranges.split_at(f.ranges.len().min(ranges)).0;
    let part = |(name, footprint): &(&'static str, crate::attribution::Footprint)| model::Part {
        name: (*name).to_string(),
        virt: footprint.virt,
        rss: footprint.rss,
        unused: footprint.unused(),
    };
    let fix = |fix: &crate::attribution::Fix| model::Fix {
        knob: fix.knob.clone(),
        saves_virt: fix.saves_virt,
        saves_rss: fix.saves_rss,
        note: fix.note.clone(),
    };
    let no_help = |n: &crate::attribution::NoHelp| model::NoHelp { knob: n.knob.clone(), why: n.why.clone() };
    model::Finding {
        category: f.category.id.to_string(),
        virt: f.footprint.virt,
        rss: f.footprint.rss,
        unused: f.footprint.unused(),
        residency_unknown: f.footprint.unseen,
        regions: f.instances,
        stack: f.stack.map(|id| stacks.number(id)),
        caller: f.stack.and(f.caller).map(|line| line as u64),
        title: f.title.clone(),
        why: f.why.clone(),
        fix: f.fix.iter().map(fix).collect(),
        no_help: f.no_help.iter().map(no_help).collect(),
        ranges: shown.iter().map(range).collect(),
        more_ranges: (f.ranges.len() - shown.len()) as u64,
        threads: f.threads.iter().map(|&tid| model::Thread { tid, comm: names.name(tid) }).collect(),
        preexisting: preexisting(input, &f.ranges),
        parts: f.by_part.iter().map(part).collect(),
        story: f.story.clone(),
        inherited_from: f.inherited_from,
        doubtful: f.doubtful,
        touched_by: Vec::new(),
        rule: f.rule.clone(),
    }
}

/// Bytes of `ranges` that were mapped before tracing began.
fn preexisting(input: &AuditInput<'_>, ranges: &[AddrRange]) -> u64 {
    let Some(first) = ranges.first() else { return 0 };
    let regions = &input.reconciled.regions;
    let mut at = regions.partition_point(|region| region.range.end <= first.start);
    let mut sum = 0;
    for range in ranges {
        while let Some(region) = regions.get(at).filter(|region| region.range.start < range.end) {
            if region.origin == Origin::Preexisting && region.range.overlaps(*range) {
                sum += region.range.intersect(*range).len();
            }
            if region.range.end > range.end {
                break;
            }
            at += 1;
        }
    }
    sum
}

fn range(range: &AddrRange) -> model::Range {
    model::Range { start: hex(range.start.0), end: hex(range.end.0) }
}

fn hex(n: u64) -> String {
    // By hand: a report of tens of thousands of regions has four times as many addresses.
    let digits = (u64::BITS - n.leading_zeros()).div_ceil(4).max(1);
    let mut out = String::with_capacity(2 + digits as usize);
    out.push_str("0x");
    out.extend((0..digits).rev().filter_map(|at| char::from_digit((n >> (4 * at)) as u32 & 0xf, 16)));
    out
}

/// Any bytes as text; what is not UTF-8 becomes U+FFFD.
fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn surroundings(seen: &crate::model::Observations) -> Option<model::Surroundings> {
    let around = seen.limits;
    let libc = seen.code.files.iter().find_map(|found| {
        let (major, minor) = found.version?;
        Some(format!("{} {major}.{minor}", found.marks.first()?))
    });
    around.known.then(|| model::Surroundings {
        libc,
        variables: seen.code.variables.clone(),
        stack_limit: seen.stack_limit,
        address_space_limit: around.address_space,
        data_limit: around.data,
        cgroup_limit: around.cgroup.map(|room| room.limit),
        memory: around.memory,
        processors: around.cpus,
        cpu_quota: around.cpu_quota,
    })
}

#[cfg(test)]
mod tests {
    use super::hex;

    #[test]
    fn addresses_are_written_as_ever() {
        let numbers = (0..64).flat_map(|bit| [1 << bit, (1 << bit) - 1, 0x7f12_3456_789a >> bit]);
        for n in numbers.chain([0, u64::MAX]) {
            assert_eq!(hex(n), format!("{n:#x}"));
        }
    }
}

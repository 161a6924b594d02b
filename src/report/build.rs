//! Facts + attribution → [`Report`].

use super::container;
use super::facts::{ProcessFacts, RunFacts};
use super::findings::{ThreadNames, finding};
use super::model::{self, Report};
use super::peak;
use super::stacks::StackNumbers;
use super::summary::{self, Seen, Summary};
use super::text::{hex, lossy};
use super::timeline::Timeline;
use super::verdict::{Counted, judge};
use crate::attribution::{Attributed, AuditInput, CategoryRow, Piece, attribute, attribute_without_findings};
use crate::ledger::{Doubt, Origin, OriginId, OriginRecord};
use crate::model::observation::{ResidencySource, SnapshotMoment};
use crate::model::{StackTable, SymbolizedStacks};
use crate::touch::{SpaceTouches, Touches};

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

    /// Attributes a process; the first is the main one. With its page faults.
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

/// All of a process but page faults.
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
    process.threads_alive = threads_alive(&process, seen.threads.len() as u64);
    process
}

/// Of a process that still runs, where some of its threads have ended.
fn threads_alive(process: &model::Process, seen: u64) -> Option<u64> {
    let ended = process.exit_code.is_some() || process.signal.is_some();
    let is_now = process.source.is_none() && process.snapshot_age_ns.is_none();
    (!ended && is_now && seen > 0 && seen < process.threads_seen).then_some(seen)
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

fn surroundings(seen: &crate::model::Observations) -> Option<model::Surroundings> {
    let limits = seen.limits;
    let libc = seen.code.files.iter().find_map(|found| {
        let (major, minor) = found.version?;
        Some(format!("{} {major}.{minor}", found.marks.first()?))
    });
    limits.known.then(|| model::Surroundings {
        libc,
        variables: seen.code.variables.clone(),
        stack_limit: seen.stack_limit,
        address_space_limit: limits.address_space,
        data_limit: limits.data,
        cgroup_limit: limits.cgroup.map(|cgroup| cgroup.limit),
        memory: limits.memory,
        processors: limits.cpus,
        cpu_quota: limits.cpu_quota,
    })
}

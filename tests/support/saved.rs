//! Saved smaps files of real programs (tests/fixtures/captures) as reports.

use std::path::Path;
use vmaudit::attribution::{AuditInput, DataRules};
use vmaudit::ledger::AddressSpaces;
use vmaudit::model::observation::{Residency, ResidencySource, SnapshotMoment, StatusFigures};
use vmaudit::model::{Limits, Observations, StackTable, SymbolizedStacks};
use vmaudit::procfs::parse_saved;
use vmaudit::report::{ProcessAudit, ProcessFacts, Report, RunFacts, build};

/// A saved smaps file as a report.
pub fn capture(path: &Path, comm: &str, run: &RunFacts) -> Report {
    let text = std::fs::read(path).expect("fixture");
    let saved = parse_saved(text.as_slice()).expect("a sound file");
    let seen = Observations {
        pid: 0,
        moment: SnapshotMoment::Live,
        begun_ns: 0,
        ended_ns: 0,
        mappings: saved.mappings,
        residency: Residency {
            source: ResidencySource::SmapsProportion,
            resident: Vec::new(),
            swapped: Vec::new(),
            per_vma: saved.figures.expect("smaps"),
        },
        details: vmaudit::model::VmaDetails { vmas: saved.details, guards: Vec::new() },
        threads: Vec::new(),
        thread_blocks: Default::default(),
        heap_infos: Vec::new(),
        status: StatusFigures::default(),
        comm: comm.as_bytes().to_vec(),
        exe: Vec::new(),
        cmdline: Vec::new(),
        stack_limit: None,
        limits: Limits::default(),
        code: vmaudit::model::CodeMarks::default(),
        blocks: Vec::new(),
        aslr: true,
        gaps: Vec::new(),
    };
    let reconciled = AddressSpaces::new().reconcile(0, &seen);
    let (stacks, symbols) = (StackTable::default(), SymbolizedStacks::default());
    let input = AuditInput {
        reconciled: &reconciled,
        observations: &seen,
        stacks: &stacks,
        symbols: &symbols,
        rules: DataRules::built_in(),
    };
    let facts = ProcessFacts::default();
    build(run, &[ProcessAudit { input, facts: &facts }])
}

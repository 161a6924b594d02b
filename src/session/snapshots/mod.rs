//! Processes as they are now, and saved smaps files: nothing of them was traced.

pub mod cgroup_limits;
pub mod living;
pub mod saved;

use super::say::say;
use crate::attribution::{AuditInput, DataRules};
use crate::ledger::AddressSpaces;
use crate::model::{Observations, Pid, StackTable, SymbolizedStacks};
use crate::procfs::SavedError;
use crate::report::{ProcessAudit, ProcessFacts, Report, RunFacts, build, build_for_text, model};
use living::{Living, LivingError};
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::time::Instant;

#[derive(thiserror::Error, Debug)]
pub enum SnapshotError {
    #[error("{0}")]
    Process(#[from] LivingError),
    #[error("{}: {source}", path.display())]
    Open { path: PathBuf, source: io::Error },
    #[error("{}: {source}", path.display())]
    Saved { path: PathBuf, source: SavedError },
}

/// One snapshot, and its circumstances.
pub struct ProcessSnapshot {
    pub seen: Observations,
    pub facts: ProcessFacts,
}

/// All that can be read; the first that cannot is the error only if none can.
pub fn snapshots_of(numbers: &[Pid], verbose: bool) -> Result<Vec<ProcessSnapshot>, SnapshotError> {
    let mut snapshots = Vec::new();
    let mut errors = Vec::new();
    for living in Living::open_each(numbers) {
        let begun = Instant::now();
        match living.and_then(|living| living.observe()) {
            Ok(seen) => {
                if verbose {
                    let (count, took) = (seen.mappings.len(), begun.elapsed());
                    say(format_args!("{}: {count} mappings read in {took:.1?}", seen.pid));
                }
                snapshots.push(ProcessSnapshot { seen, facts: ProcessFacts::default() });
            }
            Err(error) => errors.push(error),
        }
    }
    if snapshots.is_empty()
        && let Some(first) = errors.pop()
    {
        errors.iter().for_each(say);
        return Err(first.into());
    }
    errors.iter().for_each(say);
    Ok(snapshots)
}

/// A saved smaps or maps file; `-` is standard input.
pub fn saved_snapshot(path: &Path) -> Result<ProcessSnapshot, SnapshotError> {
    if path == Path::new("-") {
        return saved_snapshot_in("standard input", io::stdin().lock());
    }
    let file = File::open(path).map_err(|source| SnapshotError::Open { path: path.to_owned(), source })?;
    saved_snapshot_in(&path.to_string_lossy(), BufReader::with_capacity(64 << 10, file))
}

/// The text of a saved smaps or maps file that is called `name`.
pub fn saved_snapshot_in(name: &str, text: impl BufRead) -> Result<ProcessSnapshot, SnapshotError> {
    let seen = saved::observations(text)
        .map_err(|source| SnapshotError::Saved { path: PathBuf::from(name), source })?;
    Ok(ProcessSnapshot {
        seen,
        facts: ProcessFacts { source: Some(name.to_owned()), ..ProcessFacts::default() },
    })
}

/// What can be said of processes of which no call was seen.
pub fn report_of(snapshots: &[ProcessSnapshot], rules: &DataRules) -> Report {
    report_by(build, snapshots, (Vec::new(), rules))
}

pub fn report_of_containers(
    snapshots: &[ProcessSnapshot],
    known: (Vec<model::Container>, &DataRules),
) -> Report {
    report_by(build, snapshots, known)
}

/// The same without the regions of the processes: all that the text shows.
pub fn text_report_of_containers(
    snapshots: &[ProcessSnapshot],
    known: (Vec<model::Container>, &DataRules),
) -> Report {
    report_by(build_for_text, snapshots, known)
}

fn report_by(
    build: fn(&RunFacts, &[ProcessAudit<'_>]) -> Report,
    snapshots: &[ProcessSnapshot],
    (containers, rules): (Vec<model::Container>, &DataRules),
) -> Report {
    let (nothing, stacks, symbols) =
        (AddressSpaces::new(), StackTable::default(), SymbolizedStacks::default());
    let reconciled: Vec<_> =
        snapshots.iter().map(|snapshot| nothing.reconcile(snapshot.seen.pid, &snapshot.seen)).collect();
    let audits: Vec<ProcessAudit<'_>> = snapshots
        .iter()
        .zip(&reconciled)
        .map(|(snapshot, reconciled)| ProcessAudit {
            input: AuditInput {
                reconciled,
                observations: &snapshot.seen,
                stacks: &stacks,
                symbols: &symbols,
                rules,
            },
            facts: &snapshot.facts,
        })
        .collect();
    let run = RunFacts { backend: "snapshot".to_owned(), containers, ..RunFacts::default() };
    build(&run, &audits)
}

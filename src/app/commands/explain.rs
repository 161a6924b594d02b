//! `vmaudit explain`: the life of an address, from a recording, or what it is in a living process.

use crate::app::error::AppError;
use crate::app::output;
use crate::app::recorded::report_of;
use crate::app::recorded_names::RecordedNames;
use crate::app::rule_files::rules;
use crate::cli::{ExplainArgs, PlainFormat};
use crate::ledger::{Life, LifeWatch};
use crate::model::{Addr, Observations, Pid, StackTable, Step, SymbolizedStacks};
use crate::render::{explanation_to_text, to_json};
use crate::report::ProcessFacts;
use crate::report::explanation::{ExplainInput, Explanation, explain as explanation_of};
use crate::session::snapshots::living::Living;
use crate::session::snapshots::{self, ProcessSnapshot, SnapshotError};
use crate::store::Recording;
use std::collections::HashMap;
use std::io;
use std::ops::ControlFlow;
use std::path::Path;

/// The address was never mapped.
const NEVER_MAPPED: u8 = 1;

pub fn explain(args: &ExplainArgs) -> Result<u8, AppError> {
    let (recording, address) = args.source().map_err(AppError::Usage)?;
    let explanation = match (&recording, args.pid) {
        (Some(recording), pid) => recorded(recording, pid, Addr(address))?,
        (None, Some(pid)) => living(pid, Addr(address))?,
        (None, None) => return Err(AppError::Usage("a recording or -p PID is missing".to_owned())),
    };
    let rendered = match args.format {
        PlainFormat::Json => to_json(&explanation)?,
        _ => explanation_to_text(&explanation, !args.no_stacks, output::color(&io::stdout())),
    };
    output::print(rendered.as_bytes())?;
    Ok(if explanation.is_empty() { NEVER_MAPPED } else { 0 })
}

/// The life by the steps of the recording, the end by its report and its newest snapshot.
fn recorded(path: &Path, pid: Option<Pid>, address: Addr) -> Result<Explanation, AppError> {
    let recording = Recording::open(path)?;
    recording.has_steps()?;
    let names = RecordedNames::of(&recording)?;
    let main = recording.meta().main;
    let mut watch = LifeWatch::new(address);
    let mut snapshots: HashMap<Pid, Observations> = HashMap::new();
    recording.steps(&mut |step| {
        watch.step(step);
        if let Step::Snapshot(seen) = step {
            snapshots.insert(seen.pid, (**seen).clone());
        }
        ControlFlow::Continue(())
    })?;
    let report = report_of(recording, false)?;
    let pids = watch.pids();
    let pid = match pid {
        Some(pid) if watch.spaces().process(pid).is_none() => {
            return Err(AppError::Usage(unknown_process(pid, &watch)));
        }
        Some(pid) => pid,
        // It may have been a shell that started the program in question.
        None => pids.iter().copied().find(|&pid| pid == main).or(pids.first().copied()).unwrap_or(main),
    };
    let nothing = Life::default();
    let life = watch.life(pid).unwrap_or(nothing);
    let steps = life.entries.iter().flat_map(|entry| &entry.steps);
    let ids = steps.filter_map(|step| step.event.as_ref()?.stack.ok()).collect();
    let index = report.processes.iter().position(|process| process.pid == pid);
    let comm = watch.spaces().process(pid).map(|process| process.comm.clone()).unwrap_or_default();
    Ok(explanation_of(&ExplainInput {
        address,
        pid,
        comm: &comm,
        life: Some(&life),
        began_ns: watch.spaces().began_ns(),
        report: index.map(|index| (&report, index)),
        observations: snapshots.get(&pid),
        stacks: &names.stacks,
        names: &names.symbolized(ids),
        other_pids: pids.into_iter().filter(|&other| other != pid).collect(),
    }))
}

fn unknown_process(pid: Pid, watch: &LifeWatch) -> String {
    let known: Vec<String> =
        watch.spaces().processes().iter().take(20).map(|process| process.pid.to_string()).collect();
    format!("process {pid} is not in the recording, which has {}", known.join(", "))
}

/// One snapshot, no tracing: what is there now, and nothing of the past.
fn living(pid: Pid, address: Addr) -> Result<Explanation, AppError> {
    let living = Living::open(pid).map_err(SnapshotError::from)?;
    living.say_of_thread();
    let seen = living.observe().map_err(SnapshotError::from)?;
    let snapshots = [ProcessSnapshot { seen, facts: ProcessFacts::default() }];
    let report = snapshots::report_of(&snapshots, rules());
    let [ProcessSnapshot { seen, .. }] = &snapshots;
    for gap in &seen.gaps {
        crate::session::say::say(gap);
    }
    Ok(explanation_of(&ExplainInput {
        address,
        pid: seen.pid,
        comm: &seen.comm,
        life: None,
        began_ns: seen.begun_ns,
        report: Some((&report, 0)),
        observations: Some(seen),
        stacks: &StackTable::default(),
        names: &SymbolizedStacks::default(),
        other_pids: Vec::new(),
    }))
}

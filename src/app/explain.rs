//! `vmaudit explain`: the life of an address, from a recording, or what it is in a living process.

use super::error::AppError;
use super::living::Living;
use super::output;
use super::snapshot::{Look, SnapshotError, report_of};
use crate::cli::{ExplainArgs, Format};
use crate::model::{Addr, Pid, StackTable, SymbolizedStacks};
use crate::render::{explanation_to_json, explanation_to_text};
use crate::report::ProcessFacts;
use crate::report::explanation::{ExplainInput, Explanation, explain as explanation_of};
use std::io;
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
        Format::Json => explanation_to_json(&explanation)?,
        _ => explanation_to_text(&explanation, !args.no_stacks, output::color(&io::stdout())),
    };
    output::print(rendered.as_bytes())?;
    Ok(if explanation.is_empty() { NEVER_MAPPED } else { 0 })
}

fn recorded(_recording: &Path, _pid: Option<Pid>, _address: Addr) -> Result<Explanation, AppError> {
    Err(AppError::Usage("recordings cannot be read yet".to_owned()))
}

/// One look, no tracing: what is there now, and nothing of the past.
fn living(pid: Pid, address: Addr) -> Result<Explanation, AppError> {
    let living = Living::open(pid).map_err(SnapshotError::from)?;
    if let Some(tid) = living.asked_for {
        super::say(format_args!("{tid} is a thread of process {}: its memory is that process'", living.pid));
    }
    let seen = living.observe().map_err(SnapshotError::from)?;
    let looks = [Look { seen, facts: ProcessFacts::default() }];
    let report = report_of(&looks);
    let [Look { seen, .. }] = &looks;
    for gap in &seen.gaps {
        super::say(gap);
    }
    Ok(explanation_of(&ExplainInput {
        address,
        pid: seen.pid,
        comm: &seen.comm,
        life: None,
        first_ns: seen.begun_ns,
        report: Some((&report, 0)),
        observations: Some(seen),
        stacks: &StackTable::default(),
        names: &SymbolizedStacks::default(),
        other_pids: Vec::new(),
    }))
}

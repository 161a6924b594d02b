//! `vmaudit explain`: the life of an address, from a recording, or what it is in a living process.

use super::error::AppError;
use super::output;
use crate::attribution::AuditInput;
use crate::cli::{ExplainArgs, Format};
use crate::ledger::AddressSpaces;
use crate::model::observation::ResidencySource;
use crate::model::{Addr, MmKey, Pid, StackTable, SymbolizedStacks};
use crate::procfs::{ObserveOptions, observe};
use crate::render::{explanation_to_json, explanation_to_text};
use crate::report::explanation::{ExplainInput, Explanation, explain as explanation_of};
use crate::report::{ProcessAudit, ProcessFacts, RunFacts, build};
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
    let options =
        ObserveOptions { residency_from: ResidencySource::PagemapScan, ..ObserveOptions::default() };
    let seen = observe(pid, pid, options).map_err(|error| AppError::Look(error.to_string()))?;
    let mut spaces = AddressSpaces::new();
    spaces.start_observed(MmKey(1), &seen);
    let reconciled = spaces.reconcile(pid, &seen);
    let (stacks, names) = (StackTable::default(), SymbolizedStacks::default());
    let input = AuditInput { reconciled: &reconciled, observations: &seen, stacks: &stacks, symbols: &names };
    let run = RunFacts { backend: "snapshot".to_owned(), ..RunFacts::default() };
    let report = build(&run, &[ProcessAudit { input, facts: &ProcessFacts::default() }]);
    for gap in &seen.gaps {
        super::say(gap);
    }
    Ok(explanation_of(&ExplainInput {
        address,
        pid,
        comm: &seen.comm,
        life: None,
        first_ns: seen.begun_ns,
        report: Some((&report, 0)),
        observations: Some(&seen),
        stacks: &stacks,
        names: &names,
        other_pids: Vec::new(),
    }))
}

//! A snapshot of a process without tracing it, and the category that most of its address space is in.

use crate::app::rule_files::rules;
use crate::model::Pid;
use crate::model::observation::ResidencySource;
use crate::procfs::{ObserveOptions, read_brief};
use crate::report::{ProcessFacts, Report};
use crate::session::snapshots::living::{Living, LivingError, for_rules};
use crate::session::snapshots::{ProcessSnapshot, report_of};
use crate::top::{Known, ProcessId};

/// As `vmaudit snapshot -p PID` has it.
///
/// # Errors
/// In words: when it is gone, or may not be read.
pub fn snapshot(id: ProcessId) -> Result<Report, String> {
    let living = open(id).map_err(|error| error.to_string())?;
    let seen = living.observe().map_err(|error| error.to_string())?;
    Ok(report_of(&[ProcessSnapshot { seen, facts: ProcessFacts::default() }], rules()))
}

/// The category with most VIRT: what is resident need not be known for that.
pub fn mostly(id: ProcessId) -> Known {
    let options = ObserveOptions { residency_from: ResidencySource::None, ..for_rules() };
    let seen = match open(id).and_then(|living| living.observe_with(options)) {
        Ok(seen) => seen,
        Err(LivingError::Forbidden { .. }) => return Known::Forbidden,
        Err(_) => return Known::Failed,
    };
    let report = report_of(&[ProcessSnapshot { seen, facts: ProcessFacts::default() }], rules());
    let rows = report.processes.first().map(|process| process.categories.as_slice()).unwrap_or_default();
    match rows.iter().max_by_key(|row| row.virt) {
        Some(row) => Known::Category(row.name.clone()),
        None => Known::Failed,
    }
}

/// The number alone may have a new owner.
fn open(id: ProcessId) -> Result<Living, LivingError> {
    let living = Living::open(id.pid)?;
    match is_it(id) {
        true => Ok(living),
        false => Err(LivingError::Gone(id.pid)),
    }
}

fn is_it(id: ProcessId) -> bool {
    read_brief(id.pid as Pid).is_ok_and(|brief| brief.start_ticks == id.start_ticks)
}

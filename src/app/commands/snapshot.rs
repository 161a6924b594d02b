//! `vmaudit snapshot`: processes as they are now, or as a saved smaps file shows one.

use crate::app::error::AppError;
use crate::app::output::{Destination, Other, Output, OutputSpec};
use crate::app::rule_files::rules;
use crate::cli::{Format, SnapshotArgs};
use crate::launch::Process;
use crate::report::model;
use crate::session::snapshots::{
    ProcessSnapshot, report_of_containers, saved_snapshot, snapshots_of, text_report_of_containers,
};
use crate::session::targets::contained;
use crate::session::targets::container_view::ContainerView;
use crate::session::targets::named_container;

/// Does `vmaudit snapshot`; returns the exit code.
pub fn snapshot(args: &SnapshotArgs) -> Result<u8, AppError> {
    let others: Vec<Other<'_>> =
        args.smaps.iter().map(|path| Other { path, what: "the saved file that is read" }).collect();
    let output = Output::open(args.to.report.as_deref(), &others)?;
    let spec = OutputSpec::new(args.to.format, args.flame, Destination { output, top: args.top })?;
    let (snapshots, containers) = match &args.smaps {
        Some(path) => (vec![saved_snapshot(path)?], Vec::new()),
        None => living_snapshots(args)?,
    };
    let report = match spec.format {
        Format::Text => text_report_of_containers(&snapshots, (containers, rules())),
        _ => report_of_containers(&snapshots, (containers, rules())),
    };
    spec.write(&report)?;
    // The command is at its end: the kernel gives back all of it at once, tens of thousands of mappings one by
    // one take longer.
    std::mem::forget((snapshots, report));
    Ok(0)
}

/// All that can be read; the first that cannot is the error only if none can.
fn living_snapshots(args: &SnapshotArgs) -> Result<(Vec<ProcessSnapshot>, Vec<model::Container>), AppError> {
    let container = named_container(args.of.named())?;
    let targets = match &container {
        Some(container) => contained::members(container)?.iter().map(Process::pid).collect(),
        None => args.of.pids.clone(),
    };
    let mut view = container.map(ContainerView::of).unwrap_or_default();
    let mut snapshots = snapshots_of(&targets, args.verbose)?;
    snapshots.iter().for_each(|snapshot| view.note(&snapshot.seen));
    view.read_shares();
    for snapshot in &mut snapshots {
        snapshot.facts.inside = view.inside(snapshot.seen.pid, |_| None);
    }
    Ok((snapshots, view.facts()))
}

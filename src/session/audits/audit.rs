//! What is known of one process, and where that is from.

use super::at_end::at_end;
use crate::ledger::{AddressSpaces, Ledger, Origin, Peak, Reconciled};
use crate::model::observation::{ResidencySource, SnapshotMoment};
use crate::model::{Bytes, Observations, Pid, StackId};
use crate::report::{MAX_GONE, Seen};
use crate::session::from_ledger::{AsOf, from_ledger};
use crate::session::pipeline::Pipeline;

/// One process's newest snapshot, already joined with the ledger as it was at that moment.
pub(super) struct Audit {
    pub(super) observations: Observations,
    pub(super) reconciled: Reconciled,
    /// Taken at its end, because the ledger does not keep what is gone for ever.
    pub(super) peak: Option<Peak>,
    pub(super) basis: Basis,
}

/// Said of a process whose last calls are not known.
const OLD_MAPPINGS: &str = "calls before its end were lost: what was mapped is of the last snapshot, too";

/// What an audit of a process rests on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Basis {
    Snapshot,
    /// Its calls until its end, after a last snapshot.
    End,
    /// Its calls alone.
    Calls,
}

impl Audit {
    pub(super) fn of(observations: Observations, reconciled: Reconciled) -> Audit {
        Audit { observations, reconciled, peak: None, basis: Basis::Snapshot }
    }

    pub(super) fn seen(&self) -> Seen {
        let held = self.observations.moment == SnapshotMoment::HeldAtExit;
        let knows_residency = self.observations.residency.source != ResidencySource::None;
        let by_calls = self.basis == Basis::Calls || self.basis == Basis::End && !knows_residency;
        Seen { at_ns: self.observations.at_ns(), held, knows_residency, by_calls }
    }

    /// No later state of the same program can come.
    pub(super) fn is_final(&self) -> bool {
        self.basis == Basis::End || self.observations.moment == SnapshotMoment::HeldAtExit
    }

    /// Of a process that has ended: as its calls have left it.
    pub(super) fn at_end(self, spaces: &AddressSpaces) -> Audit {
        match at_end(spaces, &self.observations) {
            Some((observations, reconciled)) => Audit { observations, reconciled, basis: Basis::End, ..self },
            None => {
                let mut observations = self.observations;
                observations.gaps.push(OLD_MAPPINGS.to_owned());
                Audit { observations, ..self }
            }
        }
    }
}

/// The stacks that still own a byte.
pub(super) fn owners(reconciled: &Reconciled) -> impl Iterator<Item = StackId> + '_ {
    let owners = reconciled.regions.iter().filter_map(|region| match region.origin {
        Origin::Event(id) => reconciled.origins.get(id.0 as usize),
        _ => None,
    });
    owners.filter_map(|origin| origin.stack.ok())
}

/// The most that the process had mapped at once; None where no call of it was seen.
pub(super) fn peak_of(spaces: &AddressSpaces, pid: Pid) -> Option<Peak> {
    spaces.ledger_of_pid(pid).map(Ledger::peak)
}

/// Of those that are in the report or have to be classified by name.
pub(super) fn stacks_of_peak(peak: &Peak) -> impl Iterator<Item = StackId> + '_ {
    peak.shares.iter().take(MAX_GONE).filter_map(|share| share.stack)
}

/// A process without a snapshot, as the ledger has it.
pub(super) fn unseen(pid: Pid, pipeline: &Pipeline, as_of: Option<&AsOf>) -> Option<Audit> {
    let observations = from_ledger(pipeline, pid, as_of)?;
    let mut reconciled = pipeline.spaces.reconcile(pid, &observations);
    // both sides are the ledger: without the kernel's maps nothing can disagree
    reconciled.drift = Bytes(0);
    Some(Audit { basis: Basis::Calls, ..Audit::of(observations, reconciled) })
}

/// What was seen is of the program that the process executes now, or has ended with, and no other process has its
/// number.
pub(super) fn is_of_now(pid: Pid, audit: &Audit, spaces: &AddressSpaces) -> bool {
    !spaces.replaced_since(pid, audit.observations.begun_ns)
}

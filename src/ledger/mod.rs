//! The owner of each byte of an address space, kept up to date event by event. Pure.
//!
//! [`AddressSpaces::apply`] takes every event in the order of the reports; each address space has
//! a [`Ledger`]; [`AddressSpaces::reconcile`] joins it with a snapshot of `/proc/PID/maps`.

mod life;
mod names;
pub mod region;
mod space;
mod spaces;
mod threads;
mod vma_names;

pub use life::{Change, Life, LifeEntry, LifeStep, LifeWatch};
pub use region::{Doubt, Origin, OriginId, OriginRecord, Region, RegionKind};
pub use space::alive::{GoneCall, Peak, PeakShare};
pub use space::holder::{HeldBy, Holder};
pub use space::reconcile::Reconciled;
pub use space::{Ledger, LedgerPiece};
pub use spaces::process::ProcessRecord;
pub use spaces::{AddressSpaces, SpaceId};
pub use threads::ThreadRecord;
pub use vma_names::VmaNames;

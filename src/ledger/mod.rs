//! Who owns each byte of an address space, kept up to date event by event. Pure.
//!
//! [`AddressSpaces::apply`] takes every event in the order of the reports; each address space has
//! a [`Ledger`]; [`AddressSpaces::reconcile`] joins it with a look at `/proc/PID/maps`.

mod alive;
mod copy;
mod fork;
mod found;
mod holder;
mod life;
mod looks;
mod names;
mod peak;
mod process;
mod reconcile;
pub mod region;
mod resync;
mod space;
mod spaces;

pub use alive::{Alive, GoneCall, Peak, PeakShare};
pub use holder::{HeldBy, Holder};
pub use life::{Change, Life, LifeEntry, LifeStep, LifeWatch};
pub use process::ProcessRecord;
pub use region::{Doubt, Origin, OriginId, OriginRecord, Reconciled, Region, RegionKind, ThreadRecord};
pub use space::{Ledger, LedgerPiece};
pub use spaces::{AddressSpaces, SpaceId};

//! Who owns each byte of an address space, kept up to date event by event. Pure.

pub mod region;

pub use region::{Doubt, Origin, OriginId, OriginRecord, Reconciled, Region, RegionKind, ThreadRecord};

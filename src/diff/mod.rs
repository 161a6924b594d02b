//! Two reports compared: what is new, gone, grown, shrunk, and which stack caused it. Pure.
//!
//! ```text
//! report ──Side──► items (regions with their figures) ──keys──► changes ──► Diff
//! ```
//!
//! Everything is added up from the reports' regions, which [`Side::new`] has proven to be sorted,
//! disjoint and equal in sum to the totals. So the changes add up to the difference of the totals,
//! byte for byte, whatever they are grouped by.

mod address;
mod cause;
mod changes;
mod compare;
pub mod heap;
mod identity;
pub mod model;
mod notes;
mod reasons;
mod select;
mod side;

pub use compare::{Options, compare};
pub use heap::{HeapDiff, HeapSide, HeapSideError, compare_heaps};
pub use model::{By, Diff};
pub use select::{Pick, SelectError};
pub use side::{Side, SideError, Unsound};

//! Two reports of heaps side by side, stack by stack: outstanding, allocated, at the peak.

mod compare;
pub mod model;
mod notes;
mod side;

pub use compare::compare_heaps;
pub use model::HeapDiff;
pub use side::{HeapSide, HeapSideError, HeapUnsound};

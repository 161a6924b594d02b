//! What an allocator hands out, and to which stacks (docs/heap.md).
//!
//! [`describe`] says which functions of a program allocate and free, [`ledger`] keeps what is
//! outstanding, [`picture`] is that by stack at one moment, [`fragmentation`] what the allocator does with its
//! memory, [`report`] the versioned report. Pure.

pub mod by;
pub mod describe;
pub mod extents;
pub mod fragmentation;
pub mod ledger;
pub mod mappings;
pub mod picture;
pub mod report;
pub mod runtime;
pub mod sampling;
pub mod segments;
pub mod silence;
pub mod sums;

pub use by::HeapBy;
pub use describe::{Description, FunctionDescription, FunctionKind};
pub use ledger::{HeapLedger, Heaps, LedgerOptions};
pub use picture::{Filter, Picture};
pub use report::HeapReport;
pub use sampling::Sampling;

//! The engine that commands share: a backend, targets, events, sinks, snapshots, the end.

pub mod audits;
pub mod cgroup_limits;
pub mod choose;
mod complete;
pub mod contained;
pub mod container_view;
pub mod engine;
pub mod entering;
pub mod error;
mod from_ledger;
pub mod living;
pub mod load;
pub mod pipeline;
pub mod record;
pub mod remedy;
pub mod replay;
pub mod reporting;
pub mod saved;
pub mod say;
pub mod sink;
pub mod snapshots;
pub mod start;
pub mod targets;
mod timeline;
pub mod touch;
pub mod tracer;
pub mod watched;

pub use error::{OWN_FAILURE, SessionError, UNUSABLE};

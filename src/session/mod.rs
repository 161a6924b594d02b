//! The engine that commands share: a backend, targets, events, sinks, snapshots, the end. It can be used without
//! the command line (`examples/audit.rs`):
//!
//! [`start::Start`] prepares the targets and chooses a backend; [`start::Start::run`] lets them go, and gives
//! what follows a [`engine::Session`], which reads events until the end. Each record is decoded once, unwound
//! and applied to the ledger, and then handed to every [`sink::Sink`] of the [`pipeline::Pipeline`]. What is
//! left, [`start::Traced`], becomes a report ([`audits::Audits::report`]).

pub mod audits;
mod complete;
pub mod engine;
pub mod error;
mod exits;
mod from_ledger;
mod generated;
mod incoming;
mod known;
pub mod load;
pub mod managed;
pub mod pipeline;
pub mod record;
pub mod replay;
pub mod reporting;
pub mod say;
mod schedule;
pub mod sink;
pub mod snapshots;
mod spaces;
pub mod start;
pub mod symbol_names;
pub mod targets;
mod timeline;
pub mod touch;
pub mod tracer;
pub mod watched;

pub use crate::rights::begin;
pub use error::{OWN_FAILURE, SessionError, UNUSABLE};

//! `vmaudit`: why is VIRT so much larger than RSS, and which call stack requested it?
//!
//! A pure core (`model`, `ledger`, `touch`, `attribution`, `report`, `diff`, `compare`, `heap`, `top`, `render`)
//! between thin adapters (`capture`, `procfs`, `unwind`, `symbolize`, `launch`, `containers`, `store`, `rights`) over the
//! kernel's own interfaces (`sys`). Only `app` joins the two.
//! `tests/architecture.rs` holds the import rules.

pub mod app;
pub mod attribution;
pub mod capture;
pub mod cli;
pub mod compare;
pub mod containers;
pub mod diff;
pub mod doctor;
pub mod heap;
pub mod launch;
pub mod ledger;
pub mod model;
pub mod objects;
pub mod probe;
pub mod procfs;
pub mod render;
pub mod report;
pub mod rights;
pub mod session;
#[cfg(test)]
#[path = "../tests/support/skip.rs"]
mod skip;
pub mod store;
pub mod symbolize;
pub mod sys;
pub mod top;
pub mod touch;
pub mod unwind;

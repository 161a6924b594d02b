//! Runs of a command held against each other: medians and spreads, what changed by cause, and what
//! advice promised. Pure: reports come in, a [`Comparison`] goes out; `app` starts the runs.

pub mod advice;
mod build;
pub mod causes;
pub mod figures;
pub mod judge;
pub mod model;
pub mod output;
pub mod spread;

pub use advice::{Advice, Advised};
pub use build::{Run, SideRuns, compare};
pub use model::Comparison;

//! One file a command: from its arguments to what is printed. Commands know nothing of each other.

pub mod attach;
pub mod compare;
pub mod diff;
pub mod doctor;
pub mod events;
pub mod explain;
pub mod heap;
pub mod probe;
pub mod report;
pub mod rules;
pub mod run;
pub mod snapshot;
pub mod symbols;
pub mod top;

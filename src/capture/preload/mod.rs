//! The library that is preloaded into programs whose heap is profiled, and the memory that it shares with
//! vmaudit (`preload/`, which build.rs builds).
//!
//! Nothing is sent and nothing can be lost: the library counts in an [`Area`], a sparse file in memory that
//! both have mapped, and vmaudit reads it at any time, also after the process was killed. The library
//! requests the unwind rules along its own stacks.

mod area;
mod armed;
mod blocks;
mod interpreted;
#[path = "../../../preload/area.rs"]
pub mod layout;
mod library;
mod listener;
#[cfg(test)]
#[path = "../../../preload/math.rs"]
mod math;
#[path = "../../../preload/pages.rs"]
pub mod pages;
#[cfg(all(test, target_arch = "x86_64"))]
#[path = "../../../preload/search.rs"]
mod search;
mod stacks;

pub use area::{Area, Bell, Counted, RuleRequest, Settings};
pub use armed::{Armed, Found};
pub use blocks::CountedBlock;
pub use library::{Library, install, is_available};
pub use listener::{Arrival, Listener, share_network};
pub use stacks::SharedStack;

/// The variable that names the listener's socket to the library.
pub const VARIABLE: &str = "VMAUDIT_HEAP";

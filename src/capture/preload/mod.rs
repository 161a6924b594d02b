//! The library that is preloaded into programs whose heap is profiled, and the memory that it shares with
//! vmaudit (`preload/`, which build.rs builds).
//!
//! Nothing is sent and nothing can be lost: the library counts in an [`Area`], a sparse file in memory that
//! both have mapped, and vmaudit reads it at any time, also after the process was killed. The library
//! requests the unwind rules along its own stacks.

mod area;
mod armed;
mod blocks;
mod counted;
mod endpoint;
mod hub;
mod interpreted;
#[path = "../../../preload/area.rs"]
pub mod layout;
mod library;
#[cfg(test)]
#[path = "../../../preload/math.rs"]
mod math;
#[path = "../../../preload/pages.rs"]
pub mod pages;
#[cfg(all(test, target_arch = "x86_64"))]
#[path = "../../../preload/search.rs"]
mod search;
mod stacks;
mod view;

pub use area::{Area, RuleRequest, Settings};
pub use armed::{Armed, Found, Unwilling};
pub use blocks::CountedBlock;
pub use counted::Counted;
pub use endpoint::Endpoint;
pub use hub::{Arrival, Hub, Selection};
pub use layout::VARIABLE;
pub use library::{Library, install, is_available, is_library};
pub use stacks::{SharedFrame, SharedStack, StackRead};

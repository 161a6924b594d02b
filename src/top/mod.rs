//! `vmaudit top` as data: what was read ([`Sample`], [`Details`]), what has become of it since the start
//! ([`Track`]), and what the user sees ([`State`]), advanced by samples and keys.
//!
//! What is absent here: the terminal, `/proc`, clocks and layout. `app::top` reads and `render::top` draws.

mod cursor;
mod details;
mod history;
mod keys;
mod sample;
mod sort;
mod state;
mod track;

pub use cursor::Cursor;
pub use details::{CategoryLine, Details, Opened, StackShare};
pub use history::{History, Point};
pub use keys::{Action, Key};
pub use sample::{Call, Cgroup, Figures, Group, ProcessId, ProcessSample, Sample, Swap, Tracing};
pub use sort::SortBy;
pub use state::{Pages, Pane, Settings, State, View};
pub use track::{Known, Mostly, Track};

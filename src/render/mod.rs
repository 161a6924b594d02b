//! The report for people and programs: pure functions from [`crate::report::Report`] to text.
//! No terminal is looked at here: colour and length come in as options.

mod growth;
pub mod json;
pub mod style;
pub mod text;
mod text_findings;
mod text_peak;
mod text_snapshot;
mod text_tables;
mod timeline;

pub use growth::{growth_to_json, growth_to_text};
pub use json::to_json;
pub use style::Color;
pub use text::{TextOptions, to_text};

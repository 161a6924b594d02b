//! The report for people and programs: pure functions from [`crate::report::Report`] to text.
//! No terminal is looked at here: colour and length come in as options.

mod chain;
pub mod compare;
mod compare_causes;
mod compare_figures;
mod diff_tables;
mod diff_text;
mod doctor;
pub mod events;
pub mod explain;
mod frames;
mod growth;
mod html;
pub mod json;
pub mod style;
pub mod text;
mod text_container;
mod text_findings;
mod text_peak;
mod text_snapshot;
mod text_tables;
mod text_touch;
mod timeline;
mod turning_points;

pub use diff_text::diff_to_text;
pub use doctor::{doctor_to_json, doctor_to_text};
pub use explain::{explanation_to_json, explanation_to_text};
pub use growth::{growth_to_json, growth_to_text};
pub use html::to_html;
pub use json::{diff_to_json, to_json};
pub use style::{Color, clean};
pub use text::{TextOptions, to_text};

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
pub mod folded;
mod folded_diff;
mod folded_report;
mod frames;
mod growth;
pub mod json;
mod pprof;
mod pprof_code;
pub mod pprof_proto;
pub mod style;
pub mod svg;
mod svg_colors;
mod svg_diff;
mod svg_paint;
mod svg_tree;
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
pub use folded_diff::{FlameSide, FlameSides, diff_to_folded};
pub use folded_report::{FlameOptions, Width, to_folded};
pub use growth::{growth_to_json, growth_to_text};
pub use json::{diff_to_json, to_json};
pub use pprof::to_pprof;
pub use style::{Color, clean};
pub use svg::{FlameError, to_svg};
pub use svg_diff::diff_to_svg;
pub use text::{TextOptions, to_text};

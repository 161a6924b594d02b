//! The report for people and programs: pure functions from [`crate::report::Report`] to text.
//! No terminal is examined here: colour and length come in as options.

mod chain;
pub mod compare;
pub mod diff;
mod doctor;
pub mod events;
pub mod explain;
pub mod folded;
mod frames;
mod growth;
mod heap;
mod html;
pub mod json;
pub mod pprof;
pub mod probe;
pub mod rules;
pub mod style;
pub mod svg;
pub mod symbols;
pub mod text;
mod timeline;
pub mod top;
mod turning_points;

pub use diff::heap::heap_diff_to_text;
pub use diff::text::diff_to_text;
pub use doctor::{doctor_to_json, doctor_to_text};
pub use explain::explanation_to_text;
pub use folded::diff::{FlameSide, FlameSides, diff_to_folded};
pub use folded::report::{FlameOptions, Width, to_folded};
pub use growth::{growth_to_json, growth_to_text};
pub use heap::diff_stacks::heap_diff_to_folded;
pub use heap::folded::heap_to_folded;
pub use heap::heaptrack::heap_to_heaptrack;
pub use heap::{HeapView, heap_to_text, rows_by};
pub use html::heap::heap_to_html;
pub use html::heap_diff::heap_diff_to_html;
pub use html::to_html;
pub use json::to_json;
pub use pprof::heap::heap_to_pprof;
pub use pprof::to_pprof;
pub use style::{Color, clean};
pub use svg::diff::diff_to_svg;
pub use svg::heap::heap_to_svg;
pub use svg::heap_diff::heap_diff_to_svg;
pub use svg::{FlameError, to_svg};
pub use text::{TextOptions, to_text};

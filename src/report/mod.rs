//! The versioned report (docs/report.md): the model, and how it is built from what
//! attribution found. Pure; fields may be added, none renamed.

mod build;
pub mod calls;
mod container;
pub mod explanation;
mod facts;
mod findings;
pub mod frames;
pub mod growth;
pub mod model;
mod parts;
mod peak;
mod per_frame;
pub mod rules;
mod stacks;
mod summary;
mod text;
mod timeline;
mod touch;
pub mod verdict;
mod words;

pub use crate::attribution::{
    Placed, bears_on, category_color, category_name, heap_description_of, option_lists, option_separator,
    own_blocks, place_option, units,
};
pub use crate::model::number;
pub use build::{ProcessAudit, RANGES_SHOWN, ReportBuilder, build, build_for_text, summarize};
pub use facts::{EventCounts, Inside, ProcessFacts, RunFacts};
pub use model::{Report, SCHEMA};
pub use parts::Parts;
pub use peak::{MAX_GONE, PREEXISTING};
pub use per_frame::{PerFrame, StackReader, StackTexts, classify_all};
pub use stacks::{SharedFrames, named_stack};
pub use summary::{LEFT_OUT, Seen, Summary, WORTH_FINDINGS};
pub use timeline::Timeline;
pub use touch::NAMED_ROWS;

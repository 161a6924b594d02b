//! A comparison as it is written: `"schema": 1` (docs/compare.md). Sizes are bytes, times nanoseconds.

use super::figures::Figures;
use super::spread::{Spread, Verdict};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub const SCHEMA: u32 = 1;

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Comparison {
    pub schema: u32,
    pub command: Vec<String>,
    /// Requested, of each side.
    pub runs: u32,
    /// What ended the runs: nothing (the command did), `duration`, `load`.
    pub ended_by: Option<String>,
    /// The user interrupted: sides may have fewer runs.
    pub interrupted: bool,
    /// What the command prints differs from run to run as it is, not in numbers only.
    pub output_varies: bool,
    /// The command as it is, then each change.
    pub sides: Vec<Side>,
    /// Advice of the first run that is no setting.
    pub not_tried: Vec<NotTried>,
    /// What vmaudit said while it audited the runs, each once.
    pub notes: Vec<String>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Side {
    /// `A` for the command as it is, then `B`, `C` …
    pub name: String,
    /// The change in words: `MALLOC_ARENA_MAX=1`.
    pub label: String,
    pub change: Change,
    pub runs: Vec<RunRow>,
    /// By the figure's id; without those that no run knows.
    pub figures: BTreeMap<String, Spread>,
    /// Runs that gave no report: the last one's exit code and what was said.
    pub failure: Option<Failure>,
    /// Why its figures do not count: it did not do what the first side did. Empty: they do.
    pub void: Vec<String>,
    /// Against the first side; null for that side itself.
    pub effect: Option<Effect>,
}

/// What is different for the command.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Change {
    /// null: left out.
    pub env: BTreeMap<String, Option<String>>,
    /// Appended to the command line.
    pub args: Vec<String>,
    /// Soft RLIMIT_STACK.
    pub stack_limit: Option<u64>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RunRow {
    /// Position among all runs, from 1.
    pub order: u32,
    /// `exited 0`, `killed by signal 9`, `running`.
    pub outcome: String,
    /// Exit code of the load, where there was one and it ended.
    pub load_code: Option<i32>,
    /// Bytes on standard output; null where they were not examined.
    pub printed: Option<u64>,
    pub figures: Figures,
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Failure {
    pub code: i32,
    pub message: String,
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Effect {
    /// By the figure's id: of the medians.
    pub changes: BTreeMap<String, Delta>,
    /// The runs (`order`) whose address spaces are compared below: those nearest to the medians.
    pub pair: [u32; 2],
    /// Their totals; the categories add up to them.
    pub total: Footprints,
    /// Every category, largest change first; the causes of each add up to it.
    pub categories: Vec<CategoryChange>,
    pub promise: Option<Promise>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Delta {
    pub by: i64,
    pub verdict: Verdict,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Footprints {
    pub virt: [u64; 2],
    pub rss: [u64; 2],
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CategoryChange {
    pub id: String,
    pub name: String,
    #[serde(flatten)]
    pub size: Footprints,
    /// Those that differ, largest change first.
    pub causes: Vec<CauseChange>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CauseChange {
    /// `fopen < reader`, or the file, or the part.
    pub title: String,
    #[serde(flatten)]
    pub size: Footprints,
    /// Innermost first: `module function`.
    pub stack: Vec<String>,
}

/// What advice promised, and what came of it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Promise {
    pub saves_virt: u64,
    pub saves_rss: u64,
    pub saved_virt: i64,
    /// null where residency is not known.
    pub saved_rss: Option<i64>,
    /// VIRT of the categories that the promise is about; null where nothing was promised.
    pub saved_own: Option<i64>,
    /// null where nothing was promised for it.
    pub virt_verdict: Option<Kept>,
    pub rss_verdict: Option<Kept>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kept {
    /// At least nine tenths of it.
    Holds,
    /// A promise of less than a hundredth of the whole cannot be distinguished from chance.
    TooSmall,
    /// Nothing was promised, and it saves.
    Helps,
    LessThanPromised,
    /// Within the noise, or less than a twentieth of it.
    NoEffect,
    MadeItWorse,
    /// It did not do the same work.
    Void,
    /// No complete run with it.
    #[default]
    Unknown,
}

impl Comparison {
    /// Every run of every side is complete, none is void, and the command (and the load) ended as in the first.
    pub fn ended_alike(&self) -> bool {
        let end = |run: &RunRow| (run.outcome.clone(), run.load_code);
        let first = self.sides.first().and_then(|side| side.runs.first()).map(end);
        let loads = self.sides.iter().flat_map(|side| &side.runs).all(|run| run.load_code.unwrap_or(0) == 0);
        let alike = |side: &Side| {
            side.failure.is_none()
                && side.void.is_empty()
                && !side.runs.is_empty()
                && side.runs.iter().all(|run| Some(end(run)) == first)
        };
        loads && self.sides.iter().all(alike)
    }
}

impl Kept {
    pub fn words(self) -> &'static str {
        match self {
            Kept::Holds => "holds",
            Kept::TooSmall => "too small to decide",
            Kept::Helps => "helps",
            Kept::LessThanPromised => "less than promised",
            Kept::NoEffect => "no effect",
            Kept::MadeItWorse => "made it worse",
            Kept::Void => "void",
            Kept::Unknown => "not known",
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NotTried {
    pub knob: String,
    pub why: String,
    pub saves_virt: u64,
    pub saves_rss: u64,
}

//! Rules as data: what a file of rules says (docs/rules.md), as values. Needs nothing else of vmaudit: build.rs
//! compiles this folder, too, and checks the built-in files with it.

mod left;
mod parse;
mod pattern;

pub use left::Left;
pub use parse::parse;
pub use pattern::{Pattern, bare_name};

/// What some library or program reserves, how that is recognised, and what makes it smaller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TableRule {
    /// `GROUP.NAME`; one of a user's takes the place of a built-in one with the same id.
    pub id: String,
    /// One such thing, as a person would say it.
    pub what: String,
    /// Several of them; a title puts the number before it.
    pub many: String,
    pub why: String,
    /// The manual or source file that says so.
    pub source: String,
    /// The program on which it was seen to be true; without one nothing is promised.
    pub proven: Option<String>,
    pub proof: Proof,
    pub condition: Condition,
    /// Categories of other rules whose findings it explains, where its functions are what called them.
    pub explains: Vec<String>,
    pub knobs: Vec<Knob>,
    /// Settings that do nothing here: (setting, why not).
    pub no_help: Vec<(String, String)>,
    /// Where it is defined: the file, and the line from 1.
    pub file: String,
    pub line: usize,
}

/// What the memory is recognised by: any one of these is enough.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Proof {
    /// Functions on the stack of the call that mapped it.
    pub functions: Vec<Pattern>,
    /// Files whose code mapped it, with nothing but their own functions between.
    pub libraries: Vec<Pattern>,
    /// Names that the program gave it (PR_SET_VMA_ANON_NAME).
    pub names: Vec<Pattern>,
    /// Files, as maps shows them.
    pub files: Vec<Pattern>,
}

/// What has to be true besides; nothing of it is a proof.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Condition {
    /// Of the file that holds the function; empty: any.
    pub modules: Vec<Pattern>,
    /// Files whose functions may lie between the function and the system call, besides its own.
    pub through: Vec<Pattern>,
    /// One of these files with code is mapped; empty: any.
    pub programs: Vec<Pattern>,
    /// Whether it is mapped without access (PROT_NONE).
    pub reserved: Option<bool>,
    pub shared: Option<bool>,
    /// Whether it is of huge pages (hugetlb).
    pub huge: Option<bool>,
    /// Files whose code made the call; empty: any.
    pub callers: Vec<Pattern>,
    /// Bytes that the call mapped and that are left of it.
    pub least: Option<u64>,
    pub most: Option<u64>,
}

/// A setting.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Knob {
    pub knob: String,
    /// What it leaves of the memory; None: nothing is promised.
    pub left: Option<Left>,
    /// What it saves of VIRT it saves of RSS in the same proportion.
    pub resident: bool,
    /// It sets how large the stacks of the program's threads are, wherever these are found.
    pub stacks: bool,
    /// It sets how many threads the library has: what its callers had mapped beside stays.
    pub threads: bool,
    pub note: String,
}

/// A piece of memory as far as the conditions use it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapped<'a> {
    pub reserved: bool,
    pub shared: bool,
    pub huge: bool,
    /// Base name of the file whose code made the call; empty where that is not known.
    pub caller: &'a str,
    /// What is left of all that its call mapped.
    pub bytes: u64,
}

impl TableRule {
    /// True where the program or library is here that it is about; `has` says whether some file with code passes a
    /// test.
    pub fn applies(&self, has: impl Fn(&dyn Fn(&str) -> bool) -> bool) -> bool {
        let programs = &self.condition.programs;
        programs.is_empty() || has(&|file| any(programs, file))
    }
}

impl Condition {
    pub fn holds(&self, mapped: Mapped<'_>) -> bool {
        self.reserved.is_none_or(|reserved| reserved == mapped.reserved)
            && self.shared.is_none_or(|shared| shared == mapped.shared)
            && self.huge.is_none_or(|huge| huge == mapped.huge)
            && self.least.is_none_or(|least| mapped.bytes >= least)
            && self.most.is_none_or(|most| mapped.bytes <= most)
            && (self.callers.is_empty() || any(&self.callers, mapped.caller))
    }
}

/// True if one of `patterns` matches `text`.
pub fn any(patterns: &[Pattern], text: &str) -> bool {
    patterns.iter().any(|pattern| pattern.matches(text))
}

//! Page faults (`--touch`), as they are written.

use serde::{Deserialize, Serialize};

/// Page faults on user addresses, over all CPUs and processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Touch {
    /// All that were taken.
    pub faults: u64,
    /// Of these: recorded, with their stack.
    pub sampled: u64,
    /// Faults whose record found no space, and those that it represented.
    pub lost: u64,
    /// Faults in address spaces that no process has any more (a child's before its execve).
    pub unplaced: u64,
}

/// Page faults of one process, by the reserving and the touching stack.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessTouch {
    /// Those that the samples represent.
    pub faults: u64,
    pub sampled: u64,
    /// Half the width of the 95 % interval of `faults`.
    pub error: u64,
    /// Every fault that a record arrived of is known by itself.
    pub exact: bool,
    /// Resident bytes on which no fault was seen.
    pub unseen_bytes: u64,
    /// Faults where nothing is known to be mapped; part of no row.
    pub outside: u64,
    /// Faults that the mapping's protection forbids; part of no row.
    pub refused: u64,
    /// By bytes, then faults, largest first.
    pub rows: Vec<TouchRow>,
    /// What `rows` leave out.
    pub others: TouchRest,
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TouchRow {
    /// Index into `Report::stacks`: the call that mapped it.
    pub reserved_by: Option<u64>,
    /// `call`, `preexisting`, `kernel`, `unknown`.
    pub reserved: String,
    /// Null for what is mapped no longer.
    pub category: Option<String>,
    /// Index into `Report::stacks`.
    pub touched_by: Option<u64>,
    /// False: resident without a fault that was seen.
    pub seen: bool,
    pub faults: u64,
    pub samples: u64,
    /// Half the width of the 95 % interval of `faults`; `bytes_estimate` has the same in proportion.
    pub error: u64,
    /// What is resident of it at the end.
    pub bytes_estimate: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TouchRest {
    pub rows: u64,
    pub faults: u64,
    pub bytes_estimate: u64,
}

/// A part of a finding's resident bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TouchShare {
    /// Index into `Report::stacks`.
    pub stack: Option<u64>,
    /// False: resident without a fault that was seen.
    pub seen: bool,
    pub bytes_estimate: u64,
}

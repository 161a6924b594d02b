//! `vmaudit diff`.

use super::{DiffFormat, FlameArgs};
use crate::diff::model::By;
use clap::Args;
use std::path::PathBuf;

#[derive(Args, Debug)]
pub struct DiffArgs {
    /// Before: a recording, a report (-f json of any command), or a saved smaps or maps file; heaps with heaps
    #[arg(value_name = "A")]
    pub a: PathBuf,

    /// After: the same, of any of these kinds; - is standard input
    #[arg(value_name = "B")]
    pub b: PathBuf,

    /// What changes are grouped by; the table of categories always comes first [default: stack]
    ///
    /// Two heaps are compared by stack.
    #[arg(long, value_enum, value_name = "WHAT")]
    pub by: Option<By>,

    /// Which process of A and of B, where a file has several [default: the first of each]
    #[arg(long, value_name = "[PID_A]:[PID_B]", value_parser = pid_pair, conflicts_with = "all")]
    pub pid: Option<PidPair>,

    /// Compare all processes of A with all of B, those of the same program and name with each other
    #[arg(long)]
    pub all: bool,

    /// Exit with 1 if anything differs, with 0 if nothing does
    #[arg(long)]
    pub exit_code: bool,

    /// How to write the comparison
    #[arg(short, long, value_enum, default_value_t = DiffFormat::Text, value_name = "FORMAT")]
    pub format: DiffFormat,

    /// Write the comparison to FILE instead of standard output
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,

    /// Show the N largest changes
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub top: usize,

    #[command(flatten)]
    pub flame: FlameArgs,
}

/// A process on either side; None: the first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PidPair {
    pub a: Option<i32>,
    pub b: Option<i32>,
}

/// `A:B`, `A:`, `:B`, or one number for both sides.
fn pid_pair(text: &str) -> Result<PidPair, String> {
    let number = |text: &str| match text {
        "" => Ok(None),
        digits => match digits.parse::<i32>() {
            Ok(pid) if pid >= 0 => Ok(Some(pid)),
            _ => Err(format!("{digits:?} is not a process number")),
        },
    };
    match text.split_once(':') {
        Some((a, b)) => Ok(PidPair { a: number(a)?, b: number(b)? }),
        None if text.is_empty() => Err("needs a process number, or two with a colon between them".to_owned()),
        None => number(text).map(|pid| PidPair { a: pid, b: pid }),
    }
}

//! Which processes of a report are compared.

use crate::model::path::base_name;
use crate::report::model::{Process, Report};

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Pick {
    /// The command itself: the report's first.
    #[default]
    Main,
    Pid(i32),
    /// All of them together.
    All,
}

#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
pub enum SelectError {
    #[error("it has no process at all")]
    Empty,
    #[error("it has no process {pid}; it has {present}")]
    NoSuch { pid: i32, present: String },
}

/// Processes named in an error.
const NAMED: usize = 12;

pub(super) fn select(report: &Report, pick: Pick) -> Result<Vec<&Process>, SelectError> {
    select_of(&report.processes, pick, |process| (process.pid, &process.comm))
}

/// `who`: number and name of a process.
pub(super) fn select_of<P>(
    processes: &[P],
    pick: Pick,
    who: impl Fn(&P) -> (i32, &str),
) -> Result<Vec<&P>, SelectError> {
    let Some(main) = processes.first() else { return Err(SelectError::Empty) };
    match pick {
        Pick::Main => Ok(vec![main]),
        Pick::All => Ok(processes.iter().collect()),
        Pick::Pid(pid) => match processes.iter().find(|process| who(process).0 == pid) {
            Some(process) => Ok(vec![process]),
            None => Err(SelectError::NoSuch { pid, present: present(processes.iter().map(who)) }),
        },
    }
}

/// `4123 (silly), 4124 (sh) and 3 more`.
fn present<'a>(processes: impl ExactSizeIterator<Item = (i32, &'a str)>) -> String {
    let count = processes.len();
    let named: Vec<String> = processes.take(NAMED).map(|(pid, comm)| format!("{pid} ({comm})")).collect();
    match count.saturating_sub(NAMED) {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

/// Pairs processes of the same program and name, in the order in which each side has them.
pub(super) fn pairs<'a>(
    a: &[&'a Process],
    b: &[&'a Process],
) -> Vec<(Option<&'a Process>, Option<&'a Process>)> {
    if let ([a], [b]) = (a, b) {
        return vec![(Some(*a), Some(*b))];
    }
    let mut left: Vec<Option<&Process>> = b.iter().map(|p| Some(*p)).collect();
    let mut out = Vec::new();
    for &process in a {
        let same = |p: &&mut Option<&'a Process>| p.is_some_and(|p| identity(p) == identity(process));
        let partner = left.iter_mut().find(same).and_then(Option::take);
        out.push((Some(process), partner));
    }
    out.extend(left.into_iter().flatten().map(|p| (None, Some(p))));
    out
}

fn identity(process: &Process) -> (&str, &str) {
    (&process.comm, base_name(&process.exe))
}

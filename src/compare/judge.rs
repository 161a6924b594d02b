//! Whether a side did the same work as the first one: what did not has saved nothing.

use super::build::{Run, SideRuns};
use super::output::Output;
use std::collections::BTreeSet;

/// Why what `side` measured does not count, in words; empty if it does. How the command ends and what it
/// prints has to be something that it does as it is.
pub fn void(base: &SideRuns, side: &SideRuns) -> Vec<String> {
    let mut why = Vec::new();
    if let Some(failure) = &side.failure {
        why.push(format!("a run gave no report ({})", failure.code));
    }
    if base.runs.is_empty() {
        return why;
    }
    let new = |of: fn(&Run) -> Vec<String>| -> Vec<String> {
        let known: BTreeSet<String> = base.runs.iter().flat_map(of).collect();
        let own: BTreeSet<String> = side.runs.iter().flat_map(of).collect();
        own.difference(&known).cloned().collect()
    };
    let outcomes = new(|run| vec![run.row.outcome.clone()]);
    if !outcomes.is_empty() {
        let known: BTreeSet<&str> = base.runs.iter().map(|run| run.row.outcome.as_str()).collect();
        let known = known.into_iter().collect::<Vec<_>>().join(", ");
        why.push(format!("it {} (as it is: {known})", outcomes.join(", ")));
    }
    let loads = new(|run| run.row.load_code.filter(|code| *code != 0).iter().map(i32::to_string).collect());
    if !loads.is_empty() {
        why.push(format!("its load failed ({})", loads.join(", ")));
    }
    let failed = new(|run| run.failed.clone());
    if !failed.is_empty() {
        why.push(format!("a process of it failed: {}", failed.join(", ")));
    }
    // one that failed prints something else anyway
    if why.is_empty() {
        why.extend(other_output(base, side));
    }
    why
}

/// Where the command as it is prints the same each time, byte for byte; where that varies, or is known of one
/// run only, the words without their numbers.
fn other_output(base: &SideRuns, side: &SideRuns) -> Option<String> {
    let of = |side: &SideRuns| side.runs.iter().map(|run| run.output).collect::<Option<Vec<Output>>>();
    let (known, own) = (of(base)?, of(side)?);
    let [first, more @ ..] = known.as_slice() else { return None };
    let like = |output: &Output| (output.exact == first.exact, output.shape == first.shape);
    let alike = |exact: bool| more.iter().all(|output| if exact { like(output).0 } else { like(output).1 });
    if !more.is_empty() && alike(true) {
        let other = own.iter().find(|output| !like(output).0)?;
        let how = if like(other).1 { " in its numbers" } else { "" };
        return Some(format!("its output differs{how} ({})", lengths(first, other)));
    }
    let other = own.iter().find(|output| !like(output).1).filter(|_| alike(false))?;
    Some(format!("its output differs ({})", lengths(first, other)))
}

/// The command as it is prints something else each time: its output cannot be held against anything.
pub fn output_varies(base: &SideRuns) -> bool {
    let shapes: BTreeSet<u64> = base.runs.iter().filter_map(|run| Some(run.output?.shape)).collect();
    shapes.len() > 1
}

fn lengths(base: &Output, other: &Output) -> String {
    use crate::report::units::thousands;
    match base.bytes == other.bytes {
        true => format!("{} bytes, too", thousands(other.bytes)),
        false => format!("{} bytes, not {}", thousands(other.bytes), thousands(base.bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::model::{Failure, RunRow};

    fn run(outcome: &str, printed: &str) -> Run {
        let mut output = crate::compare::output::Printed::default();
        output.add(printed.as_bytes());
        let row = RunRow { outcome: outcome.into(), ..RunRow::default() };
        Run { row, output: Some(output.end()), ..Run::default() }
    }

    fn side(runs: &[(&str, &str)]) -> SideRuns {
        let runs = runs.iter().map(|(outcome, printed)| run(outcome, printed)).collect();
        SideRuns { runs, ..SideRuns::default() }
    }

    #[test]
    fn another_end_is_void() {
        let base = side(&[("exited 0", "a"), ("exited 3", "a")]);
        assert_eq!(void(&base, &side(&[("exited 3", "a"), ("exited 3", "a")])), Vec::<String>::new());
        let why = void(&base, &side(&[("exited 0", "a"), ("exited 1", "error")]));
        assert_eq!(why, ["it exited 1 (as it is: exited 0, exited 3)"]);
        let mut failed = side(&[("exited 0", "a")]);
        failed.runs[0].failed = vec!["java exited 1".into()];
        assert_eq!(void(&base, &failed), ["a process of it failed: java exited 1"]);
        assert!(void(&failed, &failed).is_empty(), "as it is, too");
        failed.failure = Some(Failure { code: 125, message: String::new() });
        assert_eq!(void(&base, &failed).len(), 2);
        let mut loaded = side(&[("running", "a")]);
        loaded.runs[0].row.load_code = Some(7);
        assert_eq!(void(&side(&[("running", "a")]), &loaded), ["its load failed (7)"]);
    }

    #[test]
    fn another_output_is_void() {
        let of = |base: &[&str], other: &[&str]| {
            let side = |printed: &[&str]| {
                side(&printed.iter().map(|printed| ("exited 0", *printed)).collect::<Vec<_>>())
            };
            void(&side(base), &side(other)).join("; ")
        };
        assert_eq!(of(&["sum 42\n", "sum 42\n"], &["sum 42\n", "sum 42\n"]), "");
        let numbers = "its output differs in its numbers (7 bytes, too)";
        assert_eq!(of(&["sum 42\n", "sum 42\n"], &["sum 42\n", "sum 43\n"]), numbers);
        assert_eq!(of(&["sum 42\n"; 2], &["out of memory\n"]), "its output differs (14 bytes, not 7)");
        // it varies by itself, in numbers only; so does what ran once, perhaps
        assert_eq!(of(&["took 4 ms\n", "took 5 ms\n"], &["took 17 ms\n"]), "");
        assert_eq!(of(&["took 4 ms\n"], &["took 17 ms\n"]), "");
        assert_eq!(of(&["took 4 ms\n"], &["failed\n"]), "its output differs (7 bytes, not 10)");
        assert_eq!(of(&["a\n", "b\n"], &["c\n"]), "", "nothing can be said");
        assert!(
            output_varies(&side(&[("", "a"), ("", "b")])) && !output_varies(&side(&[("", "1"), ("", "2")]))
        );
    }
}

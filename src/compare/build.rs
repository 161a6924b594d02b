//! Runs → [`Comparison`].

use super::causes::{Cause, causes, changes};
use super::figures::{Figures, METRICS};
use super::judge;
use super::model::{Change, Comparison, Delta, Effect, Failure, Footprints, Kept, Promise, RunRow, Side};
use super::output::Output;
use super::spread::Spread;
use crate::report::Report;
use crate::report::model::Process;
use std::collections::BTreeSet;

/// What is kept of one run's report.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Run {
    pub row: RunRow,
    pub causes: Vec<Cause>,
    /// Of the command; None where it was not examined.
    pub output: Option<Output>,
    /// Processes that the command started and that failed: `java exited 1`.
    pub failed: Vec<String>,
}

impl Run {
    /// `order`: the position among all runs, from 1.
    pub fn of(report: &Report, order: u32) -> Run {
        let outcome = report.processes.first().map_or_else(|| "not seen".to_owned(), outcome);
        let row = RunRow { order, outcome, figures: Figures::of(report), ..RunRow::default() };
        let others = report.processes.iter().skip(1);
        let others = others.filter(|p| p.signal.is_some() || p.exit_code.is_some_and(|code| code != 0));
        let failed = others.map(|process| format!("{} {}", process.comm, self::outcome(process))).collect();
        Run { row, causes: causes(report), output: None, failed }
    }
}

fn outcome(process: &Process) -> String {
    match (process.signal, process.exit_code) {
        (Some(signal), _) => format!("killed by signal {signal}"),
        (None, Some(code)) => format!("exited {code}"),
        (None, None) => "running".to_owned(),
    }
}

/// All runs of one side.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SideRuns {
    pub label: String,
    pub change: Change,
    pub runs: Vec<Run>,
    pub failure: Option<Failure>,
    /// Bytes of VIRT and of RSS that advice promised to save.
    pub promised: Option<(u64, u64)>,
    /// The categories of memory that the promise is about.
    pub promised_of: BTreeSet<String>,
}

/// Fills in the sides of `frame`; the first is what the others are held against.
pub fn compare(frame: Comparison, runs: Vec<SideRuns>) -> Comparison {
    let mut sides: Vec<Side> = Vec::with_capacity(runs.len());
    for (number, each) in runs.iter().enumerate() {
        let figures = METRICS.iter().filter_map(|metric| {
            let values =
                each.runs.iter().map(|run| (metric.get)(&run.row.figures)).collect::<Option<Vec<u64>>>()?;
            Some((metric.id.to_owned(), Spread::of(values)?))
        });
        let mut side = Side {
            name: name(number),
            label: each.label.clone(),
            change: each.change.clone(),
            runs: each.runs.iter().map(|run| run.row.clone()).collect(),
            figures: figures.collect(),
            failure: each.failure.clone(),
            void: Vec::new(),
            effect: None,
        };
        if let (Some(base), Some(base_runs)) = (sides.first(), runs.first()) {
            side.void = judge::void(base_runs, each);
            side.effect = effect((base, base_runs), (&side, each));
        }
        sides.push(side);
    }
    let output_varies = runs.first().is_some_and(judge::output_varies);
    Comparison { schema: super::model::SCHEMA, output_varies, sides, ..frame }
}

/// A, B, … Z, then by number.
fn name(number: usize) -> String {
    match u8::try_from(number) {
        Ok(small @ 0..26) => char::from(b'A' + small).to_string(),
        _ => format!("#{}", number + 1),
    }
}

/// None where a side has no complete run.
fn effect(base: (&Side, &SideRuns), side: (&Side, &SideRuns)) -> Option<Effect> {
    let before = typical(base)?;
    let after = typical(side)?;
    let changes_of = METRICS.iter().filter_map(|metric| {
        let (a, b) = (base.0.figures.get(metric.id)?, side.0.figures.get(metric.id)?);
        Some((metric.id.to_owned(), Delta { by: a.change(*b), verdict: a.verdict(*b) }))
    });
    let categories = changes(&before.causes, &after.causes);
    let mut total = Footprints::default();
    categories.iter().for_each(|row| total.add(row.size));
    Some(Effect {
        changes: changes_of.collect(),
        pair: [before.row.order, after.row.order],
        total,
        categories,
        promise: side.1.promised.map(|promised| {
            let own =
                of_categories(base.1, &side.1.promised_of).zip(of_categories(side.1, &side.1.promised_of));
            promise(promised, (base.0, side.0), own)
        }),
    })
}

/// The run whose VIRT, then RSS, is nearest to the medians.
fn typical<'a>((side, runs): (&Side, &'a SideRuns)) -> Option<&'a Run> {
    let median = |id: &str| side.figures.get(id).map(|spread| spread.median);
    runs.runs.iter().min_by_key(|run| {
        let figures = &run.row.figures;
        let off = |median: Option<u64>, value: Option<u64>| match (median, value) {
            (Some(median), Some(value)) => median.abs_diff(value),
            _ => 0,
        };
        (off(median("virt"), Some(figures.virt)), off(median("rss"), figures.rss))
    })
}

/// VIRT of these categories over the runs.
fn of_categories(side: &SideRuns, ids: &BTreeSet<String>) -> Option<Spread> {
    let sum = |run: &Run| {
        run.causes.iter().filter(|cause| ids.contains(&cause.category)).map(|cause| cause.virt).sum()
    };
    Spread::of(side.runs.iter().map(sum).collect()).filter(|_| !ids.is_empty())
}

/// `own`: VIRT of the memory that the promise is about. Where all of VIRT differs by more from run to run than the setting
/// changes (one arena is 64 MiB, and threads need one more or less as they are scheduled), that decides.
fn promise(
    (saves_virt, saves_rss): (u64, u64),
    (base, side): (&Side, &Side),
    own: Option<(Spread, Spread)>,
) -> Promise {
    let of = |id: &str| Some((*base.figures.get(id)?, *side.figures.get(id)?));
    let saved = |pair: Option<(Spread, Spread)>| pair.map(|(a, b)| a.change(b).saturating_neg());
    let (virt, rss) = (of("virt"), of("rss"));
    let void = !side.void.is_empty();
    let kept = |promised: u64, pair: Option<(Spread, Spread)>| {
        if void {
            return (promised > 0 || saves_virt + saves_rss == 0).then_some(Kept::Void);
        }
        let of = |(a, b): (Spread, Spread)| match promised {
            0 => unpromised(a, b),
            _ if promised < a.median / 100 => Kept::TooSmall,
            _ => verdict(promised, a, b),
        };
        (promised > 0 || saves_virt + saves_rss == 0).then(|| pair.map_or(Kept::Unknown, of))
    };
    let in_noise = virt.is_some_and(|(a, b)| a.verdict(b) == super::spread::Verdict::WithinNoise);
    let decides = |(a, _): (Spread, Spread)| in_noise && saves_virt >= a.median / 100;
    let own = own.filter(|_| !void && saves_virt > 0);
    Promise {
        saves_virt,
        saves_rss,
        saved_virt: saved(virt).filter(|_| !void).unwrap_or_default(),
        saved_rss: saved(rss).filter(|_| !void),
        saved_own: own.map(|(a, b)| a.change(b).saturating_neg()),
        virt_verdict: kept(saves_virt, own.filter(|_| virt.is_some_and(decides)).or(virt)),
        rss_verdict: kept(saves_rss, rss),
    }
}

/// What nothing was promised of helps where it saves a hundredth.
fn unpromised(before: Spread, after: Spread) -> Kept {
    match verdict((before.median / 100).max(1), before, after) {
        Kept::Holds => Kept::Helps,
        Kept::LessThanPromised => Kept::NoEffect,
        other => other,
    }
}

fn verdict(promised: u64, before: Spread, after: Spread) -> Kept {
    use super::spread::Verdict;
    let saved = i128::from(before.change(after).saturating_neg());
    let promised = i128::from(promised);
    let apart = before.verdict(after);
    // The most that two of the runs differ by: what falls short by less than equal runs differ among themselves holds.
    let most = i128::from(before.max) - i128::from(after.min);
    if apart == Verdict::Same || apart == Verdict::WithinNoise {
        Kept::NoEffect
    } else if saved * 10 >= promised * 9 || (saved * 2 >= promised && most * 10 >= promised * 9) {
        Kept::Holds
    } else if saved * 20 >= promised {
        Kept::LessThanPromised
    } else if saved * 20 > -promised {
        Kept::NoEffect
    } else {
        Kept::MadeItWorse
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spread(values: &[u64]) -> Spread {
        Spread::of(values.to_vec()).expect("values")
    }

    #[test]
    fn verdicts() {
        let of = |promised, before: &[u64], after: &[u64]| verdict(promised, spread(before), spread(after));
        assert_eq!(of(100, &[500, 500], &[400, 401]), Kept::Holds);
        assert_eq!(of(100, &[500, 500], &[300, 300]), Kept::Holds);
        assert_eq!(of(100, &[500, 500], &[450, 450]), Kept::LessThanPromised);
        assert_eq!(of(100, &[494, 500], &[409, 415]), Kept::Holds, "equal runs differ by as much");
        assert_eq!(of(100, &[498, 500], &[415, 417]), Kept::LessThanPromised);
        assert_eq!(of(100, &[500, 500], &[498, 498]), Kept::NoEffect);
        assert_eq!(of(100, &[500, 500], &[503, 503]), Kept::NoEffect);
        assert_eq!(of(100, &[500, 500], &[505, 505]), Kept::MadeItWorse);
        assert_eq!(of(100, &[300, 500, 600], &[390, 400, 401]), Kept::NoEffect, "noise proves nothing");
        assert_eq!(of(100, &[500], &[400]), Kept::Holds, "a single run has no noise to drown in");
    }

    #[test]
    fn without_a_promise_a_hundredth_helps() {
        let of = |before: &[u64], after: &[u64]| unpromised(spread(before), spread(after));
        assert_eq!(of(&[1000, 1000], &[980, 981]), Kept::Helps);
        assert_eq!(of(&[1000, 1000], &[996, 996]), Kept::NoEffect);
        assert_eq!(of(&[1000, 1000], &[1200, 1200]), Kept::MadeItWorse);
        assert_eq!(of(&[1000, 1200], &[900, 1100]), Kept::NoEffect);
    }

    /// An arena more or less is no fault of the setting; one of each run with it may be.
    #[test]
    fn what_differs_from_run_to_run_does_not_hide_what_was_saved() {
        let side = |runs: &[(u64, u64)]| SideRuns {
            runs: runs
                .iter()
                .map(|&(stacks, arenas)| {
                    let cause =
                        |category: &str, virt| Cause { category: category.into(), virt, ..Cause::default() };
                    let figures = Figures { virt: stacks + arenas, ..Figures::default() };
                    let causes = vec![cause("thread-stack", stacks), cause("glibc-arena", arenas)];
                    Run { row: RunRow { figures, ..RunRow::default() }, causes, ..Run::default() }
                })
                .collect(),
            promised: Some((20, 0)),
            promised_of: ["thread-stack".to_owned()].into(),
            ..SideRuns::default()
        };
        let kept = |a: &[(u64, u64)], b: &[(u64, u64)]| {
            let sides = compare(Comparison::default(), vec![side(a), side(b)]).sides;
            let promise =
                sides[1].effect.as_ref().and_then(|effect| effect.promise.clone()).expect("a promise");
            (promise.saved_own, promise.virt_verdict)
        };
        let before = [(20, 64), (20, 128), (20, 64)];
        assert_eq!(kept(&before, &[(0, 64), (0, 128), (0, 128)]), (Some(20), Some(Kept::Holds)));
        assert_eq!(kept(&before, &[(20, 0), (20, 64), (20, 128)]), (Some(0), Some(Kept::NoEffect)));
        assert_eq!(kept(&before, &[(0, 192), (0, 192), (0, 192)]), (Some(20), Some(Kept::MadeItWorse)));
    }

    fn run(order: u32, virt: u64, rss: Option<u64>) -> Run {
        let figures = Figures { virt, rss, ..Figures::default() };
        let cause = Cause { category: "x".into(), virt, rss: rss.unwrap_or(0), ..Cause::default() };
        Run { row: RunRow { order, figures, ..RunRow::default() }, causes: vec![cause], ..Run::default() }
    }

    fn side(promised: Option<(u64, u64)>, runs: Vec<Run>) -> SideRuns {
        SideRuns { runs, promised, ..SideRuns::default() }
    }

    #[test]
    fn causes_are_those_of_the_runs_nearest_to_the_medians() {
        let a = side(None, vec![run(1, 900, Some(5)), run(4, 500, Some(9)), run(5, 510, Some(5))]);
        let b = side(Some((100, 0)), vec![run(2, 400, Some(4)), run(3, 401, None), run(6, 402, Some(4))]);
        let found = compare(Comparison::default(), vec![a, b]);
        assert_eq!([found.sides[0].name.as_str(), found.sides[1].name.as_str()], ["A", "B"]);
        let effect = found.sides[1].effect.as_ref().expect("both sides ran");
        assert_eq!(effect.pair, [5, 3]);
        assert_eq!(effect.total.virt, [510, 401]);
        assert_eq!(
            effect.changes["virt"],
            Delta { by: -109, verdict: crate::compare::spread::Verdict::Differs }
        );
        assert!(!effect.changes.contains_key("rss"), "one run does not know it");
        let promise = effect.promise.as_ref().expect("a promise");
        assert_eq!(
            (promise.saved_virt, promise.saved_rss, promise.virt_verdict),
            (109, None, Some(Kept::Holds))
        );
    }

    #[test]
    fn a_side_without_runs_has_no_effect() {
        let a = side(None, vec![run(1, 900, Some(5))]);
        let found = compare(Comparison::default(), vec![a, side(None, vec![])]);
        assert_eq!(found.sides[1].effect, None);
        assert!(found.sides[1].figures.is_empty());
    }
}

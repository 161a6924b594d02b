//! Figures of a comparison: medians, changes, spreads; what advice promised and saved.

use crate::compare::figures::{METRICS, Metric, Unit};
use crate::compare::model::{Comparison, Delta, Effect, Kept, Promise, Side};
use crate::compare::spread::{Spread, Verdict};
use crate::render::style::{self, Tone, clean, wrapped};
use crate::render::text::{TextOptions, WIDTH};
use crate::report::number::change;
use crate::report::units::{size, thousands};

/// `+4 KiB`, `-64.0 MiB`, `0`.
pub(super) fn signed(unit: Unit, by: i64) -> String {
    style::signed(by, |n| value(unit, n))
}

pub(super) fn value(unit: Unit, n: u64) -> String {
    match unit {
        Unit::Bytes => size(n),
        Unit::Count => thousands(n),
        Unit::Nanoseconds => time(n),
    }
}

/// `0`, `0.4 ms`, `12.3 ms`, `1.20 s`.
fn time(ns: u64) -> String {
    match ns {
        0 => "0".to_owned(),
        1..999_950_000 => {
            let tenths = (ns + 50_000) / 100_000;
            format!("{}.{} ms", tenths / 10, tenths % 10)
        }
        _ => {
            let hundredths = (u128::from(ns) + 5_000_000) / 10_000_000;
            format!("{}.{:02} s", hundredths / 100, hundredths % 100)
        }
    }
}

/// `46.2…46.3 MiB`; one value where both print the same.
fn range(unit: Unit, (min, max): (u64, u64)) -> String {
    let (low, high) = (value(unit, min), value(unit, max));
    if low == high {
        return high;
    }
    match (low.rsplit_once(' '), high.rsplit_once(' ')) {
        (Some((number, a)), Some((_, b))) if a == b => format!("{number}…{high}"),
        _ => format!("{low}…{high}"),
    }
}

fn verdict(delta: Delta) -> &'static str {
    match delta.verdict {
        Verdict::Same | Verdict::Differs => "",
        Verdict::WithinNoise => "within the noise",
        Verdict::SingleRun => "one run only",
    }
}

/// A row of the medians: a spread may be as wide as its column.
fn line(cells: [&str; 7]) -> String {
    let [label, a, b, change, spread_a, spread_b, verdict] = cells;
    let line = format!("  {label:<11}{a:>11}{b:>11}{change:>12} {spread_a:>17} {spread_b:>17} {verdict}");
    line.trim_end().to_owned()
}

/// One row a figure: medians, change, spreads.
pub(super) fn figures_table(base: &Side, side: &Side, options: TextOptions, out: &mut String) {
    let Some(effect) = &side.effect else { return };
    let of = |what: &str, side: &Side| format!("{what} {}", side.name);
    let (a, b) = (of("median", base), of("median", side));
    let (spread_a, spread_b) = (of("spread of", base), of("spread of", side));
    let head = line(["", &a, &b, "change", &spread_a, &spread_b, ""]);
    *out += &format!("{}\n", options.color.paint(Tone::Dim, &head));
    for metric in METRICS {
        let found = (base.figures.get(metric.id), side.figures.get(metric.id), effect.changes.get(metric.id));
        let (Some(a), Some(b), Some(delta)) = found else {
            if metric.least == 0 {
                *out += &format!("{}\n", line([metric.label, "not known", "not known", "", "", "", ""]));
            }
            continue;
        };
        if a.max.max(b.max) < metric.least {
            continue;
        }
        let show = |n| value(metric.unit, n);
        let ranges = [a, b].map(|spread| range(metric.unit, (spread.min, spread.max)));
        let text = line([
            metric.label,
            &show(a.median),
            &show(b.median),
            &signed(metric.unit, delta.by),
            &ranges[0],
            &ranges[1],
            verdict(*delta),
        ]);
        let tone = if delta.verdict == Verdict::Differs { Tone::Key } else { Tone::Dim };
        *out += &format!("{}\n", options.color.paint(tone, &text));
    }
}

/// What each piece of advice promised, what it saved and what it cost.
pub(super) fn advice_table(comparison: &Comparison, options: TextOptions, out: &mut String) {
    let Some((base, others)) = comparison.sides.split_first() else { return };
    let head = row(["", "advice", "of", "promised", "saved", "spread", ""]);
    *out += &format!("{}\n", options.color.paint(Tone::Dim, &head));
    for side in others {
        match side.effect.as_ref().and_then(|effect| Some((effect, effect.promise.as_ref()?))) {
            Some((effect, promise)) => advice_rows(base, (side, effect, promise), options, out),
            None => {
                let text = row([&side.name, &clean(&side.label), "", "", "", "", "no complete run"]);
                *out += &format!("{}\n", options.color.paint(Tone::Warning, &text));
            }
        }
    }
}

/// Columns that the label of a piece of advice has; longer ones get a line of their own.
const LABEL: usize = 28;

fn row(cells: [&str; 7]) -> String {
    let [name, label, of, promised, saved, spread, verdict] = cells;
    let begin = match label.chars().count() {
        0..=LABEL => format!("  {name:<3}{label:<LABEL$}"),
        _ => format!("  {name:<3}{label}\n     {:LABEL$}", ""),
    };
    format!("{begin}{of:>5}{promised:>11}{saved:>12} {spread:>18}  {verdict}").trim_end().to_owned()
}

fn advice_rows(base: &Side, found: (&Side, &Effect, &Promise), options: TextOptions, out: &mut String) {
    let (side, effect, promise) = found;
    let dimensions = [
        ("VIRT", "virt", promise.saves_virt, Some(promise.saved_virt), promise.virt_verdict),
        ("RSS", "rss", promise.saves_rss, promise.saved_rss, promise.rss_verdict),
    ];
    let mut first = true;
    for (label, id, promised, saved, verdict) in dimensions {
        let Some(verdict) = verdict else { continue };
        let spread = match (base.figures.get(id), side.figures.get(id)) {
            (Some(a), Some(b)) => saved_range(*a, *b),
            _ => String::new(),
        };
        let void = verdict == Kept::Void;
        let saved =
            if void { "–".to_owned() } else { saved.map_or_else(|| "not known".to_owned(), saving) };
        let spread = if void { String::new() } else { spread };
        let promised = if promised > 0 { size(promised) } else { "nothing".to_owned() };
        let (name, what) = match first {
            true => (side.name.as_str(), clean(&side.label)),
            false => ("", String::new()),
        };
        let text = row([name, &what, label, &promised, &saved, &spread, verdict.words()]);
        let tone = match verdict {
            Kept::Holds | Kept::Helps => Tone::Advice,
            Kept::LessThanPromised | Kept::TooSmall | Kept::Unknown => Tone::Key,
            Kept::NoEffect | Kept::MadeItWorse | Kept::Void => Tone::Warning,
        };
        *out += &format!("{}\n", options.color.paint(tone, &text));
        first = false;
    }
    let below = match side.void.as_slice() {
        [] => cost(promise, (base, side), effect),
        why => clean(&why.join("; ")),
    };
    for line in wrapped(&below, WIDTH - 5) {
        *out += &format!("     {}\n", options.color.paint(Tone::Dim, &line));
    }
}

/// Saved is written without a sign; what it cost instead with one.
fn saving(saved: i64) -> String {
    match saved {
        0.. => size(saved.unsigned_abs()),
        _ => format!("-{}", size(saved.unsigned_abs())),
    }
}

/// The least and the most that any two runs would have shown.
fn saved_range(before: Spread, after: Spread) -> String {
    let (least, most) = (change(after.max, before.min), change(after.min, before.max));
    match (least, most) {
        (0.., 0..) => range(Unit::Bytes, (least.unsigned_abs(), most.unsigned_abs())),
        _ => format!("{}…{}", saving(least), saving(most)),
    }
}

/// What else changed, and what did not.
fn cost(promise: &Promise, (base, side): (&Side, &Side), effect: &Effect) -> String {
    let (mut changed, mut noise) = (Vec::new(), Vec::new());
    let promised = |metric: &Metric| {
        metric.id == "virt" && promise.virt_verdict.is_some()
            || metric.id == "rss" && promise.rss_verdict.is_some()
    };
    let notable = |metric: &&Metric| !matches!(metric.id, "unused" | "vm_peak") && !promised(metric);
    for metric in METRICS.iter().filter(notable) {
        let found = (base.figures.get(metric.id), side.figures.get(metric.id), effect.changes.get(metric.id));
        let (Some(a), Some(b), Some(delta)) = found else { continue };
        if a.max.max(b.max) < metric.least {
            continue;
        }
        match delta.verdict {
            Verdict::Same => {}
            Verdict::WithinNoise => noise.push(metric.label.trim()),
            Verdict::Differs | Verdict::SingleRun => changed.push(format!(
                "{} {} → {}",
                metric.label.trim(),
                value(metric.unit, a.median),
                value(metric.unit, b.median)
            )),
        }
    }
    if !noise.is_empty() {
        changed.push(format!("within the noise: {}", noise.join(", ")));
    }
    // what is no fault of the setting, or goes along with it
    if let Some(own) =
        promise.saved_own.filter(|own| own.abs_diff(promise.saved_virt) > promise.saves_virt / 10)
    {
        changed.insert(0, format!("of the memory that it is about: {}", saving(own)));
    }
    if changed.is_empty() { "nothing else changed".to_owned() } else { changed.join(" · ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_in_words() {
        assert_eq!(time(0), "0");
        assert_eq!(time(440_000), "0.4 ms");
        assert_eq!(time(999_949_999), "999.9 ms");
        assert_eq!(time(999_950_000), "1.00 s");
        assert_eq!(time(61_204_000_000), "61.20 s");
        assert_eq!(signed(Unit::Count, -1234), "-1,234");
        assert_eq!(signed(Unit::Bytes, 0), "0");
        assert_eq!(range(Unit::Bytes, (4096, 4096)), "4 KiB");
        assert_eq!(range(Unit::Bytes, (4096, 8192)), "4…8 KiB");
        assert_eq!(range(Unit::Bytes, (512 << 10, 3 << 20)), "512 KiB…3.0 MiB");
        assert_eq!(range(Unit::Count, (1, 2000)), "1…2,000");
    }

    #[test]
    fn wide_cells_stay_apart() {
        let (a, b) = ("1013.9 MiB…1.9 GiB", "1013.9 MiB…1014.2 GiB");
        assert_eq!(range(Unit::Bytes, (1_063_151_207, 2 << 30)), "1013.9 MiB…2.0 GiB");
        assert!(
            line(["VIRT", "1.9 GiB", "1013.9 MiB", "-1013.9 MiB", a, b, ""])
                .contains(&format!("MiB {a} {b}"))
        );
        assert!(
            row(["B", "K=V", "VIRT", "1013.9 MiB", "-1013.9 MiB", b, "holds"])
                .contains(&format!("MiB {b}  holds"))
        );
    }

    #[test]
    fn what_was_saved_has_a_spread() {
        let of = |min, max| Spread { runs: 2, median: min, min, max };
        assert_eq!(saved_range(of(100 << 20, 110 << 20), of(10 << 20, 20 << 20)), "80.0…100.0 MiB");
        assert_eq!(saved_range(of(1024, 2048), of(2048, 3072)), "-2 KiB…0");
    }
}

//! A comparison as text and as JSON (docs/compare.md).

mod causes;
mod figures;

use super::style::{Tone, clean, shell_word, truncated, wrapped};
use super::text::{TextOptions, WIDTH, closing_notes};
use crate::compare::model::{Comparison, Side};
use crate::report::units::size;
use causes::causes;
use figures::{advice_table, figures_table};

/// At most [`WIDTH`] columns; `options.top` causes of each category.
pub fn to_text(comparison: &Comparison, options: TextOptions) -> String {
    let mut out = String::new();
    let Some((base, others)) = comparison.sides.split_first() else { return out };
    head(comparison, options, &mut out);
    let advice =
        others.iter().any(|side| side.effect.as_ref().is_some_and(|effect| effect.promise.is_some()));
    if advice {
        out.push('\n');
        advice_table(comparison, options, &mut out);
        // what all together do; a single piece of advice is "all"
        if let Some(last) = others.last() {
            out.push('\n');
            figures_table(base, last, options, &mut out);
            causes(base, last, options, &mut out);
        }
    } else {
        for side in others {
            out.push('\n');
            figures_table(base, side, options, &mut out);
            causes(base, side, options, &mut out);
        }
        if others.is_empty() {
            out += "\n  the report of this run recommends no setting: there is nothing to try\n";
        }
    }
    not_tried(comparison, options, &mut out);
    if !comparison.notes.is_empty() {
        out.push('\n');
    }
    closing_notes(&comparison.notes, options.color, &mut out);
    out
}

fn head(comparison: &Comparison, options: TextOptions, out: &mut String) {
    let command = comparison.command.iter().map(|word| shell_word(word)).collect::<Vec<_>>().join(" ");
    *out += &options.color.paint(Tone::Heading, &truncated(&command, WIDTH));
    out.push('\n');
    for side in &comparison.sides {
        let line = format!("{} · {}", clean(&side.label), outcomes(side));
        for (i, part) in wrapped(&line, WIDTH - 5).iter().enumerate() {
            *out += &format!("  {:<3}{part}\n", if i == 0 { side.name.as_str() } else { "" });
        }
        if let Some(failure) = &side.failure {
            for line in
                wrapped(&format!("no report ({}): {}", failure.code, clean(&failure.message)), WIDTH - 5)
            {
                *out += &format!("     {}\n", options.color.paint(Tone::Warning, &line));
            }
        } else if !side.void.is_empty() {
            let text = format!("void, nothing of it counts as saved: {}", clean(&side.void.join("; ")));
            for line in wrapped(&text, WIDTH - 5) {
                *out += &format!("     {}\n", options.color.paint(Tone::Warning, &line));
            }
        }
    }
    let how = match comparison.ended_by.as_deref() {
        Some("load") => "each run ended with its load",
        Some("duration") => "each examined and ended after the same time",
        _ => "each run to the command's end",
    };
    let text = format!("runs took turns; {how}; times are those of an audited process");
    *out += &format!("  {}\n", options.color.paint(Tone::Dim, &text));
    if comparison.interrupted {
        let text = "interrupted: these are the runs that were complete";
        *out += &format!("  {}\n", options.color.paint(Tone::Warning, text));
    }
    if comparison.output_varies {
        let text = "what the command prints differs from run to run as it is: it could not be compared";
        *out += &format!("  {}\n", options.color.paint(Tone::Dim, text));
    }
    if !comparison.ended_alike() {
        let text = "the runs did not end alike, or print alike: what is compared may not be the same work";
        *out += &format!("  {}\n", options.color.paint(Tone::Warning, text));
    }
}

/// `3 runs, each exited 0`, `3 runs: 2 exited 0, 1 killed by signal 11`.
fn outcomes(side: &Side) -> String {
    let mut counts: Vec<(String, u32)> = Vec::new();
    for run in &side.runs {
        let outcome = match run.load_code {
            Some(code) if code != 0 => format!("{}, load failed ({code})", run.outcome),
            _ => run.outcome.clone(),
        };
        match counts.iter_mut().find(|(known, _)| *known == outcome) {
            Some((_, count)) => *count += 1,
            None => counts.push((outcome, 1)),
        }
    }
    let runs = match side.runs.len() {
        0 => return "no complete run".to_owned(),
        1 => "1 run".to_owned(),
        n => format!("{n} runs"),
    };
    let processes = side.runs.iter().map(|run| run.figures.processes).max().unwrap_or(1);
    let together = if processes > 1 { format!(", {processes} processes together") } else { String::new() };
    match counts.as_slice() {
        [(outcome, _)] => {
            format!("{runs}, {}{}{together}", if side.runs.len() > 1 { "each " } else { "" }, words(outcome))
        }
        many => {
            let each: Vec<String> =
                many.iter().map(|(outcome, count)| format!("{count} {}", words(outcome))).collect();
            format!("{runs}: {}{together}", each.join(", "))
        }
    }
}

fn words(outcome: &str) -> String {
    outcome.replacen("running", "still running when it was examined", 1)
}

fn not_tried(comparison: &Comparison, options: TextOptions, out: &mut String) {
    if comparison.not_tried.is_empty() {
        return;
    }
    *out += &format!(
        "\n  {}\n",
        options.color.paint(Tone::Dim, "not tried: changes of the program, or of how it is started")
    );
    for each in &comparison.not_tried {
        let saves = match (each.saves_virt, each.saves_rss) {
            (virt, 0) => format!("up to {} of VIRT", size(virt)),
            (0, rss) => format!("up to {} of RSS", size(rss)),
            (virt, rss) => format!("up to {} of VIRT, {} of RSS", size(virt), size(rss)),
        };
        *out += &format!("     {}\n", truncated(&format!("{}: {saves}", clean(&each.knob)), WIDTH - 5));
    }
}

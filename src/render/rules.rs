//! Rules that are data, as text.

use super::style::{Tone, clean, wrapped};
use super::text::{TextOptions, WIDTH};
use crate::report::rules::{RuleRow, Sum, Tested, TestedRule};
use crate::report::units::{size, thousands};

/// Of a rule's regions; all are in JSON.
const SHOWN: usize = 3;
const INDENT: &str = "    ";

pub fn rules_to_text(rules: &[RuleRow], options: TextOptions) -> String {
    let mut out = String::new();
    for rule in rules {
        let head = format!("{}  {}", rule.id, rule.what);
        out += &options.color.paint(Tone::Heading, &clean(&head));
        out.push('\n');
        let mut line = |key: &str, text: &str| {
            let indent = INDENT.len() + 8;
            for (at, part) in wrapped(&clean(text), WIDTH.saturating_sub(indent)).iter().enumerate() {
                let key = if at == 0 { key } else { "" };
                out += &format!("{INDENT}{key:<8}{part}\n");
            }
        };
        line("why", &rule.why);
        for knob in &rule.knobs {
            let promise = if knob.promises { "" } else { " (nothing is promised)" };
            line("fix", &format!("{}{promise}", knob.knob));
        }
        let lists = [("in", &rule.functions), ("named", &rule.names), ("file", &rule.files)];
        for (key, list) in lists.iter().filter(|(_, list)| !list.is_empty()) {
            line(key, &list.join(", "));
        }
        line("source", &rule.source);
        line("proven", rule.proven.as_deref().unwrap_or("no: nothing is promised"));
        line("from", &format!("{}:{}", rule.file, rule.line));
        out.push('\n');
    }
    let proven = rules.iter().filter(|rule| rule.proven.is_some()).count();
    out += &format!("{} rules, {proven} of them proven\n", rules.len());
    out
}

pub fn tested_to_text(processes: &[Tested], options: TextOptions) -> String {
    let mut out = String::new();
    for process in processes {
        let head = format!("{} (pid {})", process.comm, process.pid);
        out += &options.color.paint(Tone::Heading, &clean(&head));
        out.push('\n');
        for rule in &process.rules {
            out += &row(&rule.id, rule.sum, if rule.claims { "" } else { "  (explains)" });
            out += &format!("{INDENT}  at {}\n", clean(&places(rule)));
        }
        out += &row("no rule", process.without, "");
    }
    out
}

fn row(id: &str, sum: Sum, more: &str) -> String {
    let plural = if sum.regions == 1 { "" } else { "s" };
    let what = format!("{} region{plural}", thousands(sum.regions));
    let id = clean(id);
    format!("{INDENT}{id:<28}{what:>15}{:>12} VIRT{:>12} RSS{more}\n", size(sum.virt), size(sum.rss))
}

fn places(rule: &TestedRule) -> String {
    let mut text = rule.at.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    if rule.at.len() > SHOWN {
        text += &format!(" and {} more", thousands((rule.at.len() - SHOWN) as u64));
    }
    text
}

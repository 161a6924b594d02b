//! Tables of a comparison: totals, categories, processes.

use crate::diff::Diff;
use crate::diff::model::{Kind, Width, Widths};
use crate::render::style::{Tone, clean, signed_size, truncated};
use crate::render::text::TextOptions;
use crate::report::units::{size, thousands};

fn cells(width: Option<Width>) -> [String; 3] {
    match width {
        Some(w) => [size(w.a), size(w.b), signed_size(w.change)],
        None => ["not known".to_string(), "not known".to_string(), "-".to_string()],
    }
}

/// VIRT, RSS and the rest on both sides.
pub(super) fn totals(diff: &Diff, options: TextOptions, out: &mut String) {
    let head = format!("{:10}{:>12}{:>12}{:>13}", "", "A", "B", "change");
    *out += &format!("{}\n", options.color.paint(Tone::Dim, &head));
    let t = &diff.totals;
    let rows = [
        ("VIRT", Some(t.virt)),
        ("RSS", t.rss),
        ("unused", t.unused),
        ("writable", Some(t.writable)),
        ("swap", t.swap.filter(|swap| swap.a > 0 || swap.b > 0)),
    ];
    for (name, width) in rows.into_iter().filter(|(name, width)| *name != "swap" || width.is_some()) {
        let [a, b, change] = cells(width);
        let line = format!("  {name:<8}{a:>12}{b:>12}");
        let change = options.color.paint(Tone::Key, &format!("{change:>13}"));
        *out += &format!("{line}{change}\n");
    }
}

struct Row {
    name: String,
    remark: &'static str,
    widths: Widths,
}

/// One row for each category that changed; the others in one.
pub(super) fn categories(diff: &Diff, options: TextOptions, out: &mut String) {
    let row = |name: &str, kind: Kind, widths: Widths| Row {
        name: truncated(&clean(name), MAX_NAME),
        remark: word(kind),
        widths,
    };
    let changed = diff.categories.iter().filter(|c| c.kind != Kind::Equal);
    let rows: Vec<Row> = changed.map(|c| row(&c.name, c.kind, c.widths)).collect();
    table("what", &rows, options, out);
    let same: Vec<u64> =
        diff.categories.iter().filter(|c| c.kind == Kind::Equal).map(|c| c.widths.virt.a).collect();
    if !same.is_empty() && !rows.is_empty() {
        let what = if same.len() == 1 { "category" } else { "categories" };
        let line = format!(
            "  ({} more {what}, {} of VIRT, equal in sum; all add up to the totals, byte for byte)",
            thousands(same.len() as u64),
            size(same.iter().sum())
        );
        *out += &format!("{}\n", options.color.paint(Tone::Dim, &line));
    }
}

/// Which processes were compared.
pub(super) fn processes(diff: &Diff, options: TextOptions, out: &mut String) {
    if diff.processes.is_empty() {
        return;
    }
    let pid = |pid: Option<i32>| pid.map_or_else(|| "none".to_string(), |pid| pid.to_string());
    let rows: Vec<Row> = diff
        .processes
        .iter()
        .take(options.top)
        .map(|p| Row {
            name: format!("{} {}, {}", truncated(&clean(&p.comm), 12), pid(p.pid_a), pid(p.pid_b)),
            remark: word(p.kind),
            widths: p.widths,
        })
        .collect();
    table("process, pid in A, in B", &rows, options, out);
    let hidden = diff.processes.len().saturating_sub(options.top);
    if hidden > 0 {
        let line = format!("  … and {} more; --top shows more", thousands(hidden as u64));
        *out += &format!("{}\n", options.color.paint(Tone::Dim, &line));
    }
    out.push('\n');
}

const MAX_NAME: usize = 29;

fn table(title: &str, rows: &[Row], options: TextOptions, out: &mut String) {
    if rows.is_empty() {
        return;
    }
    let names = rows.iter().map(|row| row.name.chars().count()).max().unwrap_or(0);
    let width = names.max(title.chars().count()).clamp(20, MAX_NAME);
    let line = |name: &str, virt: &[String; 3], rss: &[String; 3]| {
        let cell = |cells: &[String; 3]| format!("{:>11}{:>11}{:>12}", cells[0], cells[1], cells[2]);
        format!("  {:<width$}{}{}", truncated(name, width), cell(virt), cell(rss))
    };
    let known = rows.iter().any(|row| row.widths.rss.is_some());
    let heading = |what: &str| [format!("{what} A"), format!("{what} B"), "change".to_string()];
    let blank = [const { String::new() }; 3];
    let rss_head = if known { heading("RSS") } else { blank.clone() };
    let head = line(title, &heading("VIRT"), &rss_head);
    *out += &format!("{}\n", options.color.paint(Tone::Dim, head.trim_end()));
    for row in rows {
        let virt = cells(Some(row.widths.virt));
        let rss = row.widths.rss.map_or(blank.clone(), |rss| cells(Some(rss)));
        let text = line(&row.name, &virt, &rss);
        let text = if known { text } else { format!("{}  {}", text.trim_end(), row.remark) };
        *out += &format!("{}\n", text.trim_end());
    }
}

/// As the text says it.
pub(super) fn word(kind: Kind) -> &'static str {
    match kind {
        Kind::New => "new",
        Kind::Gone => "gone",
        Kind::Grown => "grown",
        Kind::Shrunk => "shrunk",
        Kind::Changed => "changed",
        Kind::Equal => "equal",
    }
}

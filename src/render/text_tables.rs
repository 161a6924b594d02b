//! Aligned tables: totals, categories, processes.

use super::style::{Tone, clean, truncated};
use super::text::{TextOptions, WIDTH, end};
use crate::report::model::{CategoryRow, Process};
use crate::report::units::{size, thousands};

/// VIRT, RSS and what is left.
pub(super) fn totals_table(p: &Process, options: TextOptions, out: &mut String) {
    let t = &p.totals;
    let mut headings = vec!["VIRT", "RSS"];
    let mut cells = vec![size(t.virt), size(t.rss)];
    if t.swap > 0 {
        headings.push("swap");
        cells.push(size(t.swap));
    }
    headings.push("unused");
    cells.push(size(t.unused));
    let mut head = " ".repeat(9);
    let mut line = "  total  ".to_string();
    for (heading, cell) in headings.iter().zip(&cells) {
        head += &format!("{heading:>11}");
        line += &format!("{cell:>11}");
    }
    let percent = (u128::from(t.unused) * 100).checked_div(u128::from(t.virt)).unwrap_or(0);
    let remark = match (t.swap, t.purged) {
        (0, 0) => format!("{percent} % of the address space was never touched"),
        (0, _) => format!("{percent} % of the address space is not in memory"),
        _ => format!("{percent} % is neither in memory nor in swap"),
    };
    *out += &format!("{}\n", options.color.paint(Tone::Dim, &head));
    *out += &format!("{}    {remark}\n", options.color.paint(Tone::Heading, &line));
}

/// One row a category; they add up to the total, byte for byte.
pub(super) fn category_table(p: &Process, options: TextOptions, out: &mut String) {
    let name = |row: &CategoryRow| truncated(&clean(&row.name), 34);
    let width = p.categories.iter().map(|r| name(r).chars().count()).max().unwrap_or(0).max(20);
    let line = |name: &str, cells: [&str; 5]| {
        let [virt, writable, rss, unused, regions] = cells;
        format!("  {name:<width$}{virt:>11}{writable:>11}{rss:>11}{unused:>11}{regions:>9}")
    };
    let head = line("what", ["VIRT", "writable", "RSS", "unused", "regions"]);
    *out += &format!("{}\n", options.color.paint(Tone::Dim, &head));
    for row in &p.categories {
        let [virt, writable, rss, unused] = [row.virt, row.writable, row.rss, row.unused].map(size);
        let text = line(&name(row), [&virt, &writable, &rss, &unused, &thousands(row.regions)]);
        let unexplained = row.id == "unknown";
        *out += &if unexplained { options.color.paint(Tone::Warning, &text) } else { text };
        out.push('\n');
    }
    let remark = "  (rows add up to the total, byte for byte; what nothing explains is a row of its own)";
    *out += &format!("{}\n", options.color.paint(Tone::Dim, remark));
}

/// The other processes, largest unused first.
pub(super) fn process_table(processes: &[&Process], options: TextOptions, out: &mut String) {
    let head = format!(
        "  {:>8}  {:<16}{:>11}{:>11}{:>11}  {}",
        "pid", "other processes", "VIRT", "RSS", "unused", "mostly"
    );
    *out += &format!("{}\n", options.color.paint(Tone::Dim, &head));
    for p in processes {
        let mostly = p.categories.first().map(|c| clean(&c.name)).unwrap_or_default();
        let line = format!(
            "  {:>8}  {:<16}{:>11}{:>11}{:>11}  {}",
            p.pid,
            truncated(&clean(&p.comm), 15),
            size(p.totals.virt),
            size(p.totals.rss),
            size(p.totals.unused),
            format_args!("{} · {}", mostly, end(p))
        );
        *out += &format!("{}\n", truncated(&line, WIDTH));
    }
}

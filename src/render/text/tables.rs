//! Aligned tables: totals, categories, processes.

use super::{TextOptions, WIDTH, end};
use crate::render::style::{Tone, clean, truncated};
use crate::report::model::{CategoryRow, Process};
use crate::report::units::{size, thousands};

/// `Process::residency` of a process without a snapshot.
pub(super) const UNKNOWN: &str = "none";

/// The column of what changed after the last snapshot.
const NOT_KNOWN: &str = "not known";

/// Bytes that rest on residency.
fn known(p: &Process, bytes: u64) -> String {
    if p.residency == UNKNOWN { "not known".to_string() } else { size(bytes) }
}

/// VIRT, RSS and what is left.
pub(super) fn totals_table(p: &Process, options: TextOptions, out: &mut String) {
    let t = &p.totals;
    let mut headings = vec!["VIRT", "RSS"];
    let mut cells = vec![size(t.virt), known(p, t.rss)];
    if t.swap > 0 {
        headings.push("swap");
        cells.push(size(t.swap));
    }
    headings.push("unused");
    cells.push(known(p, t.unused - t.unused.min(t.residency_unknown)));
    if t.residency_unknown > 0 {
        headings.push(NOT_KNOWN);
        cells.push(size(t.residency_unknown));
    }
    let mut head = " ".repeat(9);
    let mut line = "  total  ".to_string();
    for (heading, cell) in headings.iter().zip(&cells) {
        head += &format!("{heading:>11}");
        line += &format!("{cell:>11}");
    }
    let unused = t.unused - t.unused.min(t.residency_unknown);
    let percent = percent(unused, t.virt);
    let ended_unseen = p.source.is_none() && (p.exit_code.is_some() || p.signal.is_some());
    let remark = match (t.swap, t.purged) {
        _ if p.residency == UNKNOWN && ended_unseen => {
            "what was in memory was not examined before its end".to_string()
        }
        _ if p.residency == UNKNOWN => "what is in memory is not known".to_string(),
        _ if t.residency_unknown > 0 => format!("at least {percent} is not in memory"),
        (0, 0) => format!("{percent} of the address space is not in memory"),
        (0, purged) => format!("{percent} is not in memory; {} were given back", size(purged)),
        _ => format!("{percent} is neither in memory nor in swap"),
    };
    *out += &format!("{}\n", options.color.paint(Tone::Dim, &head));
    *out += &format!("{}    {remark}\n", options.color.paint(Tone::Heading, &line));
}

/// One row a category; they add up to the total, byte for byte.
pub(super) fn category_table(p: &Process, options: TextOptions, out: &mut String) {
    let name = |row: &CategoryRow| truncated(&clean(&row.name), 34);
    let width = p.categories.iter().map(|r| name(r).chars().count()).max().unwrap_or(0).max(20);
    let has_unknown = p.totals.residency_unknown > 0;
    let line = |name: &str, cells: [&str; 6]| {
        let [virt, writable, rss, unused, unknown, regions] = cells;
        let unknown = if has_unknown { format!("{unknown:>11}") } else { String::new() };
        format!("  {name:<width$}{virt:>11}{writable:>11}{rss:>11}{unused:>11}{unknown}{regions:>9}")
    };
    let head = line("what", ["VIRT", "writable", "RSS", "unused", NOT_KNOWN, "regions"]);
    *out += &format!("{}\n", options.color.paint(Tone::Dim, &head));
    for row in &p.categories {
        let [virt, writable] = [row.virt, row.writable].map(size);
        let unused = row.unused - row.unused.min(row.residency_unknown);
        let [rss, unused] = [row.rss, unused].map(|bytes| known(p, bytes));
        let unknown = size(row.residency_unknown);
        let text = line(&name(row), [&virt, &writable, &rss, &unused, &unknown, &thousands(row.regions)]);
        let unexplained = row.id == "unknown";
        *out += &if unexplained { options.color.paint(Tone::Warning, &text) } else { text };
        out.push('\n');
    }
    let remark = "  (rows add up to the total, byte for byte; what nothing explains is a row of its own)";
    *out += &format!("{}\n", options.color.paint(Tone::Dim, remark));
}

/// The others than `main`, largest unused first: the first `options.top`, and the sum of the rest.
pub(super) fn process_table(main: &Process, processes: &[&Process], options: TextOptions, out: &mut String) {
    let line = |pid: &str, name: &str, cells: [&str; 3], mostly: &str| {
        let [virt, rss, unused] = cells;
        format!("  {pid:>8}  {name:<16}{virt:>11}{rss:>11}{unused:>11}  {mostly}")
    };
    let head = line("pid", "other processes", ["VIRT", "RSS", "unused"], "mostly");
    *out += &format!("{}\n", options.color.paint(Tone::Dim, &head));
    let (shown, rest) = processes.split_at(options.top.min(processes.len()));
    for p in shown {
        let mostly = p.categories.first().map(|c| clean(&c.name)).unwrap_or_default();
        let text = line(
            &p.pid.to_string(),
            &truncated(&clean(&p.comm), 15),
            [&size(p.totals.virt), &known(p, p.totals.rss), &known(p, p.totals.unused)],
            &format!("{} · {}", mostly, end(p)),
        );
        *out += &format!("{}\n", truncated(&text, WIDTH));
    }
    if !rest.is_empty() {
        let sum = |of: fn(&Process) -> u64| size(rest.iter().map(|p| of(p)).sum());
        let name = format!("{} more", thousands(rest.len() as u64));
        let is_known = rest.iter().all(|p| p.residency != UNKNOWN);
        let resident = |of: fn(&Process) -> u64| if is_known { sum(of) } else { NOT_KNOWN.to_owned() };
        let cells = [sum(|p| p.totals.virt), resident(|p| p.totals.rss), resident(|p| p.totals.unused)];
        let text = line("…", &name, [&cells[0], &cells[1], &cells[2]], "together; --top shows more");
        *out += &format!("{}\n", options.color.paint(Tone::Dim, &text));
    }
    let unseen = processes.iter().filter(|p| p.snapshot == "ledger").count() as u64;
    if unseen > 0 {
        let hint = if main.attached { "" } else { "; run --min-virt 0 examines small and short ones" };
        let remark = format!("  ({} of them were not examined before their end{hint})", thousands(unseen));
        *out += &format!("{}\n", options.color.paint(Tone::Dim, &remark));
    }
}

/// As HTML shows it (units.js, `percent`): rounded, but neither nothing nor all unless it is.
pub(super) fn percent(part: u64, whole: u64) -> String {
    let (part, whole) = (u128::from(part), u128::from(whole.max(1)));
    match part * 100 {
        hundredfold if hundredfold > 0 && hundredfold < whole => "< 1 %".to_owned(),
        hundredfold if hundredfold > whole * 99 && part < whole => "> 99 %".to_owned(),
        hundredfold => format!("{} %", (hundredfold + whole / 2) / whole),
    }
}

#[cfg(test)]
mod tests {
    use super::percent;

    #[test]
    fn rounded_as_html_shows_it() {
        let of = |part| percent(part, 1000);
        assert_eq!([of(0), of(1), of(955), of(954)], ["0 %", "< 1 %", "96 %", "95 %"]);
        assert_eq!([of(991), of(990), of(1000), percent(0, 0)], ["> 99 %", "99 %", "100 %", "0 %"]);
    }
}

//! Keys and columns explained.

use super::cells::{Row, left, words};
use super::theme::{StyleName, Theme};
use ratatui::text::Line;

const KEYS: &[(&str, &str)] = &[
    ("↑ ↓ PgUp PgDn", "select; Home and End go to the first and the last"),
    ("Enter", "open: a process, its category, the stack of a region or call"),
    ("Esc", "back; in the list it takes the filter away"),
    ("Tab", "next part: regions, findings, reservations (-t)"),
    ("s <", "sort by the next or the previous column; r reverses"),
    ("/", "only processes whose name contains what is typed"),
    ("space", "pause, and go on"),
    ("+ -", "take snapshots less or more often"),
    ("q", "quit; Ctrl-Z stops, fg goes on"),
];

const COLUMNS: &[(&str, &str)] = &[
    ("VIRT", "address space that is mapped (VmSize)"),
    ("RSS", "in memory now; shared pages count in each process"),
    ("unused", "VIRT that is neither in memory nor in swap: VIRT - RSS - swap"),
    ("growth", "change of VIRT since top began, or since its last execve"),
    ("mostly", "the category with most VIRT; refreshed slowly (see below: how old)"),
    ("PSS", "of a container: what n processes share counts one n-th in each"),
];

pub(super) fn lines(width: usize, theme: Theme) -> Vec<Line<'static>> {
    let mut lines = vec![words(StyleName::Title, "vmaudit top", (width, theme)), Line::default()];
    let columns = 15.min(width / 3);
    let row = |(label, text): &(&str, &str)| {
        let rest = width.saturating_sub(columns + 2);
        Row::new(theme)
            .add(StyleName::Key, format!(" {} ", left(label, columns)))
            .add(StyleName::Plain, super::cells::cut(text, rest))
            .line()
    };
    lines.extend(KEYS.iter().map(row));
    lines.push(Line::default());
    lines.extend(COLUMNS.iter().map(row));
    lines
}

//! One process: sizes over time, verdict, categories, and with tracing the newest reservations.

use super::cells::{Row, both_ends, cut, left, marker, name, right, seconds, sort_title, style_of};
use super::theme::{StyleName, Theme};
use super::{Page, Part, calls};
use crate::render::style::{clean, signed_size, wrapped};
use crate::report::category_color;
use crate::report::model::{Process, Totals};
use crate::report::units::{size, thousands};
use crate::top::{CategoryLine, Opened, Pages, Pane, Point, SortBy, State, Track};
use ratatui::text::Line;

/// From this height on there is space for the sizes over time, and for a whole verdict.
const TALL: usize = 18;

/// Lines of each part.
struct Split {
    header: usize,
    table: usize,
    calls: usize,
}

fn split(state: &State, width: usize, height: usize) -> Split {
    let header = header(state, (width, height), Theme::PLAIN).len();
    let rows = height.saturating_sub(header);
    let needed = state.category_count() + 1;
    if state.tracing.is_none() {
        return Split { header, table: rows, calls: 0 };
    }
    if rows < 8 {
        // only the part that keys go to
        let table = if state.pane == Pane::Table { rows } else { 0 };
        return Split { header, table, calls: rows - table };
    }
    // a blank line between the two
    let table = (needed + usize::from(height >= TALL)).min(rows * 3 / 5);
    Split { header, table, calls: rows - table }
}

pub(super) fn pages(state: &State, width: usize, height: usize) -> Pages {
    let split = split(state, width, height);
    Pages { table: split.table.saturating_sub(1), calls: split.calls.saturating_sub(1), ..Pages::default() }
}

pub(super) fn page(state: &State, width: usize, height: usize, theme: Theme) -> Page {
    let split = split(state, width, height);
    let mut header = header(state, (width, height), theme);
    header.truncate(split.header);
    let mut parts = Vec::new();
    if split.table > 0 {
        parts.push(table(state, (width, split.table), theme));
    }
    if split.calls > 0 {
        parts.push(calls::part(state, (width, split.calls), theme));
    }
    Page { header, parts }
}

/// Its identity, its size, and whether that matters.
pub(super) fn header(state: &State, (width, height): (usize, usize), theme: Theme) -> Vec<Line<'static>> {
    let Some(opened) = &state.opened else { return Vec::new() };
    let track = state.track(opened.id);
    let details = opened.details.as_ref();
    let process = details.map(|details| details.process.as_ref());
    let name = match (track, process) {
        (Some(track), _) => track.newest.name.clone(),
        (None, Some(process)) => process.comm.clone(),
        (None, None) => String::new(),
    };
    let mut row = Row::new(theme)
        .add(StyleName::Title, cut(&clean(&name), 32))
        .add(StyleName::Plain, format!(" · pid {}", opened.id.pid));
    if let Some(inside) = process.and_then(|process| process.container_pid) {
        row = row.add(StyleName::Plain, format!(" ({inside} inside)"));
    }
    match track {
        Some(track) if !track.has_ended() => {
            let threads = track.newest.threads;
            let noun = if threads == 1 { "thread" } else { "threads" };
            row = row
                .add(StyleName::Plain, format!(" · {} {noun}", thousands(threads)))
                .add(StyleName::Dim, format!(" · {}", clean(&track.newest.user)));
            if let Some(container) = &track.newest.container {
                row = row.add(StyleName::Dim, format!(" · {}", cut(&clean(container), 24)));
            }
        }
        _ => row = row.add(StyleName::Warning, " · has ended; this is its last state"),
    }
    let every = format!("every {}", seconds(state.interval_ms));
    let mut lines = vec![both_ends(row, &every, (width, theme))];
    lines.push(sizes(track, process.map(|process| &process.totals), (width, theme)));
    if height >= TALL
        && let Some(track) = track
    {
        lines.extend(over_time(track, width, theme));
    }
    if let Some(process) = process {
        lines.extend(verdict(process, (width, height), theme));
    }
    if let Some(error) = &opened.error {
        for line in error.lines().flat_map(|line| wrapped(&clean(line), width.max(10))) {
            lines.push(Row::new(theme).add(StyleName::Warning, line).line());
        }
    }
    if height >= TALL {
        lines.push(Line::default());
    }
    lines
}

/// `VIRT 110.2 MiB   RSS 9.4 MiB   unused 100.8 MiB (91 %)   growth +2.0 MiB`
fn sizes(track: Option<&Track>, totals: Option<&Totals>, (width, theme): (usize, Theme)) -> Line<'static> {
    let figures = track.map(|track| track.newest.figures).unwrap_or_default();
    let (virt, rss, swap, unused) = match totals {
        Some(totals) => (totals.virt, totals.rss, totals.swap, totals.unused),
        None => (figures.virt, figures.rss, figures.swap, figures.unused()),
    };
    let percent = (u128::from(unused) * 100).checked_div(u128::from(virt)).unwrap_or(0);
    let gap = if width >= 76 { "   " } else { " " };
    let mut row = Row::new(theme)
        .add(StyleName::Head, format!("VIRT {}", size(virt)))
        .add(StyleName::Plain, format!("{gap}RSS {}", size(rss)));
    if swap > 0 {
        row = row.add(StyleName::Plain, format!("{gap}swap {}", size(swap)));
    }
    row = row
        .add(StyleName::Title, format!("{gap}unused {}", size(unused)))
        .add(StyleName::Dim, format!(" ({percent} %)"));
    if let Some(growth) = track.map(Track::growth)
        && width >= 64
    {
        row = row.add(StyleName::Plain, format!("{gap}growth ")).add(style_of(growth), signed_size(growth));
    }
    row.line()
}

/// VIRT and RSS since the first snapshot: each between its own least and most.
fn over_time(track: &Track, width: usize, theme: Theme) -> Vec<Line<'static>> {
    let rows = width.saturating_sub(2 * 12 + 6).min(96);
    let points = track.history.spread(rows);
    let line = |label: &str, of: fn(&Point) -> u64| {
        let values: Vec<u64> = points.iter().map(of).collect();
        let (first, last) = (values.first().copied().unwrap_or(0), values.last().copied().unwrap_or(0));
        Row::new(theme)
            .add(StyleName::Dim, format!("{label} {} ", right(&size(first), 11)))
            .add(StyleName::Key, sparkline(&values))
            .add(StyleName::Plain, format!(" {}", size(last)))
            .line()
    };
    vec![line("VIRT", |point| point.virt), line("RSS ", |point| point.rss)]
}

/// `▁▁▂▂▃█`: the least is the lowest, the most the highest, where they differ enough.
pub(super) fn sparkline(values: &[u64]) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let (least, most) =
        (values.iter().min().copied().unwrap_or(0), values.iter().max().copied().unwrap_or(0));
    // a change of less than a fiftieth is no mountain
    let span = (most - least).max(most / 50).max(1);
    let bar = |value: &u64| {
        let part = u128::from(value - least) * 7 / u128::from(span);
        BARS.get(usize::try_from(part).unwrap_or(0)).copied().unwrap_or(' ')
    };
    values.iter().map(bar).collect()
}

fn verdict(process: &Process, (width, height): (usize, usize), theme: Theme) -> Vec<Line<'static>> {
    let Some(verdict) = &process.verdict else { return Vec::new() };
    let style = if verdict.matters { StyleName::Warning } else { StyleName::Good };
    let most = if height >= TALL + 10 { 6 } else { 2 };
    let near = verdict
        .checks
        .iter()
        .filter(|check| check.state != "free")
        .map(|check| (StyleName::Plain, &check.text));
    let mut lines = Vec::new();
    for (style, text) in std::iter::once((style, &verdict.text)).chain(near) {
        let mut text = wrapped(&clean(text), width.max(10));
        if height < TALL && text.len() > 1 {
            text.truncate(1);
            text.iter_mut().for_each(|line| *line = cut(&format!("{line} …"), width));
        }
        lines.extend(text.into_iter().map(|line| Row::new(theme).add(style, line).line()));
        if height < TALL {
            break;
        }
    }
    if lines.len() > most {
        lines.truncate(most);
        if let Some(last) = lines.last_mut() {
            let text: String = last.spans.iter().map(|span| span.content.as_ref()).collect();
            *last = Line::styled(
                cut(&format!("{text} …"), width),
                last.spans.first().map_or_else(Default::default, |s| s.style),
            );
        }
    }
    lines
}

/// A column of the table: from which width on, and how wide.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Column {
    Virt,
    Writable,
    Rss,
    Swap,
    Unused,
    Regions,
    Growth,
}

const COLUMNS: [(Column, usize, usize); 7] = [
    (Column::Virt, 0, 10),
    (Column::Writable, 92, 10),
    (Column::Rss, 44, 10),
    (Column::Swap, 104, 10),
    (Column::Unused, 0, 10),
    (Column::Regions, 72, 8),
    (Column::Growth, 62, 11),
];

/// The columns there is space for, and what is left for the name.
fn columns(opened: &Opened, screen: usize) -> (usize, Vec<(Column, usize)>) {
    let swapped = opened.details.as_ref().is_some_and(|details| details.process.totals.swap > 0);
    let there =
        COLUMNS.iter().filter(|(column, from, _)| screen >= *from && (*column != Column::Swap || swapped));
    let columns: Vec<(Column, usize)> = there.map(|(column, _, width)| (*column, *width)).collect();
    let used: usize = columns.iter().map(|(_, width)| width + 1).sum();
    (screen.saturating_sub(used + 1).min(40), columns)
}

fn table(state: &State, (width, height): (usize, usize), theme: Theme) -> Part {
    let Some(opened) = &state.opened else { return Part { head: Vec::new(), rows: Vec::new(), height } };
    let active = state.pane == Pane::Table;
    let head = vec![table_head(state, opened, width, theme)];
    let (from, index) = (opened.categories.offset(), opened.categories.index());
    let lines = opened.lines((state.sort, state.reversed));
    let mut rows: Vec<_> = (lines.iter().enumerate().skip(from).take(height.saturating_sub(1)))
        .map(|(at, line)| {
            let selected = at == index && active;
            category(line, opened, width, theme).selectable_with(marker(selected), selected)
        })
        .collect();
    rows.extend(gone(opened, width, theme).filter(|_| from + rows.len() == lines.len()));
    if opened.details.is_none() && opened.error.is_none() {
        rows.push(Row::new(theme).add(StyleName::Dim, " looking …").line());
    }
    Part { head, rows, height }
}

pub(super) fn table_head(state: &State, opened: &Opened, width: usize, theme: Theme) -> Line<'static> {
    let (label, columns) = columns(opened, width);
    let head = |sort: Option<SortBy>, title: &str| sort_title(state, sort, title);
    let (style, title) = head(Some(SortBy::Name), "what");
    let pad = label.saturating_sub(super::cells::width(&title));
    let mut row =
        Row::new(theme).add(StyleName::Head, " ").add(style, title).add(StyleName::Head, " ".repeat(pad));
    for (column, width) in columns {
        let (style, title) = match column {
            Column::Virt => head(Some(SortBy::Virt), "VIRT"),
            Column::Writable => head(None, "writable"),
            Column::Rss => head(Some(SortBy::Rss), "RSS"),
            Column::Swap => head(None, "swap"),
            Column::Unused => head(Some(SortBy::Unused), "unused"),
            Column::Regions => head(None, "regions"),
            Column::Growth => head(Some(SortBy::Growth), "growth"),
        };
        let pad = (width + 1).saturating_sub(super::cells::width(&title));
        row = row.add(StyleName::Head, " ".repeat(pad)).add(style, title);
    }
    row.line()
}

fn category(line: &CategoryLine<'_>, opened: &Opened, width: usize, theme: Theme) -> Row {
    let (label, columns) = columns(opened, width);
    let row = line.row;
    let style =
        if row.id == "unknown" { StyleName::Warning } else { StyleName::Category(category_color(&row.id)) };
    let mut out = Row::new(theme).add(style, name(&row.name, label));
    for (column, width) in columns {
        let (text, style) = match column {
            Column::Virt => (size(row.virt), StyleName::Plain),
            Column::Writable => (size(row.writable), StyleName::Plain),
            Column::Rss => (size(row.rss), StyleName::Plain),
            Column::Swap => (size(row.swap), StyleName::Plain),
            Column::Unused => (size(row.unused), StyleName::Plain),
            Column::Regions => (thousands(row.regions), StyleName::Plain),
            Column::Growth => (signed_size(line.growth), style_of(line.growth)),
        };
        out = out.add(style, format!(" {}", right(&text, width)));
    }
    out
}

/// All rows of the table, as text shows them.
pub(super) fn table_rows(state: &State, width: usize, theme: Theme) -> Vec<Line<'static>> {
    let Some(opened) = &state.opened else { return Vec::new() };
    let lines = opened.lines((state.sort, state.reversed));
    let rows = lines.iter().map(|line| category(line, opened, width, theme).indented());
    rows.chain(gone(opened, width, theme)).collect()
}

/// What there was at the first snapshot, and is not any more: so that growth adds up.
fn gone(opened: &Opened, width: usize, theme: Theme) -> Option<Line<'static>> {
    let bytes = opened.gone();
    let (label, columns) = columns(opened, width);
    let before: usize = columns.iter().map_while(|&(c, w)| (c != Column::Growth).then_some(w + 1)).sum();
    if bytes == 0 || columns.iter().all(|(column, _)| *column != Column::Growth) {
        return None;
    }
    let text = left("(gone since the start)", label + before);
    Some(
        Row::new(theme)
            .add(StyleName::Dim, text)
            .add(StyleName::Good, right(&signed_size(bytes), 12))
            .indented(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_go_from_the_least_to_the_most() {
        assert_eq!(sparkline(&[0, 50, 100]), "▁▄█");
        assert_eq!(sparkline(&[7, 7]), "▁▁");
        assert_eq!(sparkline(&[10_000, 10_001]), "▁▁", "no mountain out of one page");
        assert_eq!(sparkline(&[0, u64::MAX]), "▁█");
        assert_eq!(sparkline(&[]), "");
    }
}

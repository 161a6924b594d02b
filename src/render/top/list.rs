//! All processes: sums, and a row each.

use super::cells::{Row, both_ends, left, marker, name, right, seconds, sort_title, style_of};
use super::theme::{StyleName, Theme};
use super::{Page, Part, calls};
use crate::render::style::{clean, signed_size};
use crate::report::units::{size, thousands};
use crate::top::{Cgroup, Group, Known, Pages, Pane, SortBy, State, Track};
use ratatui::text::Line;

/// A column: from which width of the screen on it is there, and its own width.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Column {
    Pid,
    User,
    Name,
    Virt,
    Rss,
    Unused,
    Growth,
    Last,
    Mostly,
    Container,
}

/// In the order of the screen: from which width on, and how wide.
const COLUMNS: [(Column, usize, usize); 10] = [
    (Column::Pid, 0, 7),
    (Column::User, 70, 8),
    (Column::Name, 0, 9),
    (Column::Virt, 0, 10),
    (Column::Rss, 52, 10),
    (Column::Unused, 40, 10),
    (Column::Growth, 64, 11),
    (Column::Last, 128, 11),
    (Column::Mostly, 92, 18),
    (Column::Container, 142, 16),
];
/// What a name has before anything else grows (comm has 15 bytes), and the widest that it is made.
const WHOLE_NAME: usize = 15;
const NAME: usize = 24;

/// The columns for a screen of this width, and how wide each is.
fn columns(screen: usize, containers: bool) -> Vec<(Column, usize)> {
    let there = COLUMNS
        .iter()
        .filter(|(column, from, _)| screen >= *from && (*column != Column::Container || containers));
    let mut columns: Vec<(Column, usize)> = there.map(|(column, _, width)| (*column, *width)).collect();
    // the marker, and a blank before each
    let used: usize = 1 + columns.iter().map(|(_, width)| width + 1).sum::<usize>() - 1;
    let mut spare = screen.saturating_sub(used);
    let has_mostly = columns.iter().any(|(column, _)| *column == Column::Mostly);
    for (column, width) in &mut columns {
        let most = match column {
            Column::Name => NAME,
            Column::Mostly => usize::MAX / 2,
            _ => continue,
        };
        // what a name leaves goes to what a process mostly is
        let part = match column {
            Column::Name if has_mostly => (spare / 2).max(spare.min(WHOLE_NAME.saturating_sub(*width))),
            _ => spare,
        };
        let more = part.min(most - (*width).min(most));
        *width += more;
        spare -= more;
    }
    columns
}

pub(super) fn pages(state: &State, width: usize, height: usize) -> Pages {
    let (table, calls) = split(state, width, height);
    let mostly = columns(width, false).iter().any(|(column, _)| *column == Column::Mostly);
    Pages { table: table.saturating_sub(1), calls: calls.saturating_sub(1), mostly, ..Pages::default() }
}

/// Lines of the table, and of the newest reservations.
fn split(state: &State, width: usize, height: usize) -> (usize, usize) {
    let rows = height.saturating_sub(header(state, width, Theme::PLAIN).len());
    match (state.tracing.is_some(), state.pane) {
        (false, _) => (rows, 0),
        // only the part that keys go to
        (true, Pane::Table) if rows < 8 => (rows, 0),
        (true, _) if rows < 8 => (0, rows),
        (true, _) => {
            // a blank line between the two
            let table = (state.visible().len().max(1) + 2).min(rows * 3 / 5);
            (table, rows - table)
        }
    }
}

pub(super) fn page(state: &State, width: usize, height: usize, theme: Theme) -> Page {
    let (table, calls) = split(state, width, height);
    let mut parts = Vec::new();
    if table > 0 {
        let from = state.list.offset();
        let selected = Some(state.list.index()).filter(|_| state.pane == Pane::Table);
        let rows = rows(state, from..from + table.saturating_sub(1), (width, selected), theme);
        parts.push(Part { head: vec![head(state, width, theme)], rows, height: table });
    }
    if calls > 0 {
        parts.push(calls::part(state, (width, calls), theme));
    }
    Page { header: header(state, width, theme), parts }
}

/// What is shown, and the sums.
pub(super) fn header(state: &State, width: usize, theme: Theme) -> Vec<Line<'static>> {
    let (count, sum) = state.total();
    let noun = if count == 1 { "process" } else { "processes" };
    let mut row = Row::new(theme).add(StyleName::Title, "vmaudit top");
    row = match &state.group {
        None if state.settings.title.is_empty() => row,
        Some(group) => {
            let row = row.add(StyleName::Plain, " · ").add(StyleName::Title, clean(&group.title));
            if group.subtitle.is_empty() {
                row
            } else {
                row.add(StyleName::Dim, format!(" · {}", clean(&group.subtitle)))
            }
        }
        None => row.add(StyleName::Plain, format!(" · {}", clean(&state.settings.title))),
    };
    row = row.add(StyleName::Plain, format!(" · {} {noun}", thousands(count as u64)));
    if !state.filter.is_empty() || state.typing {
        let shown = state.visible().len();
        row = row.add(
            StyleName::Warning,
            format!(" · {} named “{}”", thousands(shown as u64), clean(&state.filter)),
        );
    }
    let every = format!("every {}", seconds(state.interval_ms));
    let mut lines = vec![both_ends(row, &every, (width, theme))];
    let mut sums = Row::new(theme)
        .add(StyleName::Dim, "together  ")
        .add(StyleName::Plain, format!("VIRT {}", size(sum.virt)))
        .add(StyleName::Plain, format!("   RSS {}", size(sum.rss)));
    if count > 1 && width >= 60 {
        sums = sums.add(StyleName::Dim, " (what they share counts in each)");
    }
    if sum.swap > 0 {
        sums = sums.add(StyleName::Plain, format!("   swap {}", size(sum.swap)));
    }
    lines.push(sums.line());
    if let Some(group) = &state.group {
        lines.extend(group_lines(group, state, theme));
    }
    lines
}

/// What is shared counted once, and what the kernel charges.
fn group_lines(group: &Group, state: &State, theme: Theme) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    if let Some((pss, at_ns)) = group.pss {
        let age = age(state.time_ns.saturating_sub(at_ns));
        lines.push(
            Row::new(theme)
                .add(StyleName::Plain, format!("PSS {}", size(pss)))
                .add(StyleName::Dim, format!(" (what they share counted once; {age})"))
                .line(),
        );
    }
    if let Some(Cgroup { current, max, peak, anon, file, kernel }) = group.cgroup {
        let limit = max.map_or_else(|| "no limit".to_owned(), |max| format!("limit {}", size(max)));
        let near = max.is_some_and(|max| u128::from(current) * 10 >= u128::from(max) * 8);
        let mut row = Row::new(theme)
            .add(
                if near { StyleName::Warning } else { StyleName::Plain },
                format!("charged {}", size(current)),
            )
            .add(StyleName::Plain, format!(" · {limit}"));
        if let Some(peak) = peak {
            row = row.add(StyleName::Plain, format!(" · at most {}", size(peak)));
        }
        for (label, bytes) in [("anon", anon), ("file", file), ("kernel", kernel)] {
            if let Some(bytes) = bytes {
                row = row.add(StyleName::Dim, format!(" · {label} {}", size(bytes)));
            }
        }
        lines.push(row.line());
    }
    lines
}

/// `now`, `14 s old`.
pub(super) fn age(ns: u64) -> String {
    match ns / 1_000_000_000 {
        0 => "now".to_owned(),
        s if s < 120 => format!("{s} s old"),
        s => format!("{} min old", s / 60),
    }
}

pub(super) fn head(state: &State, width: usize, theme: Theme) -> Line<'static> {
    let mut row = Row::new(theme).add(StyleName::Head, " ");
    for (at, (column, width)) in columns(width, has_containers(state)).into_iter().enumerate() {
        let (title, sort) = match column {
            Column::Pid => ("PID", None),
            Column::User => ("USER", None),
            Column::Name => ("NAME", Some(SortBy::Name)),
            Column::Virt => ("VIRT", Some(SortBy::Virt)),
            Column::Rss => ("RSS", Some(SortBy::Rss)),
            Column::Unused => ("unused", Some(SortBy::Unused)),
            Column::Growth => ("growth", Some(SortBy::Growth)),
            Column::Last => ("snapshot", None),
            Column::Mostly => ("mostly", None),
            Column::Container => ("container", None),
        };
        let (style, title) = sort_title(state, sort, title);
        let text = if is_left(column) { left(&title, width) } else { right(&title, width) };
        let blank = if at == 0 { "" } else { " " };
        let pad = text.len() - text.trim_start().len();
        // Only the word is underlined.
        let (before, word) = text.split_at(pad);
        row = row.add(StyleName::Head, format!("{blank}{before}"));
        let (word, after) = word.split_at(word.trim_end().len());
        row = row.add(style, word).add(StyleName::Head, after);
    }
    row.line()
}

fn is_left(column: Column) -> bool {
    matches!(column, Column::User | Column::Name | Column::Mostly | Column::Container)
}

fn has_containers(state: &State) -> bool {
    state.group.is_none() && state.visible().iter().any(|track| track.newest.container.is_some())
}

/// The rows with these numbers.
pub(super) fn rows(
    state: &State,
    range: std::ops::Range<usize>,
    (width, selected): (usize, Option<usize>),
    theme: Theme,
) -> Vec<Line<'static>> {
    let columns = columns(width, has_containers(state));
    let visible = state.visible();
    if visible.is_empty() {
        let text = if state.filter.is_empty() {
            "  no process is there to be shown"
        } else {
            "  none has this name"
        };
        return vec![Row::new(theme).add(StyleName::Dim, text).line()];
    }
    let shown = visible.into_iter().enumerate().skip(range.start).take(range.len());
    shown.map(|(at, track)| row(track, selected == Some(at), &columns, theme)).collect()
}

fn row(track: &Track, selected: bool, columns: &[(Column, usize)], theme: Theme) -> Line<'static> {
    let newest = &track.newest;
    let figures = newest.figures;
    let ended = track.has_ended();
    let mut row = Row::new(theme);
    for (at, &(column, width)) in columns.iter().enumerate() {
        let (text, style) = match column {
            Column::Pid => (newest.id.pid.to_string(), StyleName::Plain),
            Column::User => (clean(&newest.user), StyleName::Dim),
            Column::Name => (clean(&newest.name), StyleName::Plain),
            Column::Virt => (size(figures.virt), StyleName::Plain),
            Column::Rss => (size(figures.rss), StyleName::Plain),
            Column::Unused => (size(figures.unused()), StyleName::Plain),
            Column::Growth if ended => ("ended".to_owned(), StyleName::Dim),
            Column::Growth => (signed_size(track.growth()), style_of(track.growth())),
            Column::Last => (signed_size(track.last_growth()), style_of(track.last_growth())),
            Column::Mostly => mostly(track),
            Column::Container => (clean(newest.container.as_deref().unwrap_or_default()), StyleName::Dim),
        };
        let text = match column {
            _ if is_left(column) => name(&text, width),
            _ => right(&text, width),
        };
        let blank = if at == 0 { "" } else { " " };
        row = row.add(if ended { StyleName::Dim } else { style }, format!("{blank}{text}"));
    }
    row.selectable_with(marker(selected), selected)
}

fn mostly(track: &Track) -> (String, StyleName) {
    match track.mostly.as_ref().map(|mostly| &mostly.known) {
        Some(Known::Category(name)) => (clean(name), StyleName::Dim),
        Some(Known::Forbidden) => ("may not be read".to_owned(), StyleName::Warning),
        Some(Known::Failed) => ("could not be read".to_owned(), StyleName::Dim),
        None => ("…".to_owned(), StyleName::Dim),
    }
}

//! The last two lines: how new the figures are and what they cost, and the keys.

use super::cells::{Row, cut, seconds, width};
use super::list::age;
use super::theme::{StyleName, Theme};
use crate::render::style::clean;
use crate::report::units::thousands;
use crate::top::{Pane, State, View};
use ratatui::text::Line;

pub(super) const HEIGHT: usize = 2;

/// The first snapshot into a process comes this much later than the first snapshot of it, at least.
const LATE_NS: u64 = 1_000_000_000;

pub(super) fn lines(state: &State, columns: usize, theme: Theme) -> [Line<'static>; HEIGHT] {
    [status(state, columns, theme), keys(state, columns, theme)]
}

fn status(state: &State, columns: usize, theme: Theme) -> Line<'static> {
    if state.typing {
        return Row::new(theme)
            .add(StyleName::Key, "/")
            .add(StyleName::Plain, cut(&clean(&state.filter), columns.saturating_sub(2)))
            .add(StyleName::Sorted, "_")
            .line();
    }
    if let Some(note) = &state.note {
        let line = note.lines().next().unwrap_or_default();
        return Row::new(theme).add(StyleName::Warning, cut(&clean(line), columns)).line();
    }
    let mut row = Row::new(theme);
    let mut parts = Vec::new();
    if state.paused {
        row = row.add(StyleName::Warning, "paused ");
    }
    match state.view() {
        View::List => {
            let noun = if state.frames == 1 { "snapshot" } else { "snapshots" };
            parts.push(format!(
                "{} {noun}, the last took {}",
                thousands(state.frames),
                millis(state.took_ns)
            ));
            let shown = state.on_screen();
            let known: Vec<u64> =
                shown.iter().filter_map(|track| Some(track.mostly.as_ref()?.at_ns)).collect();
            if let Some(oldest) = known.iter().min().filter(|_| state.shows_mostly()) {
                let age = age(state.time_ns.saturating_sub(*oldest));
                parts.push(format!("“mostly” of {} of {} rows, the oldest {age}", known.len(), shown.len()));
            }
        }
        _ => {
            let opened = state.opened.as_ref();
            if let Some(details) = opened.and_then(|opened| opened.details.as_ref()) {
                let age = age(state.time_ns.saturating_sub(details.at_ns));
                parts.push(format!("snapshot {age}, which took {}", millis(details.took_ns)));
                parts.extend(later_growth(state));
            }
        }
    }
    if let Some(tracing) = &state.tracing {
        parts.push(format!("traced by {}: {} calls", tracing.backend, thousands(tracing.events)));
        if tracing.lost > 0 {
            row = row.add(StyleName::Warning, format!("{} calls lost ", thousands(tracing.lost)));
        }
    }
    let used: usize = if state.paused { 7 } else { 0 };
    row.add(StyleName::Dim, cut(&parts.join(" · "), columns.saturating_sub(used))).line()
}

/// Where the growth of categories counts from a later snapshot than that of the process.
fn later_growth(state: &State) -> Option<String> {
    let opened = state.inside().filter(|_| *state.view() == View::Process)?;
    let track = state.track(opened.id)?;
    let late = opened.since_ns.saturating_sub(track.since_ns) > LATE_NS;
    let ago = state.time_ns.saturating_sub(opened.since_ns) / 1_000_000_000;
    late.then(|| format!("growth of rows: in the last {ago} s"))
}

fn millis(ns: u64) -> String {
    match ns {
        ns if ns < 10_000_000 => format!("{}.{} ms", ns / 1_000_000, ns / 100_000 % 10),
        ns if ns < 1_000_000_000 => format!("{} ms", ns / 1_000_000),
        ns => seconds(ns / 1_000_000),
    }
}

/// As many as there is space for, the most useful ones first.
fn keys(state: &State, columns: usize, theme: Theme) -> Line<'static> {
    let pause = if state.paused { "go on" } else { "pause" };
    let other_pane = match (state.view(), state.pane, state.tracing.is_some()) {
        (View::List | View::Process, Pane::Table, true) => Some("reservations"),
        (View::List, _, true) => Some("processes"),
        (View::Process, _, true) => Some("categories"),
        (View::Category(_), Pane::Table, _) => Some("findings"),
        (View::Category(_), Pane::Findings, true) => Some("stacks"),
        (View::Category(_), _, _) => Some("regions"),
        _ => None,
    };
    let mut keys: Vec<(&str, &str)> = Vec::new();
    if state.typing {
        keys.extend([("Enter", "keep"), ("Esc", "all")]);
    } else if state.help {
        keys.push(("any key", "back"));
    } else {
        keys.extend([("q", "quit"), ("h", "help")]);
        match (state.view(), state.pane) {
            (View::List, Pane::Table) => keys.extend([("Enter", "open"), ("/", "filter")]),
            (View::List, _) => keys.push(("Enter", "stack")),
            (View::Stack { .. }, _) => keys.push(("Esc", "back")),
            (View::Category(_), Pane::Findings) => keys.extend([("↑↓", "scroll"), ("Esc", "back")]),
            (View::Process, Pane::Table) => keys.extend([("Enter", "open"), ("Esc", "back")]),
            (View::Category(_) | View::Process, _) => keys.extend([("Enter", "stack"), ("Esc", "back")]),
        }
        keys.extend(other_pane.map(|pane| ("Tab", pane)));
        if matches!(state.view(), View::List | View::Process) {
            keys.extend([("s", "sort"), ("r", "reverse")]);
        }
        keys.extend([("space", pause), ("+-", "interval")]);
    }
    let mut row = Row::new(theme);
    let mut used = 0;
    for (key, what) in keys {
        let own = width(key) + 1 + width(what) + 2;
        if used + own > columns + 2 {
            break;
        }
        used += own;
        row = row.add(StyleName::Key, key.to_owned()).add(StyleName::Dim, format!(" {what}  "));
    }
    row.line()
}

//! The newest reservations of a trace: a row each, with the stack that requested it.

use super::Part;
use super::cells::{Row, cut, left, marker, name, right, width};
use super::theme::{StyleName, Theme};
use crate::render::chain::chain_of_caller;
use crate::render::style::clean;
use crate::report::model::Stack;
use crate::report::units::size;
use crate::top::{Call, Pane, State};
use ratatui::text::Line;

/// A frame's source line is shown after the chain where this many columns are left for the chain.
const CHAIN: usize = 40;

/// Of the open process, or of all.
pub(super) fn part(state: &State, (columns, height): (usize, usize), theme: Theme) -> Part {
    let active = state.pane == Pane::Calls;
    let shown = state.shown_calls();
    let widths = Widths::of(columns, state.views.len() == 1);
    let title = if active { StyleName::Title } else { StyleName::Head };
    let rows = shown.iter().enumerate().skip(state.call.offset()).take(height.saturating_sub(1));
    let mut rows: Vec<_> = rows
        .map(|(at, call)| {
            let selected = active && at == state.call.index();
            row(call, widths, theme).selectable_with(marker(selected), selected)
        })
        .collect();
    if rows.is_empty() {
        rows.push(Row::new(theme).add(StyleName::Dim, " none since tracing began").line());
    }
    Part { head: vec![head(widths, (title, theme))], rows, height }
}

/// How wide each column is; 0: not there.
#[derive(Clone, Copy)]
pub(super) struct Widths {
    all: usize,
    pid: usize,
    op: usize,
    thread: usize,
}

impl Widths {
    pub(super) fn of(columns: usize, several: bool) -> Widths {
        let (op, thread) = match columns {
            100.. => (8, 16),
            70.. => (6, 12),
            _ => (6, 0),
        };
        Widths { all: columns, pid: if several { 7 } else { 0 }, op, thread }
    }

    /// What the chain of callers has.
    fn rest(self) -> usize {
        let there = [self.pid, 8, self.op, 10, self.thread].into_iter().filter(|&width| width > 0);
        self.all.saturating_sub(there.map(|width| width + 1).sum::<usize>() + 1)
    }
}

pub(super) fn head(widths: Widths, (title, theme): (StyleName, Theme)) -> Line<'static> {
    let pid = if widths.pid > 0 { format!("{} ", right("PID", widths.pid)) } else { String::new() };
    let thread =
        if widths.thread > 0 { format!(" {}", left("thread", widths.thread)) } else { String::new() };
    let (at, op, bytes) = (right("at", 8), left("call", widths.op), right("bytes", 10));
    let text = format!(" {pid}{at} {op} {bytes}{thread} reserved by");
    Row::new(theme).add(title, cut(&text, widths.all)).line()
}

pub(super) fn row(call: &Call, widths: Widths, theme: Theme) -> Row {
    let time = format!("{}.{:02} s", call.time_ns / 1_000_000_000, call.time_ns / 10_000_000 % 100);
    let bytes = call.bytes.map_or_else(|| "?".to_owned(), size);
    let mut row = Row::new(theme);
    if widths.pid > 0 {
        row = row.add(StyleName::Plain, format!("{} ", right(&call.pid.to_string(), widths.pid)));
    }
    row = row
        .add(StyleName::Dim, right(&time, 8))
        .add(StyleName::Plain, format!(" {} {}", left(call.op, widths.op), right(&bytes, 10)));
    if widths.thread > 0 {
        row = row.add(StyleName::Dim, format!(" {}", name(&call.comm, widths.thread)));
    }
    let columns = widths.rest();
    let Some(stack) = &call.stack else { return row.add(StyleName::Dim, cut(" stack lost", columns)) };
    let place = place(stack).filter(|place| columns >= CHAIN + width(place));
    let tail = place.as_ref().map_or(0, |place| width(place) + 2);
    let chain = chain_of_caller(stack, columns - tail);
    row = row.add(StyleName::Plain, format!(" {}", cut(&chain, columns - tail)));
    match place {
        Some(place) => row.add(StyleName::Good, format!("  {place}")),
        None => row,
    }
}

/// `main.c:42`: the program's own line that requested it, if that is known.
fn place(stack: &Stack) -> Option<String> {
    let frame = stack.frames.iter().filter(|f| !f.in_system_library()).find(|frame| frame.line.is_some())?;
    let file = frame.file.as_deref()?.rsplit('/').next()?.to_owned();
    Some(cut(&format!("{}:{}", clean(&file), frame.line?), 28))
}

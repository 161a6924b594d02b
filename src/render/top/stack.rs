//! One stack, a frame a line.

use super::cells::{Row, cut, left, width, words};
use super::theme::{StyleName, Theme};
use super::{Page, Part};
use crate::model::path::base_name;
use crate::render::frames::function;
use crate::render::style::{clean, wrapped};
use crate::report::model::{Frame, Stack};
use crate::top::State;
use ratatui::text::Line;

pub(super) const HEADER: usize = 2;
/// The widest that a module's name is made.
const MODULE: usize = 24;

/// What is shown: its title, why there is no stack, the stack.
type Shown<'a> = (&'a str, Option<&'a str>, Option<&'a Stack>);

pub(super) fn page(state: &State, shown: Shown<'_>, columns: usize, theme: Theme) -> Page {
    let title = match state.inside().and_then(|opened| opened.details.as_ref()) {
        Some(details) => format!("{} ({}) › {}", details.process.comm, details.process.pid, shown.0),
        None => shown.0.to_owned(),
    };
    let header = vec![words(StyleName::Title, &clean(&title), (columns, theme)), Line::default()];
    let rows: Vec<_> = rows(shown, columns, theme).into_iter().skip(state.scroll).collect();
    Page { header, parts: vec![Part { head: Vec::new(), height: usize::MAX / 2, rows }] }
}

pub(super) fn rows((_, note, stack): Shown<'_>, columns: usize, theme: Theme) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    for line in note.iter().flat_map(|note| wrapped(&clean(note), columns.saturating_sub(2).max(10))) {
        lines.push(Row::new(theme).add(StyleName::Plain, format!("  {line}")).line());
    }
    let Some(stack) = stack else { return lines };
    let modules = stack.frames.iter().map(|frame| width(&clean(&frame.module)));
    let modules = modules.max().unwrap_or(0).min(MODULE).min(columns / 4);
    for (number, frame) in stack.frames.iter().enumerate() {
        lines.push(line(number, frame, (modules, columns), theme));
    }
    let ending = match stack.completeness.as_str() {
        "truncated" => "the stack goes on: it was not copied further (--stack-bytes)",
        "incomplete" => "the stack goes on: no unwind information here, or it was called on another stack",
        _ => return lines,
    };
    lines.push(words(StyleName::Warning, &format!("     {ending}"), (columns, theme)));
    lines
}

fn line(number: usize, frame: &Frame, (modules, columns): (usize, usize), theme: Theme) -> Line<'static> {
    let place = match (&frame.file, frame.line) {
        (Some(file), Some(line)) => format!("{}:{line}", clean(base_name(file))),
        _ => String::new(),
    };
    let space = columns.saturating_sub(modules + 7);
    let function = function(frame);
    let function = if width(&function) + 2 + width(&place) <= space || place.is_empty() {
        cut(&function, space)
    } else {
        cut(&function, space.saturating_sub(width(&place) + 2).max(space / 2))
    };
    let rest = space.saturating_sub(width(&function) + 2);
    Row::new(theme)
        .add(StyleName::Dim, format!("{number:>3}  "))
        .add(StyleName::Dim, format!("{}  ", left(&clean(&frame.module), modules)))
        .add(if frame.symbol.is_some() { StyleName::Plain } else { StyleName::Dim }, function)
        .add(StyleName::Good, format!("  {}", cut(&place, rest)))
        .line()
}

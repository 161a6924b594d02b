//! `vmaudit top` on a screen, or as plain text: what [`State`] holds, drawn. No terminal is examined
//! here: the place and whether to use colours come in.

mod batch;
mod calls;
mod category;
mod cells;
mod footer;
mod help;
mod list;
mod process;
mod stack;
mod theme;

pub use batch::batch;
pub use theme::Theme;

use crate::top::{Pages, State, View};
use ratatui::Frame;
use ratatui::layout::{Rect, Size};
use ratatui::text::Line;

/// A part of a page: a heading that stays, and rows that scroll.
struct Part {
    head: Vec<Line<'static>>,
    rows: Vec<Line<'static>>,
    /// Lines that it has on the screen, the heading included.
    height: usize,
}

/// A page, from top to bottom.
struct Page {
    header: Vec<Line<'static>>,
    parts: Vec<Part>,
}

/// How many rows each pane has space for; to be set in the state before it is drawn.
pub fn pages(state: &State, size: Size) -> Pages {
    let (width, height) = inner(size);
    match state.view() {
        View::List => list::pages(state, width, height),
        View::Process => process::pages(state, width, height),
        View::Category(_) => category::pages(state, width, height),
        View::Stack { title, note, stack } => {
            let text_rows =
                stack::rows((title, note.as_deref(), stack.as_deref()), width, Theme::PLAIN).len();
            Pages { text: height.saturating_sub(stack::HEADER), text_rows, ..Pages::default() }
        }
    }
}

/// Draws the whole screen.
pub fn draw(frame: &mut Frame<'_>, state: &State, theme: Theme) {
    let area = frame.area();
    let (width, height) = inner(area.as_size());
    let page = if state.help {
        Page { header: help::lines(width, theme), parts: Vec::new() }
    } else {
        match state.view() {
            View::List => list::page(state, width, height, theme),
            View::Process => process::page(state, width, height, theme),
            View::Category(id) => category::page(state, (id, width, height), theme),
            View::Stack { title, note, stack } => {
                stack::page(state, (title, note.as_deref(), stack.as_deref()), width, theme)
            }
        }
    };
    let mut lines = page.header;
    for part in page.parts {
        let rows = part.height.min(height.saturating_sub(lines.len())).saturating_sub(part.head.len());
        lines.extend(part.head);
        let shown = part.rows.len().min(rows);
        lines.extend(part.rows.into_iter().take(rows));
        lines.extend((shown..rows).map(|_| Line::default()));
    }
    for (row, line) in (0..height as u16).zip(lines) {
        frame.render_widget(line, Rect { y: area.y + row, height: 1, ..area });
    }
    for (row, line) in (height as u16..area.height).zip(footer::lines(state, width, theme)) {
        frame.render_widget(line, Rect { y: area.y + row, height: 1, ..area });
    }
}

/// Columns, and rows above the footer.
fn inner(size: Size) -> (usize, usize) {
    (usize::from(size.width), usize::from(size.height).saturating_sub(footer::HEIGHT))
}

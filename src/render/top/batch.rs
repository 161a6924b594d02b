//! A frame as plain text, for scripts and files: everything that the screen would scroll through.

use super::calls::{self, Widths};
use super::theme::{StyleName, Theme};
use super::{list, process};
use crate::report::units::thousands;
use crate::top::{Call, State, View};
use ratatui::text::Line;

/// Columns.
const WIDTH: usize = 100;
/// Rows above the screen's footer that everything of a header fits on.
const HEIGHT: usize = 60;

/// `fresh`: the newest of the reservations, those of this frame alone.
pub fn batch(state: &State, fresh: &[&Call]) -> String {
    let theme = Theme::PLAIN;
    let mut lines = Vec::new();
    match state.view() {
        View::List => {
            lines.extend(list::header(state, WIDTH, theme));
            lines.push(list::head(state, WIDTH, theme));
            lines.extend(list::rows(state, 0..usize::MAX, (WIDTH, None), theme));
        }
        _ => {
            lines.extend(process::header(state, (WIDTH, HEIGHT), theme));
            if let Some(opened) = state.opened.as_ref().filter(|opened| opened.details.is_some()) {
                lines.push(process::table_head(state, opened, WIDTH, theme));
                lines.extend(process::table_rows(state, WIDTH, theme));
            }
        }
    }
    if let Some(tracing) = &state.tracing {
        lines.push(Line::default());
        let widths = Widths::of(WIDTH - 1, matches!(state.view(), View::List));
        lines.push(calls::head(widths, (StyleName::Plain, theme)));
        lines.extend(fresh.iter().map(|call| calls::row(call, widths, theme).indented()));
        if fresh.is_empty() {
            lines.push(Line::from(" nothing was reserved since the last snapshot"));
        }
        if tracing.lost > 0 {
            lines.push(Line::from(format!(" {} calls were lost", thousands(tracing.lost))));
        }
    }
    let mut text = String::new();
    for line in lines {
        let whole: String = line.spans.iter().map(|span| span.content.as_ref()).collect();
        text += whole.trim_end();
        text.push('\n');
    }
    text
}

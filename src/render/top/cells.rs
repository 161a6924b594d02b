//! Text in columns, measured as a terminal measures it: some characters are two columns wide.

use super::theme::{StyleName, Theme};
use crate::render::style::clean;
use crate::top::{SortBy, State};
use ratatui::text::{Line, Span};

/// Columns that a text takes.
pub(super) fn width(text: &str) -> usize {
    if text.is_ascii() { text.len() } else { Span::raw(text).width() }
}

/// At most so many columns; what is cut off is shown as `…`.
pub(super) fn cut(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let mut out = String::new();
    let mut used = 0;
    for c in text.chars() {
        let own = width(c.encode_utf8(&mut [0; 4]));
        if used + own + 1 > columns {
            break;
        }
        out.push(c);
        used += own;
    }
    if columns > 0 {
        out.push('…');
    }
    out
}

/// A column's title, with an arrow where the table is sorted by it.
pub(super) fn sort_title(state: &State, sort: Option<SortBy>, title: &str) -> (StyleName, String) {
    let reversed = state.reversed != (state.sort == SortBy::Name);
    match sort == Some(state.sort) {
        true => (StyleName::Sorted, format!("{title}{}", if reversed { "↑" } else { "↓" })),
        false => (StyleName::Head, title.to_owned()),
    }
}

/// Exactly so many columns, padded on the right.
pub(super) fn left(text: &str, columns: usize) -> String {
    let text = cut(text, columns);
    let pad = columns.saturating_sub(width(&text));
    text + &" ".repeat(pad)
}

/// Exactly so many columns, padded on the left.
pub(super) fn right(text: &str, columns: usize) -> String {
    let text = cut(text, columns);
    " ".repeat(columns.saturating_sub(width(&text))) + &text
}

/// A name from outside, harmless, in so many columns.
pub(super) fn name(text: &str, columns: usize) -> String {
    left(&clean(text), columns)
}

pub(super) fn style_of(bytes: i64) -> StyleName {
    match bytes {
        0 => StyleName::Dim,
        b if b > 0 => StyleName::Warning,
        _ => StyleName::Good,
    }
}

/// `2 s`, `0.5 s`, `250 ms`.
pub(super) fn seconds(ms: u64) -> String {
    match ms {
        ms if ms < 500 => format!("{ms} ms"),
        ms if ms.is_multiple_of(1000) => format!("{} s", ms / 1000),
        ms => format!("{}.{} s", ms / 1000, ms % 1000 / 100),
    }
}

/// Spans put together left to right.
pub(super) struct Row {
    spans: Vec<Span<'static>>,
    theme: Theme,
}

impl Row {
    pub(super) fn new(theme: Theme) -> Row {
        Row { spans: Vec::new(), theme }
    }

    pub(super) fn add(mut self, style: StyleName, text: impl Into<String>) -> Row {
        self.spans.push(Span::styled(text.into(), self.theme.style(style)));
        self
    }

    pub(super) fn line(self) -> Line<'static> {
        Line::from(self.spans)
    }

    /// With a mark before it. A selected row has one snapshot: colours on an inverted one are hard to read.
    pub(super) fn selectable_with(self, mark: &'static str, selected: bool) -> Line<'static> {
        let theme = self.theme;
        let mut line = self.line();
        line.spans.insert(0, Span::raw(mark));
        if !selected {
            return line;
        }
        let text: String = line.spans.iter().map(|span| span.content.as_ref()).collect();
        Line::from(Span::styled(text, theme.selected()))
    }

    /// Where no row can be selected.
    pub(super) fn indented(self) -> Line<'static> {
        self.selectable_with(" ", false)
    }
}

/// One line of words, cut at the right.
pub(super) fn words(style: StyleName, text: &str, (columns, theme): (usize, Theme)) -> Line<'static> {
    Row::new(theme).add(style, cut(text, columns)).line()
}

/// `▶` before the selected row.
pub(super) fn marker(selected: bool) -> &'static str {
    if selected { "▶" } else { " " }
}

/// A line of text and, at the right edge, another one, if there is space for both.
pub(super) fn both_ends(left: Row, right_text: &str, (columns, theme): (usize, Theme)) -> Line<'static> {
    let used: usize = left.spans.iter().map(Span::width).sum();
    let gap = columns.saturating_sub(used).saturating_sub(width(right_text));
    if gap < 2 {
        return left.line();
    }
    let style = theme.style(StyleName::Dim);
    let mut spans = left.spans;
    spans.push(Span::raw(" ".repeat(gap)));
    spans.push(Span::styled(right_text.to_owned(), style));
    Line::from(spans)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_the_terminals() {
        assert_eq!(width("漢字"), 4);
        assert_eq!(cut("漢字漢字", 5), "漢字…");
        assert_eq!(left("漢字", 5), "漢字 ");
        assert_eq!(right("é", 3), "  é");
        assert_eq!(width(&left("漢字漢字", 6)), 6);
        assert_eq!((cut("abc", 0), cut("abc", 1)), (String::new(), "…".to_owned()));
        assert_eq!(name("a\x1b[2Jb", 12), "a\\u{1b}[2Jb ");
    }

    #[test]
    fn seconds_and_parts_of_them() {
        assert_eq!([250, 500, 2000, 60_000].map(seconds), ["250 ms", "0.5 s", "2 s", "60 s"]);
    }
}

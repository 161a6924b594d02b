//! Styles: the sixteen colours that every terminal has, or none; categories have the nearest of 256 to their
//! own.

use crate::render::style::Color as Colors;
use ratatui::style::{Color, Modifier, Style};

/// Of the cube of 6 × 6 × 6 colours (xterm's 16 to 231).
fn nearest(color: u32) -> Color {
    let [_, r, g, b] = color.to_be_bytes().map(|c| if c < 48 { 0 } else { (c.max(75) - 35) / 40 });
    Color::Indexed(16 + 36 * r + 6 * g + b)
}

/// Colours, or brightness and inversion alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Theme {
    colors: bool,
}

/// What a piece of a screen is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StyleName {
    Plain,
    /// The name of what is shown.
    Title,
    /// Headings of columns.
    Head,
    /// The column that is sorted by.
    Sorted,
    Dim,
    /// It grew, or a limit is near.
    Warning,
    /// It shrank, or nothing is to be done.
    Good,
    /// Keys that can be pressed.
    Key,
    /// A category, `0xRRGGBB`.
    Category(u32),
}

impl Theme {
    pub const PLAIN: Theme = Theme { colors: false };

    pub fn new(colors: Colors) -> Theme {
        Theme { colors: colors == Colors::Always }
    }

    pub fn style(self, name: StyleName) -> Style {
        let style = Style::new();
        let with = |color: Color| if self.colors { style.fg(color) } else { style };
        match name {
            StyleName::Plain => style,
            StyleName::Title => with(Color::Cyan).add_modifier(Modifier::BOLD),
            StyleName::Head => style.add_modifier(Modifier::BOLD),
            StyleName::Sorted => with(Color::Cyan).add_modifier(Modifier::BOLD | Modifier::UNDERLINED),
            StyleName::Dim => style.add_modifier(Modifier::DIM),
            StyleName::Warning if self.colors => style.fg(Color::Yellow),
            StyleName::Warning => style.add_modifier(Modifier::BOLD),
            StyleName::Good => with(Color::Green),
            StyleName::Key => with(Color::Cyan),
            StyleName::Category(color) => with(nearest(color)),
        }
    }

    /// The row that keys act on.
    pub fn selected(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }
}

//! Colour, and text that cannot harm a terminal.

pub use crate::model::clean;
use crate::report::units::size;

/// Whether to write ANSI escape sequences.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Color {
    #[default]
    Never,
    Always,
}

/// What a piece of text is, not its style.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tone {
    Heading,
    /// The number that matters.
    Key,
    /// Labels, units of secondary interest.
    Dim,
    Warning,
    /// Something to do.
    Advice,
}

impl Color {
    pub fn paint(self, tone: Tone, text: &str) -> String {
        if self == Color::Never || text.is_empty() {
            return text.to_string();
        }
        let code = match tone {
            Tone::Heading => "1",
            Tone::Key => "1;36",
            Tone::Dim => "2",
            Tone::Warning => "33",
            Tone::Advice => "32",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}

/// A word of a command line as a shell would take it: `--save`, `''`, `'two words'`.
pub fn shell_word(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "_-+=:,./@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return clean(word);
    }
    format!("'{}'", clean(&word.replace('\'', "'\\''")))
}

/// At most `width` characters; what is cut off is shown as `…`.
pub fn truncated(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_string();
    }
    let mut out: String = text.chars().take(width.saturating_sub(1)).collect();
    out.push('…');
    out
}

/// A change of an amount that `text` shows: `+12.0 MiB`, `-4 KiB`, `0`.
pub fn signed(change: i64, text: impl Fn(u64) -> String) -> String {
    let amount = text(change.unsigned_abs());
    match change {
        0 => "0".to_owned(),
        1.. => format!("+{amount}"),
        _ => format!("-{amount}"),
    }
}

/// A change of bytes.
pub fn signed_size(bytes: i64) -> String {
    signed(bytes, size)
}

/// Words in lines of at most `width` characters; longer words have a line of their own.
pub fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_string()),
        }
    }
    lines
}

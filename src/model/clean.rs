//! Text of foreign origin, made fit to print.

/// Names come from the audited process and may hold anything: characters that [`is_hidden`] finds are written as
/// escapes, so that no name can drive the terminal.
pub fn clean(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if is_hidden(c) {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

/// True for a character that a terminal obeys (C0, DEL, C1), that changes the direction of others, or that cannot
/// be seen.
pub fn is_hidden(c: char) -> bool {
    let moves =
        matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}');
    c.is_control() || moves || c == '\u{feff}'
}

//! Progress and warnings on standard error.

use crate::render::clean;
use std::io::Write;

/// Writes a line that begins with `vmaudit: `. Names in it may hold anything. Standard error may be
/// closed or a broken pipe: that is no reason to stop (`eprintln!` would panic).
pub fn say(text: impl std::fmt::Display) {
    let text = text.to_string();
    let lines: Vec<String> = text.split('\n').map(clean).collect();
    let _ = writeln!(std::io::stderr().lock(), "vmaudit: {}", lines.join("\n"));
}

//! Progress and warnings on standard error.

use std::io::Write;

/// Writes a line that begins with `vmaudit: `. Standard error may be closed or a broken pipe:
/// that is no reason to stop (`eprintln!` would panic).
pub fn say(text: impl std::fmt::Display) {
    let _ = writeln!(std::io::stderr().lock(), "vmaudit: {text}");
}

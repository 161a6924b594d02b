//! Progress and warnings on standard error.

use crate::model::clean;
use std::io::Write;
use std::sync::Mutex;

/// While the screen is taken: what is said waits here.
static HELD: Mutex<Option<Vec<String>>> = Mutex::new(None);
/// More than anybody reads; the oldest go.
const MOST: usize = 200;

/// Writes a line that begins with `vmaudit: `. Names in it may hold anything. Standard error may be
/// closed or a broken pipe: that is no reason to stop (`eprintln!` would panic).
pub fn say(text: impl std::fmt::Display) {
    let text = text.to_string();
    let lines: Vec<String> = text.split('\n').map(clean).collect();
    let text = lines.join("\n");
    if let Ok(mut held) = HELD.lock()
        && let Some(held) = held.as_mut()
    {
        if held.len() == MOST {
            held.remove(0);
        }
        held.push(text);
        return;
    }
    let _ = writeln!(std::io::stderr().lock(), "vmaudit: {text}");
}

/// From now on what is said waits, because a screen would be torn by it.
pub fn hold() {
    if let Ok(mut held) = HELD.lock() {
        held.get_or_insert_default();
    }
}

/// How much waits, and the newest of it.
pub fn newest_held() -> Option<(usize, String)> {
    let held = HELD.lock().ok()?;
    let held = held.as_ref()?;
    Some((held.len(), held.last()?.clone()))
}

/// Says what has waited.
pub fn release() {
    let waiting = HELD.lock().ok().and_then(|mut held| held.take());
    for text in waiting.into_iter().flatten() {
        let _ = writeln!(std::io::stderr().lock(), "vmaudit: {text}");
    }
}

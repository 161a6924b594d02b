//! Whether VIRT matters here, and what else is near a limit: at the top of each process' tables.

use super::{TextOptions, WIDTH};
use crate::render::style::{Tone, clean, wrapped};
use crate::report::model::Process;

/// Nothing where the limits are not known.
pub(super) fn verdict(p: &Process, options: TextOptions, out: &mut String) {
    let Some(verdict) = &p.verdict else { return };
    let tone = if verdict.matters { Tone::Warning } else { Tone::Advice };
    let near = verdict.checks.iter().filter(|check| check.state != "free").map(|check| &check.text);
    for (n, text) in std::iter::once(&verdict.text).chain(near).enumerate() {
        let indent = if n == 0 { "  " } else { "    · " };
        for (line, words) in wrapped(&clean(text), WIDTH - 6).iter().enumerate() {
            let words = if n == 0 { options.color.paint(tone, words) } else { words.clone() };
            let blank = " ".repeat(indent.chars().count());
            *out += &format!("{}{words}\n", if line == 0 { indent } else { &blank });
        }
    }
}

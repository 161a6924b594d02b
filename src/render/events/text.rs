//! Events as strace -f -k prints calls.

use super::{Entry, EventsOptions, TimeStyle, missing_stack};
use crate::model::path::base_name;
use crate::model::{Step, VmEvent};
use crate::render::style::{Color, Tone, clean};
use crate::report::calls;
use crate::report::model::{Frame, Stack};
use std::cell::Cell;

/// Results are in one column behind short calls, as in strace.
const RESULT_COLUMN: usize = 40;
/// Column of thread id and name: it grows with what it holds.
const WHO_WIDTH: usize = 20;
const MAX_WHO_WIDTH: usize = 32;
const FRAME_INDENT: &str = "     > ";

/// Widths that adapt while events go by.
#[derive(Debug)]
pub(super) struct Layout {
    who: Cell<usize>,
}

impl Default for Layout {
    fn default() -> Layout {
        Layout { who: Cell::new(WHO_WIDTH) }
    }
}

impl Layout {
    /// `    0.000412  4123/4125 worker  munmap(0x7f0000000000, 4096)         = 0`
    pub fn event(&self, entry: &Entry<'_>, options: &EventsOptions, out: &mut String) {
        let event = entry.event;
        let color = options.color;
        let who = who(event);
        let width = self.who.get().max(who.chars().count().min(MAX_WHO_WIDTH));
        self.who.set(width);
        let call = clean(&calls::call_with_file(event));
        let mut line = color.paint(Tone::Dim, &time(entry, options));
        line += &format!("  {who:<width$}  ");
        match calls::result(event) {
            Some(result) => {
                let result = if event.failed() { color.paint(Tone::Warning, &result) } else { result };
                // A space belongs before `=` also where the call is longer than the column.
                line += &format!("{:<RESULT_COLUMN$}= {result}", format!("{call} "));
            }
            None => line += &color.paint(Tone::Key, &call),
        }
        out.push_str(&line);
        out.push('\n');
        if !options.stacks {
            return;
        }
        out.push_str(entry.stack);
        let why = match missing_stack(event) {
            Some("lost") => "(stack lost: the buffer was full)",
            Some(_) => "(the stack could not be read)",
            None => return,
        };
        *out += &format!("{FRAME_INDENT}{}\n", color.paint(Tone::Warning, why));
    }

    /// One line a frame: ` > libc.so.6(malloc+0x11e) [0x95615] malloc.c:3321`.
    pub fn stack(&self, stack: &Stack, color: Color) -> String {
        let mut out = String::new();
        for frame in &stack.frames {
            out += FRAME_INDENT;
            out += &frame_text(frame);
            out.push('\n');
        }
        let why = match stack.completeness.as_str() {
            "complete" => return out,
            "truncated" => "(the stack goes on: it was not copied further, see --stack-bytes)",
            _ if stack.frames.is_empty() => "(no frame could be unwound)",
            _ => "(the stack goes on: no unwind information here)",
        };
        out += &format!("{FRAME_INDENT}{}\n", color.paint(Tone::Warning, why));
        out
    }
}

/// `4123 silly`, `4123/4125 worker`.
fn who(event: &VmEvent) -> String {
    let task = &event.task;
    let name = clean(&String::from_utf8_lossy(&task.comm));
    if task.pid == task.tid {
        format!("{} {name}", task.pid)
    } else {
        format!("{}/{} {name}", task.pid, task.tid)
    }
}

fn frame_text(frame: &Frame) -> String {
    let function = match (&frame.symbol, &frame.function_start) {
        (Some(symbol), _) if frame.inlined || frame.managed => clean(symbol),
        (Some(symbol), _) => format!("{}+{:#x}", clean(symbol), frame.symbol_offset.unwrap_or(0)),
        (None, Some(start)) => format!("fn@{}+{:#x}", clean(start), frame.function_offset.unwrap_or(0)),
        (None, None) => String::new(),
    };
    let mut text = format!("{}({function})", clean(&frame.module));
    text += &match (frame.inlined, frame.managed) {
        (true, _) => " [inlined]".to_string(),
        (_, true) => String::new(),
        _ => format!(" [{}]", clean(&frame.offset)),
    };
    if let Some(file) = &frame.file {
        text += &format!(" {}", clean(base_name(file)));
        if let Some(line) = frame.line {
            text += &format!(":{line}");
        }
    }
    if frame.guess {
        text += " (guess: found by scanning the stack)";
    }
    text
}

fn time(entry: &Entry<'_>, options: &EventsOptions) -> String {
    let clock = || options.clock_offset_ns.and_then(|offset| entry.event.time_ns.checked_add_signed(offset));
    match options.time {
        TimeStyle::Relative => seconds(entry.elapsed_ns),
        TimeStyle::Monotonic => seconds(entry.event.time_ns),
        TimeStyle::Clock => clock().map_or_else(|| "?".repeat(27), utc),
    }
}

/// `    0.000412`: seconds with microseconds.
fn seconds(ns: u64) -> String {
    let us = ns / 1000;
    format!("{:>5}.{:06}", us / 1_000_000, us % 1_000_000)
}

/// `2026-11-21T15:04:18.123456Z` for nanoseconds since 1970.
fn utc(ns: u64) -> String {
    let (seconds, us) = (ns / 1_000_000_000, ns / 1000 % 1_000_000);
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{us:06}Z")
}

/// Year, month, day of a number of days since 1970-01-01. Counted in years that begin in March, so
/// that the leap day is the last one; 146,097 days are 400 years.
fn date(days: u64) -> (u64, u64, u64) {
    let since = days + 719_468; // since 0000-03-01
    let (era, day) = (since / 146_097, since % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (era * 400 + year + carry, month, day)
}

/// What is no event, but has to be known between events.
pub(super) fn note(step: &Step, color: Color, out: &mut String) {
    let text = match step {
        Step::Found { seen, .. } => format!(
            "--- {} {} was running already, with {} mappings ---",
            seen.pid,
            clean(&String::from_utf8_lossy(&seen.comm)),
            seen.mappings.len()
        ),
        Step::Lost { .. } => "--- events were lost here ---".to_string(),
        Step::Resync(seen) => {
            format!("--- after the loss: {} has {} mappings ---", seen.pid, seen.mappings.len())
        }
        Step::Event(_) | Step::Snapshot(_) | Step::Point(_) => return,
    };
    *out += &format!("{}\n", color.paint(Tone::Warning, &text));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_of_the_calendar() {
        // date -u -d @N
        assert_eq!(utc(0), "1970-01-01T00:00:00.000000Z");
        assert_eq!(utc(951_782_400_000_000_000), "2000-02-29T00:00:00.000000Z");
        assert_eq!(utc(1_795_273_458_123_456_789), "2026-11-21T15:04:18.123456Z");
        assert_eq!(utc(4_107_542_399_000_000_000), "2100-02-28T23:59:59.000000Z");
        assert_eq!(utc(4_107_542_400_000_000_000), "2100-03-01T00:00:00.000000Z");
    }

    #[test]
    fn seconds_with_microseconds() {
        assert_eq!(seconds(1_234_567_890), "    1.234567");
        assert_eq!(seconds(999), "    0.000000");
    }
}

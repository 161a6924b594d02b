//! Events as JSON lines.

use super::{Entry, EventsOptions, missing_stack};
use crate::model::{AddrRange, Step, VmOp};
use crate::render::json::json_line;
use crate::report::calls;
use crate::report::model::{Range, Stack};
use serde::Serialize;
use serde_json::{Map, Value, json};

/// One line; names as in the report's `origin` where it has them.
#[derive(Serialize)]
struct Line {
    event: u64,
    op: &'static str,
    pid: i32,
    tid: i32,
    comm: String,
    /// CLOCK_MONOTONIC.
    time_ns: u64,
    /// Since the command began (attach: since tracing did).
    elapsed_ns: u64,
    /// Since 1970, UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    clock_ns: Option<u64>,
    /// As strace spells it.
    call: String,
    args: Map<String, Value>,
    ret: i64,
    result: Option<String>,
    error: Option<String>,
    size: Option<u64>,
    ranges: Vec<Range>,
    path: Option<String>,
    virt: Option<u64>,
    no_stack: Option<&'static str>,
}

fn range(range: AddrRange) -> Range {
    Range { start: range.start.to_string(), end: range.end.to_string() }
}

fn path(op: &VmOp) -> Option<String> {
    let (VmOp::Mmap { file, .. } | VmOp::Exec { exe: file, .. }) = op else { return None };
    file.as_ref().map(|file| String::from_utf8_lossy(&file.path).into_owned())
}

pub(super) fn event(entry: &Entry<'_>, options: &EventsOptions, out: &mut String) {
    let event = entry.event;
    let line = Line {
        event: event.id.0,
        op: event.op.name(),
        pid: event.task.pid,
        tid: event.task.tid,
        comm: String::from_utf8_lossy(&event.task.comm).into_owned(),
        time_ns: event.time_ns,
        elapsed_ns: entry.elapsed_ns,
        clock_ns: options.clock_offset_ns.and_then(|offset| event.time_ns.checked_add_signed(offset)),
        call: calls::call(event),
        args: calls::arguments(event),
        ret: event.ret,
        result: calls::result(event),
        error: calls::error(event),
        size: entry.reach.size,
        ranges: entry.reach.ranges.into_iter().filter(|range| !range.is_empty()).map(range).collect(),
        path: path(&event.op),
        virt: event.total_vm,
        no_stack: missing_stack(event),
    };
    let Ok(mut text) = json_line(&line) else { return };
    if options.stacks {
        // the last member: the stack, which most events share with others
        text.pop();
        text += ",\"stack\":";
        text += if entry.stack.is_empty() { "null" } else { entry.stack };
        text.push('}');
    }
    text.push('\n');
    out.push_str(&text);
}

/// The value of a line's `stack`.
pub(super) fn stack(stack: &Stack) -> String {
    json_line(stack).unwrap_or_default()
}

pub(super) fn note(step: &Step, out: &mut String) {
    let value = match step {
        Step::Found { seen, .. } => json!({
            "op": "found", "pid": seen.pid, "comm": String::from_utf8_lossy(&seen.comm),
            "time_ns": seen.begun_ns, "mappings": seen.mappings.len(),
        }),
        Step::Lost { time_ns } => json!({"op": "lost", "time_ns": time_ns}),
        Step::Resync(seen) => json!({
            "op": "resync", "pid": seen.pid, "time_ns": seen.begun_ns, "mappings": seen.mappings.len(),
        }),
        Step::Event(_) | Step::Snapshot(_) | Step::Point(_) => return,
    };
    *out += &(json_line(&value).unwrap_or_default() + "\n");
}

//! What grew and shrank between two moments, as text.

use super::frames::frames;
use super::json::json_line;
use super::style::{Tone, clean, signed_size, truncated};
use super::text::{TextOptions, WIDTH, moment};
use crate::model::number;
use crate::report::growth::{Growth, ProcessGrowth, StackGrowth};
use crate::report::units::{size, thousands};

/// JSON; ends with a newline.
///
/// # Errors
/// Never, but serde_json says so.
pub fn growth_to_json(growth: &Growth) -> Result<String, serde_json::Error> {
    Ok(json_line(growth)? + "\n")
}

/// At most 100 columns; `options.top` stacks of each process.
pub fn growth_to_text(growth: &Growth, options: TextOptions) -> String {
    let mut out = format!("growth from {} to {}\n", moment(growth.from_ns), moment(growth.to_ns));
    let quiet = growth.processes.iter().filter(|p| p.by_stack.is_empty() && p.from == p.to).count();
    for process in growth.processes.iter().filter(|p| !p.by_stack.is_empty() || p.from != p.to) {
        of_process(growth, process, options, &mut out);
    }
    if quiet > 0 {
        let noun = if quiet == 1 { "process" } else { "processes" };
        out += &format!("\n{} {noun} with nothing changed by any call\n", thousands(quiet as u64));
    }
    out
}

fn of_process(growth: &Growth, p: &ProcessGrowth, options: TextOptions, out: &mut String) {
    let figure = |bytes: Option<u64>| bytes.map_or("not there".to_owned(), size);
    let change = number::change(p.from.unwrap_or(0), p.to.unwrap_or(0));
    let name = options.color.paint(Tone::Heading, &truncated(&clean(&p.comm), 32));
    let key = options.color.paint(Tone::Key, &signed_size(change));
    *out += &format!("\n{name} (pid {})  VIRT {} → {}  {key}\n", p.pid, figure(p.from), figure(p.to));
    for row in p.by_stack.iter().take(options.top) {
        line(row, options, out);
        let stack = row.stack.and_then(|k| growth.stacks.get(usize::try_from(k).ok()?));
        if let Some(stack) = stack {
            frames(stack, options, out);
        }
    }
    let hidden = p.by_stack.get(options.top.min(p.by_stack.len())..).unwrap_or(&[]);
    if !hidden.is_empty() {
        let sum = hidden.iter().map(StackGrowth::change).sum();
        let text = format!(
            "  … and {} smaller, {} together (--top)",
            thousands(hidden.len() as u64),
            signed_size(sum)
        );
        *out += &format!("\n{}\n", options.color.paint(Tone::Dim, &text));
    }
    if p.unchanged > 0 {
        let text = format!("  unchanged: {}", size(p.unchanged));
        *out += &format!("{}\n", options.color.paint(Tone::Dim, &text));
    }
}

fn line(row: &StackGrowth, options: TextOptions, out: &mut String) {
    let change = options.color.paint(Tone::Key, &format!("{:>12}", signed_size(row.change())));
    let op = row.op.as_deref().map_or(String::new(), |op| format!("{} · ", clean(op)));
    let from_to = format!("{} → {}", size(row.from), size(row.to));
    let text = format!("{op}{} · {from_to}", clean(&row.name));
    *out += &format!("\n{change}  {}\n", truncated(&text, WIDTH - 14));
}

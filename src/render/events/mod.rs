//! Every call in order, one after the other, as strace -k would print it, or as one JSON object a
//! line (docs/events.md). Text goes out step by step: nothing waits for the end.

mod filter;
mod json;
mod recent;
mod text;

pub use filter::{Filter, Memory, Reach, calls_named};

use super::style::Color;
use crate::model::{NoStack, StackId, Step, TimeZero, VmEvent};
use crate::report::model::Stack;
use clap::ValueEnum;
use recent::{RenderedStack, RenderedStacks};

/// What a time counts from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum TimeStyle {
    /// Seconds since the command began (attach: since tracing did)
    #[default]
    Relative,
    /// Seconds since the machine started (CLOCK_MONOTONIC)
    Monotonic,
    /// Date and time of day, UTC
    Clock,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum EventsFormat {
    /// As strace -f -k prints calls
    #[default]
    Text,
    /// One JSON object a line (docs/events.md)
    Json,
}

#[derive(Clone, Debug, Default)]
pub struct EventsOptions {
    pub format: EventsFormat,
    pub time: TimeStyle,
    /// CLOCK_REALTIME minus CLOCK_MONOTONIC in nanoseconds, where it is known.
    pub clock_offset_ns: Option<i64>,
    pub stacks: bool,
    pub color: Color,
    pub filter: Filter,
    /// Stop after this many events.
    pub head: Option<u64>,
}

/// Where named stacks come from: each is requested when an event with it is first printed, and again where
/// that was long ago.
pub trait StackSource {
    fn stack(&mut self, id: StackId) -> Stack;
}

/// Prints steps, one after the other.
pub struct EventWriter {
    options: EventsOptions,
    memory: Memory,
    stacks: RenderedStacks,
    zero: TimeZero,
    printed: u64,
    over: bool,
    layout: text::Layout,
}

/// An event that is printed, with its context.
struct Entry<'a> {
    event: &'a VmEvent,
    reach: Reach,
    elapsed_ns: u64,
    /// Already rendered; empty for none.
    stack: &'a str,
}

impl EventWriter {
    pub fn new(options: EventsOptions) -> EventWriter {
        EventWriter {
            options,
            memory: Memory::default(),
            stacks: RenderedStacks::default(),
            zero: TimeZero::default(),
            printed: 0,
            over: false,
            layout: text::Layout::default(),
        }
    }

    /// No further step will print anything.
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// Events printed until now.
    pub fn printed(&self) -> u64 {
        self.printed
    }

    /// Appends what there is to print of the next step to `out`.
    pub fn step(&mut self, step: &Step, stacks: &mut dyn StackSource, out: &mut String) {
        self.zero.see(step);
        match step {
            Step::Event(event) => self.event(event, stacks, out),
            Step::Snapshot(_) | Step::Point(_) => {}
            Step::Found { seen, .. } | Step::Resync(seen) => {
                let pids = &self.options.filter.pids;
                if !self.over && (pids.is_empty() || pids.contains(&seen.pid)) {
                    self.note(step, out);
                }
            }
            Step::Lost { .. } if self.over => {}
            Step::Lost { .. } => self.note(step, out),
        }
    }

    fn note(&self, step: &Step, out: &mut String) {
        match self.options.format {
            EventsFormat::Text => text::note(step, self.options.color, out),
            EventsFormat::Json => json::note(step, out),
        }
    }

    fn event(&mut self, event: &VmEvent, stacks: &mut dyn StackSource, out: &mut String) {
        // The name changes just before the execve that it is for; and with rings of several CPUs a
        // later report may have happened before the first one.
        let elapsed_ns = event.time_ns.saturating_sub(self.zero.ns());
        let reach = self.memory.reach(event);
        if self.over || self.options.filter.is_over(elapsed_ns) {
            self.over = true;
            return;
        }
        if !self.options.filter.takes(event, &reach, elapsed_ns) {
            return;
        }
        let needs_name = self.options.filter.stack.is_some();
        let rendered = match event.stack {
            Ok(id) if self.options.stacks || needs_name => {
                let (options, layout) = (&self.options, &self.layout);
                let known = self.stacks.get_or_render(id, || {
                    let stack = stacks.stack(id);
                    let is_shown = options.filter.takes_stack(&stack);
                    let rendered = match (is_shown && options.stacks, options.format) {
                        (false, _) => String::new(),
                        (true, EventsFormat::Text) => layout.stack(&stack, options.color),
                        (true, EventsFormat::Json) => json::stack(&stack),
                    };
                    RenderedStack { is_shown, rendered }
                });
                if !known.is_shown {
                    return;
                }
                known.rendered.as_str()
            }
            Err(_) if needs_name => return,
            _ => "",
        };
        let entry = Entry { event, reach, elapsed_ns, stack: rendered };
        match self.options.format {
            EventsFormat::Text => self.layout.event(&entry, &self.options, out),
            EventsFormat::Json => json::event(&entry, &self.options, out),
        }
        self.printed += 1;
        self.over = self.options.head.is_some_and(|head| self.printed >= head);
    }
}

/// Why there is no stack where one would be expected: `lost`, `unreadable`.
fn missing_stack(event: &VmEvent) -> Option<&'static str> {
    match event.stack {
        Err(NoStack::Lost) => Some("lost"),
        Err(NoStack::Unreadable) => Some("unreadable"),
        Err(NoStack::NotTaken) | Ok(_) => None,
    }
}

//! The calls of a running command or process, printed while it runs. Events wait until the ring is empty, or
//! they are many, so that all their stacks are symbolized at once.

use super::error::AppError;
use super::output::Stream;
use crate::model::{MmKey, Observations, StackId, StackTable, Step, SymbolizedStacks, VmEvent, VmOp};
use crate::objects::FileCache;
use crate::render::events::{EventWriter, StackSource};
use crate::report::model::Stack;
use crate::report::named_stack;
use crate::session::sink::{Context, Sink};
use crate::symbolize::{Config, Symbolizer};
use std::collections::HashSet;
use std::io::{self, Write};

/// Events that wait at most.
const MANY: usize = 4096;

pub struct LiveEvents {
    writer: EventWriter,
    symbolizer: Symbolizer,
    needs_names: bool,
    named: HashSet<StackId>,
    waiting: Vec<Step>,
    newest_ns: u64,
    to: Stream,
    /// vmaudit goes on as long as the command, with or without a reader.
    to_the_end: bool,
    /// The reader of the output has gone: no failure, but nothing is left to print.
    closed: bool,
    failed: Option<io::Error>,
}

/// How events are printed while they come.
#[derive(Clone, Copy, Debug)]
pub struct LiveOptions {
    pub needs_names: bool,
    /// For a command, whose exit status is waited for; else vmaudit ends when the reader is gone.
    pub to_the_end: bool,
}

/// Names stacks of the batch that is printed, and others one by one.
struct Names<'a> {
    batch: SymbolizedStacks,
    symbolizer: &'a mut Symbolizer,
    table: &'a StackTable,
    files: &'a mut FileCache,
}

impl StackSource for Names<'_> {
    fn stack(&mut self, id: StackId) -> Stack {
        if self.batch.frames(id).is_empty() {
            let names = self.symbolizer.symbolize(self.table, [id], self.files);
            return named_stack(id, self.table, &names);
        }
        named_stack(id, self.table, &self.batch)
    }
}

impl LiveEvents {
    pub fn new(writer: EventWriter, to: Stream, options: LiveOptions) -> LiveEvents {
        LiveEvents {
            writer,
            symbolizer: Symbolizer::new(Config::default()),
            needs_names: options.needs_names,
            to_the_end: options.to_the_end,
            named: HashSet::new(),
            waiting: Vec::new(),
            newest_ns: 0,
            to,
            closed: false,
            failed: None,
        }
    }

    /// Prints the pending events. False when the reader needs no more.
    fn flush(&mut self, table: &StackTable, files: &mut FileCache) -> bool {
        if self.writer.is_over() {
            self.waiting.clear();
            return false;
        }
        if self.closed || self.failed.is_some() {
            self.waiting.clear();
            return self.to_the_end;
        }
        if self.waiting.is_empty() {
            return true;
        }
        let mut fresh = Vec::new();
        if self.needs_names {
            let stacks = self.waiting.iter().filter_map(|step| match step {
                Step::Event(event) => event.stack.ok(),
                _ => None,
            });
            fresh.extend(stacks.filter(|&id| self.named.insert(id)));
        }
        let batch = self.symbolizer.symbolize(table, fresh, files);
        let mut names = Names { batch, symbolizer: &mut self.symbolizer, table, files };
        let mut text = String::new();
        for step in self.waiting.drain(..) {
            self.writer.step(&step, &mut names, &mut text);
        }
        if let Err(error) = self.to.write_all(text.as_bytes()).and_then(|()| self.to.flush()) {
            self.stop(error);
        }
        for note in self.symbolizer.take_notes() {
            crate::session::say::say(note);
        }
        let unheard = self.closed || self.failed.is_some();
        !self.writer.is_over() && (self.to_the_end || !unheard)
    }

    fn stop(&mut self, error: io::Error) {
        if error.kind() == io::ErrorKind::BrokenPipe {
            self.closed = true;
            return;
        }
        if self.to_the_end {
            crate::session::say::say(format_args!("printing stops here, the command goes on: {error}"));
        }
        self.failed = Some(error);
    }

    /// # Errors
    /// The write that failed.
    pub fn finish(&mut self) -> Result<(), AppError> {
        // Nothing may have been printed: then that is the result.
        if !self.closed
            && self.failed.is_none()
            && let Err(error) = self.to.flush()
        {
            self.to_the_end = false;
            self.stop(error);
        }
        match self.failed.take() {
            Some(error) => Err(self.to.failed(error)),
            None => Ok(()),
        }
    }
}

impl Sink for LiveEvents {
    fn event(&mut self, event: &VmEvent, context: &mut Context<'_>) {
        let mut event = event.clone();
        // Not printed, and long.
        if let VmOp::Fork { mappings, .. } | VmOp::Exec { mappings, .. } = &mut event.op {
            *mappings = None;
        }
        self.waiting.push(Step::Event(event));
        // While a program is busy the ring may never be empty.
        if self.waiting.len() >= MANY {
            self.flush(context.stacks, context.unwinder.files_mut());
        }
    }

    /// A process that ran before it was traced.
    fn found(&mut self, mm: MmKey, seen: &Observations, _: &mut Context<'_>) {
        self.waiting.push(Step::Found { mm, seen: Box::new(seen.clone()) });
    }

    /// After the events that waited already.
    fn lost(&mut self) {
        let newest = self.waiting.iter().rev().find_map(|step| match step {
            Step::Event(event) => Some(event.time_ns),
            _ => None,
        });
        self.newest_ns = newest.unwrap_or(self.newest_ns);
        self.waiting.push(Step::Lost { time_ns: self.newest_ns });
    }

    /// False when the reader is gone.
    fn turn(&mut self, context: &mut Context<'_>) -> bool {
        self.flush(context.stacks, context.unwinder.files_mut())
    }
}

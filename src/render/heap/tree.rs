//! Stacks merged from the inside: the allocator's callers, and their callers.

use super::folded::name;
use super::{no_stack, own_frames, stack};
use crate::heap::report::{HeapProcess, HeapReport};
use crate::model::hash::IntMap;
use crate::model::path::base_name;
use crate::render::style::{Tone, clean, truncated};
use crate::render::text::{TextOptions, WIDTH};
use crate::report::PerFrame;
use crate::report::model::Frame;
use crate::report::units::{size, thousands};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

/// Branches of less than one part in this many of the total are not drawn, but summed up.
const SMALL: u64 = 100;
/// Callers drawn of one function.
const BRANCHES: usize = 8;
/// Frames of one path.
const MAX_DEPTH: usize = 64;

/// A function's module and name, and a place in it.
type Function = (String, String);

/// Functions and places that are in the tree, each once, and which of them frames are.
#[derive(Default)]
struct Functions<'r> {
    all: Vec<Function>,
    numbers: HashMap<Function, u32>,
    places: Vec<String>,
    place_numbers: HashMap<String, u32>,
    frames: PerFrame<'r, (u32, Option<u32>)>,
}

impl<'r> Functions<'r> {
    fn number(&mut self, function: Function) -> u32 {
        *self.numbers.entry(function).or_insert_with_key(|function| {
            self.all.push(function.clone());
            (self.all.len() - 1) as u32
        })
    }

    fn of_frame(&mut self, frame: &'r Frame) -> (u32, Option<u32>) {
        if let Some(known) = self.frames.get(frame) {
            return *known;
        }
        let function = self.number((frame.module.clone(), name(frame)));
        let number = |place: String| {
            *self.place_numbers.entry(place).or_insert_with_key(|place| {
                self.places.push(place.clone());
                (self.places.len() - 1) as u32
            })
        };
        let found = (function, place(frame).map(number));
        self.frames.note(frame, found);
        found
    }

    fn name(&self, node: &Node) -> &str {
        self.all.get(node.function as usize).map_or("", |(_, name)| name)
    }

    fn module(&self, node: &Node) -> &str {
        self.all.get(node.function as usize).map_or("", |(module, _)| module)
    }

    /// `file:line`, or else the module.
    fn place(&self, node: &Node) -> &str {
        let place = node.place.and_then(|at| self.places.get(at as usize));
        place.map_or_else(|| self.module(node), String::as_str)
    }
}

/// A function, and what was requested through it.
#[derive(Default)]
struct Node {
    bytes: u64,
    /// Its number in [`Functions`].
    function: u32,
    /// As long as all agree.
    place: Option<u32>,
    callers: Vec<Node>,
    /// Positions in `callers`.
    by_function: IntMap<u32, usize>,
}

impl Node {
    fn caller(&mut self, (function, place): (u32, Option<u32>)) -> &mut Node {
        let at = *self.by_function.entry(function).or_insert_with(|| {
            self.callers.push(Node { function, place, ..Node::default() });
            self.callers.len() - 1
        });
        let node = &mut self.callers[at];
        if node.place != place {
            node.place = None;
        }
        node
    }

    fn add<'r>(
        &mut self,
        bytes: u64,
        frames: impl Iterator<Item = &'r Frame>,
        functions: &mut Functions<'r>,
    ) {
        self.bytes = self.bytes.saturating_add(bytes);
        let mut node = self;
        for frame in frames.take(MAX_DEPTH) {
            node = node.caller(functions.of_frame(frame));
            node.bytes = node.bytes.saturating_add(bytes);
        }
    }
}

fn place(frame: &Frame) -> Option<String> {
    let file = frame.file.as_ref()?;
    let base = base_name(file);
    Some(frame.line.map_or_else(|| base.to_owned(), |line| format!("{base}:{line}")))
}

/// Each line: bytes, share of the total, function. A caller is below what it called; what only one
/// function calls is not indented further.
pub(super) fn tree(report: &HeapReport, p: &HeapProcess, what: &str, options: TextOptions, out: &mut String) {
    let mut functions = Functions::default();
    let mut root = Node::default();
    for row in &p.rows {
        match stack(report, row) {
            Some(stack) => {
                root.add(row.amount.bytes, own_frames(stack).iter().map(Arc::as_ref), &mut functions);
            }
            None => {
                root.bytes = root.bytes.saturating_add(row.amount.bytes);
                let why = functions.number((String::new(), format!("({})", no_stack(row))));
                let node = root.caller((why, None));
                node.bytes = node.bytes.saturating_add(row.amount.bytes);
            }
        }
    }
    let head = format!("{what:>13}{:>8}  called the allocator; below it, who called that", "share");
    *out += &format!("{}\n", options.color.paint(Tone::Dim, &head));
    branches((&root, &functions), root.bytes, (0, 0), (options, out));
}

fn branches(
    (node, functions): (&Node, &Functions<'_>),
    total: u64,
    (indent, depth): (usize, usize),
    (options, out): (TextOptions, &mut String),
) {
    let mut callers: Vec<&Node> = node.callers.iter().collect();
    callers.sort_by_key(|node| (Reverse(node.bytes), functions.name(node), functions.module(node)));
    let large = callers.iter().take(BRANCHES).take_while(|n| n.bytes >= total / SMALL).count();
    // one that is left out takes a line, too
    let shown = if large + 1 == callers.len() { callers.len() } else { large };
    let (shown, rest) = callers.split_at(shown);
    let alone = callers.len() == 1 && callers.iter().all(|caller| caller.bytes == node.bytes);
    let indent = if alone || depth == 0 { indent } else { indent + 2 };
    let margin = " ".repeat(indent);
    for caller in shown {
        let figures = match alone && depth > 0 {
            true => " ".repeat(FIGURES),
            false => figures(caller.bytes, total),
        };
        let name = truncated(&clean(functions.name(caller)), 60);
        let place = truncated(&clean(functions.place(caller)), 40);
        let text = format!("{figures}{margin}{name}  {place}");
        *out += &format!("{}\n", truncated(text.trim_end(), WIDTH));
        branches((caller, functions), total, (indent, depth + 1), (options, out));
    }
    let ended = node.bytes.saturating_sub(callers.iter().map(|n| n.bytes).sum());
    let mut dim = |bytes: u64, what: &str| {
        let text = format!("{}{margin}{what}", figures(bytes, total));
        *out += &format!("{}\n", options.color.paint(Tone::Dim, &text));
    };
    if !rest.is_empty() {
        let bytes = rest.iter().map(|n| n.bytes).sum();
        dim(bytes, &format!("… {} other callers", thousands(rest.len() as u64)));
    }
    if ended > 0 && !callers.is_empty() {
        dim(ended, "(nothing above it)");
    }
}

/// Columns of [`figures`].
const FIGURES: usize = 23;

/// `     18.0 MiB    90 %  `.
fn figures(bytes: u64, total: u64) -> String {
    let percent =
        (u128::from(bytes) * 100 + u128::from(total) / 2).checked_div(u128::from(total)).unwrap_or(0);
    format!("{:>13}{percent:>6} %  ", size(bytes))
}

//! Stacks with a value each, and the text that every flame graph tool reads: frames from the root
//! inwards joined by `;`, a space, the value.

pub(super) mod diff;
pub(super) mod report;

use super::style::clean;
use std::collections::HashMap;
use std::ops::AddAssign;

/// A frame of [`Folded`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FrameNumber(u32);

impl FrameNumber {
    /// In [`Folded::texts`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Stacks and what they hold; equal stacks are added up.
#[derive(Clone, Debug, Default)]
pub struct Folded<V> {
    texts: Vec<String>,
    numbers: HashMap<String, FrameNumber>,
    rows: HashMap<Box<[FrameNumber]>, V>,
}

impl<V: AddAssign + Default> Folded<V> {
    pub fn new() -> Folded<V> {
        Folded { texts: Vec::new(), numbers: HashMap::new(), rows: HashMap::new() }
    }

    /// A frame by its name, which may hold anything; see [`frame_text`].
    pub fn frame(&mut self, name: &str) -> FrameNumber {
        let text = frame_text(name);
        if let Some(number) = self.numbers.get(&text) {
            return *number;
        }
        let number = FrameNumber(self.texts.len() as u32);
        self.texts.push(text.clone());
        self.numbers.insert(text, number);
        number
    }

    /// Adds to a stack, root first.
    pub fn add(&mut self, stack: &[FrameNumber], value: V) {
        match self.rows.get_mut(stack) {
            Some(sum) => *sum += value,
            None => _ = self.rows.insert(stack.into(), value),
        }
    }

    /// Of each frame, by its number; all of them differ.
    pub fn texts(&self) -> &[String] {
        &self.texts
    }

    /// All stacks, root first, sorted by their frames' text.
    pub fn sorted(&self) -> Vec<(Vec<&str>, &V)> {
        // Texts are compared once, and not for each pair of stacks: deep ones differ near their ends.
        let mut texts: Vec<(&str, usize)> =
            self.texts.iter().enumerate().map(|(at, text)| (text.as_str(), at)).collect();
        texts.sort_unstable();
        let mut ranks = vec![0; texts.len()];
        for (rank, (_, at)) in texts.iter().enumerate() {
            ranks[*at] = rank as u32;
        }
        let ranked = |stack: &[FrameNumber]| stack.iter().map(|number| ranks[number.index()]).collect();
        let mut rows: Vec<(Vec<u32>, &V)> =
            self.rows.iter().map(|(stack, value)| (ranked(stack), value)).collect();
        rows.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        let text = |rank: u32| texts[rank as usize].0;
        rows.into_iter().map(|(ranks, value)| (ranks.into_iter().map(text).collect(), value)).collect()
    }

    /// A line a stack, sorted; `columns` gives what follows the stack, None for a stack without a line.
    pub fn to_text(&self, columns: impl Fn(&V) -> Option<String>) -> String {
        let mut out = String::new();
        for (stack, value) in self.sorted() {
            if let Some(columns) = columns(value) {
                out += &stack.join(";");
                out.push(' ');
                out += &columns;
                out.push('\n');
            }
        }
        out
    }
}

/// A name as a frame: on one line, without the `;` that separates frames (`:` replaces it, as the
/// stackcollapse scripts write it), and with nothing at its end or beginning that could be taken for a value
/// or a comment.
pub fn frame_text(name: &str) -> String {
    let mut text = allowed(&clean(name.trim())).replace(';', ":");
    if text.is_empty() {
        return "[no name]".to_owned();
    }
    let is_value = |word: &str| word.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    if let Some((head, word)) = text.rsplit_once(char::is_whitespace)
        && is_value(word)
    {
        text = format!("{}_{word}", head.trim_end());
    }
    if text.starts_with('#') {
        text.insert(0, '_');
    }
    text
}

/// Without the two characters that `clean` lets through and XML has no way to write.
pub(super) fn allowed(text: &str) -> String {
    text.replace(['\u{fffe}', '\u{ffff}'], "\u{fffd}")
}

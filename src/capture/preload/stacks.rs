//! The stacks that the library has seen (`preload/stacks.rs`).

use super::area::Area;
use super::layout::{self, *};
use super::view::View;
use std::io;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering::*};

/// A stack that was seen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SharedStack {
    /// [`FUNCTIONS`]' index.
    pub function: usize,
    pub code: u32,
    pub is_incomplete: bool,
    pub is_truncated: bool,
    /// The innermost first.
    pub frames: Vec<SharedFrame>,
}

/// A frame of a stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SharedFrame {
    /// The same for all stacks that have it, and all outside of it, in common.
    pub node: u32,
    /// A return address, or what is interpreted ([`layout::interpreted`]).
    pub word: u64,
}

/// What is found under a stack's number.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StackRead {
    Whole(SharedStack),
    /// The library is writing it.
    NotYet,
    /// No stack of the library's looks so, or what the process says is more than vmaudit reads of it.
    Refused,
}

/// The tables of stacks and of their words, as far as they had been written when they were mapped.
#[derive(Default)]
pub(super) struct Views {
    last: u32,
    stacks: View,
    nodes: View,
    words: View,
    words_read: usize,
}

/// Frames that are read of all stacks of a process: outer ones are shared, so that a few bytes of it may be many frames.
const MOST_READ: usize = 128 << 20;

impl Views {
    fn reach(&mut self, area: &Area, number: u32) -> io::Result<()> {
        if number <= self.last {
            return Ok(());
        }
        self.last = area.last_stack()?.max(number);
        self.stacks = area.view(STACK_PART, PARTS[STACK_PART].bytes)?;
        self.nodes = area.view(NODE_PART, PARTS[NODE_PART].bytes)?;
        self.words = area.view(WORD_PART, PARTS[WORD_PART].bytes)?;
        Ok(())
    }

    fn stack(&self, number: u32) -> Option<&layout::Stack> {
        self.stacks.get(number as usize)
    }

    fn word(&self, at: usize) -> Option<u64> {
        self.words.get::<AtomicU64>(at).map(|word| word.load(Relaxed))
    }

    /// The frames from a node outwards. None where that leads nowhere, or is longer than any stack.
    fn frames(&self, node: u32) -> Option<Vec<SharedFrame>> {
        let mut frames = Vec::new();
        let mut next = node;
        while next != 0 {
            let node = self.nodes.get::<Node>(next as usize)?;
            let parent = node.parent.load(Relaxed);
            // Callers are there before what they call.
            if parent >= next || frames.len() == MOST_WORDS {
                return None;
            }
            frames.push(SharedFrame { node: next, word: node.word.load(Relaxed) });
            next = parent;
        }
        (!frames.is_empty()).then_some(frames)
    }
}

impl Area {
    /// The stack with a number.
    pub fn stack(&self, number: u32) -> StackRead {
        let mut views = self.stacks.lock().unwrap_or_else(PoisonError::into_inner);
        if views.reach(self, number).is_err() {
            return StackRead::Refused;
        }
        let Some(stack) = views.stack(number) else { return StackRead::NotYet };
        let what = stack.what.load(Relaxed);
        if stack.len.load(Acquire) == 0 {
            return StackRead::NotYet;
        }
        let frames = match what & DESCRIPTION {
            0 if views.words_read < MOST_READ => views.frames(stack.first.load(Relaxed)),
            _ => None,
        };
        let (function, code) = ((what & 0xff) as usize, stack.code.load(Relaxed));
        let Some(frames) = frames else {
            self.is_claim();
            return StackRead::Refused;
        };
        views.words_read += frames.len();
        StackRead::Whole(SharedStack {
            function,
            code,
            is_incomplete: what & INCOMPLETE != 0,
            is_truncated: what & TRUNCATED != 0,
            frames,
        })
    }

    /// How a stack ends: whether no rule leads on, and whether it is too deep.
    pub fn is_cut(&self, number: u32) -> (bool, bool) {
        let mut views = self.stacks.lock().unwrap_or_else(PoisonError::into_inner);
        let what = match views.reach(self, number) {
            Ok(()) => views.stack(number).map_or(0, |stack| stack.what.load(Relaxed)),
            Err(_) => 0,
        };
        (what & INCOMPLETE != 0, what & TRUNCATED != 0)
    }

    /// The words of a description. None where there is none, or more than vmaudit reads.
    pub(super) fn description_words(&self, number: u32) -> Option<Vec<u64>> {
        let mut views = self.stacks.lock().unwrap_or_else(PoisonError::into_inner);
        views.reach(self, number).ok()?;
        let stack = views.stack(number)?;
        let len = stack.len.load(Acquire) as usize;
        let first = stack.first.load(Relaxed) as usize;
        if stack.what.load(Relaxed) & DESCRIPTION == 0
            || len > MOST_DESCRIPTION
            || views.words_read + len > MOST_READ
        {
            return None;
        }
        let words =
            (first..first.checked_add(len)?).map(|at| views.word(at)).collect::<Option<Vec<u64>>>()?;
        views.words_read += len;
        Some(words)
    }
}

#[cfg(test)]
mod tests {
    use super::super::area::Settings;
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn stacks_end_in_the_frames_of_others_and_not_in_a_circle() {
        let area = Area::new(Settings::default()).expect("memory");
        let put = |part: usize, at: usize, bytes: &[u8]| {
            area.file.write_all_at(bytes, (PARTS[part].at + at) as u64).expect("memory");
        };
        let node = |number: usize, word: u64, parent: u32| {
            let bytes = [word.to_ne_bytes(), u64::from(parent).to_ne_bytes()].concat();
            put(NODE_PART, number * size_of::<Node>(), &bytes);
        };
        let set = |number: usize, first: u32| {
            let bytes = [first, 1, 0, 0].map(u32::to_ne_bytes).concat();
            put(STACK_PART, number * size_of::<layout::Stack>(), &bytes);
        };
        node(1, 0x1000, 0);
        node(2, 0x2000, 1);
        node(3, 0x3000, 1);
        node(4, 0x4000, 3);
        set(1, 2);
        set(2, 4);
        let frames = |number| match area.stack(number) {
            StackRead::Whole(stack) => Some(stack.frames.iter().map(|frame| frame.word).collect::<Vec<_>>()),
            _ => None,
        };
        assert_eq!(frames(1), Some(vec![0x2000, 0x1000]));
        assert_eq!(frames(2), Some(vec![0x4000, 0x3000, 0x1000]));
        node(5, 0x5000, 5);
        node(6, 0x6000, 7);
        node(7, 0x7000, 6);
        (8..8 + MOST_WORDS + 1).for_each(|number| node(number, 0x8000, number as u32 - 1));
        for (number, first) in [(3, 5), (4, 6), (5, 7), (6, NODE_COUNT as u32), (7, u32::MAX), (8, 0)] {
            set(number, first);
        }
        set(9, 8 + MOST_WORDS as u32);
        for number in 3..=10 {
            assert_eq!(frames(number), None, "{number}");
        }
    }
}

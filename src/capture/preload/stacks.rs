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
    /// Return addresses, the innermost first.
    pub frames: Vec<u64>,
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
    words: View,
    words_read: usize,
}

/// Words that are read of all stacks of a process: outer frames are shared, so that a few bytes of it may be many frames.
const MOST_READ: usize = 64 << 20;

impl Views {
    fn reach(&mut self, area: &Area, number: u32) -> io::Result<()> {
        if number <= self.last {
            return Ok(());
        }
        self.last = area.last_stack()?.max(number);
        self.stacks = area.view(STACK_PART, PARTS[STACK_PART].bytes)?;
        self.words = area.view(WORD_PART, PARTS[WORD_PART].bytes)?;
        Ok(())
    }

    fn stack(&self, number: u32) -> Option<&layout::Stack> {
        self.stacks.get(number as usize)
    }

    fn word(&self, at: usize) -> Option<u64> {
        self.words.get::<AtomicU64>(at).map(|word| word.load(Relaxed))
    }

    /// As many words, of which the outer ones may be those of other stacks. None where that leads nowhere.
    fn frames(&self, first: usize, len: usize) -> Option<Vec<u64>> {
        let mut frames = Vec::new();
        let (mut at, mut led) = (first, 0);
        while frames.len() < len {
            let word = self.word(at)?;
            match layout::rest(word) {
                // Each leads to TAIL frames at least.
                Some(_) if led > len / layout::TAIL => return None,
                Some(rest) => (at, led) = (rest, led + 1),
                None => {
                    frames.push(word);
                    at += 1;
                }
            }
        }
        Some(frames)
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
        let len = stack.frames.load(Acquire) as usize;
        let what = stack.what.load(Relaxed);
        if len == 0 {
            return StackRead::NotYet;
        }
        let is_refused = len > MOST_WORDS || what & DESCRIPTION != 0 || views.words_read + len > MOST_READ;
        let frames = match is_refused {
            true => None,
            false => views.frames(stack.first.load(Relaxed) as usize, len),
        };
        let (function, code) = ((what & 0xff) as usize, stack.code.load(Relaxed));
        let Some(frames) = frames else {
            self.is_claim();
            return StackRead::Refused;
        };
        views.words_read += len;
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
        let len = stack.frames.load(Acquire) as usize;
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
    use crate::capture::preload::pages::STACKS;
    use std::os::unix::fs::FileExt;

    #[test]
    fn stacks_end_in_the_words_of_others_and_not_in_a_circle() {
        let area = Area::new(Settings::default()).expect("memory");
        let put = |part: usize, at: usize, bytes: &[u8]| {
            area.file.write_all_at(bytes, (PARTS[part].at + at) as u64).expect("memory");
        };
        let write = |from: usize, words: &[u64]| {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            put(WORD_PART, from * 8, &bytes);
        };
        let set = |number: usize, first: u32, frames: u32| {
            put(
                STACK_PART,
                number * size_of::<layout::Stack>(),
                &[first, frames, 0, 0].map(u32::to_ne_bytes).concat(),
            );
        };
        let outer: Vec<u64> = (0x1000..0x1010).collect();
        write(0, &outer);
        write(20, &[0x2000, rest_word(8)]);
        write(30, &[0x3000, 0x3001, rest_word(20)]);
        set(1, 0, 16);
        set(2, 20, 9);
        set(3, 30, 11);
        let frames = |number| match area.stack(number) {
            StackRead::Whole(stack) => Some(stack.frames),
            _ => None,
        };
        assert_eq!(frames(1).as_deref(), Some(&outer[..]));
        assert_eq!(frames(2), Some([&[0x2000], &outer[8..]].concat()));
        assert_eq!(frames(3), Some([&[0x3000, 0x3001, 0x2000], &outer[8..]].concat()));
        write(40, &[rest_word(40)]);
        write(50, &[0x5000, rest_word(50)]);
        set(4, 40, 20);
        set(5, 50, 100);
        set(6, 60, u32::MAX);
        set(7, WORDS as u32, 4);
        for number in 4..=8 {
            assert_eq!(frames(number), None, "{number}");
        }
        let running = interpreted_word(STACKS as u32 - 1, u64::MAX);
        assert_eq!((rest(running), rest(u64::MAX), rest(0x7fff_ffff_ffff)), (None, None, None));
        assert_eq!((rest(rest_word(WORDS - 1)), layout::interpreted(rest_word(7))), (Some(WORDS - 1), None));
    }
}

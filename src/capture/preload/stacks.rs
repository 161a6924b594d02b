//! The stacks that the library has seen (`preload/stacks.rs`).

use super::area::Area;
use super::layout::{self, *};
use std::sync::atomic::Ordering::*;

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

impl Area {
    /// None while it is being made.
    pub fn stack(&self, number: u32) -> Option<SharedStack> {
        let stack = self.stacks().get(number as usize)?;
        let len = stack.frames.load(Acquire) as usize;
        let frames = self.frames(stack.first.load(Relaxed) as usize, len)?;
        let what = stack.what.load(Relaxed);
        Some(SharedStack {
            function: (what & 0xff) as usize,
            code: stack.code.load(Relaxed),
            is_incomplete: what & INCOMPLETE != 0,
            is_truncated: what & TRUNCATED != 0,
            frames,
        })
    }

    /// As many words, of which the outer ones may be those of other stacks. None where that leads nowhere.
    fn frames(&self, first: usize, len: usize) -> Option<Vec<u64>> {
        // One that is being made, or longer than anything that the library writes.
        if len == 0 || len > LINES_MOST {
            return None;
        }
        let mut frames = Vec::new();
        let (mut at, mut led) = (first, 0);
        while frames.len() < len {
            let word = self.words().get(at)?.load(Relaxed);
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

#[cfg(test)]
mod tests {
    use super::super::area::Settings;
    use super::*;

    #[test]
    fn stacks_end_in_the_words_of_others_and_not_in_a_circle() {
        let area = Area::new(Settings::default()).expect("memory");
        let write = |from: usize, words: &[u64]| {
            area.words()[from..].iter().zip(words).for_each(|(to, &word)| to.store(word, Relaxed));
        };
        let set = |number: usize, first: u32, frames: u32| {
            area.stacks()[number].first.store(first, Relaxed);
            area.stacks()[number].frames.store(frames, Release);
        };
        let outer: Vec<u64> = (0x1000..0x1010).collect();
        write(0, &outer);
        write(20, &[0x2000, rest_word(8)]);
        write(30, &[0x3000, 0x3001, rest_word(20)]);
        set(1, 0, 16);
        set(2, 20, 9);
        set(3, 30, 11);
        let frames = |number| area.stack(number).map(|stack| stack.frames);
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

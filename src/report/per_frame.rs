//! What is made of frames, once for each: a report has a few thousand of them, millions of times.

use super::frames::Judged;
use super::model::{Frame, Stack};
use crate::model::hash::IntMap;
use serde::Deserialize;
use serde_json::Error;
use serde_json::value::RawValue;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::marker::PhantomData;
use std::sync::Arc;

/// Something of each frame. Those that stacks share are found by their address, which costs some nanoseconds in place
/// of comparing names.
pub struct PerFrame<'r, T> {
    known: IntMap<*const Frame, T>,
    /// The frames are borrowed as long: an address is one frame's.
    frames: PhantomData<&'r Frame>,
}

impl<T> Default for PerFrame<'_, T> {
    fn default() -> Self {
        PerFrame { known: IntMap::default(), frames: PhantomData }
    }
}

impl<'r, T> PerFrame<'r, T> {
    /// What was made of the frame, or is now.
    pub fn of(&mut self, frame: &'r Frame, make: impl FnOnce(&'r Frame) -> T) -> &T {
        self.known.entry(std::ptr::from_ref(frame)).or_insert_with(|| make(frame))
    }

    /// What was made of the frame.
    pub fn get(&self, frame: &'r Frame) -> Option<&T> {
        self.known.get(&std::ptr::from_ref(frame))
    }

    pub fn note(&mut self, frame: &'r Frame, made: T) {
        self.known.insert(std::ptr::from_ref(frame), made);
    }

    /// As [`PerFrame::of`], where making it may fail.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn try_of<E>(
        &mut self,
        frame: &'r Frame,
        make: impl FnOnce(&'r Frame) -> Result<T, E>,
    ) -> Result<&T, E> {
        match self.known.entry(std::ptr::from_ref(frame)) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(new) => Ok(new.insert(make(frame)?)),
        }
    }
}

/// Writes stacks in any layout of JSON: each is put together from the text of its frames, which is made once.
pub struct StackTexts<'r, F, S> {
    frames: PerFrame<'r, String>,
    /// A frame, and a stack of which the list of frames is empty (`[]`), which is what it has first.
    write: (F, S),
    /// Before the first frame, between two, and after the last one.
    gaps: [String; 3],
}

impl<'r, F, S> StackTexts<'r, F, S>
where
    F: Fn(&Frame) -> Result<String, Error>,
    S: Fn(&Stack) -> Result<String, Error>,
{
    pub fn new(write: (F, S), gaps: [String; 3]) -> StackTexts<'r, F, S> {
        StackTexts { frames: PerFrame::default(), write, gaps }
    }

    /// Adds a stack to the text.
    ///
    /// # Errors
    /// Those of the writers.
    pub fn add(&mut self, stack: &'r Stack, out: &mut String) -> Result<(), Error> {
        let (write_frame, write_stack) = &self.write;
        let Stack { frames, truncated, completeness, caller } = stack;
        let without = Stack {
            frames: Vec::new(),
            truncated: *truncated,
            completeness: completeness.clone(),
            caller: *caller,
        };
        let text = write_stack(&without)?;
        let Some((head, tail)) = text.split_once("[]").filter(|_| !frames.is_empty()) else {
            *out += &text;
            return Ok(());
        };
        let [before, between, after] = &self.gaps;
        *out += head;
        out.push('[');
        for (at, frame) in frames.iter().enumerate() {
            *out += if at == 0 { before } else { between };
            *out += self.frames.try_of(frame, write_frame)?;
        }
        *out += after;
        out.push(']');
        *out += tail;
        Ok(())
    }
}

/// Stacks as they are written, with frames that are not read yet.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Unread<'j> {
    #[serde(borrow)]
    frames: Vec<&'j RawValue>,
    truncated: bool,
    completeness: String,
}

type Read = (Arc<Frame>, Judged);

/// Reads stacks; each distinct frame is read, kept and judged once.
#[derive(Default)]
pub struct StackReader {
    /// By its text. Whoever wrote that may choose it: no map for small integers.
    known: HashMap<Box<str>, usize>,
    frames: Vec<(Box<str>, Read)>,
    /// The frames of the stack before: most of the outermost are those of the next one, too.
    last: Vec<usize>,
}

impl StackReader {
    /// A stack, with the roles that this version gives.
    ///
    /// # Errors
    /// When it is no such JSON.
    pub fn stack(&mut self, json: &[u8]) -> Result<Stack, Error> {
        let Unread { frames: texts, completeness, truncated } = serde_json::from_slice(json)?;
        let mut numbers = Vec::with_capacity(texts.len());
        for (at, text) in texts.iter().enumerate() {
            let outwards = texts.len() - at;
            let same = self.last.len().checked_sub(outwards).and_then(|at| self.last.get(at).copied());
            numbers.push(self.number(text.get(), same)?);
        }
        let found = numbers.iter().filter_map(|&number| self.frames.get(number));
        let (frames, judged): (Vec<_>, Vec<_>) =
            found.map(|(_, (frame, what))| (Arc::clone(frame), *what)).unzip();
        self.last = numbers;
        let stack = Stack::of_judged(frames, &judged, &completeness);
        Ok(Stack { truncated, ..stack })
    }

    /// The number of a frame; `likely` is tried first.
    fn number(&mut self, text: &str, likely: Option<usize>) -> Result<usize, Error> {
        if let Some(likely) =
            likely.filter(|&at| self.frames.get(at).is_some_and(|(known, _)| **known == *text))
        {
            return Ok(likely);
        }
        if let Some(&known) = self.known.get(text) {
            return Ok(known);
        }
        let frame = serde_json::from_str::<Frame>(text)?.with_true_role();
        let judged = Judged::of(&frame);
        self.frames.push((text.into(), (Arc::new(frame), judged)));
        self.known.insert(text.into(), self.frames.len() - 1);
        Ok(self.frames.len() - 1)
    }
}

/// Gives stacks that were read as a whole the roles that this version gives, and each distinct frame one place.
pub fn classify_all(stacks: &mut [Stack]) {
    let mut known: HashMap<Arc<Frame>, Read> = HashMap::new();
    for stack in stacks {
        let share = |frame: &mut Arc<Frame>| {
            let (shared, judged) = match known.get(frame) {
                Some(known) => known,
                None => {
                    let mut new = Arc::clone(frame);
                    if new.role != new.true_role() {
                        new = Arc::new(Frame::clone(frame).with_true_role());
                    }
                    let judged = Judged::of(&new);
                    known.entry(Arc::clone(frame)).or_insert((new, judged))
                }
            };
            *frame = Arc::clone(shared);
            *judged
        };
        let judged: Vec<Judged> = stack.frames.iter_mut().map(share).collect();
        stack.judge(&judged);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stacks() -> Vec<Stack> {
        let frame = |module: &str, symbol: &str, inlined| Frame {
            module: module.to_owned(),
            symbol: Some(symbol.to_owned()),
            file: Some("a \"[]\" b.c".to_owned()),
            inlined,
            ..Frame::default()
        };
        let c = |name| frame("libc.so.6", name, false);
        let own = |name| frame("prog", name, false);
        vec![
            Stack::new(
                vec![c("mmap"), c("malloc"), own("load"), own("main"), c("__libc_start_main")],
                "complete",
            ),
            Stack::new(vec![frame("prog", "brk", true), c("brk"), own("load"), own("main")], "incomplete"),
            Stack::new(Vec::new(), "truncated"),
            Stack::new(vec![own("main")], "complete"),
        ]
    }

    #[test]
    fn stacks_are_written_and_read_as_ever() {
        let all = stacks();
        let compact = |frame: &Frame| serde_json::to_string(frame);
        let without = |stack: &Stack| serde_json::to_string(stack);
        let gaps = ["", ",", ""].map(str::to_owned);
        let mut texts = StackTexts::new((compact, without), gaps);
        let mut reader = StackReader::default();
        for stack in &all {
            let mut text = String::new();
            texts.add(stack, &mut text).expect("JSON");
            assert_eq!(text, serde_json::to_string(stack).expect("JSON"));
            assert_eq!(reader.stack(text.as_bytes()).expect("a stack"), *stack);
        }
        let read = reader.frames.len();
        assert_eq!(read, 7, "each frame once");
        assert!(reader.stack(br#"{"frames": [{"module": 3}]}"#).is_err());
        assert!(reader.stack(br#"{"frames": [{"mod"#).is_err());
    }

    #[test]
    fn stacks_that_were_read_share_frames_and_have_roles() {
        let all = stacks();
        let unjudged = |stack: &Stack| {
            let frames =
                stack.frames.iter().map(|f| Arc::new(Frame { role: Default::default(), ..Frame::clone(f) }));
            Stack { frames: frames.collect(), caller: None, ..stack.clone() }
        };
        let mut read: Vec<Stack> = all.iter().map(unjudged).collect();
        classify_all(&mut read);
        assert_eq!(read, all);
        assert!(Arc::ptr_eq(&read[0].frames[3], &read[3].frames[0]));
    }
}

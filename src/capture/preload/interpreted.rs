//! The interpreter whose frames the library reads, and what it says of them (`preload/interpreted.rs`).

use super::area::Area;
use super::layout::*;
use crate::capture::managed::text;
use crate::model::stack::{FoundInterpreter, InterpreterLayout, ManagedCode};
use std::ops::Range;
use std::sync::atomic::Ordering::*;

impl Area {
    /// What an interpreter runs, by the number of its description.
    pub fn description(&self, number: u32) -> Option<ManagedCode> {
        let words = self.description_words(number)?;
        let (&[place, file, name, lines], mut rest) = words.split_first_chunk::<4>()?;
        let mut part = |length: usize| {
            let (own, others) = rest.split_at_checked(length.div_ceil(8))?;
            rest = others;
            let mut bytes: Vec<u8> = own.iter().flat_map(|word| word.to_ne_bytes()).collect();
            bytes.truncate(length);
            Some(bytes)
        };
        let (file_bytes, name_bytes) = (part(file as u32 as usize)?, part(name as u32 as usize)?);
        Some(ManagedCode {
            file: text(&file_bytes, file)?,
            name: text(&name_bytes, name)?,
            first_line: place as u32,
            lines: if lines == u64::MAX { None } else { Some(part(usize::try_from(lines).ok()?)?) },
            first_traceable: (place >> 32) as u32,
        })
    }

    /// An interpreter is mapped in `within`; what its file has at `address` is at `address` + `bias`.
    pub fn set_interpreter(&self, found: &FoundInterpreter, bias: u64, within: Range<u64>) {
        let to = &self.head().interpreter;
        for (to, value) in [
            (&to.start, within.start),
            (&to.end, within.end),
            (&to.runtime, found.runtime.wrapping_add(bias)),
            (&to.code_type, found.code_type.wrapping_add(bias)),
            (&to.text_type, found.text_type.wrapping_add(bias)),
            (&to.bytes_type, found.bytes_type.wrapping_add(bias)),
        ] {
            to.store(value, Relaxed);
        }
        for (to, value) in to.offsets.iter().zip(offsets(&found.layout)) {
            to.store(value, Relaxed);
        }
    }

    /// From now on its frames are read, as [`Area::set_interpreter`] says; `number` is none that was before.
    pub fn publish_interpreter(&self, number: u32) {
        self.head().interpreted.store(number, Release);
    }

    /// Whether they are.
    pub fn is_interpreted(&self) -> bool {
        self.head().interpreted.load(Relaxed) != 0
    }
}

/// In the order of the constants of `preload/area.rs`.
fn offsets(of: &InterpreterLayout) -> [u16; OFFSETS] {
    let (run_frame, run_previous) = of.runs.unwrap_or((NO_OFFSET, NO_OFFSET));
    let mut out = [NO_OFFSET; OFFSETS];
    for (at, value) in [
        (INTERPRETERS, of.interpreters),
        (INTERPRETER_NEXT, of.interpreter_next),
        (THREADS, of.interpreter_threads),
        (THREAD_NEXT, of.thread_next),
        (THREAD_ID, of.thread_id),
        (STATE_FRAME, of.thread_frame),
        (RUN_FRAME, run_frame),
        (RUN_PREVIOUS, run_previous),
        (CODE, of.frame_code),
        (PREVIOUS, of.frame_previous),
        (INSTRUCTION, of.frame_instruction),
        (OWNER, of.frame_owner),
        (ENTRY, of.frame_entry.unwrap_or(NO_OFFSET)),
        (FIRST_LINE, of.code_first_line),
        (NAMES, of.code_names),
        (TRACEABLE, of.code_first_traceable),
        (CODE_BYTES, of.code_bytes),
        (OBJECT_TYPE, of.object_type),
        (OBJECT_SIZE, of.object_size),
        (BYTES_DATA, of.bytes_data),
        (TEXT_LENGTH, of.text_length),
        (TEXT_STATE, of.text_state),
        (TEXT_ASCII, of.text_ascii),
        (TEXT_OTHER, of.text_other),
        (FOREIGN_OWNER, of.foreign_owner),
    ] {
        out[at] = value;
    }
    out
}

//! Decoding of managed frames, of what they run, and of the stack that a goroutine left (bpf/vmaudit.h).

use super::CopiedStack;
use super::bpf::skel::types::vmaudit_managed_frame;
use super::plain::value_of;
use super::record::managed::{CUT, FILE, LINES, NAME, WHOLE};
use super::record::{Record, flag};
use crate::model::stack::{ManagedCode, ManagedEnd, ManagedFrame, ManagedFrames};

/// None: some are missing.
pub(super) fn frames(record: &Record, payload: &[u8]) -> Option<ManagedFrames> {
    let [count, end, ..] = record.args;
    let end = match end {
        WHOLE => ManagedEnd::Whole,
        CUT => ManagedEnd::Cut,
        _ => ManagedEnd::Broken,
    };
    let frame = |bytes: &[u8]| {
        let frame: vmaudit_managed_frame = value_of(bytes)?;
        Some(ManagedFrame {
            under: (frame.under != 0).then_some(frame.under),
            code: frame.code,
            at: frame.at,
        })
    };
    let frames: Vec<ManagedFrame> =
        payload.chunks_exact(size_of::<vmaudit_managed_frame>()).filter_map(frame).collect();
    (frames.len() as u64 == count).then_some(ManagedFrames { frames, end })
}

/// None: it was the goroutine's no longer when it had been copied.
pub(super) fn left_stack(record: &Record, payload: &[u8]) -> Option<CopiedStack> {
    let full = record.flags & flag::STACK_FULL != 0;
    let &Record { ip, sp, bp, .. } = record;
    (record.args[1] != 0).then(|| CopiedStack { ip, sp, bp, bytes: payload.to_vec(), full })
}

/// What frames run, after its number. None: it is cut.
pub(super) fn code(record: &Record, payload: &[u8]) -> Option<(u64, ManagedCode)> {
    let [first_line, file, name, lines, first_traceable, _] = record.args;
    let lines = match usize::try_from(lines) {
        Ok(length) => payload.get(LINES..)?.get(..length).map(<[u8]>::to_vec),
        Err(_) => None,
    };
    let code = ManagedCode {
        file: text(payload.get(FILE..NAME)?, file)?,
        name: text(payload.get(NAME..LINES)?, name)?,
        first_line: first_line as u32,
        lines,
        first_traceable: first_traceable as u32,
    };
    Some((record.aux[0], code))
}

/// `form`: bytes and, in the upper half, bytes a character. A string that could not be read is a question mark.
pub(super) fn text(bytes: &[u8], form: u64) -> Option<String> {
    let (length, width) = (form as u32 as usize, (form >> 32) as usize);
    if width == 0 {
        return Some("?".to_owned());
    }
    let bytes = bytes.get(..length)?;
    let character = |bytes: &[u8]| {
        let number = bytes.iter().rev().fold(0, |number, &byte| number << 8 | u32::from(byte));
        char::from_u32(number).unwrap_or(char::REPLACEMENT_CHARACTER)
    };
    let mut text: String = bytes.chunks_exact(width).map(character).collect();
    if length == NAME {
        text.push('…');
    }
    Some(text)
}

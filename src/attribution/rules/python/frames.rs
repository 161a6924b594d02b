//! CPython's own frames, from 3.11 on: where the interpreter keeps them, and what they are shown as.
//!
//! 3.13 and later begin their runtime's state with the offsets (`_Py_DebugOffsets`,
//! Include/internal/pycore_runtime.h, from 3.14 on pycore_debug_offsets.h): they are read from the file. For
//! 3.11 and 3.12 they are here, from the headers of 3.11.2, 3.11.7 and 3.12.1.

use super::lines::line_at;
use crate::model::SourcePlace;
use crate::model::stack::{
    CodeFile, FoundInterpreter, Interpreter, InterpreterLayout, ManagedCode, NotReadable,
};

pub(super) const INTERPRETER: Interpreter = Interpreter {
    programs: &["python3", "python"],
    libraries: &["libpython3"],
    // pyenv; asdf and mise
    beside_path: &["../versions/*/bin", "../installs/python/*/bin"],
    // uv; pyenv
    at_home: &[".local/share/uv/python/*/bin", ".pyenv/versions/*/bin"],
    find,
    place,
};

/// What the versions have in common.
const COMMON: InterpreterLayout = InterpreterLayout {
    interpreters: 40,
    interpreter_next: 0,
    interpreter_threads: 72,
    thread_next: 8,
    thread_previous: 0,
    thread_id: 136,
    thread_frame: 56,
    runs: None,
    frame_code: 0,
    frame_previous: 8,
    frame_instruction: 56,
    frame_owner: 70,
    frame_entry: None,
    foreign_owner: 3, // FRAME_OWNED_BY_CSTACK, from 3.14 on FRAME_OWNED_BY_INTERPRETER
    code_first_line: 68,
    code_names: 112,
    code_first_traceable: 176,
    code_bytes: 192,
    object_type: 8,
    object_size: 16,
    bytes_data: 32,
    text_length: 16,
    text_state: 32,
    text_ascii: 40,
    text_other: 56,
};

const IN_3_11: InterpreterLayout = InterpreterLayout {
    interpreter_threads: 16,
    thread_id: 152,
    runs: Some((8, 16)), // _PyCFrame
    frame_code: 32,
    frame_previous: 48,
    frame_owner: 69,
    frame_entry: Some(68),
    foreign_owner: 255, // none: runs are listed
    code_first_line: 72,
    code_first_traceable: 168,
    code_bytes: 184,
    text_ascii: 48,
    text_other: 72,
    ..COMMON
};

const IN_3_12: InterpreterLayout = InterpreterLayout { runs: Some((0, 8)), ..COMMON };

/// `_Py_DebugOffsets` begins with it.
const COOKIE: &[u8] = b"xdebugpy";

fn find(file: &dyn CodeFile) -> Option<Result<FoundInterpreter, NotReadable>> {
    let runtime = file.exported("_PyRuntime")?;
    // From 3.11 on.
    let version = file.exported("Py_Version").and_then(|at| word(file, at));
    Some(found(file, runtime, version.map(|word| word as u32)))
}

fn found(file: &dyn CodeFile, runtime: u64, version: Option<u32>) -> Result<FoundInterpreter, NotReadable> {
    let version =
        version.ok_or_else(|| NotReadable("frames of Python before 3.11 are not read".to_owned()))?;
    let [major, minor, micro, _] = version.to_be_bytes();
    let refused =
        |why: &str| NotReadable(format!("frames of Python {major}.{minor}.{micro} are not read: {why}"));
    let layout = match (major, minor) {
        (3, 11) => IN_3_11,
        (3, 12) => IN_3_12,
        (3, 13 | 14) => offsets(file, runtime, version, minor).map_err(refused)?,
        _ => return Err(refused("this version is not known")),
    };
    let exported = |name| file.exported(name).ok_or_else(|| refused("its types are not exported"));
    Ok(FoundInterpreter {
        runtime,
        code_type: exported("PyCode_Type")?,
        text_type: exported("PyUnicode_Type")?,
        bytes_type: exported("PyBytes_Type")?,
        layout,
    })
}

fn word(file: &dyn CodeFile, at: u64) -> Option<u64> {
    Some(u64::from_le_bytes(file.read(at, 8)?.try_into().ok()?))
}

/// From the offsets that the file has itself.
fn offsets(
    file: &dyn CodeFile,
    runtime: u64,
    version: u32,
    minor: u8,
) -> Result<InterpreterLayout, &'static str> {
    let bytes = file.read(runtime, 8 * 96).ok_or("its table of offsets is not in the file")?;
    let words = bytes.as_chunks::<8>().0;
    let word = |at: usize| words.get(at).map_or(u64::MAX, |bytes| u64::from_le_bytes(*bytes));
    if !bytes.starts_with(COOKIE) || word(1) != u64::from(version) {
        return Err("its table of offsets is not what it should be");
    }
    if word(2) != 0 {
        return Err("it runs without a global lock");
    }
    // The members of each part, behind its size.
    let (threads, states, frames, code) = match minor {
        13 => (9, 19, 28, 34),
        _ => (9, 22, 31, 39),
    };
    let at = |index: usize| match u16::try_from(word(index)) {
        Ok(offset) if offset < u16::MAX => Ok(offset),
        _ => Err("its table of offsets is not what it should be"),
    };
    let objects = code + if minor == 13 { 10 } else { 11 };
    // Type, tuple, list, dict, float and long objects; 3.14 has sets, too.
    let bytes_object = objects + 2 + 4 + 3 + 3 + 3 + 2 + 3 + if minor == 13 { 0 } else { 4 };
    let layout = InterpreterLayout {
        interpreters: at(5)?,
        interpreter_next: at(8)?,
        interpreter_threads: at(threads)?,
        thread_previous: at(states + 1)?,
        thread_next: at(states + 2)?,
        thread_frame: at(states + 4)?,
        thread_id: at(states + 5)?,
        frame_previous: at(frames + 1)?,
        frame_code: at(frames + 2)?,
        frame_instruction: at(frames + 3)?,
        frame_owner: at(frames + 5)?,
        code_names: at(code + 1)?,
        code_first_line: at(code + 5)?,
        code_bytes: at(code + 9)?,
        // Not in the table: two words before the instructions.
        code_first_traceable: at(code + 9)? - 16,
        object_type: at(objects + 1)?,
        object_size: at(bytes_object + 1)?,
        bytes_data: at(bytes_object + 2)?,
        text_state: at(bytes_object + 4)?,
        text_length: at(bytes_object + 5)?,
        text_ascii: at(bytes_object + 6)?,
        // PyCompactUnicodeObject: two words more.
        text_other: at(bytes_object + 6)? + 16,
        ..COMMON
    };
    // File's name, name, qualified name, lines: read as one.
    let names = [code + 1, code + 2, code + 3, code + 4].map(word);
    let in_order = names.iter().zip(names.iter().skip(1)).all(|(one, next)| one + 8 == *next);
    let plausible = layout.frame_owner < 80 && layout.frame_instruction <= 72 && layout.code_names <= 112;
    if in_order && plausible { Ok(layout) } else { Err("its frames are in an order that is not known") }
}

fn place(code: &ManagedCode, at: u64) -> Option<SourcePlace> {
    let at = at as i64;
    // As the interpreter's own tracebacks (_PyFrame_IsIncomplete); a generator's frame has no instruction there.
    if at >= 0 && at / 2 < i64::from(code.first_traceable) {
        return None;
    }
    let line = match &code.lines {
        Some(table) => line_at(table, code.first_line, at),
        None => None,
    };
    Some(SourcePlace { function: code.name.clone(), file: code.file.clone(), line })
}

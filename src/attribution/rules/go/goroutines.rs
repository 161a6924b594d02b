//! Where Go's runtime keeps the goroutine that a thread works for: found by the instructions with which it
//! switches stacks itself. They are in stripped programs, too, and are those of this very build.
//!
//! Source: src/runtime/asm_amd64.s, `systemstack` and `gosave_systemstack_switch`; src/runtime/runtime2.go, `g`, `m`,
//! `gobuf`. The same from Go 1.17 on; seen in 1.19, 1.21 to 1.27.

use crate::model::stack::{CodeFile, LeftStackLayout, NotReadable, Running};

/// Every program has one of these, stripped or not: the former since Go 1.13, unless it was left out on purpose, the
/// latter where no C linker made it position independent.
const SECTIONS: [&str; 2] = [".go.buildinfo", ".gopclntab"];

const UNKNOWN: &str = "stacks of a Go program end where its runtime changes to the thread's own stack: how this program \
                       does that is not known";

/// `mov (%rbx),%rdx; cmp %rdx,%rax; je`: is this the thread itself?
const IS_G0: [u8; 7] = [0x48, 0x8b, 0x13, 0x48, 0x39, 0xd0, 0x74];

/// What precedes it, from where it is known what runs: `mov g_m(%rax),%rbx; cmp m_gsignal(%rbx),%rax; je`.
const BEFORE: usize = 10;
/// And before that, `mov %fs:…,%rax` in one instruction or, with the distance in %rcx, in two: what the distance is only
/// the loader knows where a C linker made a position independent program of Go's code, or a library.
const LOADED: usize = 11;
/// What follows: where it leads to, `cmp m_curg(%rbx),%rax; jne; call gosave_systemstack_switch`.
const AFTER: usize = 15;

pub(super) fn find(file: &dyn CodeFile) -> Option<Result<LeftStackLayout, NotReadable>> {
    if !SECTIONS.iter().any(|name| file.has_section(name)) {
        return None;
    }
    let layout = file.code_like(&IS_G0).into_iter().find_map(|at| layout(file, at));
    Some(layout.ok_or_else(|| NotReadable(UNKNOWN.to_owned())))
}

fn layout(file: &dyn CodeFile, at: u64) -> Option<LeftStackLayout> {
    let from = at.checked_sub((LOADED + BEFORE) as u64)?;
    let head = file.read(from, LOADED + BEFORE)?;
    let (loaded, compare) = head.split_at(LOADED);
    let [0x48, 0x8b, 0x58, thread, 0x48, 0x3b, 0x43, _, 0x74, _] = *compare else { return None };
    let running = match *loaded {
        [.., 0x64, 0x48, 0x8b, 0x04, 0x25, a, b, c, d] => Running::Offset(i32::from_le_bytes([a, b, c, d])),
        [0x48, 0xc7, 0xc1, a, b, c, d, 0x64, 0x48, 0x8b, 0x01] => {
            Running::Offset(i32::from_le_bytes([a, b, c, d]))
        }
        [0x48, 0x8b, 0x0d, a, b, c, d, 0x64, 0x48, 0x8b, 0x01] => {
            let word = i64::from(i32::from_le_bytes([a, b, c, d]));
            Running::Word((from + 7).wrapping_add_signed(word))
        }
        _ => return None,
    };
    let behind = at + IS_G0.len() as u64;
    let tail = file.read(behind, AFTER)?;
    let [_, 0x48, 0x3b, 0x83, a, b, c, d, 0x75, _, 0xe8, w, x, y, z] = *tail else { return None };
    let called = i64::from(i32::from_le_bytes([w, x, y, z]));
    let (stack_pointer, instruction, frame_pointer) =
        left(file, (behind + AFTER as u64).wrapping_add_signed(called))?;
    Some(LeftStackLayout {
        running,
        thread: u16::from(thread),
        current: u16::try_from(u32::from_le_bytes([a, b, c, d])).ok()?,
        stack_pointer,
        instruction,
        frame_pointer,
    })
}

/// Where it is saved with what the goroutine goes on: `lea systemstack_switch,%r9; mov %r9,pc(%r14); lea 8(%rsp),%r9;
/// mov %r9,sp(%r14)`, up to Go 1.24 `movq $0,ret(%r14)`, `mov %rbp,bp(%r14)`.
fn left(file: &dyn CodeFile, at: u64) -> Option<(u16, u16, u16)> {
    let code = file.read(at, 32)?;
    let [0x4c, 0x8d, 0x0d, _, _, _, _, rest @ ..] = &*code else { return None };
    let [0x4d, 0x89, 0x4e, instruction, 0x4c, 0x8d, 0x4c, 0x24, 0x08, rest @ ..] = rest else { return None };
    let [0x4d, 0x89, 0x4e, stack_pointer, rest @ ..] = rest else { return None };
    let rest = match rest {
        [0x49, 0xc7, 0x46, _, 0, 0, 0, 0, rest @ ..] => rest,
        _ => rest,
    };
    let [0x49, 0x89, 0x6e, frame_pointer, ..] = rest else { return None };
    Some((u16::from(*stack_pointer), u16::from(*instruction), u16::from(*frame_pointer)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Code, and the address where it begins.
    struct Program(u64, Vec<u8>);

    impl CodeFile for Program {
        fn has_section(&self, name: &str) -> bool {
            name == SECTIONS[0]
        }

        fn code_like(&self, code: &[u8]) -> Vec<u64> {
            let places = self.1.windows(code.len()).enumerate().filter(|(_, bytes)| *bytes == code);
            places.map(|(at, _)| self.0 + at as u64).collect()
        }

        fn exported(&self, _: &str) -> Option<u64> {
            None
        }

        fn read(&self, address: u64, len: usize) -> Option<Vec<u8>> {
            let at = usize::try_from(address.checked_sub(self.0)?).ok()?;
            Some(self.1.get(at..at.checked_add(len)?)?.to_vec())
        }
    }

    fn bytes(hex: &str) -> Vec<u8> {
        hex.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).expect("hexadecimal")).collect()
    }

    /// `gosave_systemstack_switch` and, 64 bytes behind its beginning, `systemstack` from `load` on.
    fn program(save: &str, load: &str, compare: &str) -> Program {
        let mut code = bytes(save);
        code.resize(64, 0xcc);
        code.extend(bytes(load));
        code.extend(bytes(compare));
        let back = -(code.len() as i32) - 4;
        code.extend(back.to_le_bytes());
        Program(0x45_9fc0, code)
    }

    /// Of Go 1.19.8 and 1.27.3, as the linkers made them.
    const SAVE_1_19: &str = "4c 8d 0d d9 0d 00 00 4d 89 4e 40 4c 8d 4c 24 08 4d 89 4e 38 \
                             49 c7 46 58 00 00 00 00 49 89 6e 68 4d 8b 4e 50";
    const SAVE_1_27: &str =
        "4c 8d 0d 01 07 00 00 4d 89 4e 40 4c 8d 4c 24 08 4d 89 4e 38 49 89 6e 60 4d 8b 4e 50 4d";
    const CHECK_1_19: &str =
        "48 8b 58 30 48 3b 43 50 74 5b 48 8b 13 48 39 d0 74 53 48 3b 83 c0 00 00 00 75 52 e8";
    const CHECK_1_27: &str =
        "48 8b 58 30 48 3b 43 48 74 65 48 8b 13 48 39 d0 74 5d 48 3b 83 b8 00 00 00 75 5d e8";
    const ONE: &str = "24 08 64 48 8b 04 25 f8 ff ff ff";
    /// The distance comes from memory.
    const LIBRARY: &str = "48 8b 0d 11 22 33 00 64 48 8b 01";
    const TWO: &str = "48 c7 c1 d0 ff ff ff 64 48 8b 01";

    #[test]
    fn each_versions_own_code_says_where() {
        let known = LeftStackLayout {
            running: Running::Offset(-8),
            thread: 0x30,
            current: 0xc0,
            stack_pointer: 0x38,
            instruction: 0x40,
            frame_pointer: 0x68,
        };
        assert_eq!(find(&program(SAVE_1_19, ONE, CHECK_1_19)), Some(Ok(known)));
        let two = LeftStackLayout { running: Running::Offset(-48), ..known };
        assert_eq!(find(&program(SAVE_1_19, TWO, CHECK_1_19)), Some(Ok(two)));
        let loaded = LeftStackLayout { running: Running::Word(0x45_9fc0 + 64 + 7 + 0x332211), ..known };
        assert_eq!(find(&program(SAVE_1_19, LIBRARY, CHECK_1_19)), Some(Ok(loaded)));
        let newer = LeftStackLayout { current: 0xb8, frame_pointer: 0x60, ..known };
        assert_eq!(find(&program(SAVE_1_27, ONE, CHECK_1_27)), Some(Ok(newer)));
    }

    #[test]
    fn other_code_is_not_taken_for_it() {
        assert!(matches!(find(&program(CHECK_1_19, ONE, CHECK_1_19)), Some(Err(_))));
        let cut = Program(0x45_9fc0, program(SAVE_1_19, ONE, CHECK_1_19).1[..100].to_vec());
        assert!(matches!(find(&cut), Some(Err(_))));
    }
}

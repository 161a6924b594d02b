//! Functions of a file whose linker fills the space between them with `int3`, found without unwind information.
//!
//! ```text
//!        …  ret
//!           int3 …             as many as lead to the next multiple of 16
//!   start ─▶ push %rbp
//!           mov  %rsp,%rbp
//!           …
//!           call f             here `rbp` is the frame's: it is given back only where the function is left
//!           …
//! ```
//!
//! Compilers that leave out unwind tables for size keep frame pointers instead, and each function has a section of its
//! own: Chromium's 236 MB of code are built so. lld fills the space between sections with `int3` (Writer.cpp).

use super::file::ElfFile;
use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, Register};

const PUSH_RBP: u8 = 0x55;
const INT3: u8 = 0xcc;
const FACTOR: u8 = 0xcd;
/// Where functions begin.
const ALIGNMENT: u64 = 16;
/// How far before an address its function may begin, bytes: first a little is read.
const REACHES: [u64; 4] = [1 << 10, 1 << 12, 1 << 14, LONGEST];
const LONGEST: u64 = 1 << 16;
const LONGEST_INSTRUCTION: u64 = 15;
/// How much code is examined for what fills the space, and how many functions it has at least.
const SAMPLE: u64 = 1 << 20;
const LEAST_FUNCTIONS: usize = 64;

/// The function that a call is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CallingFunction {
    pub start: u64,
    /// A frame pointer is set up before the call. None where the code says nothing.
    pub is_framed: Option<bool>,
}

/// Three in four functions that save `rbp` first of all begin behind `int3`: where one fits, there is none before the
/// next, and not each such byte is a function.
pub(super) fn is_padded(file: &ElfFile) -> bool {
    let largest = file.layout().segments.iter().filter(|s| s.exec).max_by_key(|s| s.file_size);
    let Some(segment) = largest else { return false };
    let from = (segment.file_size / 2).saturating_sub(SAMPLE / 2).next_multiple_of(ALIGNMENT);
    let len = segment.file_size.saturating_sub(from).min(SAMPLE);
    let Ok(code) = file.read(segment.offset.saturating_add(from), len) else { return false };
    let starts = aligned(&code, segment.vaddr.wrapping_add(from)).filter(|&at| code[at] == PUSH_RBP);
    let (all, padded) =
        starts.fold((0, 0), |(all, padded), at| (all + 1, padded + usize::from(code[at - 1] == INT3)));
    all >= LEAST_FUNCTIONS && padded * 4 >= all * 3
}

/// The function that an instruction is in. None where none begins before it within reach.
pub(super) fn function_of(file: &ElfFile, svma: u64) -> Option<CallingFunction> {
    let segment = file.layout().segment_of(svma).filter(|segment| segment.exec)?;
    let end = segment.vaddr.saturating_add(segment.file_size);
    let until = svma.saturating_add(LONGEST_INSTRUCTION).min(end);
    REACHES.iter().find_map(|&reach| {
        let from = svma.saturating_sub(reach).max(segment.vaddr).checked_next_multiple_of(ALIGNMENT)?;
        let offset = segment.offset.checked_add(from - segment.vaddr)?;
        let code = file.read(offset, until.checked_sub(from)?).ok()?;
        let first = last_start(&code, svma.checked_sub(from)? as usize)?;
        let (start, code) = (from + first as u64, code.get(first..)?);
        let known = framed(code, start, svma);
        let (start, is_framed) = known.map_or((start, None), |(start, is_framed)| (start, Some(is_framed)));
        Some(CallingFunction { start, is_framed })
    })
}

/// The end of the function that begins at `start`, as far as it can be known from so many bytes of its code.
pub(super) fn end_of(file: &ElfFile, start: u64, most: u64) -> Option<u64> {
    let code = file.read(file.layout().offset_of(start)?, most).ok()?;
    let end = aligned(&code, start).find(|&at| begins(&code, at))?;
    start.checked_add(end as u64)
}

/// Where functions can begin behind the first byte, which is at `address`.
fn aligned(code: &[u8], address: u64) -> impl Iterator<Item = usize> {
    let first = (ALIGNMENT - address % ALIGNMENT) as usize;
    (first..code.len()).step_by(ALIGNMENT as usize)
}

/// Behind two, because one may be a part of an instruction. Nor are those int3 that follow 0xcd: they belong to the
/// factor by which compilers divide by five (0xcccccccd), or to 0.1.
fn begins(code: &[u8], at: usize) -> bool {
    let before = code.get(..at).unwrap_or_default();
    let filled = before.iter().rev().take_while(|&&byte| byte == INT3).count();
    let last = before.len().checked_sub(filled + 1).and_then(|at| before.get(at));
    filled >= 2 && last != Some(&FACTOR) && code.get(at).is_some_and(|&byte| byte != INT3)
}

/// The last place up to `end` where a function begins.
fn last_start(code: &[u8], end: usize) -> Option<usize> {
    (0..code.len().min(end + 1)).step_by(ALIGNMENT as usize).rev().find(|&at| begins(code, at))
}

/// Decodes from a function's start to the call, of which the last byte is at `svma`: the start of the function that the
/// call is in, and whether it has set up a frame pointer. None where no call ends there.
fn framed(code: &[u8], first: u64, svma: u64) -> Option<(u64, bool)> {
    let mut decoder = Decoder::with_ip(64, code, first, DecoderOptions::NONE);
    let (mut start, mut is_framed) = (first, false);
    // The furthest place that a jump of the function leads to.
    let mut reach = first;
    // Nothing leads on to here, but for int3.
    let (mut ended, mut padded) = (false, false);
    // Where rbp was pushed, unless something else was pushed since.
    let mut saves: Option<u64> = None;
    let mut pops = false;
    let mut instruction = Instruction::default();
    while decoder.can_decode() {
        decoder.decode_out(&mut instruction);
        let (at, flow, next) = (instruction.ip(), instruction.flow_control(), instruction.next_ip());
        let (operation, to) = (instruction.code(), instruction.op0_register());
        if instruction.is_invalid() || at > svma {
            return None;
        }
        let saves_rbp = operation == Code::Push_r64 && to == Register::RBP;
        let comes_after = ended || begins(code, (at - first) as usize);
        // Where the space between two functions is none, only what the next one begins with says so.
        let may_begin = operation != Code::Int3 && if padded { operation != Code::Ud2 } else { saves_rbp };
        if at.is_multiple_of(ALIGNMENT) && comes_after && may_begin {
            (start, is_framed, reach) = (at, false, at);
        }
        if svma < next {
            let is_call =
                matches!(flow, FlowControl::Call | FlowControl::IndirectCall) || operation == Code::Syscall;
            return (is_call && next - svma == 1).then_some((start, is_framed));
        }
        let target = instruction.near_branch_target();
        let is_within = match flow {
            FlowControl::ConditionalBranch => target <= next.saturating_add(LONGEST),
            // Without a frame, or with the frame gone, it is a call in the place of a return.
            FlowControl::UnconditionalBranch => {
                !pops && target <= if is_framed { next.saturating_add(LONGEST) } else { svma }
            }
            _ => false,
        };
        if is_within {
            reach = reach.max(target);
        }
        let leads_nowhere = match flow {
            // By a table of the function.
            FlowControl::IndirectBranch => pops,
            FlowControl::UnconditionalBranch | FlowControl::Return | FlowControl::Exception => true,
            _ => operation == Code::Int3,
        };
        padded = operation == Code::Int3;
        ended = leads_nowhere && reach < next;
        let copies = matches!(operation, Code::Mov_rm64_r64 | Code::Mov_r64_rm64)
            && (to, instruction.op1_register()) == (Register::RBP, Register::RSP);
        if saves.is_some() && copies {
            // Each function does it once: what was last called before does not return.
            start = saves.filter(|at| is_framed && at.is_multiple_of(ALIGNMENT)).unwrap_or(start);
            is_framed = true;
        }
        if instruction.is_stack_instruction() || to == Register::RSP {
            saves = saves_rbp.then_some(at);
        }
        pops = operation == Code::Leaveq || operation == Code::Pop_r64 && to == Register::RBP;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// push %rbp; mov %rsp,%rbp; call +0
    const FRAMED: &[u8] = b"\x55\x48\x89\xe5\xe8\0\0\0\0";
    /// push %rbx; call +0
    const UNFRAMED: &[u8] = b"\x53\xe8\0\0\0\0";
    const RETURNS: &[u8] = b"\x5d\xc3";
    const BASE: u64 = 0x1000;

    /// Each in a section of its own.
    fn linked(functions: &[&[u8]]) -> Vec<u8> {
        let mut code = vec![INT3; 16];
        for function in functions {
            code.resize(code.len().next_multiple_of(16), INT3);
            code.extend_from_slice(function);
        }
        code
    }

    /// Of the last call: where its function begins, in bytes behind the first one's start.
    fn found(code: &[u8]) -> Option<(u64, bool)> {
        let at = code.windows(5).rposition(|window| window == b"\xe8\0\0\0\0").expect("a call") + 4;
        let first = last_start(code, at)?;
        let (start, is_framed) = framed(&code[first..], BASE + first as u64, BASE + at as u64)?;
        Some((start - BASE - 16, is_framed))
    }

    #[test]
    fn with_and_without_a_frame() {
        assert_eq!(found(&linked(&[FRAMED])), Some((0, true)));
        assert_eq!(found(&linked(&[UNFRAMED])), Some((0, false)));
        let ended = [FRAMED, RETURNS].concat();
        assert_eq!(found(&linked(&[&ended, UNFRAMED])), Some((16, false)));
        assert_eq!(found(&linked(&[UNFRAMED, FRAMED])), Some((16, true)));
    }

    #[test]
    fn a_frame_that_is_set_up_after_a_check() {
        // test %rdi,%rdi; je +10
        assert_eq!(found(&linked(&[&[b"\x48\x85\xff\x74\x0a", FRAMED].concat()])), Some((0, true)));
        // push %rbp alone
        assert_eq!(found(&linked(&[b"\x55\xe8\0\0\0\0"])), Some((0, false)));
    }

    #[test]
    fn a_function_goes_on_behind_its_first_return() {
        for way_out in [b"\x74\x02\x5d\xc3".as_slice(), b"\xff\xe0", b"\xeb\xfa", b"\xeb\x00", b"\x0f\x0b"] {
            let code = linked(&[&[b"\x55\x48\x89\xe5", way_out, b"\xe8\0\0\0\0"].concat()]);
            assert_eq!(found(&code), Some((0, true)), "{way_out:x?}");
        }
    }

    #[test]
    fn a_function_that_fits_without_padding() {
        let fits = [FRAMED, b"\x48\x83\xc4\x00\x90", RETURNS].concat();
        assert_eq!(fits.len(), 16);
        assert_eq!(found(&linked(&[&fits, FRAMED])), Some((16, true)));
    }

    #[test]
    fn an_int3_within_a_function() {
        // je +3 over a trap of which the second half is aligned, and a distance in an instruction
        let trap =
            [b"\x55\x48\x89\xe5\x48\x83\xec\x40\x48\x85\xff\x74\x03\x90\x90".as_slice(), b"\xcc\x0f\x0b"]
                .concat();
        assert_eq!(trap[15], INT3);
        assert_eq!(found(&linked(&[&[&trap, b"\xe8\0\0\0\0".as_slice()].concat()])), Some((0, true)));
        let distance = b"\x55\x48\x89\xe5\x90\x90\x90\x90\x90\x90\x90\x90\x48\x8d\x7d\xcc\xe8\0\0\0\0";
        assert_eq!(distance[15], INT3);
        assert_eq!(found(&linked(&[distance])), Some((0, true)));
    }

    #[test]
    fn a_factor_is_no_padding() {
        // movabs $0xcccccccccccccccd,%rcx, up to an aligned place
        let divides = b"\x55\x48\x89\xe5\x90\x90\x48\xb9\xcd\xcc\xcc\xcc\xcc\xcc\xcc\xcc\xe8\0\0\0\0";
        assert_eq!(divides[15], INT3);
        assert_eq!(found(&linked(&[divides])), Some((0, true)));
    }

    #[test]
    fn a_function_behind_a_call_that_does_not_return() {
        // call +4096
        let fits = [FRAMED, b"\x90\x90".as_slice(), b"\xe8\0\x10\0\0"].concat();
        assert_eq!(fits.len(), 16);
        assert_eq!(found(&linked(&[&fits, FRAMED])), Some((16, true)));
    }

    #[test]
    fn a_function_behind_one_byte_of_padding() {
        let fits = [FRAMED, b"\x48\x83\xc4\x00", RETURNS].concat();
        assert_eq!(fits.len(), 15);
        assert_eq!(found(&linked(&[&fits, UNFRAMED])), Some((16, false)));
    }

    #[test]
    fn a_call_in_the_place_of_a_return_leads_to_no_place_of_the_function() {
        // test %rdi,%rdi; jne +4096
        let conditional = b"\x48\x85\xff\x0f\x85\0\x10\0\0";
        assert_eq!(found(&linked(&[conditional, UNFRAMED])), Some((16, false)));
        // jmp +4096, and one byte of padding
        let fits = [b"\x90".repeat(10).as_slice(), b"\xe9\0\x10\0\0"].concat();
        assert_eq!(found(&linked(&[&fits, UNFRAMED])), Some((16, false)));
    }

    #[test]
    fn what_is_no_call_or_no_code() {
        assert_eq!(framed(b"\x55\x48\x89\xe5\x90", BASE, BASE + 4), None, "no call");
        assert_eq!(framed(b"\x55\x48\x89\xe5\xe8\0\0\0\0", BASE, BASE + 6), None, "within a call");
        assert_eq!(framed(b"\x55\x48\x89\xe5\x06\xe8\0\0\0\0", BASE, BASE + 9), None, "invalid");
        assert_eq!(framed(b"\x55\x48\x89\xe5", BASE, BASE + 20), None, "too short");
    }
}

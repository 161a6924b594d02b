//! Where in a function a probe costs least.
//!
//! A uprobe replaces an instruction by a breakpoint. Some instructions the kernel executes itself (nop, push,
//! jumps, calls: `branch_setup_xol_ops` and `push_setup_xol_ops` of arch/x86/kernel/uprobes.c; since Linux
//! 6.18 the longer nops, of which one of five bytes becomes a call, without a trap), in less than a
//! microsecond; of all others it runs a copy in the process with a second trap behind it, which takes ten
//! times as long. Some instructions after a function's entry everything that a probe reads is still as at the
//! entry: the argument registers, the stack pointer and the return address. Or an argument has another one's
//! register by then.

use super::object::Object;
use crate::model::{ProbeCost, ProbeSite};
use std::ops::Range;

const UNKNOWN: ProbeSite = ProbeSite::at_entry(ProbeCost::Unknown);

/// A function that is to be probed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProbedEntry {
    /// The file offset of its first instruction.
    pub offset: u64,
    /// The arguments that the probe reads: 1 to 6, a bit each, from the lowest on.
    pub arguments: u8,
}

/// For each function, in the same order.
pub fn probe_sites(object: &Object, entries: &[ProbedEntry]) -> Vec<ProbeSite> {
    let mut found: Vec<(ProbeSite, Range<u64>)> = Vec::with_capacity(entries.len());
    for &ProbedEntry { offset: entry, arguments } in entries {
        let svma = object.layout().svma_of(entry);
        let site = svma.map_or(UNKNOWN, |svma| arch::site(object, (entry, svma), arguments));
        found.push((site, svma.map_or(0..0, |svma| passed(svma, site.after_entry.into()))));
    }
    // A jump from anywhere to behind the entry would be counted as a call.
    let passed: Vec<Range<u64>> =
        found.iter().map(|(_, passed)| passed.clone()).filter(|p| !p.is_empty()).collect();
    let mut jumped_into = arch::jumped_into(object, passed);
    jumped_into.sort_unstable();
    let keep = |(site, passed): (ProbeSite, Range<u64>)| {
        let first = jumped_into.partition_point(|&target| target < passed.start);
        match jumped_into.get(first) {
            Some(target) if passed.contains(target) => ProbeSite::at_entry(ProbeCost::SingleStepped),
            _ => site,
        }
    };
    found.into_iter().map(keep).collect()
}

/// Where a jump would have the probe count what is no call: behind the entry, up to where the probe is.
fn passed(entry: u64, after_entry: u64) -> Range<u64> {
    entry.saturating_add(1)..entry.saturating_add(after_entry).saturating_add(1)
}

#[cfg(target_arch = "x86_64")]
mod arch {
    use super::{UNKNOWN, passed};
    use crate::model::{ProbeCost, ProbeSite};
    use crate::objects::object::Object;
    use crate::objects::starts::{in_pieces, relative_targets};
    use crate::sys::kernel::version;
    use iced_x86::{
        Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess,
        OpKind, Register,
    };
    use std::ops::Range;

    /// How far behind its entry a function is probed, bytes.
    const REACH: usize = 64;
    /// A longer function is probed at its entry: all of it is searched for jumps.
    const LONGEST: u64 = 1 << 16;
    /// The longest jump, bytes.
    const JUMP: u64 = 6;

    /// Of arguments 1 to 6 (System V ABI).
    const ARGUMENTS: [Register; 6] =
        [Register::RDI, Register::RSI, Register::RDX, Register::RCX, Register::R8, Register::R9];

    /// Where the arguments are: for each of the six, in which registers of arguments, a bit each.
    struct Places([u8; 6]);

    impl Places {
        fn at_entry() -> Places {
            Places([1, 2, 4, 8, 16, 32])
        }

        fn bit(register: Register) -> u8 {
            ARGUMENTS.iter().position(|&of| of == register.full_register()).map_or(0, |n| 1 << n)
        }

        /// After an instruction that wrote to this register.
        fn overwrite(&mut self, register: Register) {
            self.0.iter_mut().for_each(|places| *places &= !Places::bit(register));
        }

        /// After `mov from, to` of all 64 bits.
        fn copy(&mut self, from: Register, to: Register) {
            let from = Places::bit(from);
            self.0
                .iter_mut()
                .filter(|places| **places & from != 0)
                .for_each(|places| *places |= Places::bit(to));
        }

        /// For arguments 1 to 6, the one whose register it is in: its own if it is there. None where a
        /// requested one is in no register.
        fn of(&self, requested: u8) -> Option<[u8; 6]> {
            let mut found = [1, 2, 3, 4, 5, 6];
            for (n, (&places, found)) in self.0.iter().zip(&mut found).enumerate() {
                if places & 1 << n == 0 && requested & 1 << n != 0 {
                    *found = u8::try_from(places.trailing_zeros()).ok().filter(|&place| place < 6)? + 1;
                }
            }
            Some(found)
        }
    }

    /// The kernel executes it itself, in all versions from 5.8 on.
    fn is_emulated(bytes: &[u8]) -> bool {
        matches!(
            bytes,
            [0x50..=0x57] | [0x41, 0x50..=0x57] // push
                | [0x90]
                | [0xeb | 0x70..=0x7f, _] | [0xe8 | 0xe9, _, _, _, _] | [0x0f, 0x80..=0x8f, _, _, _, _]
        )
    }

    /// Nops of several bytes, too.
    fn emulates_nops() -> bool {
        version() >= (6, 18)
    }

    pub fn site(object: &Object, (entry, svma): (u64, u64), requested: u8) -> ProbeSite {
        let at_entry = ProbeSite::at_entry(ProbeCost::SingleStepped);
        let Some(end) =
            object.cfi().bounds(svma).filter(|bounds| bounds.start == svma).map(|bounds| bounds.end)
        else {
            return of_first(object, entry);
        };
        let len = end.saturating_sub(svma);
        if len > LONGEST {
            return of_first(object, entry);
        }
        let Ok(code) = object.read(entry, len) else { return UNKNOWN };
        let Some((after_entry, arguments)) = first_emulated(&code, svma, (requested, emulates_nops())) else {
            return at_entry;
        };
        let passed = passed(svma, after_entry);
        if !passed.is_empty() && jumps(&code, svma).any(|target| passed.contains(&target)) {
            return at_entry;
        }
        ProbeSite { after_entry: after_entry as u8, cost: ProbeCost::Emulated, arguments }
    }

    /// Of a function that nothing says the end of.
    fn of_first(object: &Object, entry: u64) -> ProbeSite {
        let Ok(code) = object.read(entry, JUMP) else { return UNKNOWN };
        ProbeSite::at_entry(match first_emulated(&code, 0, (0, emulates_nops())) {
            Some((0, _)) => ProbeCost::Emulated,
            _ => ProbeCost::SingleStepped,
        })
    }

    /// Bytes from the entry to the first instruction that the kernel executes itself, where the stack pointer is as it
    /// was and nothing branched before; and where the arguments are.
    pub(super) fn first_emulated(
        code: &[u8],
        at: u64,
        (requested, any_nop): (u8, bool),
    ) -> Option<(u64, [u8; 6])> {
        let mut places = Places::at_entry();
        let mut decoder = Decoder::with_ip(64, code, at, DecoderOptions::NONE);
        let mut info = InstructionInfoFactory::new();
        let mut instruction = Instruction::default();
        while decoder.can_decode() && decoder.position() < REACH {
            let begin = decoder.position();
            decoder.decode_out(&mut instruction);
            if instruction.is_invalid() {
                return None;
            }
            let is_nop = any_nop && instruction.mnemonic() == Mnemonic::Nop;
            if is_nop || is_emulated(&code[begin..decoder.position()]) {
                return Some((begin as u64, places.of(requested)?));
            }
            let writes = |access| {
                !matches!(
                    access,
                    OpAccess::None | OpAccess::NoMemAccess | OpAccess::Read | OpAccess::CondRead
                )
            };
            let used = info.info(&instruction).used_registers();
            let written = || used.iter().filter(|used| writes(used.access())).map(|used| used.register());
            if instruction.flow_control() != FlowControl::Next
                || written().any(|register| register.full_register() == Register::RSP)
            {
                return None;
            }
            written().for_each(|register| places.overwrite(register));
            if matches!(instruction.code(), Code::Mov_r64_rm64 | Code::Mov_rm64_r64)
                && instruction.op1_kind() == OpKind::Register
                && instruction.op0_kind() == OpKind::Register
            {
                places.copy(instruction.op1_register(), instruction.op0_register());
            }
        }
        None
    }

    /// Where the direct jumps and calls of a function lead.
    fn jumps(code: &[u8], at: u64) -> impl Iterator<Item = u64> {
        Decoder::with_ip(64, code, at, DecoderOptions::NONE)
            .into_iter()
            .map(|instruction| instruction.near_branch_target())
            .filter(|&target| target != 0)
    }

    /// Those addresses in `ranges` that four bytes of the code would lead to as the distance of a jump or call: more than
    /// there are, seldom.
    pub fn jumped_into(object: &Object, mut ranges: Vec<Range<u64>>) -> Vec<u64> {
        let mut found = Vec::new();
        ranges.sort_unstable_by_key(|range| range.start);
        let (Some(first), Some(last)) = (ranges.first(), ranges.iter().map(|range| range.end).max()) else {
            return found;
        };
        let all = first.start..last;
        let is_within = |target: &u64| {
            let after = ranges.partition_point(|range| range.start <= *target);
            all.contains(target) && after.checked_sub(1).is_some_and(|n| ranges[n].contains(target))
        };
        let leads = |opcode, before| {
            matches!(opcode, 0xe8 | 0xe9) || before == Some(0x0f) && matches!(opcode, 0x80..=0x8f)
        };
        for segment in object.layout().segments.iter().filter(|segment| segment.exec) {
            in_pieces(object, (segment, segment.file_size), JUMP, |code, at| {
                found.extend(relative_targets(code, at, leads).filter(is_within));
            });
        }
        found
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod arch {
    use crate::model::ProbeSite;
    use crate::objects::object::Object;
    use std::ops::Range;

    pub fn site(_: &Object, _: (u64, u64), _: u8) -> ProbeSite {
        super::UNKNOWN
    }

    pub fn jumped_into(_: &Object, _: Vec<Range<u64>>) -> Vec<u64> {
        Vec::new()
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::arch::first_emulated;

    const OWN: [u8; 6] = [1, 2, 3, 4, 5, 6];

    #[test]
    fn the_first_instruction_that_leaves_everything_as_it_was() {
        let first = 1;
        type Case = (&'static [u8], u8, Option<(u64, [u8; 6])>);
        let cases: [Case; 17] = [
            (b"\x55\x48\x89\xe5", first, Some((0, OWN))),         // push %rbp
            (b"\xf3\x0f\x1e\xfa\x41\x57", first, Some((4, OWN))), // endbr64; push %r15
            (b"\x48\x85\xff\x74\x10", first, Some((3, OWN))),     // test %rdi,%rdi; je: glibc's free
            (b"\x48\x83\xec\x18\xe8\x00\x00\x00\x00", 0, None),   // sub $24,%rsp
            (b"\x48\x89\xf8\x55", first, Some((3, OWN))),         // mov %rdi,%rax
            (b"\x48\x89\xf7\x55", first, None),                   // mov %rsi,%rdi
            (b"\x48\x89\xf7\x55", 2, Some((3, OWN))),             // the other one is there
            (b"\x48\x89\xf7\x31\xf6\x55", 2, Some((5, [1, 1, 3, 4, 5, 6]))), // … and moves: xor %esi,%esi
            (b"\x48\x89\xfe\x31\xff\x55", first, Some((5, [2, 2, 3, 4, 5, 6]))), // mov %rdi,%rsi; xor %edi,%edi
            (b"\x89\xfe\x31\xff\x55", first, None),                              // mov %edi,%esi: half of it
            (b"\x31\xff\x55", first, None), // xor %edi,%edi: the upper half, too
            (b"\x40\xb7\x01\x55", first, None), // mov $1,%dil
            (b"\xff\x25\x00\x00\x00\x00\x55", 0, None), // jmp *0(%rip)
            (b"\x64\x48\x8b\x04\x25\x00\x00\x00\x00\x74\x02", 63, Some((9, OWN))), // mov %fs:0,%rax; je
            (b"\xf3\xa4\x55", first, None), // rep movsb
            (b"\xc3", 0, None),             // ret
            (b"\x0f\x05\x55", 8, None),     // syscall: changes %rcx
        ];
        for (code, requested, expected) in cases {
            let mut found = first_emulated(code, 0x1000, (requested, false));
            // Nothing is known of what is not requested.
            for n in (0..6).filter(|n| requested & 1 << n == 0) {
                if let (Some((_, found)), Some((_, expected))) = (&mut found, expected) {
                    found[n] = expected[n];
                }
            }
            assert_eq!(found, expected, "{code:02x?}");
        }
    }

    #[test]
    fn longer_nops_are_taken_where_the_kernel_executes_them() {
        let nops: [&[u8]; 4] = [
            b"\x0f\x1f\x44\x00\x00\xc3",
            b"\x66\x0f\x1f\x44\x00\x00\xc3",
            b"\x0f\x1f\x40\x00\xc3",
            b"\x66\x90\xc3",
        ];
        for code in nops {
            assert_eq!(first_emulated(code, 0x1000, (63, true)), Some((0, OWN)), "{code:02x?}");
            assert_eq!(first_emulated(code, 0x1000, (63, false)), None, "{code:02x?}");
        }
        let endbr64 = b"\xf3\x0f\x1e\xfa\xc3";
        assert_eq!(first_emulated(endbr64, 0x1000, (63, true)), None);
    }

    #[test]
    fn any_bytes_are_refused_or_within() {
        let mut state = 1u64;
        for _ in 0..20_000 {
            let mut bytes = [0u8; 32];
            for byte in &mut bytes {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                *byte = (state >> 56) as u8;
            }
            assert!(
                first_emulated(&bytes, u64::MAX - 8, (1, state & 1 << 60 != 0))
                    .is_none_or(|(after, _)| after < 32),
                "{bytes:02x?}"
            );
        }
    }
}

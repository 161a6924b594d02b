//! The seccomp filter as data: which calls are notified. Nothing here touches the kernel.

use crate::launch::arch::{AUDIT_ARCH, COMPAT, NR_EXIT, NR_EXIT_GROUP};
use libc::{SECCOMP_RET_ALLOW, SECCOMP_RET_USER_NOTIF};

const BPF_LD_W_ABS: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const BPF_JMP_JA: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
const BPF_JMP_JEQ_K: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const BPF_JMP_JSET_K: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
const BPF_RET_K: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

// Offsets in struct seccomp_data { int nr; __u32 arch; __u64 ip; __u64 args[6]; }
const OFFSET_NR: u32 = 0;
const OFFSET_ARCH: u32 = 4;
/// The lower half of args[0], little-endian.
const OFFSET_FIRST: u32 = 16;
const OFFSET_SECOND: u32 = 24;
const OFFSET_THIRD: u32 = 32;
const OFFSET_FOURTH: u32 = 40;

/// One classic BPF instruction, laid out as the kernel's `struct sock_filter`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Instruction {
    pub code: u16,
    pub jump_true: u8,
    pub jump_false: u8,
    pub k: u32,
}

const _: () = assert!(size_of::<Instruction>() == size_of::<libc::sock_filter>());

/// The program that notifies `exit` and `exit_group`, of 32-bit programs, too, and the calls of
/// [`requests_strict_mode`], and allows all else. Whatever is always allowed costs next to nothing: the
/// kernel answers it from a bitmap (seccomp_cache_check_allow in kernel/seccomp.c, 5.11). x32 calls are
/// allowed: such a process is not held at its exit.
pub fn exit_filter() -> Vec<Instruction> {
    let mut native = section(&[NR_EXIT_GROUP, NR_EXIT]);
    notify_strict_mode(&mut native, [libc::SYS_prctl as i32, libc::SYS_seccomp as i32]);
    program(native, &[])
}

/// Where the accumulator holds the number: calls that request strict mode, by the numbers of prctl and
/// seccomp.
fn notify_strict_mode(section: &mut Vec<Instruction>, [prctl, seccomp]: [i32; 2]) {
    let equal = |jump_false, k| Instruction { code: BPF_JMP_JEQ_K, jump_true: 0, jump_false, k };
    let notify = [result(SECCOMP_RET_USER_NOTIF), result(SECCOMP_RET_ALLOW)];
    let mut block = vec![load(OFFSET_FIRST), equal(3, PR_SET_SECCOMP), load(OFFSET_SECOND)];
    block.push(equal(1, libc::SECCOMP_MODE_STRICT));
    block.extend(notify);
    match_arguments(section, prctl, block);
    let mut block = vec![load(OFFSET_FIRST), equal(1, SET_MODE_STRICT)];
    block.extend(notify);
    match_arguments(section, seccomp, block);
}

const PR_SET_SECCOMP: u32 = libc::PR_SET_SECCOMP as u32;
const SET_MODE_STRICT: u32 = libc::SECCOMP_SET_MODE_STRICT;

/// True for a call that requests seccomp's strict mode. The kernel refuses it with EINVAL where there is a
/// filter (seccomp_may_assign_mode, kernel/seccomp.c), and the hold is one.
pub fn requests_strict_mode(nr: i64, args: &[u64; 6]) -> bool {
    match nr {
        libc::SYS_prctl => {
            args[0] as u32 == PR_SET_SECCOMP && args[1] == u64::from(libc::SECCOMP_MODE_STRICT)
        }
        libc::SYS_seccomp => args[..3] == [u64::from(SET_MODE_STRICT), 0, 0],
        _ => false,
    }
}

/// System calls to be notified in addition to the exits.
#[derive(Clone, Copy, Default, Debug)]
pub struct CallSet {
    /// By number on this architecture, at most 200.
    pub numbers: &'static [i32],
    /// `prctl` with one of these as its first argument, at most 40.
    pub prctl_options: &'static [u32],
    /// `mmap` of a file with PROT_EXEC.
    pub executable_files: bool,
}

/// As [`exit_filter`], and the calls of `set`, too, and all of seccomp. Of 32-bit programs those that make
/// and execute are notified, no others.
pub fn call_filter(set: CallSet) -> Vec<Instruction> {
    let own = [NR_EXIT_GROUP, NR_EXIT, libc::SYS_seccomp as i32];
    let numbers: Vec<i32> = own.iter().chain(set.numbers).copied().take(MAX_CALLS).collect();
    let options = set.prctl_options.iter().take(MAX_OPTIONS).chain(&[PR_SET_SECCOMP]);
    let count = options.clone().count();
    let mut native = section(&numbers);
    let mut block = vec![load(OFFSET_FIRST)];
    for (index, &option) in options.enumerate() {
        let jump_true = (count - index) as u8;
        block.push(Instruction { code: BPF_JMP_JEQ_K, jump_true, jump_false: 0, k: option });
    }
    block.extend([result(SECCOMP_RET_ALLOW), result(SECCOMP_RET_USER_NOTIF)]);
    match_arguments(&mut native, libc::SYS_prctl as i32, block);
    if set.executable_files {
        let jump =
            |(jump_true, jump_false), k| Instruction { code: BPF_JMP_JSET_K, jump_true, jump_false, k };
        let block = vec![
            load(OFFSET_THIRD),
            jump((0, 2), libc::PROT_EXEC as u32),
            load(OFFSET_FOURTH),
            jump((0, 1), libc::MAP_ANONYMOUS as u32),
            result(SECCOMP_RET_ALLOW),
            result(SECCOMP_RET_USER_NOTIF),
        ];
        match_arguments(&mut native, libc::SYS_mmap as i32, block);
    }
    program(native, set.numbers)
}

/// One more comparison of the number, before `ret ALLOW`; it leads to `block`, which goes behind all.
fn match_arguments(section: &mut Vec<Instruction>, number: i32, block: Vec<Instruction>) {
    let at = section.iter().position(|step| *step == result(SECCOMP_RET_ALLOW)).unwrap_or(section.len());
    // One more instruction between the comparisons and their targets.
    for step in section.iter_mut().take(at).filter(|step| step.code == BPF_JMP_JEQ_K) {
        step.jump_true += 1;
    }
    let jump_true = (section.len() - at) as u8;
    section.insert(at, Instruction { code: BPF_JMP_JEQ_K, jump_true, jump_false: 0, k: number as u32 });
    section.extend(block);
}

fn load(offset: u32) -> Instruction {
    Instruction { code: BPF_LD_W_ABS, jump_true: 0, jump_false: 0, k: offset }
}

fn result(value: u32) -> Instruction {
    Instruction { code: BPF_RET_K, jump_true: 0, jump_false: 0, k: value }
}

/// Jumps reach 255 instructions.
const MAX_CALLS: usize = 200;
const MAX_OPTIONS: usize = 40;

/// The program that notifies the calls in `numbers` (at most 250) of this architecture and allows all
/// else.
pub(in crate::launch) fn notify_filter(numbers: &[i32]) -> Vec<Instruction> {
    by_kind(section(numbers), None)
}

/// `native` for calls of this architecture. Of 32-bit programs exits, calls that request strict mode, and
/// those of `numbers` that are known.
fn program(native: Vec<Instruction>, numbers: &[i32]) -> Vec<Instruction> {
    let compat = COMPAT.map(|compat| {
        let [prctl, seccomp] = [libc::SYS_prctl, libc::SYS_seccomp].map(|nr| compat.number_of(nr));
        let is_notified = |nr: i64| {
            let exits = [NR_EXIT, NR_EXIT_GROUP].map(i64::from);
            exits.contains(&nr) || nr != libc::SYS_seccomp && numbers.iter().any(|&n| i64::from(n) == nr)
        };
        let own = compat.calls.iter().filter(|&&(_, nr)| is_notified(nr));
        let mut notified = section(&own.map(|&(own, _)| own).collect::<Vec<_>>());
        if let (Some(prctl), Some(seccomp)) = (prctl, seccomp) {
            notify_strict_mode(&mut notified, [prctl, seccomp]);
        }
        (compat.audit_arch, notified)
    });
    by_kind(native, compat)
}

/// Leads calls of this architecture to one section and those of another one, if any, to its own; all
/// others are allowed.
fn by_kind(native: Vec<Instruction>, other: Option<(u32, Vec<Instruction>)>) -> Vec<Instruction> {
    let skip_one_if = |k| Instruction { code: BPF_JMP_JEQ_K, jump_true: 1, jump_false: 0, k };
    let over = Instruction { code: BPF_JMP_JA, jump_true: 0, jump_false: 0, k: native.len() as u32 };
    let mut program = vec![load(OFFSET_ARCH), skip_one_if(AUDIT_ARCH), over];
    program.extend(native);
    program.extend(other.iter().map(|&(arch, _)| skip_one_if(arch)));
    program.push(result(SECCOMP_RET_ALLOW));
    program.extend(other.into_iter().flat_map(|(_, section)| section));
    program
}

/// Notifies the calls in `numbers` and allows all else.
fn section(numbers: &[i32]) -> Vec<Instruction> {
    let count = numbers.len();
    // Behind the last comparison come `ret ALLOW`, then `ret USER_NOTIF`.
    let mut section = vec![load(OFFSET_NR)];
    for (index, &number) in numbers.iter().enumerate() {
        let jump_true = (count - index) as u8;
        section.push(Instruction { code: BPF_JMP_JEQ_K, jump_true, jump_false: 0, k: number as u32 });
    }
    section.extend([result(SECCOMP_RET_ALLOW), result(SECCOMP_RET_USER_NOTIF)]);
    section
}

#[cfg(test)]
mod tests {
    use super::*;

    const AUDIT_ARCH_I386: u32 = crate::sys::abi::AUDIT_ARCH_I386;
    const X32_BIT: u32 = 0x4000_0000;

    /// Runs the three instructions that the program uses, as net/core/filter.c does.
    fn run(program: &[Instruction], arch: u32, nr: u32) -> u32 {
        run_with(program, arch, (nr, 0))
    }

    fn run_with(program: &[Instruction], arch: u32, (nr, first): (u32, u32)) -> u32 {
        run_with_args(program, arch, (nr, [first, 0, 0, 0]))
    }

    fn run_with_args(program: &[Instruction], arch: u32, (nr, args): (u32, [u32; 4])) -> u32 {
        let mut accumulator = 0;
        let mut at = 0;
        loop {
            let step = program[at];
            at += 1;
            match step.code {
                BPF_LD_W_ABS if step.k == OFFSET_NR => accumulator = nr,
                BPF_LD_W_ABS if step.k == OFFSET_ARCH => accumulator = arch,
                BPF_LD_W_ABS if (16..48).contains(&step.k) => {
                    accumulator = args[(step.k as usize - 16) / 8];
                }
                BPF_JMP_JSET_K if accumulator & step.k != 0 => at += usize::from(step.jump_true),
                BPF_JMP_JSET_K => at += usize::from(step.jump_false),
                BPF_JMP_JA => at += step.k as usize,
                BPF_JMP_JEQ_K if accumulator == step.k => at += usize::from(step.jump_true),
                BPF_JMP_JEQ_K => at += usize::from(step.jump_false),
                BPF_RET_K => return step.k,
                other => panic!("instruction {other:#x} is not in the program's repertoire"),
            }
        }
    }

    #[test]
    fn notifies_both_exits_and_nothing_else() {
        let program = exit_filter();
        for nr in 0..1024 {
            let expected = match nr as i32 {
                NR_EXIT | NR_EXIT_GROUP => SECCOMP_RET_USER_NOTIF,
                _ => SECCOMP_RET_ALLOW,
            };
            assert_eq!(run_with(&program, AUDIT_ARCH, (nr, 7)), expected, "syscall {nr}");
        }
    }

    #[test]
    fn notifies_who_requests_strict_mode() {
        let (prctl, seccomp) = (libc::SYS_prctl as u32, libc::SYS_seccomp as u32);
        let exits = exit_filter();
        let calls = call_filter(CallSet { numbers: &[9], prctl_options: &[15], executable_files: true });
        for call in [(172, [22, 1, 0, 0]), (354, [0, 0, 0, 0])] {
            for program in [&exits, &calls] {
                assert_eq!(run_with_args(program, AUDIT_ARCH_I386, call), SECCOMP_RET_USER_NOTIF, "{call:?}");
            }
        }
        for call in [(prctl, [22, 1, 0, 0]), (seccomp, [0, 0, 0, 0])] {
            for program in [&exits, &calls] {
                assert_eq!(run_with_args(program, AUDIT_ARCH, call), SECCOMP_RET_USER_NOTIF, "{call:?}");
            }
            let [a, b, c, d] = call.1.map(u64::from);
            assert!(requests_strict_mode(call.0.into(), &[a, b, c, d, 5, 6]));
        }
        for call in [(prctl, [22, 2, 0, 0]), (prctl, [15, 1, 0, 0]), (seccomp, [1, 8, 0, 0])] {
            assert_eq!(run_with_args(&exits, AUDIT_ARCH, call), SECCOMP_RET_ALLOW, "{call:?}");
            let [a, b, c, d] = call.1.map(u64::from);
            assert!(!requests_strict_mode(call.0.into(), &[a, b, c, d, 5, 6]));
        }
        // Flags are refused whatever the mode is.
        assert!(!requests_strict_mode(libc::SYS_seccomp, &[0, 1, 0, 0, 0, 0]));
    }

    #[test]
    fn of_32_bit_programs_few_calls_are_notified_and_of_x32_none() {
        const SET: CallSet = CallSet {
            numbers: &[libc::SYS_mmap as i32, libc::SYS_clone as i32, libc::SYS_execve as i32],
            prctl_options: &[15],
            executable_files: true,
        };
        let (program, calls) = (exit_filter(), call_filter(SET));
        let result = |notified| if notified { SECCOMP_RET_USER_NOTIF } else { SECCOMP_RET_ALLOW };
        for nr in 0..1024 {
            let (exits, tasks) = (matches!(nr, 1 | 252), matches!(nr, 120 | 11));
            let call = (nr, 15);
            assert_eq!(run_with(&program, AUDIT_ARCH_I386, call), result(exits), "i386 syscall {nr}");
            assert_eq!(run_with(&calls, AUDIT_ARCH_I386, call), result(exits || tasks), "i386 syscall {nr}");
            assert_eq!(run(&program, 7, nr), SECCOMP_RET_ALLOW, "syscall {nr} of another architecture");
            assert_eq!(run(&program, AUDIT_ARCH, nr | X32_BIT), SECCOMP_RET_ALLOW, "x32 syscall {nr}");
        }
    }

    #[test]
    fn notifies_calls_by_number_and_prctl_by_option() {
        const SET: CallSet = CallSet {
            numbers: &[9, 10, 11, 12, 25, 59],
            prctl_options: &[15, 35, 0x5356_4d41],
            executable_files: false,
        };
        let prctl = libc::SYS_prctl as u32;
        let program = call_filter(SET);
        let seccomp = libc::SYS_seccomp as i32;
        for nr in 0..1024 {
            let exits = matches!(nr, NR_EXIT | NR_EXIT_GROUP);
            let is_notified = SET.numbers.contains(&nr) || exits || nr == seccomp;
            let expected = if is_notified { SECCOMP_RET_USER_NOTIF } else { SECCOMP_RET_ALLOW };
            assert_eq!(run(&program, AUDIT_ARCH, nr as u32), expected, "syscall {nr}");
            assert_eq!(run(&program, AUDIT_ARCH, nr as u32 | X32_BIT), SECCOMP_RET_ALLOW, "x32 syscall {nr}");
        }
        for option in (0..64).chain([0x5356_4d41]) {
            let is_notified = SET.prctl_options.contains(&option) || option == PR_SET_SECCOMP;
            let expected = if is_notified { SECCOMP_RET_USER_NOTIF } else { SECCOMP_RET_ALLOW };
            assert_eq!(run_with(&program, AUDIT_ARCH, (prctl, option)), expected, "prctl {option:#x}");
            assert_eq!(run_with(&program, AUDIT_ARCH, (9, option)), SECCOMP_RET_USER_NOTIF);
            assert_eq!(run_with(&program, AUDIT_ARCH, (0, option)), SECCOMP_RET_ALLOW);
        }
    }

    #[test]
    fn notifies_mappings_of_files_that_can_be_executed() {
        for prctl_options in [&[][..], &[15]] {
            let program = call_filter(CallSet { numbers: &[59], prctl_options, executable_files: true });
            let mmap = |prot: i32, flags: i32| {
                let call = (libc::SYS_mmap as u32, [0, 0, prot as u32, flags as u32]);
                run_with_args(&program, AUDIT_ARCH, call) == SECCOMP_RET_USER_NOTIF
            };
            let (private, anonymous) = (libc::MAP_PRIVATE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            assert!(mmap(libc::PROT_READ | libc::PROT_EXEC, private));
            assert!(!mmap(libc::PROT_READ, private));
            assert!(!mmap(libc::PROT_READ | libc::PROT_EXEC, anonymous));
            assert!(!mmap(libc::PROT_READ | libc::PROT_WRITE, anonymous));
            assert_eq!(run(&program, AUDIT_ARCH, 59), SECCOMP_RET_USER_NOTIF);
            assert_eq!(run(&program, AUDIT_ARCH, 60), SECCOMP_RET_USER_NOTIF, "exit");
            assert_eq!(run(&program, AUDIT_ARCH, 0), SECCOMP_RET_ALLOW);
            assert_eq!(run(&program, AUDIT_ARCH_I386, 59), SECCOMP_RET_ALLOW);
            let prctl = run_with(&program, AUDIT_ARCH, (libc::SYS_prctl as u32, 15));
            assert_eq!(prctl == SECCOMP_RET_USER_NOTIF, !prctl_options.is_empty());
        }
    }

    #[test]
    fn no_jump_leaves_the_program() {
        for count in [0, 1, 2, 40] {
            let numbers: Vec<i32> = (100..100 + count).collect();
            let program = notify_filter(&numbers);
            for (at, step) in program.iter().enumerate() {
                let furthest = at + 1 + usize::from(step.jump_true.max(step.jump_false));
                assert!(step.code == BPF_RET_K || furthest < program.len(), "{at} of {count}");
            }
            for nr in 0..200 {
                let is_notified = numbers.contains(&nr);
                assert_eq!(run(&program, AUDIT_ARCH, nr as u32) == SECCOMP_RET_USER_NOTIF, is_notified);
            }
        }
    }
}

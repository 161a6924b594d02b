//! `/proc/PID/stat` (proc_pid_stat(5); fs/proc/array.c, `do_task_stat`): `PID (NAME) STATE PPID …`.

use std::fmt::Display;
use std::str::FromStr;

/// Numbers of fields, as proc_pid_stat(5) counts them.
pub const PARENT: usize = 4;
pub const FLAGS: usize = 9;
pub const MINOR_FAULTS: usize = 10;
pub const MAJOR_FAULTS: usize = 12;
/// Clock ticks in user mode, and in the kernel.
pub const USER_TIME: usize = 14;
pub const SYSTEM_TIME: usize = 15;
pub const THREADS: usize = 20;
/// USER_HZ: what times are counted in (include/asm-generic/param.h), ns.
pub const TICK_NS: u64 = 10_000_000;
/// Clock ticks since boot.
pub const START_TIME: usize = 22;
/// Of the address space, bytes.
pub const VIRTUAL_SIZE: usize = 23;
pub const START_STACK: usize = 28;
pub const START_BRK: usize = 47;
pub const ARG_START: usize = 48;
pub const ARG_END: usize = 49;
pub const ENV_END: usize = 51;
/// As waitpid(2) gives it.
pub const EXIT_CODE: usize = 52;

/// In [`FLAGS`] (include/linux/sched.h).
pub const PF_EXITING: u64 = libc::PF_EXITING as u64;
pub const PF_KTHREAD: u64 = libc::PF_KTHREAD as u64;

/// The bytes of a file, cut at the name: it is in parentheses and may hold any bytes, parentheses too.
#[derive(Clone, Copy, Debug)]
pub struct Stat<'a> {
    pub pid: i32,
    /// A newline and a backslash as the kernel escapes them (`proc_task_name`).
    pub comm: &'a [u8],
    /// From field 3 on.
    rest: &'a str,
}

impl<'a> Stat<'a> {
    pub fn parse(bytes: &'a [u8]) -> Option<Stat<'a>> {
        let open = bytes.iter().position(|&b| b == b'(')?;
        let close = bytes.iter().rposition(|&b| b == b')')?;
        let pid = std::str::from_utf8(bytes.get(..open)?).ok()?.trim().parse().ok()?;
        let rest = std::str::from_utf8(bytes.get(close + 1..)?).ok()?;
        Some(Stat { pid, comm: bytes.get(open + 1..close)?, rest })
    }

    /// R, S, D, T, t, Z, X, I.
    pub fn state(&self) -> Option<u8> {
        self.rest.split_ascii_whitespace().next()?.bytes().next()
    }

    /// A zombie, or one that is just being removed: for a thread group, of its first thread.
    pub fn has_ended(&self) -> bool {
        matches!(self.state(), Some(b'Z' | b'X'))
    }

    /// From field 4 on.
    pub fn field<T: FromStr>(&self, number: usize) -> Option<T> {
        self.rest.split_ascii_whitespace().nth(number.checked_sub(3)?)?.parse().ok()
    }
}

/// What `take` finds in the file of a process or thread (a number, or `self`); None where there is none.
pub fn of<T>(id: impl Display, take: impl FnOnce(Stat<'_>) -> Option<T>) -> Option<T> {
    take(Stat::parse(&super::file::read(format!("/proc/{id}/stat")).ok()?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_hold_anything() {
        for name in [b"a) Z 1 (b".as_slice(), b"", b"\xff\x1b[2J", b") (", b"(", b")"] {
            let line = [b"7 (".as_slice(), name, b") S 41 7 7 0 -1 4194560 111\n"].concat();
            let stat = Stat::parse(&line).expect("sound");
            assert_eq!((stat.pid, stat.comm, stat.state()), (7, name, Some(b'S')));
            assert_eq!((stat.field(PARENT), stat.field(FLAGS)), (Some(41), Some(4_194_560u64)));
            assert_eq!((stat.field(MINOR_FAULTS), stat.field::<u64>(MAJOR_FAULTS)), (Some(111u8), None));
            assert!(!stat.has_ended());
        }
        assert!(Stat::parse(b"12 (a) Z (b)) Z 1 2").expect("sound").has_ended());
    }

    #[test]
    fn what_is_cut_off_is_not_made_up() {
        for damaged in [b"".as_slice(), b"7", b"7 (a", b"x (a) S", b") S (", b"7 (a) \xff"] {
            assert!(Stat::parse(damaged).is_none(), "{damaged:?}");
        }
        let stat = Stat::parse(b"7 (a)").expect("sound");
        assert_eq!((stat.state(), stat.field::<i32>(PARENT), stat.field::<i32>(0)), (None, None, None));
    }

    #[test]
    fn its_own() {
        let own = std::process::id() as i32;
        let parent = of(own, |stat| stat.field(PARENT));
        assert_eq!(parent, Some(nix::unistd::getppid().as_raw()));
        assert_eq!(of(i32::MAX, |_| Some(())), None);
    }

    proptest::proptest! {
        #[test]
        fn no_input_panics(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200)) {
            if let Some(stat) = Stat::parse(&bytes) {
                let _ = (stat.state(), stat.field::<u64>(EXIT_CODE));
            }
        }
    }
}

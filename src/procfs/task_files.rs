//! The small files of a process or thread: syscall, comm, cmdline, personality, stat. No I/O.

use crate::model::Addr;
use crate::model::observation::ResourceUse;
use crate::sys::stat::{self, Stat};

/// Where `/proc/PID/task/TID/syscall` finds a thread (fs/proc/base.c, `proc_pid_syscall`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ThreadPlace {
    /// On a processor at this moment: registers are not to be had.
    Running,
    /// In the kernel, with its user stack pointer.
    Blocked { stack_pointer: Addr },
    /// No user registers any more: a thread that is exiting or a zombie, or a kernel thread.
    NoStack,
}

/// `running`, `-1 SP PC`, or `NR ARG0 … ARG5 SP PC`. None for anything else.
pub fn parse_syscall(bytes: &[u8]) -> Option<ThreadPlace> {
    let text = std::str::from_utf8(bytes).ok()?.trim_ascii();
    if text == "running" {
        return Some(ThreadPlace::Running);
    }
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    if words.len() != 3 && words.len() != 9 {
        return None;
    }
    let stack_pointer = parse_hex(words[words.len() - 2].strip_prefix("0x")?)?;
    Some(match stack_pointer {
        0 => ThreadPlace::NoStack,
        sp => ThreadPlace::Blocked { stack_pointer: Addr(sp) },
    })
}

/// A thread's name: the file's bytes without the newline that ends them (a name may hold one).
pub fn parse_comm(bytes: &[u8]) -> Vec<u8> {
    bytes.strip_suffix(b"\n").unwrap_or(bytes).to_vec()
}

/// Arguments, any bytes. Empty for a zombie or a kernel thread. A process that wrote its title
/// over its arguments (setproctitle) gives that title, without the padding after it.
pub fn parse_cmdline(bytes: &[u8]) -> Vec<Vec<u8>> {
    let Some(end) = bytes.iter().rposition(|&b| b != 0) else {
        // Nothing but NULs: that many empty arguments, if any.
        return bytes.iter().map(|_| Vec::new()).collect();
    };
    // One NUL ends the last argument; more may be empty arguments or a title's padding, which
    // cannot be distinguished: they are dropped.
    bytes[..=end].split(|&b| b == 0).map(<[u8]>::to_vec).collect()
}

/// True when ADDR_NO_RANDOMIZE is set in the hexadecimal `/proc/PID/personality`.
pub fn parse_no_randomize(bytes: &[u8]) -> Option<bool> {
    let text = std::str::from_utf8(bytes).ok()?.trim_ascii();
    Some(parse_hex(text)? & libc::ADDR_NO_RANDOMIZE as u64 != 0)
}

/// Page faults and processor time from `/proc/PID/stat`.
pub fn parse_resources(bytes: &[u8], ticks_per_second: u64) -> Option<ResourceUse> {
    let stat = Stat::parse(bytes)?;
    let nanoseconds = |ticks: u64| {
        let total = u128::from(ticks) * 1_000_000_000;
        u64::try_from(total.checked_div(u128::from(ticks_per_second))?).ok()
    };
    let (user_ns, system_ns) =
        (nanoseconds(stat.field(stat::USER_TIME)?)?, nanoseconds(stat.field(stat::SYSTEM_TIME)?)?);
    let cpu_ns = user_ns.saturating_add(system_ns);
    let (minor_faults, major_faults) = (stat.field(stat::MINOR_FAULTS)?, stat.field(stat::MAJOR_FAULTS)?);
    Some(ResourceUse { minor_faults, major_faults, cpu_ns, user_ns, system_ns })
}

fn parse_hex(digits: &str) -> Option<u64> {
    // from_str_radix takes a sign, the kernel writes none.
    digits.bytes().all(|b| b.is_ascii_hexdigit()).then(|| u64::from_str_radix(digits, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stack_pointer_is_the_last_field_but_one() {
        let inside = b"202 0x7f06 0x189 0x0 0x0 0x0 0xffffffff 0x7ffd8c3f5a10 0x7f0684e97f96\n";
        let blocked = Some(ThreadPlace::Blocked { stack_pointer: Addr(0x7ffd8c3f5a10) });
        assert_eq!(parse_syscall(inside), blocked);
        assert_eq!(parse_syscall(b"-1 0x7ffd8c3f5a10 0x7f0684e97f96\n"), blocked);
        assert_eq!(parse_syscall(b"running\n"), Some(ThreadPlace::Running));
        assert_eq!(parse_syscall(b"-1 0x0 0x0\n"), Some(ThreadPlace::NoStack));
        for damaged in [b"".as_slice(), b"1 2\n", b"-1 0xzz 0x0", b"-1 0x+1 0x0", b"\xff 0x1 0x2"] {
            assert_eq!(parse_syscall(damaged), None, "{damaged:?}");
        }
    }

    #[test]
    fn names_and_arguments_are_bytes() {
        assert_eq!(parse_comm(b"a b\xff\n\n"), b"a b\xff\n");
        assert_eq!(parse_comm(b""), b"");
        let args = |list: &[&[u8]]| list.iter().map(|a| a.to_vec()).collect::<Vec<_>>();
        assert_eq!(parse_cmdline(b"prog\0-x\0\xff y\0"), args(&[b"prog", b"-x", b"\xff y"]));
        assert_eq!(parse_cmdline(b"prog\0\0x\0"), args(&[b"prog", b"", b"x"]));
        assert_eq!(parse_cmdline(b"postgres: writer\0\0\0\0"), args(&[b"postgres: writer"]));
        assert_eq!(parse_cmdline(b"title"), args(&[b"title"]));
        assert_eq!(parse_cmdline(b""), args(&[]));
    }

    #[test]
    fn faults_and_times_follow_the_name() {
        let line = b"7 (a) 1 2 (b) S 1 7 7 0 -1 4194304 111 222 3 444 250 5 6 7 20 0 1 0 99\n";
        let used = parse_resources(line, 100).expect("sound");
        assert_eq!((used.minor_faults, used.major_faults), (111, 3));
        assert_eq!((used.user_ns, used.system_ns), (2_500_000_000, 50_000_000));
        for damaged in [b"".as_slice(), b"7 (a", b"7 (a) S 1 2 3", b"7 (a) S 1 7 7 0 -1 4 x 2 3 4 5 6"] {
            assert_eq!(parse_resources(damaged, 100), None);
        }
        assert_eq!(parse_resources(line, 0), None);
        let own = parse_resources(&std::fs::read("/proc/self/stat").expect("own stat"), 100);
        assert!(own.is_some_and(|used| used.minor_faults > 0));
    }

    #[test]
    fn personality() {
        assert_eq!(parse_no_randomize(b"00040000\n"), Some(true));
        assert_eq!(parse_no_randomize(b"00000000\n"), Some(false));
        assert_eq!(parse_no_randomize(b""), None);
        assert_eq!(parse_no_randomize(b"x"), None);
    }
}

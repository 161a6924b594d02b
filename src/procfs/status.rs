//! `/proc/PID/status` and `/proc/PID/limits`, by the crate `procfs`, from bytes. No I/O.
//!
//! The crate reads lines as UTF-8, and a thread's name may be any bytes; so what is not UTF-8
//! is replaced first (names are taken from `comm`, never from here).

use crate::model::observation::StatusFigures;
use crate::model::{Pid, Tid};
use ::procfs::process::{LimitValue, Limits, Status};
use ::procfs::{FromRead, ProcError};

/// What vmaudit uses of status.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProcessStatus {
    /// Memory in bytes; all 0 for a zombie or a kernel thread.
    pub figures: StatusFigures,
    /// False for a zombie or a kernel thread: no Vm lines.
    pub has_memory: bool,
    /// Thread-group id, in the reader's PID namespace.
    pub pid: Pid,
    pub tid: Tid,
    /// The thread's ids from the outermost namespace the reader can see to its own; the last
    /// one is the id that the target itself sees. Empty before Linux 4.1.
    pub ns_tids: Vec<Tid>,
    /// The same for the thread group.
    pub ns_pids: Vec<Pid>,
    /// State letter: R, S, D, T, t, Z, X, I.
    pub state: u8,
    /// Real, effective, saved, of the file system.
    pub uids: [u32; 4],
    pub effective_gid: u32,
    /// Signals that it handles: number n is bit n - 1.
    pub caught_signals: u64,
    pub no_new_privs: Option<bool>,
    /// Memory of hugetlb pages, bytes. Pages whose tables are shared with another process
    /// (CONFIG_HUGETLB_PMD_PAGE_TABLE_SHARING) are not counted by the kernel.
    pub hugetlb: u64,
    /// VmData, bytes: private and writable.
    pub vm_data: Option<u64>,
    /// VmPTE, bytes.
    pub page_tables: Option<u64>,
}

impl ProcessStatus {
    pub fn real_uid(&self) -> u32 {
        let [real, ..] = self.uids;
        real
    }

    /// The id that the process itself sees.
    pub fn own_pid(&self) -> Option<Pid> {
        self.ns_pids.last().copied()
    }
}

/// Soft limits in bytes; None for unlimited.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ProcessLimits {
    /// RLIMIT_STACK.
    pub stack: Option<u64>,
    /// RLIMIT_AS.
    pub address_space: Option<u64>,
    /// RLIMIT_DATA.
    pub data: Option<u64>,
}

/// Parses the whole file.
///
/// # Errors
/// What the crate says when a line that every kernel writes is missing or no number.
pub fn parse_status(bytes: &[u8]) -> Result<ProcessStatus, ProcError> {
    let text = String::from_utf8_lossy(bytes);
    let status = Status::from_read(text.as_bytes())?;
    let kib = |figure: Option<u64>| figure.unwrap_or(0).saturating_mul(1024);
    Ok(ProcessStatus {
        figures: StatusFigures {
            vm_size: kib(status.vmsize),
            vm_peak: kib(status.vmpeak),
            vm_rss: kib(status.vmrss),
            vm_swap: kib(status.vmswap),
            vm_hwm: kib(status.vmhwm),
            threads: status.threads,
            resources: None,
        },
        has_memory: status.vmsize.is_some(),
        pid: status.tgid,
        tid: status.pid,
        ns_tids: status.nspid.unwrap_or_default(),
        ns_pids: status.nstgid.unwrap_or_default(),
        state: status.state.bytes().next().unwrap_or(b'?'),
        uids: [status.ruid, status.euid, status.suid, status.fuid],
        effective_gid: status.egid,
        caught_signals: status.sigcgt,
        no_new_privs: status.nonewprivs.map(|flag| flag != 0),
        hugetlb: kib(status.hugetlbpages),
        vm_data: status.vmdata.map(|figure| figure.saturating_mul(1024)),
        page_tables: status.vmpte.map(|figure| figure.saturating_mul(1024)),
    })
}

/// Parses the whole file.
///
/// # Errors
/// What the crate says when a limit that every kernel writes is missing or no number.
pub fn parse_limits(bytes: &[u8]) -> Result<ProcessLimits, ProcError> {
    let text = String::from_utf8_lossy(bytes);
    // The crate counts columns from the end of a line and panics where there are too few.
    let sound: String = text
        .lines()
        .filter(|line| line.split_whitespace().count() >= 4)
        .flat_map(|line| [line, "\n"])
        .collect();
    let limits = Limits::from_read(sound.as_bytes())?;
    let soft = |value| match value {
        LimitValue::Unlimited => None,
        LimitValue::Value(bytes) => Some(bytes),
    };
    Ok(ProcessLimits {
        stack: soft(limits.max_stack_size.soft_limit),
        address_space: soft(limits.max_address_space.soft_limit),
        data: soft(limits.max_data_size.soft_limit),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(file: &str) -> Vec<u8> {
        std::fs::read(format!("/proc/self/{file}")).expect("own proc file")
    }

    #[test]
    fn own_status() {
        let status = parse_status(&own("status")).expect("own status");
        assert_eq!(status.pid, std::process::id() as i32);
        assert!(status.has_memory && status.figures.vm_size > status.figures.vm_rss);
        assert!(status.figures.vm_peak >= status.figures.vm_size);
        assert!(status.figures.threads >= 1);
        assert_eq!(status.ns_pids.last().copied(), Some(status.pid));
    }

    #[test]
    fn a_name_that_is_not_utf8_does_no_harm() {
        let text = own("status");
        let end = text.iter().position(|&b| b == b'\n').expect("lines");
        let odd = [b"Name:\t\xff\xfea:b".as_slice(), &text[end..]].concat();
        assert!(parse_status(&odd).is_ok());
    }

    #[test]
    fn damage_is_an_error_not_a_panic() {
        assert!(parse_status(b"").is_err());
        assert!(parse_status(b"Name: x\nrubbish\n").is_err());
        assert!(parse_limits(b"").is_err());
        assert!(parse_limits(b"Max\nMax stack\nx\n\n").is_err());
    }

    #[test]
    fn stack_limit_in_bytes_or_unlimited() {
        let text = String::from_utf8(own("limits")).expect("limits are ASCII");
        let with = |value: &str| {
            let lines: Vec<String> = text
                .lines()
                .map(|line| match line.starts_with("Max stack size") {
                    true => {
                        format!("Max stack size            {value}              unlimited            bytes")
                    }
                    false => line.to_owned(),
                })
                .collect();
            parse_limits(lines.join("\n").as_bytes()).expect("sound limits")
        };
        assert_eq!(with("8388608").stack, Some(8 << 20));
        assert_eq!(with("unlimited").stack, None);
    }

    proptest::proptest! {
        #[test]
        fn no_input_panics(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..300)) {
            let _ = parse_status(&bytes);
            let _ = parse_limits(&bytes);
        }
    }
}

//! vmaudit's privileges here.

use super::perf::paranoid;
use crate::model::{Capabilities, Privileges};
use crate::rights;
use crate::sys::abi::{PID_NS_INIT_INO, USER_NS_INIT_INO};
use crate::sys::lockdown;
use std::fs;
use std::os::unix::fs::MetadataExt;

/// Reads it. What cannot be read is as it is on most machines.
pub fn privileges() -> Privileges {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_default().trim().to_owned()
    };
    let bits = |name: &str| Capabilities(u64::from_str_radix(&field(name), 16).unwrap_or(0));
    let first = |name: &str, number: u64| {
        fs::metadata(format!("/proc/self/ns/{name}")).map_or(true, |meta| meta.ino() == number)
    };
    let exe = std::env::current_exe().unwrap_or_else(|_| "vmaudit".into());
    Privileges {
        kernel: fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
        arch: std::env::consts::ARCH,
        btf: fs::exists("/sys/kernel/btf/vmlinux").unwrap_or(false),
        uid: nix::unistd::geteuid().as_raw(),
        // Those that the file lends are not effective all the time.
        effective: Capabilities(bits("CapEff").0 | rights::usable().0),
        lent: rights::lent(),
        seccomp_filter: field("Seccomp") == "2",
        no_new_privs: field("NoNewPrivs") == "1",
        first_user_namespace: first("user", USER_NS_INIT_INO),
        first_pid_namespace: first("pid", PID_NS_INIT_INO),
        perf_event_paranoid: paranoid().ok(),
        lockdown: lockdown::mode().ok(),
        reads_kernel_memory: lockdown::programs_read_kernel_memory(),
        exe: exe.display().to_string(),
    }
}

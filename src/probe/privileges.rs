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
    let status = fs::read_to_string("/proc/self/status");
    let no_proc = status.is_err();
    let status = status.unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_default().trim().to_owned()
    };
    let first = |name: &str, number: u64| {
        fs::metadata(format!("/proc/self/ns/{name}")).map_or(true, |meta| meta.ino() == number)
    };
    let exe = std::env::current_exe().unwrap_or_else(|_| "vmaudit".into());
    Privileges {
        kernel: nix::sys::utsname::uname()
            .map_or_else(|_| String::new(), |name| name.release().to_string_lossy().into_owned()),
        arch: std::env::consts::ARCH,
        btf: fs::exists("/sys/kernel/btf/vmlinux").unwrap_or(false),
        uid: nix::unistd::geteuid().as_raw(),
        // Those that the file lends are not effective all the time.
        effective: Capabilities(rights::effective().0 | rights::usable().0),
        lent: rights::lent(),
        no_proc,
        seccomp_filter: field("Seccomp") == "2",
        no_new_privs: nix::sys::prctl::get_no_new_privs().unwrap_or(false),
        first_user_namespace: first("user", USER_NS_INIT_INO),
        first_pid_namespace: first("pid", PID_NS_INIT_INO),
        perf_event_paranoid: paranoid().ok(),
        lockdown: lockdown::mode().ok(),
        reads_kernel_memory: lockdown::programs_read_kernel_memory(),
        exe: exe.display().to_string(),
    }
}

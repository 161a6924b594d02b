//! Kernel lockdown (kernel_lockdown(7)), and how it is detected where securityfs is not mounted.

use libbpf_rs::libbpf_sys as sys;
use std::fs;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

const FILE: &str = "/sys/kernel/security/lockdown";
/// Under it BPF programs may not read the kernel's memory, and tracefs has no files.
pub const CONFIDENTIALITY: &str = "confidentiality";

/// `none`, `integrity` or `confidentiality`.
///
/// # Errors
/// Where it cannot be read: without securityfs, which an administrator has to mount, ENOENT.
pub fn mode() -> io::Result<String> {
    Ok(marked(&fs::read_to_string(FILE)?).to_owned())
}

/// The marked word of `[none] integrity confidentiality` (security/lockdown/lockdown.c).
fn marked(text: &str) -> &str {
    let marked = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    marked.map_or_else(|| text.trim(), |(mode, _)| mode)
}

/// Whether a program may call bpf_probe_read_kernel, tried; None where no program can be loaded at all.
/// Lockdown's confidentiality takes that helper away (bpf_tracing_func_proto, kernel/trace/bpf_trace.c).
pub fn programs_read_kernel_memory() -> Option<bool> {
    const PROBE_READ_KERNEL: i32 = 113;
    let r = |number: u8| number;
    // r0 = 0; exit
    let ends = [instruction(0xb7, r(0), 0, 0), instruction(0x95, 0, 0, 0)];
    // bpf_probe_read_kernel(fp - 8, 8, 0)
    let reads = [
        instruction(0xbf, r(1), r(10), 0),
        instruction(0x07, r(1), 0, -8),
        instruction(0xb7, r(2), 0, 8),
        instruction(0xb7, r(3), 0, 0),
        instruction(0x85, 0, 0, PROBE_READ_KERNEL),
    ];
    load(&ends).ok()?;
    Some(load(&[&reads[..], &ends].concat()).is_ok())
}

/// Kernels from 6.12 to 7.3 at least panic when a tracefs is unmounted that was mounted under lockdown's
/// confidentiality (tracefs_destroy_inode unlinks an inode that was never linked): where that may be in
/// force, nothing of ours mounts one.
pub fn tracefs_may_be_mounted() -> bool {
    match mode() {
        Ok(mode) => mode != CONFIDENTIALITY,
        Err(_) => programs_read_kernel_memory().unwrap_or_else(|| !requested_at_boot(&command_line())),
    }
}

fn command_line() -> String {
    fs::read_to_string("/proc/cmdline").unwrap_or_default()
}

/// The last of several counts.
fn requested_at_boot(command_line: &str) -> bool {
    let mut modes = command_line.split_whitespace().filter_map(|word| word.strip_prefix("lockdown="));
    modes.next_back() == Some(CONFIDENTIALITY)
}

fn instruction(code: u8, destination: u8, source: u8, immediate: i32) -> sys::bpf_insn {
    let mut instruction = sys::bpf_insn { code, imm: immediate, ..Default::default() };
    instruction.set_dst_reg(destination);
    instruction.set_src_reg(source);
    instruction
}

fn load(program: &[sys::bpf_insn]) -> io::Result<OwnedFd> {
    // SAFETY: names and program are valid for the call, which copies them; null means no options.
    let fd = unsafe {
        sys::bpf_prog_load(
            sys::BPF_PROG_TYPE_RAW_TRACEPOINT,
            c"vmaudit_try".as_ptr(),
            c"Dual BSD/GPL".as_ptr(),
            program.as_ptr(),
            program.len() as sys::size_t,
            std::ptr::null_mut(),
        )
    };
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: a new descriptor owned by nothing else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mode_is_the_marked_word() {
        assert_eq!(marked("[none] integrity confidentiality\n"), "none");
        assert_eq!(marked("none [integrity] confidentiality\n"), "integrity");
        assert_eq!(marked("none integrity [confidentiality]\n"), CONFIDENTIALITY);
        // Nothing is made up of what is not understood.
        assert_eq!(marked("integrity\n"), "integrity");
        assert_eq!(marked("[none"), "[none");
        assert_eq!(marked(""), "");
    }

    #[test]
    fn the_last_of_the_command_line_counts() {
        assert!(requested_at_boot("quiet lockdown=confidentiality ro"));
        assert!(requested_at_boot("lockdown=integrity lockdown=confidentiality"));
        assert!(!requested_at_boot("lockdown=confidentiality lockdown=integrity"));
        assert!(!requested_at_boot("quiet xlockdown=confidentiality"));
        assert!(!requested_at_boot(""));
    }

    #[test]
    fn reading_memory_is_tried_and_agrees_with_the_mode() {
        match (programs_read_kernel_memory(), mode()) {
            (None, _) => crate::skip::skip_this("no BPF program can be loaded here"),
            (Some(reads), Ok(mode)) => assert_eq!(reads, mode != CONFIDENTIALITY),
            (Some(reads), Err(_)) => assert_eq!(reads, !requested_at_boot(&command_line())),
        }
    }
}

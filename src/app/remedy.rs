//! What to do when the kernel does not let vmaudit work.

use crate::capture::CaptureError;

/// One sentence for the user, by what the kernel said.
pub fn remedy(error: &CaptureError) -> &'static str {
    if let CaptureError::Perf { source, .. } = error {
        return perf_remedy(source.raw_os_error());
    }
    if let CaptureError::Silenced { .. } = error {
        return "another tracer (bpftrace, an older vmaudit as root) is attached to the same tracepoints: end it, \
                or use --backend bpf; bpftool perf list shows it";
    }
    match errno(error) {
        Some(libc::EMFILE) => "raise the limit of open files: ulimit -n 1024",
        Some(libc::ENFILE) => "the system has no file descriptors left: fs.file-max",
        Some(libc::ENOMEM) => "the kernel has no memory for it: try a smaller --ring-bytes",
        _ => {
            "tracing needs root, or CAP_BPF and CAP_PERFMON (CAP_SYS_PTRACE for other users' processes), \
             and a kernel with BTF (5.15 or later): try sudo vmaudit …"
        }
    }
}

/// As perf_event_open(2) has its errors (kernel/events/core.c).
fn perf_remedy(errno: Option<i32>) -> &'static str {
    match errno {
        Some(libc::EACCES) => {
            "perf events are closed to ordinary users here: sudo sysctl kernel.perf_event_paranoid=2 opens them \
             (for one's own processes), or give vmaudit CAP_PERFMON"
        }
        Some(libc::EPERM) => {
            "a seccomp profile (Docker and Podman have one) or the limit of locked memory (ulimit -l) refuses perf \
             events: give the container CAP_PERFMON or --security-opt seccomp=unconfined, or trace from the host"
        }
        Some(libc::ENOSYS) => "this kernel has no perf events, or a seccomp profile hides them",
        Some(libc::ENOENT | libc::EINVAL) => {
            "this kernel has no system-call tracepoints (CONFIG_FTRACE_SYSCALLS): use --backend bpf"
        }
        Some(libc::EMFILE) => "perf needs some 30 open files for each CPU: raise the limit, ulimit -Hn",
        _ => "perf events do not work here: try --backend bpf",
    }
}

/// One sentence for the user who may not read a process.
pub fn may_not_be_read() -> String {
    if nix::unistd::geteuid().is_root() {
        return "even root is refused here: CAP_SYS_PTRACE is missing (a container without --cap-add SYS_PTRACE), \
                or a security module forbids it"
            .to_owned();
    }
    let words: Vec<_> = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    format!(
        "another user's process, or one that forbids it (prctl PR_SET_DUMPABLE), takes root or CAP_SYS_PTRACE: \
         try sudo vmaudit {}",
        words.join(" ")
    )
}

/// libbpf-rs keeps the number to itself and prints it as std does.
fn errno(error: &CaptureError) -> Option<i32> {
    let text = format!("{error:#}");
    let (_, number) = text.rsplit_once("(os error ")?;
    number.split(')').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed_with(errno: i32) -> CaptureError {
        CaptureError::Load(libbpf_rs::Error::from_raw_os_error(errno))
    }

    #[test]
    fn limits_are_told_from_privileges() {
        assert!(remedy(&failed_with(libc::EMFILE)).contains("ulimit -n"));
        assert!(remedy(&failed_with(libc::ENOMEM)).contains("--ring-bytes"));
        assert!(remedy(&failed_with(libc::EPERM)).contains("root"));
    }
}

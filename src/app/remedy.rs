//! What to do when the kernel does not let vmaudit work.

use crate::capture::CaptureError;

/// One sentence for the user, by what the kernel said.
pub fn remedy(error: &CaptureError) -> &'static str {
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

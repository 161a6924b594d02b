//! What vmaudit says where a limit, or a file system that is not there, keeps something from it: that, and not that the
//! kernel lacks it.

use crate::support::unprivileged::{Bench, as_nobody, skip_without_root};
use crate::support::{program, skip, skip_without_bpf, vmaudit};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// A shell's line, with vmaudit as its `$0`.
fn shell(command: &mut Command, line: &str, vmaudit: &Path) -> (Output, String) {
    let output =
        command.args(["sh", "-c", line]).arg(vmaudit).stdin(Stdio::null()).output().expect("a shell");
    let said = String::from_utf8_lossy(&[output.stdout.as_slice(), &output.stderr].concat()).into_owned();
    (output, said)
}

/// Where nothing but a limit was in the way, nothing else may be said to be missing.
fn assert_kernel_lacks_nothing(said: &str) {
    for wrong in [
        "the kernel has no",
        "CONFIG_SECCOMP_FILTER",
        "CONFIG_PERF_EVENTS",
        "CONFIG_FTRACE",
        "a seccomp profile",
    ] {
        assert!(!said.contains(wrong), "{wrong}: {said}");
    }
}

#[test]
fn a_limit_on_processes_is_called_that() {
    let name = "a_limit_on_processes_is_called_that";
    if skip_without_root(name) {
        return;
    }
    let bench = Bench::new();
    let mut was_in_the_way = false;
    // How many processes the user has already is not known: one of these is in the way of each step.
    for most in 1..8 {
        let line = format!("exec prlimit --nproc={most} \"$0\" run --backend notify -- /bin/true");
        let (output, said) = shell(&mut as_nobody(&[]), &line, &bench.path("vmaudit"));
        assert_kernel_lacks_nothing(&said);
        if output.status.success() {
            continue;
        }
        let is_limit =
            ["RLIMIT_NPROC", "Resource temporarily unavailable"].iter().any(|words| said.contains(words));
        assert!(is_limit, "{most}: {said}");
        was_in_the_way |= said.contains("RLIMIT_NPROC");
    }
    assert!(was_in_the_way);
}

#[test]
fn without_proc_that_is_the_reason() {
    let name = "without_proc_that_is_the_reason";
    if skip_without_root(name) {
        return;
    }
    let bench = Bench::new();
    let as_nobody = "setpriv --reuid 65534 --regid 65534 --clear-groups";
    for (user, backend) in [("", "notify"), (as_nobody, "notify"), (as_nobody, "auto")] {
        let line = format!(
            "mount -t tmpfs none /proc 2>/dev/null || exit 77; exec {user} \"$0\" run --as-root --backend {backend} -- /bin/true"
        );
        let (output, said) = shell(Command::new("unshare").arg("-m"), &line, &bench.path("vmaudit"));
        if output.status.code() == Some(77) || said.starts_with("unshare:") {
            return skip(name, "no mount namespace of its own");
        }
        assert_kernel_lacks_nothing(&said);
        assert!(!said.contains("missing, though this is root"), "{said}");
        assert!(output.status.success() || said.contains("/proc"), "{user} {backend}: {said}");
    }
}

/// Few descriptors: nothing of the report is lost, or it is said to be.
#[test]
fn with_few_descriptors_stacks_are_whole_or_said_not_to_be() {
    if skip_without_bpf("with_few_descriptors_stacks_are_whole_or_said_not_to_be") {
        return;
    }
    let target = program("own_mmap");
    for backend in ["bpf", "notify"] {
        for most in [8, 12, 16, 24, 32, 48, 64] {
            let line = format!(
                "ulimit -n {most} && exec \"$0\" run --as-root -f json --backend {backend} -- {}",
                target.display()
            );
            let (output, said) = shell(&mut Command::new("env"), &line, &vmaudit());
            assert_kernel_lacks_nothing(&said);
            // The program's own output comes first.
            let begin = output.stdout.iter().position(|&byte| byte == b'{').unwrap_or_default();
            let Ok(report) = serde_json::from_slice::<Value>(&output.stdout[begin..]) else {
                assert_eq!(output.status.code(), Some(125), "{backend} {most}: {said}");
                assert!(said.contains("ulimit -n"), "{backend} {most}: {said}");
                continue;
            };
            let has_stacks = report.to_string().contains("\"own\"");
            assert!(has_stacks || said.contains("RLIMIT_NOFILE"), "{backend} {most}: {said}");
        }
    }
}

//! What the tests on real programs share: building the C programs once, running `vmaudit`, checking whether
//! this machine can trace, and holding children so that none outlives its test.

#![allow(dead_code, reason = "each test crate uses its own part")]

pub mod breakpoints;
pub mod cgroup;
pub mod churn;
pub mod container;
pub mod death;
pub mod docker;
pub mod heap;
pub mod managed;
pub mod postgres;
mod programs;
pub mod redis;
pub mod report;
mod skip;
pub mod stacks;
pub mod tmux;
pub mod unprivileged;
pub mod watchdog;

use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::OnceLock;

pub use programs::*;
pub use report::AuditReport;
pub use skip::*;

/// The binary under test: `$VMAUDIT` (scripts/test.sh sets it to the release build), else the one
/// that cargo built with this test.
pub fn vmaudit() -> PathBuf {
    std::env::var_os("VMAUDIT").map_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_vmaudit")), PathBuf::from)
}

pub fn manifest_dir() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Whether BPF is available, checked with the kernel and not with vmaudit, so that a vmaudit that is broken
/// fails its tests instead of skipping them.
pub fn bpf_available() -> Result<(), String> {
    static ANSWER: OnceLock<Result<(), String>> = OnceLock::new();
    ANSWER.get_or_init(test_for_bpf).clone()
}

fn test_for_bpf() -> Result<(), String> {
    if !Path::new("/sys/kernel/btf/vmlinux").exists() {
        return Err("the kernel has no BTF (/sys/kernel/btf/vmlinux)".into());
    }
    // bpf(BPF_MAP_CREATE = 0): type BPF_MAP_TYPE_RINGBUF 27, no key, no value, one page.
    const RINGBUF: [u32; 4] = [27, 0, 0, 4096];
    // SAFETY: the attribute is 16 bytes of plain integers that outlive the call; the kernel reads it only.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, 0, RINGBUF.as_ptr(), size_of_val(&RINGBUF)) };
    if fd < 0 {
        return Err(format!("bpf(2) is refused: {}", io::Error::last_os_error()));
    }
    // SAFETY: the descriptor was just returned to us and nothing else has it.
    unsafe { libc::close(fd as i32) };
    Ok(())
}

/// True, with a SKIP line, where tests that trace cannot run.
pub fn skip_without_bpf(test: &str) -> bool {
    bpf_available().inspect_err(|why| skip(test, why)).is_err()
}

/// True, with a SKIP line, where `file` does not exist.
pub fn skip_without(test: &str, file: &str) -> bool {
    let missing = !Path::new(file).exists();
    if missing {
        skip(test, &format!("no {file}"));
    }
    missing
}

/// One finished `vmaudit run`.
pub struct Audit {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
    /// The JSON report; None when vmaudit wrote none.
    pub report: Option<AuditReport>,
}

impl Audit {
    /// The report, with everything that has to hold for every report already checked.
    pub fn report(&self) -> &AuditReport {
        let report = self.report.as_ref();
        report.unwrap_or_else(|| panic!("no report; {}, stderr:\n{}", self.status, self.stderr))
    }

    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }
}

/// `vmaudit run -f json --report FILE OPTIONS -- COMMAND`, to its end.
pub fn audit<S: AsRef<OsStr>>(options: &[&str], command: &[S]) -> Audit {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("report.json");
    let output = watchdog::output(run_command(&file, options, command).stdin(Stdio::null()));
    finished(output, &file)
}

/// The command line of [`audit`], not yet started.
pub fn run_command<S: AsRef<OsStr>>(report: &Path, options: &[&str], command: &[S]) -> Command {
    let mut run = Command::new(vmaudit());
    run.args(["run", "--as-root", "-f", "json", "--report"]).arg(report);
    if !options.contains(&"--backend") {
        run.args(["--backend", "bpf"]);
    }
    run.args(options).arg("--").args(command);
    run
}

/// The same command under limits that a shell sets: `ulimit LIMITS`.
pub fn under_limits(limits: &str, command: &Command) -> Command {
    let mut shell = Command::new("/bin/bash");
    shell.args(["-c", &format!("ulimit {limits} && exec \"$@\""), "bash"]);
    shell.arg(command.get_program()).args(command.get_args()).stdin(Stdio::null());
    shell
}

/// Collects what a [`run_command`] left.
pub fn finished(output: Output, report: &Path) -> Audit {
    let text = fs::read(report).ok().filter(|bytes| !bytes.is_empty());
    Audit {
        status: output.status,
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        report: text.map(|bytes| AuditReport::parse(&bytes)),
    }
}

/// A child that does not outlive its test.
pub struct Guard(pub Child);

impl Guard {
    /// Waits for the end and takes the output.
    pub fn finish(mut self) -> io::Result<Output> {
        let mut output = Output { status: ExitStatus::default(), stdout: vec![], stderr: vec![] };
        if let Some(mut pipe) = self.0.stdout.take() {
            io::Read::read_to_end(&mut pipe, &mut output.stdout)?;
        }
        if let Some(mut pipe) = self.0.stderr.take() {
            io::Read::read_to_end(&mut pipe, &mut output.stderr)?;
        }
        output.status = self.0.wait()?;
        Ok(output)
    }

    /// Returns when all threads of it have stopped (SIGSTOP).
    pub fn stop(&self) {
        self.signal(libc::SIGSTOP);
        let stopped = waitpid(Pid::from_raw(self.0.id() as i32), Some(WaitPidFlag::WUNTRACED));
        assert!(matches!(stopped, Ok(WaitStatus::Stopped(..))), "{stopped:?}");
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: plain system call; the child has not been waited for, so the pid is still its own.
        unsafe { libc::kill(self.0.id() as i32, signal) };
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            // vmaudit may have to end the program it runs: SIGTERM first.
            self.signal(libc::SIGTERM);
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

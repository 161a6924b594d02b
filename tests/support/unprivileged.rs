//! vmaudit as an ordinary user starts it: copies that anybody can execute, with capabilities of the file
//! or of the user.

use super::report::AuditReport;
use super::{Guard, skip, vmaudit};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

pub const NOBODY: &str = "65534";

/// All that vmaudit knows to use, and CAP_DAC_OVERRIDE, which it has no use for.
pub const EVERY: &str = "cap_bpf,cap_perfmon,cap_sys_ptrace,cap_dac_read_search,cap_dac_override,\
                         cap_checkpoint_restore,cap_sys_admin+ep";
pub const DOCUMENTED: &str = "cap_bpf,cap_perfmon+ep";

/// A folder with a copy of vmaudit that every user can execute, to write reports to.
pub struct Bench(tempfile::TempDir);

impl Bench {
    pub fn new() -> Bench {
        let folder = tempfile::tempdir().expect("a temporary folder");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).expect("chmod");
        fs::copy(vmaudit(), folder.path().join("vmaudit")).expect("a copy of vmaudit");
        Bench(folder)
    }

    /// Whose copy has capabilities; None, with a SKIP line, where files can have none.
    pub fn with_file_capabilities(test: &str, capabilities: &str) -> Option<Bench> {
        let bench = Bench::new();
        let given = Command::new("setcap").arg(capabilities).arg(bench.path("vmaudit")).output();
        if given.is_ok_and(|output| output.status.success()) {
            return Some(bench);
        }
        skip(
            test,
            "setcap does not work here (apt-get install libcap2-bin, or the file system has no xattrs)",
        );
        None
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The copy, as an ordinary user with these ambient capabilities.
    pub fn with(&self, capabilities: &[&str]) -> Command {
        let mut command = as_nobody(capabilities);
        command.arg(self.path("vmaudit")).current_dir(self.0.path()).stdin(Stdio::null());
        command
    }

    pub fn report(&self, name: &str) -> AuditReport {
        AuditReport::parse(&fs::read(self.path(name)).expect("a report"))
    }

    /// A file of root's with these bytes that no other user can read.
    pub fn secret_file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, text).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("chmod");
        path
    }

    /// A copy of a program that everybody can execute; with 0o4755 it runs as root.
    pub fn copy(&self, program: &Path, name: &str, mode: u32) -> PathBuf {
        let to = self.path(name);
        fs::copy(program, &to).expect("a copy");
        chown(&to, Some(0), Some(0)).expect("chown");
        fs::set_permissions(&to, fs::Permissions::from_mode(mode)).expect("chmod");
        to
    }
}

/// `setpriv` to an ordinary user with these ambient capabilities; what to execute is to be added.
pub fn as_nobody(capabilities: &[&str]) -> Command {
    let plus: String = capabilities.iter().map(|each| format!(",+{each}")).collect();
    let mut command = Command::new("setpriv");
    command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]);
    command.arg(format!("--inh-caps=-all{plus}")).arg(format!("--ambient-caps=-all{plus}"));
    command
}

/// True, with a SKIP line, where this test cannot become another user.
pub fn skip_without_root(test: &str) -> bool {
    // SAFETY: geteuid has no preconditions.
    let root = unsafe { libc::geteuid() } == 0;
    let setpriv = Command::new("setpriv").arg("--version").output().is_ok();
    if !(root && setpriv) {
        skip(test, "needs root and setpriv(1) to become another user");
    }
    !(root && setpriv)
}

/// To its end, and what it said on standard error.
pub fn finish(command: &mut Command) -> (Output, String) {
    let output = command.stdin(Stdio::null()).output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output, said)
}

/// Starts vmaudit, calls `act` once it says that it watches, and hands over all that it wrote: standard
/// output, then standard error.
pub fn while_watching(command: &mut Command, act: impl FnOnce(&Guard)) -> (String, String) {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut auditor = Guard(child.expect("it starts"));
    let mut stderr = BufReader::new(auditor.0.stderr.take().expect("a pipe"));
    let (mut said, mut act) = (String::new(), Some(act));
    while let Ok(1..) = stderr.read_line(&mut said) {
        if said.contains("Ctrl-C ends")
            && let Some(act) = act.take()
        {
            act(&auditor);
            auditor.signal(libc::SIGINT);
        }
    }
    assert!(act.is_none(), "it never watched:\n{said}");
    let output = auditor.finish().expect("it ends");
    (String::from_utf8_lossy(&output.stdout).into_owned(), said)
}

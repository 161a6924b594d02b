//! What the tests on real programs share: building the C programs once, running `vmaudit`, asking
//! whether this machine can trace, and holding children so that none outlives its test.

#![allow(dead_code, reason = "each test crate uses its own part")]

pub mod cgroup;
pub mod churn;
pub mod container;
pub mod death;
pub mod docker;
pub mod heap;
pub mod managed;
pub mod postgres;
pub mod redis;
pub mod report;
pub mod stacks;
pub mod stuck;
pub mod tmux;
pub mod unprivileged;

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::OnceLock;

pub use report::AuditReport;

/// The binary under test: `$VMAUDIT` (scripts/test.sh sets it to the release build), else the one
/// that cargo built with this test.
pub fn vmaudit() -> PathBuf {
    std::env::var_os("VMAUDIT").map_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_vmaudit")), PathBuf::from)
}

pub fn manifest_dir() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn build_dir() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("programs")
}

/// True when `output` exists and none of `sources` is newer.
fn is_fresh(output: &Path, sources: &[&Path]) -> bool {
    let modified = |p: &Path| fs::metadata(p).and_then(|m| m.modified());
    let Ok(built) = modified(output) else { return false };
    sources.iter().all(|source| modified(source).is_ok_and(|time| time <= built))
}

/// Builds `output` through a private name: tests run in parallel, in processes of their own, and
/// may all want the same program at once.
fn build_with(output: &Path, sources: &[&Path], command: impl FnOnce(&Path) -> Command) {
    if is_fresh(output, sources) {
        return;
    }
    let folder = build_dir();
    fs::create_dir_all(&folder).expect("target/tmp is writable");
    let private = tempfile::Builder::new().tempdir_in(&folder).expect("a temporary folder");
    let file = private.path().join(output.file_name().expect("a file name"));
    let result = command(&file).output().expect("a compiler (apt-get install gcc g++)");
    assert!(result.status.success(), "{}: {}", output.display(), String::from_utf8_lossy(&result.stderr));
    fs::rename(&file, output).expect("rename within target/tmp");
}

/// Path of the built `tests/programs/NAME`, without frame pointers.
pub fn program(name: &str) -> PathBuf {
    let output = build_dir().join(name);
    let folder = manifest_dir().join("tests/programs");
    let (compiler, source) = match folder.join(format!("{name}.cpp")) {
        cpp if cpp.exists() => ("g++", cpp),
        _ => ("gcc", folder.join(format!("{name}.c"))),
    };
    build_with(&output, &[&source], |to| {
        let mut command = Command::new(compiler);
        command.args(["-O2", "-g", "-fomit-frame-pointer", "-pthread", "-o"]).arg(to).arg(&source);
        command
    });
    output
}

/// As [`program`], with a library; None where that is not installed.
pub fn program_with(name: &str, library: &str) -> Option<PathBuf> {
    let file = format!("-print-file-name=lib{}.so", library.trim_start_matches("-l"));
    let found = Command::new("gcc").arg(file).output().expect("gcc (apt-get install gcc)").stdout;
    if !found.starts_with(b"/") {
        return None;
    }
    let output = build_dir().join(name);
    let source = manifest_dir().join(format!("tests/programs/{name}.c"));
    build_with(&output, &[&source], |to| {
        let mut command = Command::new("gcc");
        command.args(["-O2", "-g", "-fomit-frame-pointer", "-o"]).arg(to).arg(&source).arg(library);
        command
    });
    Some(output)
}

/// `tests/programs/SOURCE.c` built by `compiler` with `arguments` (libraries after the source); what the
/// compiler said where it cannot: without a library or a linker that is not installed.
pub fn program_by(
    (output, source): (&str, &str),
    compiler: &str,
    arguments: &[&str],
) -> Result<PathBuf, String> {
    let output = build_dir().join(output);
    let source = manifest_dir().join(format!("tests/programs/{source}.c"));
    if is_fresh(&output, &[&source]) {
        return Ok(output);
    }
    fs::create_dir_all(build_dir()).map_err(|e| e.to_string())?;
    let private = tempfile::Builder::new().tempdir_in(build_dir()).map_err(|e| e.to_string())?;
    let file = private.path().join("program");
    let mut command = Command::new(compiler);
    command.args(["-O1", "-g", "-fno-builtin", "-o"]).arg(&file).arg(&source).arg("-pthread").args(arguments);
    let result = command.output().map_err(|e| format!("{compiler}: {e}"))?;
    if !result.status.success() {
        let said = String::from_utf8_lossy(&result.stderr);
        return Err(format!("{compiler}: {}", said.lines().next().unwrap_or("failed")));
    }
    fs::rename(&file, &output).map_err(|e| e.to_string())?;
    Ok(output)
}

/// `tests/programs/SOURCE` by this compiler with these arguments.
///
/// # Errors
/// What the compiler said, or why there is none.
pub fn program_built(source: &str, compiler: &[&str]) -> Result<PathBuf, String> {
    let (name, arguments) = compiler.split_first().expect("a compiler");
    let folder = build_dir();
    fs::create_dir_all(&folder).expect("target/tmp is writable");
    let path = manifest_dir().join("tests/programs").join(source);
    let output = folder.join(format!("{source}{}", compiler.join("")));
    if !is_fresh(&output, &[&path]) {
        let private = tempfile::Builder::new().tempdir_in(&folder).expect("a temporary folder");
        let file = private.path().join("program");
        let result = Command::new(name).args(arguments).arg(&path).arg("-o").arg(&file).output();
        let result = result.map_err(|e| e.to_string())?;
        if !result.status.success() {
            let said = String::from_utf8_lossy(&result.stderr).lines().next().unwrap_or_default().to_string();
            return Err(said);
        }
        fs::rename(&file, &output).expect("rename within target/tmp");
    }
    Ok(output)
}

/// As [`program`], linked statically: naming its frames needs no debugging information of libc.
pub fn static_program(name: &str) -> PathBuf {
    let output = build_dir().join(format!("{name}-static"));
    let source = manifest_dir().join(format!("tests/programs/{name}.c"));
    build_with(&output, &[&source], |to| {
        let mut command = Command::new("gcc");
        command.args(["-static", "-O2", "-g", "-fomit-frame-pointer", "-o"]).arg(to).arg(&source);
        command
    });
    output
}

/// Path of `tests/programs/NAME.c` built as a shared object.
pub fn shared_object(name: &str) -> PathBuf {
    let output = build_dir().join(format!("{name}.so"));
    let source = manifest_dir().join(format!("tests/programs/{name}.c"));
    build_with(&output, &[&source], |to| {
        let mut command = Command::new("gcc");
        command.args(["-O2", "-g", "-fomit-frame-pointer", "-fPIC", "-shared", "-o"]).arg(to).arg(&source);
        command
    });
    output
}

/// The demonstration program, or why it cannot be built here.
pub fn demo_program() -> Result<PathBuf, String> {
    let folder = manifest_dir().join("scripts/demo");
    let (script, source) = (folder.join("build.sh"), folder.join("two_allocators.c"));
    let found = Command::new("gcc").arg("-print-file-name=libjemalloc.a").output();
    let found = found.map_err(|e| format!("gcc: {e}"))?.stdout;
    if !found.starts_with(b"/") {
        return Err("libjemalloc.a is not installed (libjemalloc-dev)".into());
    }
    let output = build_dir().join("two_allocators");
    build_with(&output, &[&script, &source], |to| {
        let mut command = Command::new(&script);
        command.arg(to);
        command
    });
    Ok(output)
}

/// Whether BPF can be had, asked of the kernel and not of vmaudit, so that a vmaudit that is broken
/// fails its tests instead of skipping them.
pub fn bpf_available() -> Result<(), String> {
    static ANSWER: OnceLock<Result<(), String>> = OnceLock::new();
    ANSWER.get_or_init(ask_for_bpf).clone()
}

fn ask_for_bpf() -> Result<(), String> {
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
    // SAFETY: the descriptor was just returned to us and nobody else has it.
    unsafe { libc::close(fd as i32) };
    Ok(())
}

/// True, with a SKIP line, where tests that trace cannot run.
pub fn skip_without_bpf(test: &str) -> bool {
    bpf_available().inspect_err(|why| skip(test, why)).is_err()
}

/// A test, or a part of one, is left out. The one place that says so: scripts/test.sh counts these lines.
pub fn skip(test: &str, why: &str) {
    eprintln!("SKIP {test}: {why}");
}

/// As [`skip`], of the test that calls: its thread has its name.
pub fn skip_this(why: &str) {
    skip(std::thread::current().name().unwrap_or("a test"), why);
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
    let output = stuck::output(run_command(&file, options, command).stdin(Stdio::null()));
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

    pub fn signal(&self, signal: i32) {
        // SAFETY: plain system call; the child has not been waited for, so the pid is still its own.
        unsafe { libc::kill(self.0.id() as i32, signal) };
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            // vmaudit may have to end the program it runs: ask first.
            self.signal(libc::SIGTERM);
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

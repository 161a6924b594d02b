//! Real containers without a registry: Podman with runc on storage of its own, and an image packed
//! from a folder. Everything is removed again.

use super::report::{list, number};
use super::{Audit, AuditReport, Guard, finished, manifest_dir, skip, skip_without_bpf, vmaudit};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

/// Where the program is in every image.
pub const APP: &str = "/opt/app/worker";

/// The files of an image.
pub struct Image {
    pub root: PathBuf,
}

impl Image {
    /// An image with nothing in it but empty folders.
    pub fn empty(folder: &Path) -> Image {
        let root = folder.join("rootfs");
        for name in ["bin", "proc", "sys", "dev", "etc", "tmp", "opt"] {
            fs::create_dir_all(root.join(name)).expect("created");
        }
        Image { root }
    }

    /// Copies a file to a path inside.
    pub fn add(&self, file: &Path, inside: &str) {
        let to = self.root.join(inside.trim_start_matches('/'));
        fs::create_dir_all(to.parent().expect("a folder")).expect("created");
        fs::copy(file, &to).unwrap_or_else(|error| panic!("{} to {}: {error}", file.display(), to.display()));
    }

    /// Copies the libraries and the loader that a program needs, to where it searches for them.
    pub fn add_libraries_of(&self, program: &Path) {
        let list = Command::new("ldd").arg(program).output().expect("ldd");
        let text = String::from_utf8_lossy(&list.stdout).into_owned();
        for word in text.split_ascii_whitespace().filter(|word| word.starts_with('/')) {
            let real = fs::canonicalize(word).expect("a library");
            self.add(&real, word);
        }
    }

    /// A shell and the usual tools; false where there is no static busybox.
    pub fn add_busybox(&self) -> bool {
        let busybox = Path::new("/bin/busybox");
        if !busybox.exists() {
            return false;
        }
        self.add(busybox, "/bin/busybox");
        symlink("busybox", self.root.join("bin/sh")).expect("a link");
        true
    }
}

/// Podman with storage of its own.
pub struct Podman {
    work: tempfile::TempDir,
    names: Vec<String>,
}

impl Podman {
    /// Imports an image; or says why there is no engine.
    ///
    /// # Errors
    /// In words, for a SKIP line.
    pub fn with(make: impl FnOnce(&Path) -> Image) -> Result<Podman, String> {
        for needed in ["/usr/bin/podman", "/usr/sbin/runc"] {
            if !Path::new(needed).exists() {
                return Err(format!("no {needed} (apt-get install podman runc)"));
            }
        }
        let work = tempfile::Builder::new().prefix("vmaudit-podman-").tempdir().expect("a temporary folder");
        let image = make(work.path());
        let podman = Podman { work, names: Vec::new() };
        let tar = podman.work.path().join("image.tar");
        let packed = Command::new("tar").arg("-C").arg(&image.root).arg("-cf").arg(&tar).arg(".").status();
        assert!(packed.is_ok_and(|status| status.success()), "tar");
        let imported = podman.command().args(["import", "-q"]).arg(&tar).arg("img").output().expect("podman");
        match imported.status.success() {
            true => Ok(podman),
            false => Err(format!("podman import: {}", String::from_utf8_lossy(&imported.stderr))),
        }
    }

    pub fn command(&self) -> Command {
        let at = |name: &str| self.work.path().join(name);
        let mut podman = Command::new("/usr/bin/podman");
        podman.arg("--root").arg(at("storage")).arg("--runroot").arg(at("run"));
        podman.arg("--tmpdir").arg(at("libpod")).args(["--runtime", "/usr/sbin/runc"]);
        podman
    }

    /// Starts a container in the foreground that says READY, and talks to it.
    ///
    /// # Errors
    /// What podman says where it cannot start one.
    pub fn run(&mut self, name: &str, options: &[&str], command: &[&str]) -> Result<Talk, String> {
        // A name of its own: cgroups are the whole machine's.
        self.names.push(name.to_owned());
        let mut run = self.command();
        run.args(["run", "-i", "--name", name, "--network", "none", "--security-opt", "seccomp=unconfined"]);
        // Without the right to raise limits, podman has to be given those that are there.
        let files = limit(libc::RLIMIT_NOFILE);
        run.args(["--ulimit", &format!("nofile={files}:{files}"), "--ulimit", "nproc=32768:32768"]);
        run.args(options).arg("img").args(command);
        Talk::start(&mut run)
    }

    pub fn inspect(&self, name: &str, what: &str) -> String {
        let output = self.command().args(["inspect", "-f", what, name]).output().expect("podman");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = self.command().args(["rm", "-f", "-t", "0", name]).output();
        }
        let overlay = self.work.path().join("storage/overlay");
        let _ = Command::new("umount").arg("-l").arg(overlay).stderr(Stdio::null()).status();
    }
}

fn limit(which: libc::__rlimit_resource_t) -> u64 {
    let mut found = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes into a valid struct.
    unsafe { libc::getrlimit(which, &raw mut found) };
    found.rlim_max
}

/// A program that says READY and then answers each line with itself (tests/programs/container_app.c).
pub struct Talk {
    pub client: Guard,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Talk {
    /// # Errors
    /// What it said on standard error where it does not become ready.
    pub fn start(command: &mut Command) -> Result<Talk, String> {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut client = Guard(child.map_err(|error| error.to_string())?);
        let input = client.0.stdin.take();
        let output = BufReader::new(client.0.stdout.take().expect("a pipe"));
        let mut talk = Talk { client, input, output };
        let mut line = String::new();
        talk.output.read_line(&mut line).map_err(|error| error.to_string())?;
        if line == "READY\n" {
            return Ok(talk);
        }
        let mut why = String::new();
        if let Some(mut pipe) = talk.client.0.stderr.take() {
            let _ = std::io::Read::read_to_string(&mut pipe, &mut why);
        }
        Err(format!("no READY but {line:?}: {why}"))
    }

    /// Sends it one letter, and waits until it is done.
    pub fn send(&mut self, letter: &str) {
        let input = self.input.as_mut().expect("still open");
        input.write_all(format!("{letter}\n").as_bytes()).expect("it reads");
        let mut line = String::new();
        self.output.read_line(&mut line).expect("it answers");
        assert_eq!(line.trim_end(), letter);
    }
}

impl Talk {
    /// Ends its input, and waits for its end.
    pub fn end(self) -> std::process::Output {
        let Talk { client, input, output } = self;
        drop((input, output));
        client.finish().expect("it ends")
    }
}

/// `tests/programs/container_app.c` by another compiler, or why not.
///
/// # Errors
/// In words, for a SKIP line.
pub fn app_built_by(compiler: &str, options: &[&str], to: &Path) -> Result<(), String> {
    let source = manifest_dir().join("tests/programs/container_app.c");
    let mut command = Command::new(compiler);
    command.args(["-O2", "-fomit-frame-pointer", "-Wno-attributes", "-pthread"]).args(options);
    let output = command.arg("-o").arg(to).arg(source).output();
    let output = output.map_err(|error| format!("{compiler}: {error} (apt-get install musl-tools)"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{compiler}: {}", String::from_utf8_lossy(&output.stderr))),
    }
}

/// A name that no other container has.
pub fn unique(name: &str) -> String {
    format!("vmaudit-{name}-{}", std::process::id())
}

/// The engine with a running container; None, with a SKIP line, where there can be none.
pub fn start(test: &str, name: &str, make: impl FnOnce(&Path) -> Image) -> Option<(Podman, Talk)> {
    if skip_without_bpf(test) {
        return None;
    }
    let engine = Podman::with(make);
    let started = engine.and_then(|mut engine| Ok((engine.run(name, &[], &[APP])?, engine)));
    match started {
        Ok((talk, engine)) => Some((engine, talk)),
        Err(why) => {
            skip(test, &why);
            None
        }
    }
}

/// `vmaudit attach TARGET`, and `act` once it traces; then it is interrupted.
pub fn attach(target: &[&str], act: impl FnOnce()) -> Audit {
    let mut act = Some(act);
    attach_and_listen(target, |line| {
        let tracing = line.contains("Ctrl-C ends tracing");
        if tracing && let Some(act) = act.take() {
            act();
        }
        tracing
    })
}

/// `vmaudit attach TARGET`; `each_line` gets each line that it says, and answers whether to interrupt it.
pub fn attach_and_listen(target: &[&str], mut each_line: impl FnMut(&str) -> bool) -> Audit {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("report.json");
    let mut command = Command::new(vmaudit());
    command.args(["attach", "-f", "json", "--report"]).arg(&file).args(target);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut auditor = Guard(command.spawn().expect("vmaudit starts"));
    let mut stderr = BufReader::new(auditor.0.stderr.take().expect("a pipe"));
    let mut said = String::new();
    let mut handled = 0;
    while let Ok(1..) = stderr.read_line(&mut said) {
        if each_line(&said[handled..]) {
            auditor.signal(libc::SIGINT);
        }
        handled = said.len();
    }
    let mut output = auditor.finish().expect("it ends");
    output.stderr = said.into_bytes();
    finished(output, &file)
}

/// Function names of the stack that mapped the region of this many MiB, innermost first.
pub fn stack_of(audit: &Audit, process: &Value, mib: u64) -> Vec<String> {
    stack_names_of(audit.report(), process, mib)
}

/// As [`stack_of`], of a report from elsewhere.
pub fn stack_names_of(report: &AuditReport, process: &Value, mib: u64) -> Vec<String> {
    let region = list(process, "regions")
        .iter()
        .find(|region| number(region, "virt") == mib << 20 && region["origin"]["op"] == "mmap");
    let region = region.unwrap_or_else(|| panic!("no mmap of {mib} MiB in {}", process["comm"]));
    report.stack_names(&region["origin"]["stack"])
}

pub fn assert_chain(names: &[String]) {
    let at = |end: &str| names.iter().position(|name| name.ends_with(end));
    let (inner, outer) = (at("!reserve_inner"), at("!reserve_outer"));
    assert!(inner.is_some() && inner < outer, "{names:?}");
    assert!(names.iter().any(|name| name.starts_with("worker!")), "{names:?}");
}

//! Claims of others: the user behind sudo, the container of a process, where a library's functions are; and
//! the owner of the files that vmaudit writes. docs/security.md names these tests.

use crate::support::unprivileged::{Bench, NOBODY, finish, skip_without_root};
use crate::support::{Guard, program, skip, skip_without_bpf, vmaudit};
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// root's environment after sudo.
fn under_sudo(uid: Option<&str>, gid: Option<&str>) -> Command {
    let mut command = Command::new(vmaudit());
    for (name, value) in [("SUDO_UID", uid), ("SUDO_GID", gid)] {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

#[test]
fn a_malformed_sudo_uid_is_an_error_and_not_root() {
    let name = "a_malformed_sudo_uid_is_an_error_and_not_root";
    if skip_without_root(name) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (started, report) = (folder.path().join("started"), folder.path().join("report"));
    let bad = [
        (Some(""), Some("100"), "SUDO_UID=\"\""),
        (Some("-1"), Some("100"), "SUDO_UID=\"-1\""),
        (Some("4294967295"), Some("100"), "SUDO_UID=\"4294967295\""),
        (Some("1000 "), Some("100"), "SUDO_UID=\"1000 \""),
        (Some("1000"), Some("staff"), "SUDO_GID=\"staff\""),
        (Some("1000"), None, "SUDO_UID and not SUDO_GID"),
        (None, Some("1000"), "SUDO_GID and not SUDO_UID"),
    ];
    for (uid, gid, what) in bad {
        for backend in ["bpf", "notify"] {
            let mut run = under_sudo(uid, gid);
            run.args(["run", "--backend", backend, "--report"])
                .arg(&report)
                .args(["--", "touch"])
                .arg(&started);
            let (output, said) = finish(&mut run);
            assert_eq!(output.status.code(), Some(125), "{what}: {said}");
            assert!(said.contains(what) && said.contains("env -u SUDO_UID -u SUDO_GID"), "{what}: {said}");
            assert!(!started.exists() && !report.exists(), "{what}");
        }
    }
    // An ordinary user's variables mean nothing, and sudo from root means root.
    let bench = Bench::new();
    let (output, said) = finish(bench.with(&[]).env("SUDO_UID", "x").arg("completions").arg("bash"));
    assert_eq!(output.status.code(), Some(0), "{said}");
    let own = std::process::id().to_string();
    let (output, said) = finish(under_sudo(Some("0"), Some("0")).args(["snapshot", "-p", &own]));
    assert_eq!(output.status.code(), Some(0), "{said}");
}

fn mode_and_owner(path: &Path) -> (u32, u32, u32) {
    let found = fs::metadata(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    (found.permissions().mode() & 0o7777, found.uid(), found.gid())
}

#[test]
fn reports_are_their_owners_alone() {
    let name = "reports_are_their_owners_alone";
    if skip_without_bpf(name) || skip_without_root(name) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let at = |file: &str| folder.path().join(file);
    let truth: [&OsStr; 2] = ["--".as_ref(), "/bin/true".as_ref()];
    let write = |mut command: Command, (words, file): (&[&str], &str), rest: &[&OsStr]| {
        let (output, said) = finish(command.args(words).arg(at(file)).args(rest));
        assert_eq!(output.status.code(), Some(0), "{words:?}: {said}");
        (mode_and_owner(&at(file)), said)
    };
    let ways: [&[&str]; 7] = [
        &["run", "-f", "json", "--report"],
        &["run", "--report"],
        &["run", "--dump-events"],
        &["run", "-o"],
        &["heap", "-f", "json", "--report"],
        &["events", "-f", "json", "--report"],
        &["probe", "--lib", "libc.so.6", "--match", "^malloc$", "--report"],
    ];
    for (number, words) in ways.iter().enumerate() {
        let (own, sudo) = (format!("own{number}"), format!("sudo{number}"));
        assert_eq!(write(under_sudo(None, None), (words, &own), &truth).0, (0o600, 0, 0), "{words:?}");
        let command = under_sudo(Some(NOBODY), Some("65533"));
        assert_eq!(write(command, (words, &sudo), &truth).0, (0o600, 65534, 65533), "{words:?}");
    }
    let own = std::process::id().to_string();
    let one = ["-p".as_ref(), own.as_ref()];
    let snapshot = ["snapshot", "-f", "json", "--report"];
    let command = under_sudo(Some(NOBODY), Some(NOBODY));
    assert_eq!(write(command, (&snapshot, "snapshot"), &one).0, (0o600, 65534, 65534));
    // One that is there stays as its owner has it.
    fs::write(at("there"), "older and longer than the report could ever be").expect("written");
    fs::set_permissions(at("there"), fs::Permissions::from_mode(0o640)).expect("chmod");
    chown(at("there"), Some(1234), Some(1235)).expect("chown");
    assert_eq!(write(under_sudo(None, None), (ways[0], "there"), &truth).0, (0o640, 1234, 1235));
    let text = fs::read_to_string(at("there")).expect("a report");
    assert!(text.starts_with('{') && text.trim_end().ends_with('}'), "{text}");
}

/// The BPF programs identify address spaces by the address of their mm_struct.
#[test]
fn a_recording_holds_no_address_of_the_kernels() {
    let name = "a_recording_holds_no_address_of_the_kernels";
    if skip_without_bpf(name) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let recording = folder.path().join("r.rec");
    let mut run = Command::new(vmaudit());
    run.args(["run", "--as-root", "--backend", "bpf", "-o"]).arg(&recording);
    let (output, said) = finish(run.args(["--", "/bin/sh", "-c", "/bin/true; /bin/true"]));
    assert_eq!(output.status.code(), Some(0), "{said}");
    let db = rusqlite::Connection::open(&recording).expect("a recording");
    let spaces: (i64, i64, i64) = db
        .query_row("SELECT count(*), min(mm), max(mm) FROM space", [], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })
        .expect("address spaces");
    let (count, first, last) = spaces;
    assert!(count >= 2 && first >= 0 && last <= count, "{spaces:?}");
}

const ID: &str = "4f6b9f0e2a1c4f6b9f0e2a1c4f6b9f0e2a1c4f6b9f0e2a1c4f6b9f0e2a1c4f6b";

/// A cgroup as Podman calls a container's; removed with the test.
struct Cgroup(PathBuf);

impl Cgroup {
    fn new() -> Result<Cgroup, String> {
        let mounts = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup", "/sys/fs/cgroup/pids"].map(PathBuf::from);
        let mount = mounts.iter().find(|mount| mount.join("cgroup.procs").exists());
        let directory = mount.ok_or("no cgroup hierarchy is mounted")?;
        // Of this run alone: IDs are the whole machine's.
        let group = directory.join(format!("libpod-{}", id()));
        fs::create_dir(&group).map_err(|error| format!("{}: {error}", group.display()))?;
        Ok(Cgroup(group))
    }

    fn put(&self, pid: u32) {
        fs::write(self.0.join("cgroup.procs"), pid.to_string()).expect("it may be moved");
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

fn id() -> String {
    let own = format!("{:08x}", std::process::id());
    format!("{own}{}", &ID[own.len()..])
}

/// A process that has conmon's command line and a child, which waits; dropped, both end.
struct Conmon {
    shell: Guard,
    child: u32,
}

impl Conmon {
    /// As root, or as another user.
    fn start(folder: &Path, name: &str, user: Option<u32>) -> Conmon {
        let script = folder.join("script");
        fs::write(&script, "cat <&3 &\necho $!\nexec 3<&-\nread line\n").expect("written");
        let line = format!("exec -a conmon bash {} -c {} -n {name} 3<&0", script.display(), id());
        let mut shell = Command::new("bash");
        shell.args(["-c", &line]).stdin(Stdio::piped()).stdout(Stdio::piped());
        if let Some(user) = user {
            std::os::unix::process::CommandExt::uid(&mut shell, user);
            std::os::unix::process::CommandExt::gid(&mut shell, user);
        }
        let mut shell = Guard(shell.spawn().expect("bash"));
        let mut line = String::new();
        let stdout = shell.0.stdout.as_mut().expect("a pipe");
        BufReader::new(stdout).read_line(&mut line).expect("its child's number");
        Conmon { shell, child: line.trim().parse().expect("a number") }
    }
}

impl Drop for Conmon {
    fn drop(&mut self) {
        if let Some(mut input) = self.shell.0.stdin.take() {
            let _ = input.write_all(b"\n");
        }
    }
}

#[test]
fn a_command_line_like_conmons_claims_no_container() {
    let name = "a_command_line_like_conmons_claims_no_container";
    if skip_without_root(name) {
        return;
    }
    let group = match Cgroup::new() {
        Ok(group) => group,
        Err(why) => return skip(name, &why),
    };
    let unique = |name: &str| format!("{name}-{}", std::process::id());
    let (forged, genuine, roots) = (unique("forged"), unique("genuine"), unique("roots"));
    let inside = unique("inside");
    let folder = tempfile::tempdir().expect("a folder");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("chmod");
    let folder = folder.path();
    // The forger is first: of two that say the same, the first used to be believed.
    let forger = Conmon::start(folder, &forged, Some(65534));
    // Root's within the container: it would call its own container otherwise.
    let insider = Conmon::start(folder, &inside, None);
    let monitor = Conmon::start(folder, &genuine, None);
    // A process of root's that is no parent of the container's.
    let stranger = Conmon::start(folder, &roots, None);
    group.put(monitor.child);
    group.put(insider.child);
    group.put(insider.shell.0.id());
    let snapshot = |name: &str| {
        let (output, said) = finish(Command::new(vmaudit()).args(["snapshot", "--container", name]));
        (output.status.code(), said, String::from_utf8_lossy(&output.stdout).into_owned())
    };
    for claimed in [&forged, &roots, &inside] {
        let (code, said, _) = snapshot(claimed);
        assert_eq!(code, Some(125), "{said}");
        assert!(said.contains("no running container is called"), "{said}");
        assert!(said.contains(&genuine) && !said.contains(&format!("  {claimed}")), "{said}");
    }
    for good in [genuine.clone(), id()] {
        let (code, said, shown) = snapshot(&good);
        assert_eq!(code, Some(0), "{said}");
        assert!(said.contains(&genuine) && shown.contains("3 processes"), "{said}{shown}");
    }
    drop((forger, insider, monitor, stranger));
}

/// A build id is copied easily; a debug file says where functions begin, and that is where probes are placed.
#[test]
fn a_strangers_debug_file_is_not_believed() {
    let name = "a_strangers_debug_file_is_not_believed";
    if skip_without_root(name) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (linked, debug) = (folder.path().join("probed"), folder.path().join("probed.debug"));
    fs::copy(program("probed"), &linked).expect("a copy");
    let objcopy =
        |words: &[&OsStr]| Command::new("objcopy").args(words).status().is_ok_and(|status| status.success());
    let link = format!("--add-gnu-debuglink={}", debug.display());
    let made = objcopy(&["--only-keep-debug".as_ref(), linked.as_ref(), debug.as_ref()])
        && objcopy(&["--strip-all".as_ref(), link.as_ref(), linked.as_ref()]);
    if !made {
        return skip(name, "no objcopy (apt-get install binutils)");
    }
    let symbols = || {
        let (output, said) = finish(Command::new(vmaudit()).arg("symbols").arg(&linked));
        assert_eq!(output.status.code(), Some(0), "{said}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    for (owner, believed) in [(0, true), (65534, false)] {
        chown(&debug, Some(owner), None).expect("chown");
        let shown = symbols();
        assert_eq!(shown.contains(" main"), believed, "{shown}");
    }
    // The file's own owner may say what is in it.
    chown(&linked, Some(65534), None).expect("chown");
    assert!(symbols().contains(" main"));
}

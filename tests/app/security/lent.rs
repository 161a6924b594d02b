//! No privilege is lent: a user who may start a vmaudit whose file has capabilities gets nothing of a process
//! that he could not inspect himself, and no file that he could not open. docs/security.md names these tests.

use crate::support::breakpoints::changed_bytes;
use crate::support::container::Talk;
use crate::support::report::list;
use crate::support::unprivileged::{
    Bench, DOCUMENTED, EVERY, NOBODY, as_nobody, finish, skip_without_root, while_watching,
};
use crate::support::{self, Guard, program, shared_object, skip, skip_without_bpf, vmaudit};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A copy of vmaudit with file capabilities; None, with a SKIP line, where that cannot be tried.
fn bench(test: &str, capabilities: &str) -> Option<Bench> {
    if skip_without_bpf(test) || skip_without_root(test) {
        return None;
    }
    Bench::with_file_capabilities(test, capabilities)
}

/// The library and the program that hands it a secret, once as the user's own, once setuid.
struct Secrets<'a> {
    bench: &'a Bench,
}

const OWN: &str = "a-name-of-nobodys";
const ROOTS: &str = "the-hash-of-root";

impl Secrets<'_> {
    /// None, with a SKIP line, where a setuid program does not become root.
    fn new<'a>(test: &str, bench: &'a Bench) -> Option<Secrets<'a>> {
        let library = bench.copy(&shared_object("secret_lib"), "libsecret.so", 0o755);
        let source = support::manifest_dir().join("tests/programs/secret_user.c");
        let mut gcc = Command::new("gcc");
        gcc.args(["-O2", "-o"]).arg(bench.path("ownprog")).args([&source, &library]);
        gcc.arg(format!("-Wl,-rpath,{}", bench.path("").display()));
        let (built, said) = finish(&mut gcc);
        assert!(built.status.success(), "{said}");
        bench.copy(&bench.path("ownprog"), "suidprog", 0o4755);
        fs::write(bench.path("own.txt"), OWN).expect("written");
        bench.secret_file("root.txt", ROOTS);
        let description = "name = \"secret\"\nobjects = [\"libsecret.so\"]\n\
            [[function]]\nsymbols = [\"secret_open\"]\ndoes = \"create-context\"\ncontext = \"arg1\"\nname = \"arg2\"\n\
            [[function]]\nsymbols = [\"secret_take\"]\ndoes = \"allocate\"\nsize = \"arg1\"\ncontext = \"arg2\"\n";
        fs::write(bench.path("secret.toml"), description).expect("written");
        let secrets = Secrets { bench };
        let mut ordinary = as_nobody(&[]);
        let (output, _) = finish(ordinary.arg("sh").arg("-c").arg(secrets.line("suidprog", "root.txt", 1)));
        if output.stdout != b"euid 0\n" {
            skip(test, "a setuid program does not become root in the temporary folder (nosuid)");
            return None;
        }
        Some(secrets)
    }

    fn line(&self, program: &str, file: &str, calls: u32) -> String {
        let (program, file) = (self.bench.path(program), self.bench.path(file));
        format!("{} {} {calls}", program.display(), file.display())
    }

    /// A shell of the user's that has the library mapped already, and executes each line that it gets.
    fn shell(&self) -> Talk {
        let script = "echo READY; while read line; do sh -c \"$line\" >&2; echo \"$line\"; done";
        let mut shell = as_nobody(&[]);
        shell.arg("env").arg(format!("LD_PRELOAD={}", self.bench.path("libsecret.so").display()));
        Talk::start(shell.args(["sh", "-c", script])).expect("a shell")
    }

    /// Both programs, started by a shell.
    fn run_both(&self, shell: &mut Talk) {
        shell.send(&self.line("ownprog", "own.txt", 3));
        shell.send(&self.line("suidprog", "root.txt", 3));
    }
}

/// Where a program waits that a watched shell starts, until it has probes: a child of a running process has them only some
/// time after it began.
struct Gate {
    started: PathBuf,
    go: PathBuf,
    library: PathBuf,
}

impl Gate {
    fn new(bench: &Bench, library: &Path) -> Gate {
        let gate = Gate { started: bench.path("started"), go: bench.path("go"), library: library.to_owned() };
        for fifo in [&gate.started, &gate.go] {
            nix::unistd::mkfifo(fifo, nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
            fs::set_permissions(fifo, fs::Permissions::from_mode(0o666)).expect("chmod");
        }
        gate
    }

    /// Has the shell execute the command, once the process that does it has probes in the library.
    fn run(&self, shell: &mut Talk, command: &str) {
        let (started, go) = (self.started.display(), self.go.display());
        let line = format!("sh -c 'echo $$ >{started}; read go <{go}; exec {command}'");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let pid = fs::read_to_string(&self.started).expect("its number");
                let pid = pid.trim().parse().expect("a number");
                while changed_bytes(pid, &self.library) == 0 {
                    std::thread::yield_now();
                }
                fs::write(&self.go, "go\n").expect("it reads");
            });
            shell.send(&line);
        });
    }
}

fn pid_of(talk: &Talk) -> String {
    talk.client.0.id().to_string()
}

#[test]
fn strings_of_a_setuid_program_are_not_to_be_had_by_a_description() {
    let name = "strings_of_a_setuid_program_are_not_to_be_had_by_a_description";
    let Some(bench) = bench(name, EVERY) else { return };
    let Some(secrets) = Secrets::new(name, &bench) else { return };
    let gate = Gate::new(&bench, &bench.path("libsecret.so"));
    let watch = |mut command: Command| {
        let mut shell = secrets.shell();
        command.args(["heap", "-f", "json", "--allocator"]).arg(bench.path("secret.toml"));
        command.args(["-p", &pid_of(&shell)]);
        while_watching(&mut command, |_| {
            gate.run(&mut shell, &secrets.line("ownprog", "own.txt", 3));
            gate.run(&mut shell, &secrets.line("suidprog", "root.txt", 3));
        })
    };
    // Root sees both: so the way of trying is good.
    let (seen, said) = watch(Command::new(vmaudit()));
    assert!(seen.contains(OWN) && seen.contains(ROOTS), "{seen}{said}");
    assert!(!said.contains("may not be inspected"), "{said}");

    let (seen, said) = watch(bench.with(&[]));
    assert!(seen.contains(OWN), "{seen}{said}");
    assert!(!seen.contains(ROOTS) && !said.contains(ROOTS), "{seen}{said}");
    assert!(said.contains(&format!("may not be inspected by uid {NOBODY}")), "{said}");
}

/// As the above, with the real thing: root's password hash is an argument of crypt(3) in su(1).
#[test]
fn the_hash_that_su_compares_is_not_to_be_had() {
    let name = "the_hash_that_su_compares_is_not_to_be_had";
    let Some(bench) = bench(name, EVERY) else { return };
    let library = Path::new("/lib/x86_64-linux-gnu/libcrypt.so.1");
    if !library.exists() || !Path::new("/usr/bin/su").exists() || !Path::new("/etc/shadow").exists() {
        return skip(name, "no su, no libcrypt.so.1 or no /etc/shadow");
    }
    const HASH: &str =
        "$6$saltsalt$g3uPFdehVnKoLXdidvSAg1zlVgYomPr0X/xgdXSBn2LuxZUOGgYW4IULZkguZ77fzYteIur49AGHmF9iek6Sf1";
    let shadow = bench.secret_file("shadow", &format!("root:{HASH}:20000:0:99999:7:::\n"));
    let description = "name = \"crypt\"\nobjects = [\"libcrypt.so*\"]\n\
        [[function]]\nsymbols = [\"crypt_checksalt\"]\ndoes = \"create-context\"\ncontext = \"arg1\"\nname = \"arg1\"\n\
        [[function]]\nsymbols = [\"crypt_r\", \"crypt\"]\ndoes = \"allocate\"\nsize = \"arg1\"\ncontext = \"arg2\"\n";
    fs::write(bench.path("crypt.toml"), description).expect("written");
    let gate = Gate::new(&bench, library);
    let watch = |mut command: Command| {
        // In a mount namespace of its own, where root's hash is another.
        let script = format!(
            "mount --bind {} /etc/shadow && exec setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups \
             --inh-caps=-all env LD_PRELOAD={} sh -c 'echo READY; while read line; do \
             echo wrong | sh -c \"$line\" >&2; echo \"$line\"; done'",
            shadow.display(),
            library.display()
        );
        let mut shell = Talk::start(Command::new("unshare").args(["-m", "sh", "-c", &script])).ok()?;
        command.args(["heap", "-f", "json", "--allocator"]).arg(bench.path("crypt.toml"));
        command.args(["-p", &pid_of(&shell)]);
        Some(while_watching(&mut command, |_| gate.run(&mut shell, "su root -c id")))
    };
    let Some((seen, said)) = watch(Command::new(vmaudit())) else {
        return skip(name, "no mount namespace of its own");
    };
    if !seen.contains(HASH) {
        return skip(name, &format!("this su does not call crypt_checksalt and crypt_r: {said}"));
    }
    let (seen, said) = watch(bench.with(&[])).expect("as before");
    assert!(!seen.contains("$6$") && !said.contains("$6$"), "{seen}{said}");
}

/// No event of the setuid program, whatever it does, and its shell's go on.
#[test]
fn calls_of_a_setuid_program_are_not_reported() {
    let name = "calls_of_a_setuid_program_are_not_reported";
    let Some(bench) = bench(name, DOCUMENTED) else { return };
    let Some(secrets) = Secrets::new(name, &bench) else { return };
    let programs = |mut command: Command| {
        let mut shell = secrets.shell();
        let file = bench.path("events.json");
        command.args(["events", "-f", "json", "--report"]).arg(&file).args(["-p", &pid_of(&shell)]);
        let (_, said) = while_watching(&mut command, |_| {
            secrets.run_both(&mut shell);
            shell.send(&secrets.line("ownprog", "own.txt", 3));
        });
        let line = |line: &str| serde_json::from_str::<Value>(line).expect("JSON");
        let seen = fs::read_to_string(&file).expect("events");
        fs::remove_file(&file).expect("removed");
        let calls: Vec<Value> = seen.lines().map(line).collect();
        // A program's name comes before its rights do, and is sent with its execve only.
        let own = calls.iter().filter(|call| call["comm"] == "ownprog" && call["op"] != "rename");
        let roots = calls.iter().filter(|call| call["comm"] == "suidprog");
        (own.count(), roots.count(), said)
    };
    let (own, roots, said) = programs(Command::new(vmaudit()));
    assert!(own > 0 && roots > 0, "{own} {roots} {said}");
    let (seen, none, said) = programs(bench.with(&[]));
    assert_eq!((seen, none), (own, 0), "{said}");
    assert!(said.contains("may not be inspected"), "{said}");
}

/// Others would pay for what the user does, or die of it.
#[test]
fn probes_in_all_processes_are_refused() {
    let name = "probes_in_all_processes_are_refused";
    let Some(bench) = bench(name, DOCUMENTED) else { return };
    let probe = ["probe", "--all-processes", "--lib", "libc.so.6", "--match", "^malloc$"];
    let command = [&probe[..], &["--", "/bin/true"]].concat();
    let heap = ["heap", "--all-processes", "--", "/bin/true"];
    for words in [&probe[..], &command, &heap] {
        let (output, said) = finish(bench.with(&[]).args(words));
        assert_eq!(output.status.code(), Some(2), "{words:?}: {said}");
        assert!(said.contains("in the processes of all users"), "{words:?}: {said}");
    }
}

/// A process of the user's that hides something from the user's other processes, as ssh-agent does.
#[test]
fn what_makes_itself_undumpable_is_not_seen_from_then_on() {
    let name = "what_makes_itself_undumpable_is_not_seen_from_then_on";
    let Some(bench) = bench(name, DOCUMENTED) else { return };
    let shutter = bench.copy(&program("shutter"), "shutter", 0o755);
    let sizes = |command: &mut Command| {
        let file = bench.path("events.json");
        let (output, said) =
            finish(command.args(["events", "-f", "json", "--report"]).arg(&file).arg("--").arg(&shutter));
        assert_eq!(output.status.code(), Some(0), "{said}");
        let text = fs::read_to_string(&file).expect("events");
        fs::remove_file(&file).expect("removed");
        let has = |mib: u64| {
            let size = Value::from(mib << 20);
            let calls = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            calls.filter(|call| call["op"] == "mmap" && call["args"]["length"] == size).count()
        };
        ((has(1), has(2)), said)
    };
    let (both, said) = sizes(&mut Command::new(vmaudit()));
    assert_eq!(both, (1, 1), "{said}");
    let (one, said) = sizes(&mut bench.with(&[]));
    assert_eq!(one, (1, 0), "{said}");
    assert!(said.contains("PR_SET_DUMPABLE"), "{said}");
}

/// Each way to examine a running process, and each kind of process that the user may not inspect.
#[test]
fn others_processes_are_refused_and_the_reason_is_said() {
    let name = "others_processes_are_refused_and_the_reason_is_said";
    let Some(bench) = bench(name, EVERY) else { return };
    let shutter = bench.copy(&program("shutter"), "shutter", 0o755);
    let waits = "echo READY; read line";
    let start = |command: &mut Command| Talk::start(command).expect("it waits");
    let setpriv = |options: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(options).args(["--clear-groups", "sh", "-c", waits]);
        start(&mut command)
    };
    let others = [
        ("root's", start(Command::new("sh").args(["-c", waits]))),
        ("of another group", setpriv(&["--reuid", NOBODY, "--regid", "65533"])),
        ("of another effective user", setpriv(&["--ruid", NOBODY, "--euid", "65533", "--regid", NOBODY])),
        ("with capabilities", start(as_nobody(&["net_raw"]).args(["sh", "-c", waits]))),
        ("not dumpable", start(as_nobody(&[]).arg(&shutter))),
    ];
    let ways: [&[&str]; 8] = [
        &["attach", "--duration", "1", "-p"],
        &["attach", "--touch", "--duration", "1", "-p"],
        &["snapshot", "-p"],
        &["heap", "--duration", "1", "-p"],
        &["events", "--duration", "1", "-p"],
        &["probe", "--lib", "libc.so.6", "--match", "^malloc$", "--duration", "1", "-p"],
        &["probe", "--stacks", "--lib", "libc.so.6", "--match", "^malloc$", "--duration", "1", "-p"],
        &["symbols", "-p"],
    ];
    for (kind, process) in &others {
        let pid = pid_of(process);
        for way in ways {
            let (output, said) = finish(bench.with(&[]).args(way).arg(&pid));
            let shown = String::from_utf8_lossy(&output.stdout);
            assert_eq!(output.status.code(), Some(125), "{way:?} {kind}: {said}{shown}");
            assert!(
                said.contains(&format!("no process that uid {NOBODY} could not")),
                "{way:?} {kind}: {said}"
            );
            assert!(said.contains("try sudo vmaudit"), "{way:?} {kind}: {said}");
            assert!(shown.is_empty(), "{way:?} {kind}: {shown}");
        }
        let (output, _) = finish(bench.with(&[]).args(["top", "-b", "-n", "1", "-p", &pid]));
        let shown = String::from_utf8_lossy(&output.stdout);
        assert!(shown.contains("may not be read") && !shown.contains("libc.so.6"), "top {kind}: {shown}");
    }
    // His own ones are read as ever.
    let own = start(as_nobody(&[]).args(["sh", "-c", waits]));
    for way in &ways[..7] {
        let (output, said) = finish(bench.with(&[]).args(*way).arg(pid_of(&own)));
        assert_eq!(output.status.code(), Some(0), "{way:?}: {said}");
    }
}

/// Between the operations that need them the capabilities are not effective, in no thread.
#[test]
fn nothing_lent_is_effective_while_vmaudit_watches() {
    let name = "nothing_lent_is_effective_while_vmaudit_watches";
    let Some(bench) = bench(name, EVERY) else { return };
    let own = Talk::start(as_nobody(&[]).args(["sh", "-c", "echo READY; read line"])).expect("it waits");
    let check = |auditor: &Guard| {
        let tasks: Vec<PathBuf> = fs::read_dir(format!("/proc/{}/task", auditor.0.id()))
            .expect("tasks")
            .map(|task| task.expect("an entry").path())
            .collect();
        for task in &tasks {
            let status = fs::read_to_string(task.join("status")).expect("status");
            let set = |name: &str| {
                let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a set");
                u64::from_str_radix(line.trim(), 16).expect("hexadecimal")
            };
            assert_eq!(set("CapEff:"), 0, "{status}");
            // What may be raised again keeps the user from inspecting vmaudit.
            assert_ne!(set("CapPrm:"), 0, "{status}");
        }
    };
    let recording = bench.path("r.rec");
    let mut attach = bench.with(&[]);
    attach.args(["attach", "--touch", "-o"]).arg(&recording).args(["-p", &pid_of(&own)]);
    while_watching(&mut attach, check);
    let mut heap = bench.with(&[]);
    while_watching(heap.args(["heap", "-p", &pid_of(&own)]), check);
}

/// Those that the user names, and those that vmaudit is led to.
#[test]
fn files_are_opened_with_the_users_own_rights() {
    let name = "files_are_opened_with_the_users_own_rights";
    let Some(bench) = bench(name, EVERY) else { return };
    let secret = bench.secret_file("secret.toml", "name = \"the-secret\"\n");
    let elf = bench.copy(Path::new("/bin/true"), "elf", 0o600);
    let closed = bench.path("closed");
    fs::create_dir(&closed).expect("a folder");
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).expect("chmod");
    let inside = closed.join("new");
    let (secret, elf, inside) = (path(&secret), path(&elf), path(&inside));
    let ways: [&[&str]; 9] = [
        &["heap", "--allocator", &secret, "--", "/bin/true"],
        &["snapshot", "--smaps", &secret],
        &["diff", &secret, &secret],
        &["report", &secret],
        &["symbols", &elf],
        &["probe", "--lib", &elf, "--match", ".", "--", "/bin/true"],
        &["run", "-o", &inside, "--", "/bin/true"],
        &["run", "--report", &inside, "--", "/bin/true"],
        &["events", "--report", &inside, "--", "/bin/true"],
    ];
    for way in ways {
        let (output, said) = finish(bench.with(&[]).args(way));
        assert!(!output.status.success(), "{way:?}: {said}");
        assert!(said.contains("ermission denied"), "{way:?}: {said}");
        assert!(!said.contains("the-secret"), "{way:?}: {said}");
    }
    assert!(fs::read_dir(&closed).expect("root may").next().is_none());
    // The command has none of it either.
    let (output, said) = finish(bench.with(&[]).args(["run", "-f", "json", "--", "/bin/cat", &secret]));
    assert_eq!(output.status.code(), Some(1), "{said}");
}

fn path(of: &Path) -> String {
    of.to_str().expect("UTF-8").to_owned()
}

/// With all capabilities lent, and with a user namespace of the user's own making.
#[test]
fn the_users_own_command_is_audited_exactly() {
    let name = "the_users_own_command_is_audited_exactly";
    let Some(bench) = bench(name, EVERY) else { return };
    let run = ["run", "--backend", "bpf", "-f", "json", "--report", "r.json", "--"];
    let (output, said) = finish(bench.with(&[]).args(run).args(["sh", "-c", "/bin/true; /bin/true; exit 3"]));
    assert_eq!(output.status.code(), Some(3), "{said}");
    let report = bench.report("r.json");
    report.assert_exact();
    assert_eq!(report.processes().len(), 3, "{said}");
    assert!(report.processes().iter().all(|process| !list(process, "regions").is_empty()));
    assert!(!said.contains("may not be inspected"), "{said}");

    let inside = ["unshare", "--user", "--map-root-user", "sh", "-c", "/bin/true; exit 4"];
    let tried = as_nobody(&[]).args(&inside[..3]).arg("true").stderr(Stdio::null()).status();
    if !tried.is_ok_and(|status| status.success()) {
        return skip(name, "an ordinary user can make no user namespace here: that half is left out");
    }
    let (output, said) = finish(bench.with(&[]).args(run).args(inside));
    assert_eq!(output.status.code(), Some(4), "{said}");
    let report = bench.report("r.json");
    report.assert_exact();
    assert!(report.processes().iter().any(|process| process["comm"] == "true"), "{said}");
    assert!(!said.contains("may not be inspected"), "{said}");
}

/// A return probe replaces return addresses, and C++ exceptions cannot pass it; each breakpoint costs. Other users' processes
/// have neither, also those that map the same file.
#[test]
fn others_processes_have_no_breakpoints() {
    let name = "others_processes_have_no_breakpoints";
    let Some(bench) = bench(name, DOCUMENTED) else { return };
    let libc = Path::new("/lib/x86_64-linux-gnu/libc.so.6");
    if !libc.exists() {
        return skip(name, "no libc where it is expected");
    }
    let copy = bench.copy(libc, "libc.so.6", 0o755);
    let library_path = format!("LD_LIBRARY_PATH={}", bench.path("").display());
    let start = |command: &mut Command| {
        Talk::start(command.args(["env", &library_path, "sh", "-c", "echo READY; read line"]))
            .expect("a shell")
    };
    let (own, roots) = (start(&mut as_nobody(&[])), start(&mut Command::new("setpriv")));
    for way in ["best", "multi", "single"] {
        let mut heap = bench.with(&[]);
        heap.env("VMAUDIT_UPROBES", way).args(["heap", "-p", &pid_of(&own)]);
        while_watching(&mut heap, |_| {
            let own = changed_bytes(own.client.0.id(), &copy);
            if own == 0 && way == "single" {
                skip(name, "an ordinary user may place no single uprobes here");
            } else {
                assert_ne!(own, 0, "{way}: nothing is probed");
            }
            assert_eq!(changed_bytes(roots.client.0.id(), &copy), 0, "{way}");
        });
    }
}

#[test]
fn a_setuid_vmaudit_does_not_start() {
    let name = "a_setuid_vmaudit_does_not_start";
    if skip_without_root(name) {
        return;
    }
    let bench = Bench::new();
    for (mode, ids) in [(0o4755, "0:65534 for 65534:65534"), (0o2755, "65534:0 for 65534:65534")] {
        fs::set_permissions(bench.path("vmaudit"), fs::Permissions::from_mode(mode)).expect("chmod");
        let (output, said) = finish(bench.with(&[]).args(["run", "--", "/bin/echo", "started"]));
        assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(125), &b""[..]), "{said}");
        assert!(said.contains(ids) && said.contains("chmod ug-s"), "{said}");
    }
}

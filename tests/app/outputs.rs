//! Where reports go: checked before anything starts, in one piece, and never over other files.

use crate::support::{self, Guard, bpf_available, skip, skip_without_bpf, vmaudit, watchdog};
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// A folder of its own, in which commands run.
struct Bench(tempfile::TempDir);

impl Bench {
    fn new() -> Bench {
        Bench(tempfile::tempdir().expect("a temporary folder"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        fs::write(self.path(name), text).expect("written");
        self.path(name)
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(vmaudit());
        command.args(words).current_dir(self.0.path()).stdin(Stdio::null());
        command
    }

    fn run(&self, words: &[&str]) -> Output {
        watchdog::output(&mut self.command(words))
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.0.path()).expect("readable").flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// A recording of a short run.
    fn record(&self, name: &str) -> PathBuf {
        let output = self.run(&["run", "--as-root", "-o", name, "--report", "/dev/null", "--", "/bin/true"]);
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        self.path(name)
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Leaves a mark behind where it is started.
const MARK: &[&str] = &["--", "/bin/sh", "-c", "echo started > started"];

/// Each command that has --report, on something that there is.
fn commands(own: &str) -> Vec<Vec<&str>> {
    let with = |words: &[&'static str], rest: &[&'static str]| [words, rest].concat();
    let of_process = |word: &'static str| vec![word, "-p"];
    let mut all: Vec<Vec<&str>> = vec![
        with(&["run", "--as-root"], MARK),
        with(&["events"], MARK),
        with(&["compare", "-n", "1", "--env", "A=1"], MARK),
        with(&["heap", "--as-root"], MARK),
        with(&["probe", "--as-root", "--lib", "libc.so.6", "--match", "^malloc$"], MARK),
    ];
    for mut command in
        [of_process("attach"), of_process("heap"), of_process("events"), of_process("snapshot")]
    {
        command.push(own);
        all.push(command);
    }
    all
}

#[test]
fn a_typo_is_an_error_before_anything_is_started() {
    let bench = Bench::new();
    bench.write("closed", "kept");
    let own = std::process::id().to_string();
    for to in ["nowhere/report", "closed/report", ".", "nowhere/"] {
        for words in commands(&own) {
            let (first, rest) = words.split_at(1);
            let output = bench.run(&[first, &["--report", to], rest].concat());
            assert_eq!(output.status.code(), Some(125), "{words:?} {to}: {}", said(&output));
            assert!(said(&output).contains("--report") && said(&output).contains(to), "{}", said(&output));
        }
    }
    assert_eq!(bench.names(), ["closed"], "nothing was started");
    let output = bench.run(&["run", "--as-root", "-o", "nowhere/rec", "--report", "r", "--", "/bin/true"]);
    assert_eq!(output.status.code(), Some(125), "{}", said(&output));
    assert_eq!(bench.names(), ["closed"], "no report without a recording");
}

#[test]
fn a_report_over_another_file_of_the_command_line_is_refused() {
    let bench = Bench::new();
    fs::copy("/bin/true", bench.path("program")).expect("copied");
    bench.write("smaps", "");
    bench.write("a.json", "{}");
    bench.write("pool.toml", "name = 'pool'\n");
    symlink("rec", bench.path("link")).expect("a link");
    fs::hard_link(bench.path("smaps"), bench.path("smaps-too")).expect("a hard link");
    let before = bench.names();
    for words in [
        // A recording that is not there yet, by several names.
        &["run", "--report", "rec", "-o", "rec"][..],
        &["run", "--report", "./rec", "-o", "rec"],
        &["run", "--report", "link", "-o", "rec"],
        &["run", "--report", "rec", "-o", "../X/rec"],
        // Where -o keeps an older one.
        &["run", "--report", "rec.old", "-o", "rec"],
        &["run", "--report", "rec-journal", "-o", "rec"],
        &["run", "--report", "program", "--", "./program"],
        &["heap", "--report", "program", "--", "./program"],
        &["compare", "--env", "A=1", "--report", "program", "--", "./program"],
        &["events", "--report", "program", "--", "./program"],
        &["probe", "--report", "program", "--lib", "./program", "--match", "."],
        &["heap", "--report", "pool.toml", "--allocator", "./pool.toml", "--", "/bin/true"],
        &["snapshot", "--smaps", "smaps", "--report", "smaps-too"],
        &["diff", "a.json", "smaps", "--report", "a.json"],
        &["diff", "a.json", "smaps", "--report", "smaps-too"],
    ] {
        let folder = bench.0.path().file_name().expect("a name").to_string_lossy().into_owned();
        let mut all: Vec<String> =
            words.iter().map(|word| word.replace("../X", &format!("../{folder}"))).collect();
        if words[0] == "run" && !words.contains(&"--") {
            all.extend(MARK.iter().map(|word| (*word).to_owned()));
        }
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let output = bench.run(&all);
        // What is wrong with the description is reported first, and is as unusable.
        assert_eq!(output.status.code(), Some(2), "{words:?}: {}", said(&output));
        assert!(!said(&output).contains("panicked"), "{}", said(&output));
    }
    assert_eq!(bench.names(), before, "nothing was started or made");
    assert_eq!((bench.text("a.json").as_str(), bench.text("smaps").as_str()), ("{}", ""));
    let output = bench.run(&["run", "--as-root", "-o", "-", "--", "/bin/true"]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
}

#[test]
fn a_report_never_replaces_a_recording() {
    if skip_without_bpf("a_report_never_replaces_a_recording") {
        return;
    }
    let bench = Bench::new();
    let recording = bench.record("rec");
    fs::hard_link(&recording, bench.path("too")).expect("a hard link");
    let before = fs::read(&recording).expect("a recording");
    let own = std::process::id().to_string();
    for mut words in commands(&own) {
        words.splice(1..1, ["--report", "rec"]);
        let output = bench.run(&words);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {}", said(&output));
        assert!(said(&output).contains("recording"), "{}", said(&output));
    }
    for words in [
        &["report", "rec", "--report", "rec"][..],
        &["report", "rec", "--report", "too"],
        &["events", "rec", "--report", "./rec"],
        &["diff", "rec", "rec", "--report", "too"],
        &["run", "--as-root", "-o", "rec", "--report", "too", "--", "/bin/true"],
    ] {
        let output = bench.run(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {}", said(&output));
    }
    assert_eq!(fs::read(&recording).expect("a recording"), before);
    assert_eq!(bench.names(), ["rec", "too"]);
}

#[test]
fn what_is_there_stays_until_the_new_report_is_complete() {
    let bench = Bench::new();
    let old = bench.write("report", "the old one\n");
    fs::set_permissions(&old, fs::Permissions::from_mode(0o640)).expect("chmod");
    symlink("report", bench.path("link")).expect("a link");
    // The file is there, and what it names as its interpreter is not: known only when it is executed.
    let script = bench.write("script", "#!/nonexistent\n");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("chmod");
    for words in [
        &["run", "--as-root", "--report", "link", "--", "./script"][..],
        &["events", "--report", "report", "--", "./script"],
        &["run", "--as-root", "--report", "new", "-o", "rec", "--", "./script"],
        &["run", "--as-root", "--report", "new", "--", "./missing"],
    ] {
        let output = bench.run(words);
        assert_eq!(output.status.code(), Some(127), "{words:?}: {}", said(&output));
    }
    assert_eq!(bench.text("report"), "the old one\n");
    assert_eq!(bench.names(), ["link", "report", "script"], "no empty file is left");
    let inode = fs::metadata(&old).expect("there").ino();
    let output = bench.run(&["run", "--as-root", "--report", "link", "--", "/bin/true"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(bench.text("report").starts_with("true (pid "), "{}", bench.text("report"));
    let found = fs::metadata(&old).expect("there");
    assert_ne!(found.ino(), inode, "a new file took its place");
    assert_eq!(found.mode() & 0o7777, 0o640, "as its owner left it");
    assert!(fs::symlink_metadata(bench.path("link")).expect("there").is_symlink());
    // A file with two names keeps both.
    fs::hard_link(&old, bench.path("too")).expect("a hard link");
    let output = bench.run(&["events", "--call", "execve", "--report", "too", "--", "/bin/true"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(bench.text("report").contains("execve(") && bench.text("report") == bench.text("too"));
    assert_eq!(bench.names(), ["link", "report", "script", "too"]);
}

/// An older recording is where it was when the new one did not come about.
#[test]
fn a_recording_of_nothing_is_none() {
    let bench = Bench::new();
    if let Err(why) = bpf_available() {
        return skip("a_recording_of_nothing_is_none", &why);
    }
    let recording = bench.record("rec");
    let before = fs::read(&recording).expect("a recording");
    let script = bench.write("script", "#!/nonexistent\n");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("chmod");
    let output = bench.run(&["run", "--as-root", "-o", "rec", "--", "./script"]);
    assert_eq!(output.status.code(), Some(127), "{}", said(&output));
    assert_eq!(fs::read(&recording).expect("a recording"), before);
    assert_eq!(bench.names(), ["rec", "script"]);
}

/// In a folder where nothing can be created, the file itself can still be written. Root may create
/// everywhere: a mount of the file is what stops it.
#[test]
fn a_file_that_cannot_be_replaced_is_written() {
    use nix::mount::{MsFlags, mount};
    let name = "a_file_that_cannot_be_replaced_is_written";
    let bench = Bench::new();
    // No report has this.
    let (old, longer) = ("<old>", "a longer <old> one ".repeat(9));
    let (file, source) = (bench.write("report", old), bench.write("source", &longer));
    let none = None::<&str>;
    let mounted = nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS)
        .and_then(|()| mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none))
        .and_then(|()| mount(Some(&source), &file, none, MsFlags::MS_BIND, none));
    if let Err(error) = mounted {
        return skip(name, &format!("nothing can be mounted: {error}"));
    }
    let own = std::process::id().to_string();
    for words in [
        &["snapshot", "--report", "report", "-p", &own][..],
        &["events", "--call", "execve", "--no-stacks", "--report", "report", "--", "/bin/true"],
    ] {
        let output = bench.run(words);
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        let text = bench.text("source");
        assert!(!text.contains(old), "{text}");
        assert_eq!(text, bench.text("report"));
        assert_eq!(bench.names(), ["report", "source"]);
    }
    nix::mount::umount(&file).expect("unmounted");
    assert_eq!(bench.text("report"), old, "what the mount hid");
}

#[test]
fn a_fifo_waits_for_its_reader_and_a_descriptor_is_written_to() {
    let bench = Bench::new();
    let fifo = bench.path("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
    let mut command =
        bench.command(&["run", "--as-root", "--report", "fifo", "--", "/bin/sh", "-c", "echo ran; exit 6"]);
    let mut child = Guard(command.stdout(Stdio::piped()).spawn().expect("it starts"));
    // The command comes to its end without a reader of the FIFO.
    let mut first = [0; 4];
    child.0.stdout.as_mut().expect("piped").read_exact(&mut first).expect("the command's word");
    assert_eq!(&first, b"ran\n");
    let report = fs::read_to_string(&fifo).expect("the report");
    assert!(report.starts_with("sh (pid "), "{report}");
    assert_eq!(child.finish().expect("it ends").status.code(), Some(6));

    // What the shell redirected goes on behind what was written before.
    let text = File::create(bench.path("both")).expect("a file");
    let mut command =
        bench.command(&["run", "--as-root", "--report", "/dev/fd/9", "--", "/bin/echo", "first"]);
    command.stdout(text.try_clone().expect("a copy"));
    let descriptor = text.as_raw_fd();
    // SAFETY: between fork and exec only dup2(2) is called.
    unsafe {
        command.pre_exec(move || {
            if libc::dup2(descriptor, 9) < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
        });
    }
    assert_eq!(command.status().expect("it ends").code(), Some(0));
    let both = bench.text("both");
    assert!(both.starts_with("first\necho (pid "), "{both}");

    // By its own name it is the same file, and the command's words are not lost with it.
    let text = File::create(bench.path("out")).expect("a file");
    let mut command = bench.command(&["run", "--as-root", "--report", "out", "--", "/bin/echo", "first"]);
    assert_eq!(command.stdout(text).status().expect("it ends").code(), Some(0));
    assert!(bench.text("out").starts_with("first\necho (pid "), "{}", bench.text("out"));

    let output = bench.run(&["run", "--as-root", "--report", "/dev/stderr", "--", "/bin/echo", "first"]);
    assert_eq!((output.status.code(), printed(&output).as_str()), (Some(0), "first\n"));
    assert!(said(&output).contains("echo (pid "), "{}", said(&output));
    let output = bench.run(&["run", "--as-root", "--report", "/dev/full", "--", "/bin/true"]);
    assert_eq!(output.status.code(), Some(125));
    assert!(said(&output).contains("No space left"), "{}", said(&output));
}

#[test]
fn a_dash_is_standard_output_everywhere() {
    let bench = Bench::new();
    let own = std::process::id().to_string();
    let mut all: Vec<Vec<&str>> = vec![
        vec!["run", "--as-root", "--report", "-", "--", "/bin/true"],
        vec!["compare", "-n", "1", "--env", "A=1", "--report", "-", "--", "/bin/true"],
        vec!["snapshot", "--report", "-", "-p", &own],
    ];
    if bpf_available().is_ok() {
        bench.record("rec");
        all.extend([
            vec!["events", "--report", "-", "--", "/bin/true"],
            vec!["heap", "--report", "-", "--", "/bin/true"],
            vec!["probe", "--lib", "libc.so.6", "--match", "^malloc$", "--report", "-", "--", "/bin/true"],
            vec!["attach", "--duration", "0.01", "--report", "-", "-p", &own],
            vec!["events", "rec", "--report", "-"],
            vec!["report", "rec", "--report", "-"],
            vec!["diff", "rec", "rec", "--report", "-"],
        ]);
    } else {
        skip("a_dash_is_standard_output_everywhere", "half of it needs BPF");
    }
    let before = bench.names();
    for words in all {
        let output = bench.run(&words);
        assert_eq!(output.status.code(), Some(0), "{words:?}: {}", said(&output));
        assert!(!output.stdout.is_empty(), "{words:?}");
    }
    assert_eq!(bench.names(), before, "no file is called -");
}

fn limited(mut command: Command, bytes: u64) -> Output {
    // SAFETY: between fork and exec only setrlimit(2) is called.
    unsafe {
        command.pre_exec(move || {
            let limit = libc::rlimit { rlim_cur: bytes, rlim_max: libc::RLIM_INFINITY };
            if libc::setrlimit(libc::RLIMIT_FSIZE, &limit) < 0 {
                Err(std::io::Error::last_os_error())
            } else {
                Ok(())
            }
        });
    }
    watchdog::output(&mut command)
}

/// `ulimit -f`: as a full disk, and not the end of vmaudit.
#[test]
fn the_limit_on_file_sizes_is_a_full_disk() {
    let bench = Bench::new();
    bench.write("old", "the old one\n");
    // The command has SIGXFSZ as it is without vmaudit: dd of 8 KiB is killed, and says so by its status.
    let script = "dd if=/dev/zero of=big bs=1k count=8 2>/dev/null; echo dd $?";
    let words = ["run", "--as-root", "-f", "json", "--report", "old", "--", "/bin/sh", "-c", script];
    let output = limited(bench.command(&words), 4096);
    assert_eq!(output.status.code(), Some(125), "{}", said(&output));
    assert_eq!(printed(&output), format!("dd {}\n", 128 + libc::SIGXFSZ));
    assert!(
        said(&output).contains("File too large") && said(&output).contains("ulimit -f"),
        "{}",
        said(&output)
    );
    assert_eq!(bench.text("old"), "the old one\n");
    assert_eq!(bench.names(), ["big", "old"]);
    if skip_without_bpf("the_limit_on_file_sizes_is_a_full_disk") {
        return;
    }
    let program = support::program("many_calls");
    let mut command = bench.command(&["run", "--as-root", "--interval", "0.05", "-o", "rec", "--"]);
    command.arg(program).args(["60000", "3", "0", "20000"]);
    let output = limited(command, 600 << 10);
    assert_eq!(output.status.code(), Some(125), "{}", said(&output));
    for expected in
        ["the recording stops here, all else goes on", "ulimit -f", "can be read up to where it stopped"]
    {
        assert!(said(&output).contains(expected), "{}", said(&output));
    }
    assert!(
        printed(&output).contains("59400\n") && printed(&output).contains("exited 0"),
        "the command's end"
    );
    let report = bench.run(&["report", "rec"]);
    assert_eq!(report.status.code(), Some(0), "{}", said(&report));
    assert!(printed(&report).contains("many_calls"));
}

/// The lines that one reads of what the other writes: then it goes.
fn head(mut command: Command, from: impl FnOnce(&mut Guard) -> Box<dyn Read>) -> (String, Option<i32>) {
    let mut child = Guard(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts"));
    let mut first = [0; 64];
    let mut pipe = from(&mut child);
    pipe.read_exact(&mut first).expect("an event");
    drop(pipe);
    let output = child.finish().expect("it ends");
    (said(&output), output.status.code())
}

#[test]
fn a_reader_that_goes_takes_neither_the_command_nor_its_status() {
    let bench = Bench::new();
    // More calls after the reader has gone than a pipe holds, and then a mark.
    let script = "for i in 1 2 3 4 5 6 7 8 9; do /bin/true; done; echo done > done; exit 9";
    for backend in ["auto", "notify"] {
        let words = ["events", "--backend", backend, "--report", "-", "--", "/bin/sh", "-c", script];
        let (said, code) =
            head(bench.command(&words), |child| Box::new(child.0.stdout.take().expect("piped")));
        assert_eq!(code, Some(9), "{said}");
        assert_eq!(bench.text("done"), "done\n", "{said}");
        assert!(!said.contains("panicked") && !said.contains("Broken pipe"), "{said}");
        fs::remove_file(bench.path("done")).expect("there");
    }
    // As without --report: on standard error.
    let words = ["events", "--", "/bin/sh", "-c", script];
    let (_, code) = head(bench.command(&words), |child| Box::new(child.0.stderr.take().expect("piped")));
    assert_eq!((code, bench.text("done").as_str()), (Some(9), "done\n"));
    // What cannot be written is reported, when the command has come to its end.
    let output = bench.run(&["events", "--report", "/dev/full", "--", "/bin/sh", "-c", "echo end; exit 9"]);
    assert_eq!((output.status.code(), printed(&output).as_str()), (Some(125), "end\n"));
    assert!(said(&output).contains("printing stops here, the command goes on"), "{}", said(&output));
}

#[test]
fn nothing_to_print_is_an_empty_file_and_not_the_former_one() {
    let bench = Bench::new();
    bench.write("events", "of another run\n");
    let output = bench.run(&["events", "--call", "shmat", "--report", "events", "--", "/bin/true"]);
    assert_eq!((output.status.code(), bench.text("events").as_str()), (Some(0), ""), "{}", said(&output));
}

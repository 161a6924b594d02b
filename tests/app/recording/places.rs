//! Disks that fill up, and places where nothing may be written. In mount namespaces of the tests'
//! own: nothing stays mounted.

use crate::support::{program, skip, skip_without_bpf, vmaudit};
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use vmaudit::model::{EventId, MmKey, NoStack, StackTable, Step, Task, VmEvent, VmOp};
use vmaudit::store::{Facts, Recorder, Recording, RunMeta, StoreError};

/// A small file system of this thread's own, and of what it starts.
struct Small {
    at: tempfile::TempDir,
}

impl Small {
    fn mount(test: &str, options: &str) -> Option<Small> {
        use nix::mount::{MsFlags, mount};
        let at = tempfile::tempdir().expect("a temporary folder");
        let none = None::<&str>;
        let mounted = nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS)
            .and_then(|()| mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none))
            .and_then(|()| mount(Some("tmpfs"), at.path(), Some("tmpfs"), MsFlags::empty(), Some(options)));
        match mounted {
            Ok(()) => Some(Small { at }),
            Err(error) => {
                skip(test, &format!("no tmpfs can be mounted: {error}"));
                None
            }
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.at.path().join(name)
    }

    fn fill(&self) {
        let file = fs::File::create(self.path("filler")).expect("a file");
        let mut step = 1 << 20;
        while step > 0 {
            let written = std::io::Write::write(&mut &file, &vec![1; step]);
            if written.is_err() {
                step /= 2;
            }
        }
    }

    fn read_only(&self) {
        use nix::mount::{MsFlags, mount};
        let none = None::<&str>;
        let flags = MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        mount(none, self.at.path(), none, flags, none).expect("mounted read-only");
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.at.path()).expect("readable").flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = nix::mount::umount2(self.at.path(), nix::mount::MntFlags::MNT_DETACH);
    }
}

fn event(id: u64) -> Step {
    Step::Event(VmEvent {
        id: EventId(id),
        time_ns: id,
        task: Task { pid: 7, tid: 7, comm: b"x".to_vec() },
        mm: MmKey(1),
        op: VmOp::Rename,
        ret: 0,
        stack: Err(NoStack::NotTaken),
        total_vm: None,
    })
}

fn record(path: &Path, ids: std::ops::Range<u64>) -> Result<Recorder, StoreError> {
    let meta = RunMeta { version: "0".into(), backend: "bpf".into(), ..RunMeta::default() };
    let mut recorder = Recorder::create(path, &meta, None)?;
    ids.for_each(|id| recorder.step(&event(id), &StackTable::default()));
    Ok(recorder)
}

fn count_events(path: &Path) -> u64 {
    let recording = Recording::open(path).expect("a recording");
    let mut count = 0;
    let mut each = |_: &Step| {
        count += 1;
        ControlFlow::Continue(())
    };
    recording.steps(&mut each).expect("a whole file");
    count
}

fn run(options: &[&str], recording: &Path, calls: &[&str]) -> Output {
    let mut run = Command::new(vmaudit());
    run.args(["run", "--as-root"]).args(options).arg("-o").arg(recording).arg("--");
    run.arg(program("many_calls")).args(calls).stdin(Stdio::null()).output().expect("vmaudit starts")
}

#[test]
fn a_disk_that_fills_up_while_recording() {
    if skip_without_bpf("a_disk_that_fills_up") {
        return;
    }
    let Some(disk) = Small::mount("a_disk_that_fills_up", "size=2m") else { return };
    let path = disk.path("rec");
    let calls = 60_000;
    // Slow enough for several transactions: each snapshot ends one.
    let output = run(&["--interval", "0.05"], &path, &[&calls.to_string(), "3", "0", "20000"]);
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(125), "{stderr}");
    assert!(stderr.contains("the recording stops here, all else goes on"), "{stderr}");
    assert!(stderr.contains("disk is full"), "{stderr}");
    assert!(stderr.contains("is not complete: it can be read up to where it stopped"), "{stderr}");
    // The target came to its end, and so did the report.
    assert!(stdout.contains(&format!("{}\n", calls / 100 * 99)), "{stdout}");
    assert!(stdout.contains("exited 0"), "{stdout}");
    assert!(stdout.contains("VIRT"), "{stdout}");
    assert_eq!(disk.names(), ["rec"], "nothing is left next to it");
    let found = count_events(&path);
    assert!((1..calls).contains(&found), "{found} events");
    let report = Command::new(vmaudit()).arg("report").arg(&path).output().expect("vmaudit starts");
    assert_eq!(report.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&report.stderr).contains("could not go on writing"));
    assert!(String::from_utf8_lossy(&report.stdout).contains("many_calls"));
}

#[test]
fn a_disk_that_is_full_already() {
    let Some(disk) = Small::mount("a_disk_that_is_full", "size=512k") else { return };
    let path = disk.path("rec");
    record(&path, 1..50).expect("begun").finish(&Facts::default()).expect("written");
    let older = fs::read(&path).expect("the older recording");
    disk.fill();
    for name in ["rec", "new"] {
        let Err(error) = record(&disk.path(name), 1..2) else { panic!("there was space") };
        assert!(error.to_string().contains("disk is full"), "{error}");
    }
    assert_eq!(disk.names(), ["filler", "rec"]);
    assert!(fs::read(&path).expect("the older recording") == older, "it is where it was");
}

#[test]
fn recordings_where_nothing_may_be_written() {
    let Some(disk) = Small::mount("recordings_where_nothing_may_be_written", "size=8m") else { return };
    let (whole, cut) = (disk.path("whole"), disk.path("cut"));
    record(&whole, 1..50).expect("begun").finish(&Facts::default()).expect("written");
    record(&cut, 1..50).expect("begun").finish(&Facts::default()).expect("written");
    // As a killed writer leaves it: some of its pages are written, and the journal has them as they were.
    let script = "PRAGMA cache_size = 1; PRAGMA synchronous = OFF; BEGIN; \
                  UPDATE event SET ret = 7; CREATE TABLE t AS SELECT * FROM event a, event b; \
                  SELECT count(*) FROM t; .system kill -9 $PPID";
    let killed = Command::new("sqlite3").arg(&cut).stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
    let Ok(mut killed) = killed else { return skip("recordings_where_nothing_may_be_written", "no sqlite3") };
    let mut pipe = killed.stdin.take().expect("a pipe");
    std::io::Write::write_all(&mut pipe, script.replace("; ", ";\n").as_bytes()).expect("written");
    std::io::Write::write_all(&mut pipe, b"\n").expect("written");
    assert!(!killed.wait().expect("a child").success(), "it was not killed");
    assert!(fs::metadata(disk.path("cut-journal")).is_ok_and(|found| found.len() > 512), "no hot journal");
    disk.read_only();
    assert_eq!(count_events(&whole), 49);
    let Err(error) = Recording::open(&cut) else { panic!("opened with half a transaction") };
    assert!(matches!(error, StoreError::NeedsRollback { .. }), "{error}");
    // What it advises works.
    let elsewhere = tempfile::tempdir().expect("a temporary folder");
    for name in ["cut", "cut-journal"] {
        fs::copy(disk.path(name), elsewhere.path().join(name)).expect("copied");
    }
    assert_eq!(count_events(&elsewhere.path().join("cut")), 49);
    let Err(error) = record(&disk.path("new"), 1..2) else { panic!("written") };
    assert!(error.to_string().contains("Read-only file system"), "{error}");
    let Err(error) = record(&whole, 1..2) else { panic!("written") };
    assert!(error.to_string().contains("Read-only file system"), "{error}");
    assert_eq!(disk.names(), ["cut", "cut-journal", "whole"]);
    assert_eq!(count_events(&whole), 49);
}

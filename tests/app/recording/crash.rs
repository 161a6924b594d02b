//! vmaudit is killed at random moments while it records: each time the file opens, holds all that
//! was said to be safe, and can be reported.

use crate::support::{Guard, skip_without_bpf, static_program, vmaudit};
use std::io::{BufRead, BufReader, Read};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use vmaudit::model::Step;
use vmaudit::store::Recording;

const KILLS: u64 = 50;
const SAFE: &str = "vmaudit: recorded up to event ";

/// splitmix64: the same numbers in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }
}

/// Reads lines in a thread, each handed on as it comes, until the end or a request to stop. Gives all of
/// them.
fn lines(
    pipe: impl Read + Send + 'static,
    tick: Sender<bool>,
    stop: Option<Arc<AtomicBool>>,
) -> JoinHandle<Vec<String>> {
    std::thread::spawn(move || {
        let mut all = Vec::new();
        for line in BufReader::new(pipe).lines() {
            let Ok(line) = line else { break };
            let _ = tick.send(line.starts_with(SAFE));
            all.push(line);
            if stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed)) {
                break;
            }
        }
        all
    })
}

/// Waits for some lines of the target and of vmaudit, which are the clock here.
fn wait_for(ticks: u64, clock: &Receiver<bool>) {
    for _ in 0..ticks {
        if clock.recv().is_err() {
            return;
        }
    }
}

/// Waits until something was said to be safe: how many lines come before goes by the machine.
fn wait_for_first(clock: &Receiver<bool>) {
    while clock.recv() == Ok(false) {}
}

/// Runs vmaudit, kills it, and gives the last event that it said to be safe.
fn killed(recording: &Path, random: &mut Random, early: bool) -> u64 {
    let mut command = Command::new(vmaudit());
    command.args(["run", "--as-root", "-v", "--interval", "0.02", "-o"]).arg(recording).arg("--");
    // So many calls that it cannot end by itself before it is killed, on whatever machine.
    command.arg(static_program("many_calls")).args(["1000000000", "3", "500", "20000", "100"]);
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = Guard(child.expect("vmaudit starts"));
    let (tick, clock) = channel();
    let stop = Arc::new(AtomicBool::new(false));
    let out = child.0.stdout.take().expect("a pipe");
    let errors = child.0.stderr.take().expect("a pipe");
    let out = lines(out, tick.clone(), Some(Arc::clone(&stop)));
    let errors = lines(errors, tick, None);
    if !early {
        wait_for_first(&clock);
    }
    wait_for(3 + random.below(100), &clock);
    // A moment between two lines, too.
    for i in 0..random.below(1 << 18) {
        std::hint::black_box(i);
    }
    child.signal(libc::SIGKILL);
    let status = child.0.wait().expect("a child");
    assert!(!status.success(), "it had ended before");
    // The target writes until there is no reader.
    stop.store(true, Ordering::Relaxed);
    out.join().expect("the reader of the target's lines");
    let said = errors.join().expect("the reader of vmaudit's lines");
    let safe = said.iter().filter_map(|line| line.strip_prefix(SAFE)?.parse().ok());
    safe.max().unwrap_or(0)
}

#[derive(Default)]
struct Found {
    last_event: u64,
    points: u64,
}

/// Everything in the file, which has to be whole.
fn read(path: &Path) -> Found {
    let recording = Recording::open(path).expect("a recording");
    assert_eq!(recording.facts(), None, "it was killed before its end");
    let stacks = recording.stacks().expect("stacks");
    let mut found = Found::default();
    let mut each = |step: &Step| {
        match step {
            Step::Event(event) => {
                assert!(event.id.0 > found.last_event, "{} after {}", event.id.0, found.last_event);
                assert!(event.stack.is_err() || event.stack.is_ok_and(|id| (id.0 as usize) < stacks.len()));
                found.last_event = event.id.0;
            }
            Step::Point(_) => found.points += 1,
            _ => {}
        }
        ControlFlow::Continue(())
    };
    recording.steps(&mut each).expect("a whole file");
    found
}

/// What a command says of the recording.
fn said_by(command: &[&str], path: &Path) -> String {
    let output = Command::new(vmaudit()).args(command).arg(path).output().expect("vmaudit starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{command:?}: {errors}");
    assert!(errors.contains("was killed"), "{command:?}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn killed_at_fifty_moments() {
    if skip_without_bpf("killed_at_fifty_moments") {
        return;
    }
    let (mut open_transactions, mut with_timeline, mut with_events) = (0, 0, 0);
    for seed in 0..KILLS {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("rec");
        let safe = killed(&path, &mut Random(seed), seed % 4 == 0);
        let journal = folder.path().join("rec-journal");
        open_transactions += u64::from(std::fs::metadata(&journal).is_ok_and(|found| found.len() > 0));
        let found = read(&path);
        assert!(
            found.last_event >= safe,
            "seed {seed}: {} is the last event of the file, {safe} were said to be safe",
            found.last_event
        );
        with_timeline += u64::from(found.points > 0);
        with_events += u64::from(safe > 0);
        if found.last_event == 0 {
            continue;
        }
        let report = said_by(&["report"], &path);
        assert!(report.contains("many_calls"), "seed {seed}: {report}");
        assert_eq!(report.contains("timeline"), found.points > 0, "seed {seed}: {report}");
        let events = said_by(&["events", "--no-stacks"], &path);
        assert!(events.lines().count() as u64 >= safe, "seed {seed}");
    }
    eprintln!(
        "{KILLS} kills: {open_transactions} with a transaction open, {with_events} after the first one, \
         {with_timeline} with a timeline"
    );
    assert!(open_transactions > KILLS / 10, "moments were not random: {open_transactions}");
    assert!(with_events > KILLS / 2, "most kills came before anything was recorded: {with_events}");
}

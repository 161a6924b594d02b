//! A command that does not end: what it and all that it started wait for, so that the failure can be
//! understood from its log.

use std::fmt::Write as _;
use std::fs;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// No audit in these tests takes a tenth of it on an idle machine.
const LIMIT: Duration = Duration::from_secs(150);

/// Runs the command to its end, its output collected. One that does not end is killed with all that it
/// started.
///
/// # Panics
/// When it does not end: with what each thread waits for.
pub fn output(command: &mut Command) -> Output {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let pid = child.id();
    let (done, end) = mpsc::channel();
    let collector = std::thread::spawn(move || done.send(child.wait_with_output()));
    if let Ok(output) = end.recv_timeout(LIMIT) {
        return output.expect("its output");
    }
    let all = descendants(pid);
    let state = describe(&all);
    for pid in all {
        // SAFETY: plain system call on processes that were found below ours a moment ago.
        unsafe { libc::kill(pid as i32, libc::SIGKILL) };
    }
    let _ = end.recv_timeout(LIMIT);
    drop(collector);
    panic!("{command:?} did not end within {LIMIT:?}:\n{state}");
}

/// The process and what descends from it; the last first, so that no process is adopted when they are killed.
fn descendants(pid: u32) -> Vec<u32> {
    let mut all = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        children.split_ascii_whitespace().filter_map(|word| word.parse().ok()).for_each(|child| {
            all.extend(descendants(child));
        });
    }
    all.push(pid);
    all
}

fn describe(pids: &[u32]) -> String {
    let mut text = String::new();
    for pid in pids {
        let read = |path: String| {
            fs::read(path)
                .map_or_else(|e| e.to_string(), |b| String::from_utf8_lossy(&b).trim().replace('\0', " "))
        };
        let _ = writeln!(text, "{pid}: {}", read(format!("/proc/{pid}/cmdline")));
        for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            let of = |name: &str| read(task.path().join(name).display().to_string());
            let (tid, stat) = (task.file_name(), of("stat"));
            let state: String = stat.rsplit(')').next().unwrap_or_default().chars().take(2).collect();
            let _ = writeln!(
                text,
                "  {} {} {}  in {}  call {}",
                tid.display(),
                of("comm"),
                state.trim(),
                of("wchan"),
                of("syscall")
            );
        }
    }
    text
}

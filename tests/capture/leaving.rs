//! Who lets go of tracepoints when vmaudit ends.

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, gettid};
use std::fs;
use std::path::PathBuf;
use std::thread;
use vmaudit::capture::bpf::leave_to_a_child;

fn field(pid: i32, name: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a field of status");
    line.trim_start_matches(':').trim().to_owned()
}

/// The kernel ends the threads of a process one after the other, and the descriptors are closed by the last
/// one: the child may not be gone before.
#[test]
fn the_child_stays_until_the_last_thread_is_gone() {
    let (task, child) = thread::spawn(|| {
        let own = PathBuf::from(format!("/proc/self/task/{}", gettid()));
        leave_to_a_child(());
        let children = fs::read_to_string(own.join("children")).expect("CONFIG_PROC_CHILDREN");
        (own, children.trim().parse::<i32>().expect("one child"))
    })
    .join()
    .expect("the thread");
    // What the kernel sends when a thread ends was sent when its entry is gone (release_task).
    while task.exists() {
        thread::yield_now();
    }
    let state = || field(child, "State").chars().next();
    while matches!(state(), Some('R' | 'D')) {
        thread::yield_now();
    }
    assert_eq!(state(), Some('S'), "the child waits for the end of the process");
    kill(Pid::from_raw(child), Signal::SIGKILL).expect("it lives");
}

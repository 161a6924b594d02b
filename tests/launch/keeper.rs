//! The target goes on unharmed whatever happens to vmaudit and to the keeper.

use crate::player::{children, config, end_of, follow, keeper, modes, play, report, report_held, start};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::WaitStatus;
use nix::unistd::Pid;
use std::fs;
use std::os::fd::AsRawFd;
use vmaudit::launch::{CallSet, Launch, LaunchConfig, Running, TargetEvent};
use vmaudit::model::{Arrival, HeldCalls};

fn exited(pid: i32, code: i32) -> WaitStatus {
    WaitStatus::Exited(Pid::from_raw(pid), code)
}

fn killed(pid: i32) -> WaitStatus {
    WaitStatus::Signaled(Pid::from_raw(pid), Signal::SIGKILL, false)
}

/// Waits for the first final exit, and reports it.
fn wait_for_hold(running: &mut Running) -> vmaudit::launch::HeldExit {
    loop {
        if let TargetEvent::HeldExit(held) = running.poll(None).expect("poll") {
            report_held(running, &held);
            return held;
        }
    }
}

fn wait_for_ever() -> ! {
    loop {
        nix::unistd::pause();
    }
}

#[test]
fn vmaudit_killed_while_the_target_runs() {
    let mut player = play(|| {
        let _running = start(config(&[modes(), "wait", "0"]));
        report(&format!("keeper {}", keeper()));
        wait_for_ever();
    });
    // Both write as soon as they run.
    let mut lines = [player.line(), player.line()];
    lines.sort();
    let number = |line: &str| line.split(' ').nth(1).and_then(|n| n.parse::<i32>().ok()).expect("a number");
    let (keeper, target) = (number(&lines[0]), number(&lines[1]));
    player.kill(Signal::SIGKILL);
    assert_eq!(player.wait(), killed(player.pid.as_raw()));
    player.word();
    assert_eq!(end_of(target), exited(target, 0));
    // No task is left with the filter: the keeper's work is done.
    assert_eq!(end_of(keeper), exited(keeper, 0));
}

#[test]
fn vmaudit_killed_while_an_exit_is_held() {
    let mut player = play(|| {
        let mut running = start(config(&[modes(), "exit", "17"]));
        report(&format!("target {}", running.pid()));
        let _held = wait_for_hold(&mut running);
        wait_for_ever();
    });
    let target = player.number("target ");
    assert_eq!(player.line(), "held main ExitGroup status 17 leader true");
    player.kill(Signal::SIGKILL);
    player.wait();
    assert_eq!(end_of(target), exited(target, 17));
}

#[test]
fn vmaudit_killed_while_the_last_thread_is_held() {
    let mut player = play(|| {
        let mut running = start(config(&[modes(), "two-last", "17"]));
        report(&format!("target {}", running.pid()));
        let _held = wait_for_hold(&mut running);
        wait_for_ever();
    });
    let target = player.number("target ");
    assert!(player.line().starts_with("held main LastThread status 17"));
    player.kill(Signal::SIGKILL);
    player.wait();
    assert_eq!(end_of(target), exited(target, 17));
}

#[test]
fn vmaudit_leaves_a_target_that_is_held() {
    let mut player = play(|| {
        let mut running = start(config(&[modes(), "exit", "18"]));
        report(&format!("target {}", running.pid()));
        let _held = wait_for_hold(&mut running);
    });
    let target = player.number("target ");
    player.line();
    player.wait();
    assert_eq!(end_of(target), exited(target, 18));
}

#[test]
fn vmaudit_killed_before_go_runs_nothing() {
    let mut player = play(|| {
        let prepared = vmaudit::launch::Launch::prepare(config(&[modes(), "wait", "0"])).expect("prepare");
        report(&format!("prepared {} {}", prepared.pid(), keeper()));
        wait_for_ever();
    });
    let line = player.line();
    let pids: Vec<i32> = line.split(' ').skip(1).filter_map(|word| word.parse().ok()).collect();
    player.kill(Signal::SIGKILL);
    player.wait();
    assert_eq!(end_of(pids[0]), exited(pids[0], 0));
    assert_eq!(end_of(pids[1]), exited(pids[1], 0));
    // Not a word of the target's.
    assert_eq!(player.line(), "");
}

#[test]
fn dropping_what_was_prepared_runs_nothing() {
    let mut player = play(|| {
        drop(vmaudit::launch::Launch::prepare(config(&[modes(), "wait", "0"])).expect("prepare"));
        report("dropped");
    });
    assert_eq!(player.rest(), ["dropped"]);
}

#[test]
fn a_killed_keeper_is_replaced() {
    let mut player = play(|| {
        let running = start(config(&[modes(), "wait", "21"]));
        kill(Pid::from_raw(keeper()), Signal::SIGKILL).expect("kill");
        follow(running);
    });
    let mut lines = [player.line(), player.line()];
    lines.sort();
    assert_eq!(lines[0], "KeeperReplaced");
    player.word();
    assert_eq!(player.rest(), ["held main ExitGroup status 21 leader true", "ended Code(21) 21"]);
}

#[test]
fn a_keeper_killed_while_an_exit_is_held_loses_nothing() {
    let mut player = play(|| {
        let mut running = start(config(&[modes(), "exit", "22"]));
        let held = wait_for_hold(&mut running);
        kill(Pid::from_raw(keeper()), Signal::SIGKILL).expect("kill");
        assert_eq!(running.poll(None).expect("poll"), TargetEvent::KeeperReplaced);
        assert!(running.is_held(&held));
        running.release(held).expect("release");
        follow(running);
    });
    assert_eq!(player.rest(), ["held main ExitGroup status 22 leader true", "ended Code(22) 22"]);
}

#[test]
fn keeper_and_then_vmaudit_killed_while_an_exit_is_held() {
    let mut player = play(|| {
        let mut running = start(config(&[modes(), "exit", "23"]));
        report(&format!("target {}", running.pid()));
        let _held = wait_for_hold(&mut running);
        kill(Pid::from_raw(keeper()), Signal::SIGKILL).expect("kill");
        assert_eq!(running.poll(None).expect("poll"), TargetEvent::KeeperReplaced);
        report("replaced");
        wait_for_ever();
    });
    let target = player.number("target ");
    player.line();
    assert_eq!(player.line(), "replaced");
    player.kill(Signal::SIGKILL);
    player.wait();
    assert_eq!(end_of(target), exited(target, 23));
}

#[test]
fn a_keeper_killed_at_any_moment_loses_no_exit() {
    // No readiness here: the kill hits wherever it hits. Every exit is held once nonetheless.
    for _ in 0..50 {
        let mut player = play(|| {
            let running = start(config(&[modes(), "exit", "24"]));
            kill(Pid::from_raw(keeper()), Signal::SIGKILL).expect("kill");
            follow(running);
        });
        let mut lines = player.rest();
        lines.retain(|line| line != "KeeperReplaced");
        assert_eq!(lines, ["held main ExitGroup status 24 leader true", "ended Code(24) 24"]);
    }
}

#[test]
fn keepers_killed_while_threads_exit_lose_none() {
    let mut player = play(|| {
        let mut running = start(config(&[modes(), "threads", "2000"]));
        let target = running.pid();
        let mut keeper = keeper();
        for _ in 0..30 {
            kill(Pid::from_raw(keeper), Signal::SIGKILL).expect("kill");
            assert_eq!(running.poll(None).expect("poll"), TargetEvent::KeeperReplaced);
            keeper = children().into_iter().find(|&pid| pid != target).expect("a keeper");
        }
        follow(running);
    });
    let mut lines = player.rest();
    lines.retain(|line| !line.starts_with("ns_per_thread "));
    assert_eq!(lines, ["held main ExitGroup status 0 leader true", "ended Code(0) 0"]);
}

#[test]
fn the_replacement_knows_a_leader_that_left_before() {
    let mut player = play(|| {
        let running = start(config(&[modes(), "leader-gone", "5"]));
        report(&format!("keeper {}", keeper()));
        follow(running);
    });
    let mut lines = [player.line(), player.line()];
    lines.sort();
    let keeper = lines[0].strip_prefix("keeper ").and_then(|pid| pid.parse().ok()).expect("its pid");
    assert_eq!(lines[1], "leader gone");
    kill(Pid::from_raw(keeper), Signal::SIGKILL).expect("kill");
    assert_eq!(player.line(), "KeeperReplaced");
    player.word();
    assert_eq!(player.rest()[0], "held main LastThread status 5 leader false");
}

#[test]
fn a_target_killed_while_held_is_released_without_an_error() {
    let mut player = play(|| {
        let mut running = start(config(&[modes(), "exit", "25"]));
        let held = wait_for_hold(&mut running);
        running.signal(Signal::SIGKILL).expect("signal");
        let event = running.poll(None).expect("poll");
        assert!(!running.is_held(&held));
        running.release(held).expect("release");
        report(&format!("{event:?}"));
    });
    assert_eq!(
        player.rest(),
        ["held main ExitGroup status 25 leader true", "ChildExited(Signal { signal: 9, core: false })"]
    );
}

#[test]
fn a_target_that_closes_everything_is_held_all_the_same() {
    let mut player = play(|| follow(start(config(&[modes(), "close-all", "26"]))));
    assert_eq!(player.line(), "closed");
    player.word();
    assert_eq!(player.rest(), ["held main ExitGroup status 26 leader true", "ended Code(26) 26"]);
}

#[test]
fn a_daemon_outlives_vmaudit() {
    let mut player = play(|| follow(start(config(&[modes(), "daemon", "27"]))));
    let mut lines: Vec<String> = (0..4).map(|_| player.line()).collect();
    lines.sort();
    assert_eq!(
        lines[1..],
        [
            "ended Code(0) 0",
            "held main ExitGroup status 0 leader true",
            // The child in between; the daemon itself waits for a word.
            "held other ExitGroup status 0 leader true",
        ]
    );
    let daemon: i32 = lines[0].strip_prefix("daemon ").and_then(|pid| pid.parse().ok()).expect("its pid");
    assert!(matches!(player.wait(), WaitStatus::Exited(_, 0)));
    player.word();
    assert_eq!(end_of(daemon), exited(daemon, 27));
}

#[test]
fn vmaudit_receives_a_daemons_exit_and_that_nobody_is_left() {
    let mut player = play(|| {
        let mut running = start(config(&[modes(), "daemon", "28"]));
        loop {
            match running.poll(None).expect("poll") {
                TargetEvent::HeldExit(held) => {
                    if held.status == 28 {
                        report_held(&running, &held);
                    }
                    running.release(held).expect("release");
                }
                TargetEvent::ChildExited(_) => report("ended"),
                TargetEvent::NoTaskLeft => return report("nobody left"),
                other => report(&format!("{other:?}")),
            }
        }
    });
    let mut lines = [player.line(), player.line()];
    lines.sort();
    assert!(lines[0].starts_with("daemon "));
    assert_eq!(lines[1], "ended");
    player.word();
    assert_eq!(player.rest(), ["held other ExitGroup status 28 leader true", "nobody left"]);
}

#[test]
fn the_keeper_holds_no_pipe_open_and_stands_apart() {
    let mut player = play(|| {
        let mut running = start(config(&[modes(), "exit", "0"]));
        let keeper = keeper();
        // Once it has forwarded an exit it waits.
        let held = wait_for_hold(&mut running);
        let links = std::fs::read_dir(format!("/proc/{keeper}/fd")).expect("fds");
        let mut targets: Vec<String> = links
            .filter_map(|link| {
                Some(std::fs::read_link(link.ok()?.path()).ok()?.to_string_lossy().into_owned())
            })
            .map(|target| target.split(":[").next().unwrap_or_default().to_owned())
            .collect();
        targets.sort();
        report(&targets.join(" "));
        let session = nix::unistd::getsid(Some(Pid::from_raw(keeper))).expect("getsid");
        assert_eq!(session.as_raw(), keeper);
        report(std::fs::read_to_string(format!("/proc/{keeper}/comm")).expect("comm").trim_end());
        for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGTSTP] {
            kill(Pid::from_raw(keeper), signal).expect("kill");
        }
        running.release(held).expect("release");
        follow(running);
        // No task has the filter: vmaudit has waited for the keeper's end.
        assert_eq!(children(), Vec::<i32>::new());
    });
    assert_eq!(
        player.rest(),
        [
            "held main ExitGroup status 0 leader true",
            "/dev/null /dev/null /dev/null anon_inode:seccomp notify pipe socket",
            "exit-keeper",
            "ended Code(0) 0",
        ]
    );
}

#[test]
fn stopped_and_continued() {
    let mut player = play(|| follow(start(config(&[modes(), "wait", "29"]))));
    let target = player.number("ready ");
    let target_pid = Pid::from_raw(target);
    kill(target_pid, Signal::SIGSTOP).expect("kill");
    player.kill(Signal::SIGSTOP);
    kill(target_pid, Signal::SIGCONT).expect("kill");
    player.word();
    player.kill(Signal::SIGCONT);
    assert_eq!(player.rest(), ["held main ExitGroup status 29 leader true", "ended Code(29) 29"]);
}

/// A call that vmaudit has received is vmaudit's, however late the keeper starts.
#[test]
fn a_keeper_that_starts_late_only_stands_by() {
    let mut player = play(|| {
        let calls =
            CallSet { numbers: &[libc::SYS_mmap as i32], prctl_options: &[], executable_files: false };
        let mut prepared =
            Launch::prepare(LaunchConfig { calls, ..config(&[modes(), "exit", "0"]) }).expect("prepare");
        let keeper = Pid::from_raw(keeper());
        kill(keeper, Signal::SIGSTOP).expect("kill");
        // SAFETY: waitid writes to `info` only.
        let stopped = unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            libc::waitid(libc::P_PID, keeper.as_raw() as u32, &mut info, libc::WSTOPPED)
        };
        assert_eq!(stopped, 0);
        prepared.watch_calls().expect("notified calls");
        let mut running = prepared.go().expect("go");
        let mut server = running.take_calls().expect("a server");
        let (never, _open) = nix::unistd::pipe().expect("pipe");
        let call = loop {
            let hour = std::time::Duration::from_secs(3600);
            if let Arrival::Call(call) = server.next(never.as_raw_fd(), hour).expect("a call") {
                break call;
            }
        };
        kill(keeper, Signal::SIGCONT).expect("kill");
        // Once it waits for an event, it has checked.
        let polls = [libc::SYS_poll, libc::SYS_ppoll].map(|nr| format!("{nr} "));
        while !fs::read_to_string(format!("/proc/{keeper}/syscall"))
            .is_ok_and(|call| polls.iter().any(|poll| call.starts_with(poll)))
        {
            std::thread::yield_now();
        }
        report(if server.is_held(call.id) { "held" } else { "let go by the keeper" });
    });
    assert_eq!(player.line(), "held");
    player.wait();
}

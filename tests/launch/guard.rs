//! vmaudit and the keeper killed together: the guard lets the target go on, whatever is killed next.

use crate::player::{
    Player, children, config, end_of, follow, guard_of, keeper, modes, play, report, report_held, start,
};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::WaitStatus;
use nix::unistd::Pid;
use vmaudit::launch::{CallSet, Launch, LaunchConfig, Running, TargetEvent};
use vmaudit::model::{Arrival, HeldCalls};

fn exited(pid: i32, code: i32) -> WaitStatus {
    WaitStatus::Exited(Pid::from_raw(pid), code)
}

fn kill_now(pid: i32) {
    kill(Pid::from_raw(pid), Signal::SIGKILL).expect("kill");
}

fn wait_for_ever() -> ! {
    loop {
        nix::unistd::pause();
    }
}

/// Reports the processes, once the target runs.
fn introduce(running: &Running) {
    report(&format!("helpers {} {} {}", keeper(), guard_of(keeper()), running.pid()));
}

/// Keeper, guard, target.
fn helpers(player: &mut Player) -> [i32; 3] {
    let line = player.line();
    let mut pids = line.strip_prefix("helpers ").expect("who is there").split(' ');
    [(); 3].map(|()| pids.next().and_then(|pid| pid.parse().ok()).expect("a pid"))
}

/// Both, without a moment for either in between.
fn kill_both(player: &Player, keeper: i32) {
    player.kill(Signal::SIGKILL);
    kill_now(keeper);
    player.wait();
    end_of(keeper);
}

/// Starts a target that works after a word, and has the helpers named.
fn at_work(code: &'static str) -> (Player, [i32; 3]) {
    let mut player = play(move || {
        let running = start(config(&[modes(), "work", code]));
        introduce(&running);
        wait_for_ever();
    });
    let mut named = None;
    let mut ready = false;
    while named.is_none() || !ready {
        let line = player.line();
        match line.strip_prefix("helpers ") {
            Some(pids) => {
                let mut pids = pids.split(' ').map(|pid| pid.parse().expect("a pid"));
                named = Some([(); 3].map(|()| pids.next().expect("three of them")));
            }
            None => ready = line.starts_with("ready "),
        }
    }
    (player, named.expect("named"))
}

#[test]
fn both_killed_while_the_target_runs() {
    let (mut player, [keeper, guard, target]) = at_work("31");
    kill_both(&player, keeper);
    player.word();
    assert_eq!(end_of(target), exited(target, 31));
    // No task is left with the filter: its work is done.
    assert_eq!(end_of(guard), exited(guard, 0));
}

#[test]
fn both_killed_while_an_exit_is_held() {
    for (mode, held) in [("exit", "ExitGroup"), ("two-last", "LastThread")] {
        let mut player = play(|| {
            let mut running = start(config(&[modes(), mode, "17"]));
            introduce(&running);
            let held = loop {
                if let TargetEvent::HeldExit(held) = running.poll(None).expect("poll") {
                    break held;
                }
            };
            report_held(&running, &held);
            wait_for_ever();
        });
        let [keeper, guard, target] = helpers(&mut player);
        assert!(player.line().starts_with(&format!("held main {held} status 17")));
        kill_both(&player, keeper);
        assert_eq!(end_of(target), exited(target, 17), "{mode}");
        assert_eq!(end_of(guard), exited(guard, 0));
    }
}

/// What vmaudit's own server of calls has received and not answered goes on.
#[test]
fn both_killed_while_a_call_is_watched() {
    let mut player = play(|| {
        let calls =
            CallSet { numbers: &[libc::SYS_mmap as i32], prctl_options: &[], executable_files: false };
        let mut prepared =
            Launch::prepare(LaunchConfig { calls, ..config(&[modes(), "exit", "18"]) }).expect("prepare");
        prepared.watch_calls().expect("notified calls");
        let mut running = prepared.go().expect("go");
        let mut server = running.take_calls().expect("a server");
        let (never, _open) = nix::unistd::pipe().expect("pipe");
        let hour = std::time::Duration::from_secs(3600);
        while !matches!(
            server.next(std::os::fd::AsRawFd::as_raw_fd(&never), hour).expect("a call"),
            Arrival::Call(_)
        ) {}
        introduce(&running);
        wait_for_ever();
    });
    let [keeper, guard, target] = helpers(&mut player);
    kill_both(&player, keeper);
    assert_eq!(end_of(target), exited(target, 18));
    assert_eq!(end_of(guard), exited(guard, 0));
}

#[test]
fn each_successor_has_a_guard_in_turn() {
    let (mut player, [keeper, mut last, target]) = at_work("32");
    kill_both(&player, keeper);
    for _ in 0..5 {
        let next = guard_of(last);
        kill_now(last);
        end_of(last);
        last = next;
    }
    player.word();
    assert_eq!(end_of(target), exited(target, 32));
    assert_eq!(end_of(last), exited(last, 0));
}

#[test]
fn a_killed_guard_is_replaced() {
    let (mut player, [keeper, mut guard, target]) = at_work("33");
    for _ in 0..3 {
        kill_now(guard);
        let old = guard;
        while guard == old {
            guard = guard_of(keeper);
        }
    }
    kill_both(&player, keeper);
    player.word();
    assert_eq!(end_of(target), exited(target, 33));
    assert_eq!(end_of(guard), exited(guard, 0));
}

#[test]
fn a_replaced_keeper_has_the_same_guard() {
    let mut player = play(|| {
        let mut running = start(config(&[modes(), "work", "34"]));
        introduce(&running);
        kill_now(keeper());
        assert_eq!(running.poll(None).expect("poll"), TargetEvent::KeeperReplaced);
        let new = children().into_iter().find(|&pid| pid != running.pid()).expect("a keeper");
        report(&format!("replaced {new}"));
        wait_for_ever();
    });
    let mut lines: Vec<String> = (0..3).map(|_| player.line()).collect();
    lines.sort();
    let numbers = |line: &str| -> Vec<i32> { line.split(' ').filter_map(|word| word.parse().ok()).collect() };
    let [_, guard, target] = numbers(&lines[0])[..] else { panic!("{lines:?}") };
    let [keeper] = numbers(&lines[2])[..] else { panic!("{lines:?}") };
    kill_both(&player, keeper);
    player.word();
    assert_eq!(end_of(target), exited(target, 34));
    assert_eq!(end_of(guard), exited(guard, 0));
}

#[test]
fn both_killed_at_any_moment() {
    // The kills hit the target at work: it has words for more steps than are waited for.
    for after in 0..30 {
        let mut player = play(|| {
            let running = start(config(&[modes(), "steps", "35"]));
            introduce(&running);
            follow(running);
        });
        let mut named = None;
        (0..after + 5).for_each(|_| player.word());
        for _ in 0..=after {
            named = player.line().strip_prefix("helpers ").map(str::to_owned).or(named);
        }
        while named.is_none() {
            named = player.line().strip_prefix("helpers ").map(str::to_owned);
        }
        let pids: Vec<i32> = named.iter().flat_map(|line| line.split(' ')).flat_map(str::parse).collect();
        kill_both(&player, pids[0]);
        (after..40).for_each(|_| player.word());
        assert_eq!(end_of(pids[2]), exited(pids[2], 35), "killed after {after} lines");
        assert_eq!(end_of(pids[1]), exited(pids[1], 0), "killed after {after} lines");
    }
}

/// What a process has open, sorted. A descriptor may be closed meanwhile.
fn open_files(pid: i32) -> Vec<String> {
    let links = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("fds").flatten();
    let targets = links.filter_map(|link| std::fs::read_link(link.path()).ok());
    let mut open: Vec<String> = targets
        .map(|target| target.display().to_string().split(":[").next().unwrap_or_default().to_owned())
        .collect();
    open.sort();
    open
}

#[test]
fn the_guard_holds_nothing_else_open_and_is_not_taken_for_vmaudit() {
    let mut player = play(|| {
        let running = start(config(&[modes(), "wait", "0"]));
        let (keeper, guard) = (keeper(), guard_of(keeper()));
        // It has its name first, and its listener last, by a socket that it closes then.
        let open = loop {
            let open = open_files(guard);
            if open.iter().any(|file| file.contains("seccomp")) && !open.contains(&"socket".to_owned()) {
                break open;
            }
            std::thread::yield_now();
        };
        for helper in [keeper, guard] {
            let read = |what: &str| std::fs::read_to_string(format!("/proc/{helper}/{what}")).expect(what);
            report(&format!("{} {:?}", read("comm").trim_end(), read("cmdline").trim_end_matches('\0')));
            let session = nix::unistd::getsid(Some(Pid::from_raw(helper))).expect("getsid");
            assert_eq!(session.as_raw(), helper);
        }
        report(&open.join(" "));
        report(&format!("guard {guard}"));
        follow(running);
        assert_eq!(children(), Vec::<i32>::new());
        // The keeper has waited for it.
        assert_eq!(kill(Pid::from_raw(guard), None), Err(Errno::ESRCH));
    });
    player.word();
    let mut lines = player.rest();
    lines.retain(|line| !line.starts_with("ready ") && !line.starts_with("guard "));
    assert_eq!(
        lines,
        [
            "exit-keeper \"exit-keeper\"",
            "exit-guard \"exit-guard\"",
            "/dev/null /dev/null /dev/null anon_inode:seccomp notify pipe",
            "held main ExitGroup status 0 leader true",
            "ended Code(0) 0",
        ]
    );
}

//! Signals to vmaudit, from the terminal and from others, and what the command gets of them.

use crate::player::{config, follow, modes, play, report, start};
use nix::pty::openpty;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, setsid};
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use vmaudit::launch::TargetEvent;

#[test]
fn a_signal_sent_to_vmaudit_is_passed_on() {
    let mut player = play(|| follow(start(config(&[modes(), "wait-signals", "0"]))));
    player.number("ready ");
    for signal in [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT] {
        player.kill(signal);
        let mut lines = [player.line(), player.line()];
        lines.sort();
        let event = format!("Interrupt {{ signal: {signal}, from_terminal: false, forwarded: true }}");
        assert_eq!(lines, [event, format!("signal {}", signal as i32)]);
    }
    player.word();
    assert_eq!(player.rest(), ["held main ExitGroup status 0 leader true", "ended Code(0) 0"]);
}

#[test]
fn a_command_that_a_signal_ends_ends_by_it() {
    let mut player = play(|| follow(start(config(&[modes(), "wait", "0"]))));
    player.number("ready ");
    player.kill(Signal::SIGTERM);
    let mut lines = player.rest();
    lines.sort();
    assert_eq!(
        lines,
        [
            "Interrupt { signal: SIGTERM, from_terminal: false, forwarded: true }",
            "ended Signal { signal: 15, core: false } 143"
        ]
    );
}

#[test]
fn what_was_ignored_stays_ignored() {
    let mut player = play(|| {
        // As nohup does.
        // SAFETY: ignoring a signal installs no handler.
        unsafe { nix::sys::signal::signal(Signal::SIGHUP, nix::sys::signal::SigHandler::SigIgn) }
            .expect("signal");
        follow(start(config(&[modes(), "wait", "5"])));
    });
    let target = player.number("ready ");
    player.kill(Signal::SIGHUP);
    kill(Pid::from_raw(target), Signal::SIGHUP).expect("kill");
    player.word();
    assert_eq!(player.rest(), ["held main ExitGroup status 5 leader true", "ended Code(5) 5"]);
}

#[test]
fn poll_gives_up_after_its_timeout() {
    let mut player = play(|| {
        let mut running = start(config(&[modes(), "wait", "0"]));
        let event = running.poll(Some(std::time::Duration::from_millis(1))).expect("poll");
        report(&format!("{event:?}"));
        follow(running);
    });
    let mut lines = [player.line(), player.line()];
    lines.sort();
    assert_eq!(lines[0], "Timeout");
    player.word();
    assert_eq!(player.rest().len(), 2);
}

/// Becomes the leader of a session whose terminal is `terminal`.
fn take_terminal(terminal: &OwnedFd) {
    setsid().expect("setsid");
    // SAFETY: the ioctl takes a number.
    assert_eq!(unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSCTTY, 0) }, 0);
}

#[test]
fn ctrl_c_reaches_both_and_is_not_passed_on() {
    let pty = openpty(None, None).expect("a terminal");
    let mut keyboard = std::fs::File::from(pty.master);
    let mut player = play(|| {
        take_terminal(&pty.slave);
        follow(start(config(&[modes(), "wait-signals", "0"])));
    });
    player.number("ready ");
    for _ in 0..2 {
        keyboard.write_all(b"\x03").expect("a key");
        let mut lines = [player.line(), player.line()];
        lines.sort();
        let event = "Interrupt { signal: SIGINT, from_terminal: true, forwarded: false }";
        // Once, not twice.
        assert_eq!(lines, [event, "signal 2"]);
    }
    player.word();
    assert_eq!(player.rest(), ["held main ExitGroup status 0 leader true", "ended Code(0) 0"]);
}

/// Plays the interactive shell: the job in a group of its own, in the foreground.
fn as_a_job(terminal: &OwnedFd, mode: &str) {
    take_terminal(terminal);
    // SAFETY: the forked process plays vmaudit and leaves with _exit.
    let job = match unsafe { nix::unistd::fork() }.expect("fork") {
        nix::unistd::ForkResult::Child => {
            let own = nix::unistd::getpid();
            nix::unistd::setpgid(own, own).expect("setpgid");
            // SAFETY: ignoring a signal installs no handler.
            unsafe { nix::sys::signal::signal(Signal::SIGTTOU, nix::sys::signal::SigHandler::SigIgn) }
                .expect("signal");
            nix::unistd::tcsetpgrp(terminal, own).expect("tcsetpgrp");
            // SAFETY: puts the usual action back.
            unsafe { nix::sys::signal::signal(Signal::SIGTTOU, nix::sys::signal::SigHandler::SigDfl) }
                .expect("signal");
            follow(start(config(&[modes(), mode, "3"])));
            // SAFETY: ends this process without the test harness' exit handlers.
            unsafe { libc::_exit(0) }
        }
        nix::unistd::ForkResult::Parent { child } => child,
    };
    for _ in 0..3 {
        let status = waitpid(job, Some(WaitPidFlag::WUNTRACED)).expect("waitpid");
        match status {
            WaitStatus::Stopped(..) => {
                report("job stopped");
                // fg
                nix::sys::signal::killpg(job, Signal::SIGCONT).expect("killpg");
            }
            other => return report(&format!("job {other:?}").replace(&job.to_string(), "")),
        }
    }
}

#[test]
fn a_command_that_stops_itself_stops_the_job() {
    for _ in 0..10 {
        let pty = openpty(None, None).expect("a terminal");
        let mut player = play(|| as_a_job(&pty.slave, "suspend"));
        let mut lines: Vec<String> = (0..2).map(|_| player.line()).collect();
        lines.sort();
        assert_eq!(lines, ["continued", "job stopped"]);
        assert_eq!(
            player.rest(),
            ["held main ExitGroup status 3 leader true", "ended Code(3) 3", "job Exited(Pid(), 0)"]
        );
    }
}

#[test]
fn ctrl_z_stops_both_once() {
    for _ in 0..10 {
        let pty = openpty(None, None).expect("a terminal");
        let mut keyboard = std::fs::File::from(pty.master);
        let mut player = play(|| as_a_job(&pty.slave, "wait"));
        player.number("ready ");
        keyboard.write_all(b"\x1a").expect("a key");
        assert_eq!(player.line(), "job stopped");
        player.word();
        assert_eq!(
            player.rest(),
            ["held main ExitGroup status 3 leader true", "ended Code(3) 3", "job Exited(Pid(), 0)"]
        );
    }
}

#[test]
fn events_show_on_the_descriptor_that_others_poll() {
    let mut player = play(|| {
        let mut running = start(config(&[modes(), "exit", "0"]));
        let mut fds = [nix::poll::PollFd::new(running.as_fd(), nix::poll::PollFlags::POLLIN)];
        nix::poll::poll(&mut fds, nix::poll::PollTimeout::NONE).expect("poll");
        let event = running.poll(Some(std::time::Duration::ZERO)).expect("poll");
        assert!(matches!(event, TargetEvent::HeldExit(_)), "{event:?}");
        if let TargetEvent::HeldExit(held) = event {
            running.release(held).expect("release");
        }
        follow(running);
    });
    assert_eq!(player.rest(), ["ended Code(0) 0"]);
}

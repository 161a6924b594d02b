//! What holding costs a thread's exit. Prints the figures and asserts none: they are the
//! machine's. `cargo test --release --test launch cost -- --nocapture`

use crate::player::{config, follow, modes, play, report, start};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

/// Nanoseconds of a thread's life from creation to join, and of CPU time for it, the keeper's
/// included.
fn cost(mode: &str, count: i32, hold_exits: bool) -> (i32, i64) {
    let mut player = play(|| {
        let mut config = config(&[modes(), mode, &count.to_string()]);
        config.hold_exits = hold_exits;
        follow(start(config));
        let used = getrusage(UsageWho::RUSAGE_CHILDREN).expect("getrusage");
        report(&format!("cpu_us {}", (used.user_time() + used.system_time()).num_microseconds()));
    });
    let elapsed = player.number("ns_per_thread ");
    let lines = player.rest();
    assert_eq!(lines.len(), 2 + usize::from(hold_exits), "{lines:?}");
    let cpu = lines.last().and_then(|line| line.strip_prefix("cpu_us ")?.parse::<i64>().ok());
    (elapsed, cpu.expect("a number") * 1000 / i64::from(count))
}

#[test]
fn threads_that_exit_from_a_living_process() {
    for (mode, count) in [("threads", 5000), ("crowd", 2000)] {
        let (without, with) = (cost(mode, count, false), cost(mode, count, true));
        eprintln!("{mode} {count}, elapsed and CPU ns a thread: {without:?} without hold, {with:?} with");
    }
}

//! Which exits are held, in which order, and what becomes of their status.

use crate::player::{config, follow, modes, play, start};

/// What the player and the target say from start to end in this mode.
fn lines_of(words: &'static [&'static str]) -> Vec<String> {
    let mut player = play(move || {
        let mut all = vec![modes()];
        all.extend(words);
        follow(start(config(&all)));
    });
    player.rest()
}

#[test]
fn an_exit_is_held_then_reported() {
    let lines = lines_of(&["exit", "42"]);
    assert_eq!(lines, ["held main ExitGroup status 42 leader true", "ended Code(42) 42"]);
}

#[test]
fn the_last_thread_is_held_although_main_left_first() {
    let lines = lines_of(&["last-thread", "5"]);
    assert_eq!(lines[0], "held main LastThread status 5 leader false");
    // Older kernels report the leader's status, newer ones the last thread's.
    assert!(
        matches!(lines[1..], [ref end] if end == "ended Code(5) 5" || end == "ended Code(3) 3"),
        "{lines:?}"
    );
}

#[test]
fn of_two_last_threads_exactly_one_is_held() {
    for _ in 0..20 {
        let lines = lines_of(&["two-last", "4"]);
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].starts_with("held main LastThread status 4"), "{lines:?}");
        assert_eq!(lines[1], "ended Code(4) 4");
    }
}

#[test]
fn of_many_last_threads_exactly_one_is_held() {
    for _ in 0..20 {
        let lines = lines_of(&["many-last", "4"]);
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].starts_with("held main LastThread status 4"), "{lines:?}");
    }
}

#[test]
fn of_many_exit_groups_exactly_one_is_held() {
    for _ in 0..20 {
        let lines = lines_of(&["many-exit-group", "11"]);
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].starts_with("held main ExitGroup status 11"), "{lines:?}");
        assert_eq!(lines[1], "ended Code(11) 11");
    }
}

#[test]
fn pthread_exit_in_main_ends_in_exit_group_of_the_last() {
    let lines = lines_of(&["pthread-exit"]);
    assert_eq!(lines, ["held main ExitGroup status 0 leader false", "ended Code(0) 0"]);
}

#[test]
fn a_thread_that_executes_takes_the_leaders_place() {
    let mut player = play(|| follow(start(config(&[modes(), "exec-thread"]))));
    // No exit of a thread of the new program is taken for the last.
    assert_eq!(player.line(), "joined");
    player.word();
    assert_eq!(player.rest(), ["held main ExitGroup status 6 leader true", "ended Code(6) 6"]);
}

#[test]
fn a_vfork_childs_exit_is_reported_as_its_own() {
    let lines = lines_of(&["vfork", "3"]);
    assert_eq!(lines[0], "held other ExitGroup status 7 leader true");
    assert!(lines[1].starts_with("vforked ") && lines[1].ends_with(" 7"), "{lines:?}");
    assert_eq!(lines[2..], ["held main ExitGroup status 3 leader true", "ended Code(3) 3"]);
}

#[test]
fn death_by_signal_is_not_held() {
    let lines = lines_of(&["abort"]);
    assert_eq!(lines.len(), 1);
    assert!(lines[0].starts_with("ended Signal { signal: 6, core: "), "{lines:?}");
    assert!(lines[0].ends_with(" 134"), "{lines:?}");
}

#[test]
fn a_storm_of_signals_changes_nothing() {
    let lines = lines_of(&["storm", "9"]);
    assert_eq!(lines, ["held main ExitGroup status 9 leader true", "ended Code(9) 9"]);
}

#[test]
fn without_hold_only_the_end_is_reported() {
    let mut player = play(|| {
        let mut config = config(&[modes(), "exit", "8"]);
        config.hold_exits = false;
        follow(start(config));
    });
    assert_eq!(player.rest(), ["ended Code(8) 8"]);
}

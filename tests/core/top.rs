use std::rc::Rc;
use vmaudit::report::model::{CategoryRow, Origin, Process, Region, Stack};
use vmaudit::top::*;

mod cursor;

const MIB: u64 = 1 << 20;

fn sample(pid: i32, name: &str, virt: u64, rss: u64) -> ProcessSample {
    ProcessSample {
        id: ProcessId { pid, start_ticks: 7 },
        program: 1,
        name: name.to_owned(),
        user: "root".to_owned(),
        threads: 1,
        figures: Figures { virt, rss, ..Figures::default() },
        container: None,
    }
}

fn frame(time_ns: u64, processes: Vec<ProcessSample>) -> Sample {
    Sample { time_ns, processes, ..Sample::default() }
}

fn started() -> State {
    let mut state = State::new(Settings { interval_ms: 2000, ..Settings::default() });
    state.settle(Pages { table: 10, ..Pages::default() });
    let all = vec![
        sample(1, "init", 10 * MIB, 2 * MIB),
        sample(2, "redis", 90 * MIB, 9 * MIB),
        sample(3, "cat", MIB, 0),
    ];
    state.sample(frame(0, all));
    state
}

fn shown(state: &State) -> Vec<i32> {
    state.visible().iter().map(|track| track.newest.id.pid).collect()
}

fn press(state: &mut State, keys: &str) {
    for c in keys.chars() {
        state.key(Key::Char(c));
    }
}

fn details(exe: &str, categories: &[(&str, u64)]) -> Details {
    let row = |(id, virt): &(&str, u64)| CategoryRow {
        id: (*id).to_owned(),
        name: format!("name of {id}"),
        virt: *virt,
        ..CategoryRow::default()
    };
    let region = |(n, (id, virt)): (usize, &(&str, u64))| Region {
        start: format!("0x{n}000"),
        category: (*id).to_owned(),
        virt: *virt,
        origin: Some(Origin { event: n as u64, stack: Some(0), ..Origin::default() }),
        ..Region::default()
    };
    let process = Process {
        exe: exe.to_owned(),
        categories: categories.iter().map(row).collect(),
        regions: categories.iter().enumerate().map(region).collect(),
        ..Process::default()
    };
    Details { process: Rc::new(process), stacks: Rc::new(vec![Stack::default()]), at_ns: 5, took_ns: 1 }
}

#[test]
fn sorted_by_each_column_and_the_other_way_round() {
    let mut state = started();
    assert_eq!(shown(&state), [2, 1, 3], "unused");
    for (sort, expected) in [
        (SortBy::Virt, [2, 1, 3]),
        (SortBy::Rss, [2, 1, 3]),
        (SortBy::Growth, [1, 2, 3]),
        (SortBy::Name, [3, 1, 2]),
    ] {
        while state.sort != sort {
            press(&mut state, "s");
        }
        assert_eq!(shown(&state), expected, "{sort:?}");
    }
    press(&mut state, "r");
    assert_eq!(shown(&state), [2, 1, 3]);
    let before = state.sort;
    press(&mut state, "><");
    assert_eq!(state.sort, before);
}

#[test]
fn the_filter_takes_names_in_any_case_and_numbers() {
    let mut state = started();
    press(&mut state, "/RED");
    assert_eq!((shown(&state), state.typing), (vec![2], true));
    assert_eq!(state.key(Key::Char('q')), Action::Draw, "a letter, not an end");
    state.key(Key::Backspace);
    state.key(Key::Enter);
    assert_eq!((shown(&state), state.typing), (vec![2], false));
    state.key(Key::Escape);
    assert_eq!(shown(&state).len(), 3);
    press(&mut state, "/3");
    assert_eq!(shown(&state), [3]);
    state.key(Key::Escape);
    assert_eq!(shown(&state).len(), 3);
}

#[test]
fn growth_counts_from_the_first_frame_and_anew_after_an_execve() {
    let mut state = started();
    state.sample(frame(1, vec![sample(2, "redis", 95 * MIB, 9 * MIB)]));
    state.sample(frame(2, vec![sample(2, "other name", 93 * MIB, 9 * MIB)]));
    let id = ProcessId { pid: 2, start_ticks: 7 };
    let track = state.track(id).expect("it lives");
    assert_eq!((track.growth(), track.last_growth()), (3 * MIB as i64, -2 * MIB as i64), "a new name alone");
    let executed = ProcessSample { program: 2, ..sample(2, "redis", 4 * MIB, MIB) };
    state.sample(frame(3, vec![executed]));
    let track = state.track(id).expect("it lives");
    assert_eq!((track.growth(), track.last_growth()), (0, 0));
    assert_eq!(track.history.spread(10).len(), 1);
}

#[test]
fn what_has_ended_stays_for_a_moment_and_a_number_is_no_process() {
    let mut state = started();
    let other = ProcessSample { id: ProcessId { pid: 2, start_ticks: 8 }, ..sample(2, "heir", MIB, 0) };
    state.sample(frame(1, vec![sample(1, "init", 10 * MIB, 0), other.clone()]));
    assert_eq!(state.visible().iter().filter(|track| track.has_ended()).count(), 2);
    assert_eq!(state.total().0, 2, "they do not count");
    let heir = state.track(other.id).expect("a process of its own");
    assert_eq!((heir.growth(), heir.has_ended()), (0, false));
    for time in 2..6 {
        state.sample(frame(time, vec![other.clone()]));
    }
    assert_eq!(shown(&state), [2]);
}

#[test]
fn the_selected_process_stays_selected_while_others_pass_it() {
    let mut state = started();
    state.key(Key::Down);
    assert_eq!(state.visible()[state.list.index()].newest.id.pid, 1);
    state.sample(frame(
        1,
        vec![sample(1, "init", 500 * MIB, 0), sample(2, "redis", 90 * MIB, 0), sample(3, "cat", 99 * MIB, 0)],
    ));
    assert_eq!(shown(&state), [1, 3, 2]);
    assert_eq!(state.visible()[state.list.index()].newest.id.pid, 1);
    state.key(Key::End);
    state.key(Key::Enter);
    assert_eq!(state.opened_process().map(|id| id.pid), Some(2));
    state.key(Key::Escape);
    assert_eq!(state.opened_process(), None);
}

#[test]
fn paused_nothing_changes_but_keys_work() {
    let mut state = started();
    assert_eq!(state.key(Key::Char(' ')), Action::Draw);
    state.sample(frame(1, vec![]));
    state.newest_calls(Vec::new(), Tracing::default());
    assert_eq!((shown(&state), state.frames), (vec![2, 1, 3], 1));
    assert!(state.tracing.is_none());
    press(&mut state, "r");
    assert_eq!(shown(&state), [3, 1, 2]);
    assert_eq!(state.key(Key::Char(' ')), Action::Read);
    state.sample(frame(1, vec![]));
    assert_eq!(state.frames, 2);
}

#[test]
fn down_to_a_stack_and_back_to_the_list() {
    let mut state = started();
    assert_eq!(state.key(Key::Enter), Action::Read);
    let id = state.opened_process().expect("it is open");
    assert_eq!(id.pid, 2);
    assert_eq!(state.key(Key::Enter), Action::Draw, "nothing is known of it yet");
    state.details(id, details("/a", &[("small", 1), ("large", 5)]));
    press(&mut state, "s");
    state.key(Key::Enter);
    assert!(state.category().is_some());
    state.key(Key::Enter);
    assert!(matches!(state.view(), View::Stack { stack: Some(_), .. }), "{:?}", state.view());
    for depth in [4, 3, 2, 1, 1] {
        assert_eq!(state.views.len(), depth);
        state.key(Key::Escape);
    }
    assert_eq!(*state.view(), View::List);
}

#[test]
fn growth_by_category_since_the_first_snapshot_of_this_program() {
    let mut state = started();
    state.key(Key::Enter);
    let id = state.opened_process().expect("open");
    let growth = |state: &State| {
        let opened = state.opened.as_ref().expect("open");
        opened
            .lines((SortBy::Name, false))
            .iter()
            .map(|line| (line.row.id.clone(), line.growth))
            .collect::<Vec<_>>()
    };
    state.details(id, details("/a", &[("one", 10)]));
    state.details(id, details("/a", &[("one", 8), ("two", 3)]));
    assert_eq!(growth(&state), [("one".to_owned(), -2), ("two".to_owned(), 3)]);
    state.details(id, details("/a", &[("two", 3)]));
    assert_eq!(state.opened.as_ref().map(Opened::gone), Some(-10));
    state.details(id, details("/b", &[("one", 20)]));
    assert_eq!(growth(&state), [("one".to_owned(), 0)]);
    let shares = state.opened.as_ref().expect("open").shares_of("one");
    assert_eq!(shares, [StackShare { stack: Some(0), virt: 20, rss: 0, calls: 1 }]);
}

#[test]
fn parts_are_those_that_there_are() {
    let mut state = started();
    state.key(Key::Enter);
    let id = state.opened_process().expect("open");
    state.details(id, details("/a", &[("one", 10)]));
    state.key(Key::Tab);
    assert_eq!(state.pane, Pane::Table, "there are no reservations without a trace");
    state.newest_calls(Vec::new(), Tracing::default());
    state.key(Key::Tab);
    assert_eq!(state.pane, Pane::Calls);
    assert_eq!(state.key(Key::Enter), Action::Draw, "there is none");
    state.key(Key::Tab);
    state.key(Key::Enter);
    let mut panes = Vec::new();
    for _ in 0..3 {
        panes.push(state.pane);
        state.key(Key::Tab);
    }
    assert_eq!(panes, [Pane::Table, Pane::Findings, Pane::Calls]);
}

#[test]
fn takes_snapshots_more_or_less_often_within_bounds() {
    let mut state = started();
    press(&mut state, "--");
    assert_eq!(state.interval_ms, 500);
    press(&mut state, "------");
    assert_eq!(state.interval_ms, 250);
    press(&mut state, "+++++++++++");
    assert_eq!(state.interval_ms, 60_000);
    state.interval_ms = 300_000;
    press(&mut state, "+");
    assert_eq!(state.interval_ms, 300_000, "longer than any step, as requested");
    press(&mut state, "-");
    assert_eq!(state.interval_ms, 60_000);
}

#[test]
fn the_only_process_is_opened_once() {
    let mut state = State::new(Settings { single: true, ..Settings::default() });
    state.sample(frame(0, vec![sample(5, "x", 1, 0)]));
    assert_eq!(state.opened_process().map(|id| id.pid), Some(5));
    state.key(Key::Escape);
    state.sample(frame(1, vec![sample(5, "x", 1, 0)]));
    assert_eq!(*state.view(), View::List);
    state.key(Key::Enter);
    state.sample(frame(2, vec![]));
    assert_eq!(state.opened_process(), None, "it has ended: nothing to examine");
    assert_eq!(*state.view(), View::Process);
}

proptest::proptest! {
    /// Whatever is pressed whenever: no panic, and the selected row is one of those that are there.
    #[test]
    fn any_keys_in_any_order(keys in proptest::collection::vec(0u8..24, 0..120)) {
        let mut state = started();
        for (time, key) in keys.into_iter().enumerate() {
            let key = match key {
                0 => Key::Up,
                1 => Key::Down,
                2 => Key::PageUp,
                3 => Key::PageDown,
                4 => Key::Home,
                5 => Key::End,
                6..=8 => Key::Enter,
                9 => Key::Escape,
                10 => Key::Backspace,
                11 => Key::Tab,
                12 => Key::Right,
                13 => Key::Left,
                n => Key::Char(['s', '<', 'r', '/', ' ', 'h', '+', '-', 'x', 'k'][usize::from(n - 14)]),
            };
            state.key(key);
            let processes = (0..time as i32 % 4).map(|pid| sample(pid, "p", u64::from(pid.unsigned_abs()) * MIB, 0));
            state.sample(frame(time as u64, processes.collect()));
            if let Some(id) = state.opened_process() {
                state.details(id, details("/a", &[("one", 10), ("two", time as u64)]));
            }
            let rows = state.visible().len();
            proptest::prop_assert!(state.list.index() < rows.max(1));
        }
    }
}

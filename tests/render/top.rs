use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::layout::Size;
use std::rc::Rc;
use vmaudit::render::top::*;
use vmaudit::report::model::{
    CategoryRow, Finding, Fix, Frame as StackFrame, NoHelp, Origin, Process, Region, Stack, Totals, Verdict,
};
use vmaudit::top::{
    Call, Cgroup, Details, Figures, Group, Key, ProcessId, ProcessSample, Sample, Settings, State, Tracing,
};

const MIB: u64 = 1 << 20;
const SIZES: [(u16, u16); 6] = [(40, 10), (80, 24), (100, 30), (200, 50), (20, 4), (300, 12)];

fn process(pid: i32, name: &str, virt: u64, rss: u64) -> ProcessSample {
    ProcessSample {
        id: ProcessId { pid, start_ticks: 1 },
        program: 1,
        name: name.to_owned(),
        user: "postgres".to_owned(),
        threads: 3,
        figures: Figures { virt, rss, ..Figures::default() },
        container: None,
    }
}

fn list() -> State {
    let settings = Settings { title: "web01".to_owned(), interval_ms: 2000, ..Settings::default() };
    let mut state = State::new(settings);
    let processes = vec![
        process(4123, "redis-server", 110 * MIB, 9 * MIB),
        process(7, "evil\x1b[2J\u{202e}name", 5 * MIB, MIB),
        process(8, "漢字漢字漢字漢字漢字漢字", 64 * MIB, MIB),
        process(4_194_304, "x", 900 * MIB, 900 * MIB),
    ];
    state.sample(Sample { processes, took_ns: 1_500_000, ..Sample::default() });
    state
}

fn stack() -> Stack {
    let frame = |module: &str, symbol: &str, line| StackFrame {
        module: module.to_owned(),
        symbol: Some(symbol.to_owned()),
        file: Some("src/main.c".to_owned()),
        line: Some(line),
        ..StackFrame::default()
    };
    let frames = vec![frame("libc.so.6", "mmap", 1), frame("redis", "grow", 42), frame("redis", "main", 7)];
    Stack::new(frames, "complete")
}

/// A traced process that is open.
fn opened() -> State {
    let mut state = list();
    while state.sort != vmaudit::top::SortBy::Virt {
        state.key(Key::Char('s'));
    }
    state.key(Key::Down);
    state.key(Key::Enter);
    let id = state.opened_process().expect("a process is open");
    assert_eq!(id.pid, 4123);
    let row = |id: &str, name: &str, virt| CategoryRow {
        id: id.to_owned(),
        name: name.to_owned(),
        virt,
        unused: virt,
        regions: 1,
        ..CategoryRow::default()
    };
    let region = Region {
        start: "0x7f0000000000".to_owned(),
        end: "0x7f0004000000".to_owned(),
        prot: "rw-p".to_owned(),
        category: "glibc-arena".to_owned(),
        virt: 64 * MIB,
        part: "arena reserved part".to_owned(),
        origin: Some(Origin { stack: Some(0), op: "mmap".to_owned(), ..Origin::default() }),
        ..Region::default()
    };
    let finding = Finding {
        category: "glibc-arena".to_owned(),
        virt: 64 * MIB,
        unused: 63 * MIB,
        title: "glibc malloc arena".to_owned(),
        why: "the first malloc of a thread reserves a whole 64 MiB heap".to_owned(),
        fix: vec![Fix { knob: "MALLOC_ARENA_MAX=1".to_owned(), saves_virt: 63 * MIB, ..Fix::default() }],
        no_help: vec![NoHelp { knob: "retain:false".to_owned(), why: "not jemalloc".to_owned() }],
        stack: Some(0),
        ..Finding::default()
    };
    let process = Process {
        pid: 4123,
        comm: "redis-server".to_owned(),
        totals: Totals { virt: 110 * MIB, rss: 9 * MIB, unused: 101 * MIB, ..Totals::default() },
        categories: vec![
            row("glibc-arena", "glibc malloc arenas", 64 * MIB),
            row("loader", "program and libraries", 46 * MIB),
        ],
        regions: vec![region],
        findings: vec![finding],
        verdict: Some(Verdict { text: "VIRT does no harm here ".repeat(12), ..Verdict::default() }),
        ..Process::default()
    };
    state.details(
        id,
        Details { process: Rc::new(process), stacks: Rc::new(vec![stack()]), at_ns: 0, took_ns: 4_000_000 },
    );
    let call = Call {
        number: 1,
        time_ns: 3_210_000_000,
        pid: 4123,
        tid: 4124,
        comm: "worker".to_owned(),
        op: "mmap",
        bytes: Some(128 * MIB),
        text: "mmap(NULL, 134217728, PROT_NONE, MAP_PRIVATE|MAP_ANONYMOUS|MAP_NORESERVE, -1, 0)".to_owned(),
        stack: Some(Rc::new(stack())),
    };
    let elsewhere = Call { pid: 7, number: 2, comm: "not its".to_owned(), ..call.clone() };
    let tracing = Tracing { backend: "bpf".to_owned(), events: 1234, lost: 0 };
    state.newest_calls(vec![elsewhere, call], tracing);
    state
}

/// The screen as lines; draws as the terminal's owner does.
fn screen(state: &mut State, (width, height): (u16, u16), theme: Theme) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("memory");
    state.settle(pages(state, Size { width, height }));
    terminal.draw(|frame| draw(frame, state, theme)).expect("memory");
    let buffer = terminal.backend().buffer().clone();
    let row = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
    (0..height).map(row).collect()
}

fn drawn(state: &mut State, size: (u16, u16)) -> String {
    screen(state, size, Theme::PLAIN).join("\n")
}

#[test]
fn the_list_in_eighty_columns() {
    let mut state = list();
    let lines = screen(&mut state, (80, 24), Theme::PLAIN);
    assert!(lines[0].starts_with("vmaudit top · web01 · 4 processes"), "{}", lines[0]);
    assert!(lines[0].ends_with("every 2 s"));
    assert!(lines[1].contains("VIRT 1.1 GiB") && lines[1].contains("RSS 911.0 MiB"), "{}", lines[1]);
    for heading in ["PID", "USER", "NAME", "VIRT", "RSS", "unused↓", "growth"] {
        assert!(lines[2].contains(heading), "{heading}: {}", lines[2]);
    }
    assert!(lines[3].starts_with("▶   4123 postgres redis-server"), "{}", lines[3]);
    assert!(lines[3].contains("110.0 MiB    9.0 MiB  101.0 MiB"), "{}", lines[3]);
    assert!(lines[22].contains("1 snapshot, the last took 1.5 ms"), "{}", lines[22]);
    assert!(lines[23].starts_with("q quit  h help  Enter open  / filter"), "{}", lines[23]);
}

#[test]
fn no_name_reaches_the_terminal_as_it_is() {
    let mut state = list();
    for size in SIZES {
        let text = drawn(&mut state, size);
        assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{size:?}: {text:?}");
        assert!(!text.contains('\u{202e}'));
    }
    assert!(drawn(&mut state, (80, 24)).contains("evil\\u{1b}[2J"));
    assert!(!batch(&state, &[]).contains('\x1b'));
}

#[test]
fn figures_stay_in_their_columns_next_to_wide_characters() {
    let mut state = list();
    let size = (100, 24);
    let mut terminal = Terminal::new(TestBackend::new(size.0, size.1)).expect("memory");
    state.settle(pages(&state, Size { width: size.0, height: size.1 }));
    terminal.draw(|frame| draw(frame, &state, Theme::PLAIN)).expect("memory");
    let buffer = terminal.backend().buffer();
    let ends: Vec<Vec<u16>> = (3..7)
        .map(|y| {
            let cell = |x: u16| buffer[(x, y)].symbol();
            (1..size.0 - 1).filter(|&x| cell(x - 1) == "i" && cell(x) == "B" && cell(x + 1) == " ").collect()
        })
        .collect();
    assert!(ends[0].len() >= 2, "{ends:?}");
    // the columns of VIRT and RSS end where they end in each row
    assert!(ends.iter().all(|row| row.starts_with(&ends[0][..2])), "{ends:?}");
}

#[test]
fn each_page_in_each_size_and_without_colours() {
    let mut state = opened();
    for _ in 0..2 {
        for keys in [
            vec![],
            vec![Key::Tab],
            vec![Key::Enter],
            vec![Key::Escape, Key::Enter, Key::Tab],
            vec![Key::Tab],
            vec![Key::Enter],
        ] {
            keys.into_iter().for_each(|key| {
                state.key(key);
            });
            for size in SIZES {
                let plain = screen(&mut state, size, Theme::PLAIN);
                let colored = screen(&mut state, size, Theme::new(vmaudit::render::Color::Always));
                assert_eq!(plain, colored, "colours change no text");
                assert_eq!(plain.len(), usize::from(size.1));
            }
        }
        state.key(Key::Char('h'));
    }
}

#[test]
fn without_colours_there_are_none() {
    let mut state = opened();
    let size = Size { width: 100, height: 30 };
    let mut terminal = Terminal::new(TestBackend::new(100, 30)).expect("memory");
    state.settle(pages(&state, size));
    terminal.draw(|frame| draw(frame, &state, Theme::PLAIN)).expect("memory");
    let colors =
        terminal.backend().buffer().content.iter().filter(|cell| cell.fg != ratatui::style::Color::Reset);
    assert_eq!(colors.count(), 0);
}

#[test]
fn a_process_its_categories_and_its_newest_reservations() {
    let mut state = opened();
    let text = drawn(&mut state, (100, 30));
    for part in [
        "redis-server · pid 4123 · 3 threads · postgres",
        "VIRT 110.0 MiB   RSS 9.0 MiB   unused 101.0 MiB (91 %)",
        "VIRT does no harm here",
        "▶glibc malloc arenas",
        "3.21 s mmap",
        "worker",
        "grow < main",
        "traced by bpf: 1,234 calls",
    ] {
        assert!(text.contains(part), "{part}\nis not in\n{text}");
    }
    assert!(!text.contains("not its"), "another process' call\n{text}");
    state.key(Key::Tab);
    state.key(Key::Enter);
    let text = drawn(&mut state, (100, 30));
    assert!(text.contains("mmap(NULL, 134217728, PROT_NONE") && text.contains("main.c:42"), "{text}");
}

#[test]
fn the_newest_reservations_of_all_processes_below_the_list() {
    let mut state = opened();
    state.key(Key::Escape);
    let text = drawn(&mut state, (120, 30));
    for part in ["      7   3.21 s mmap", "   4123   3.21 s mmap", "not its", "main.c:42", "Tab reservations"]
    {
        assert!(text.contains(part), "{part}\nis not in\n{text}");
    }
    state.key(Key::Tab);
    state.key(Key::Down);
    state.key(Key::Enter);
    assert!(drawn(&mut state, (120, 30)).starts_with("mmap(NULL, 134217728, PROT_NONE"));
    state.key(Key::Escape);
    let text = drawn(&mut state, (40, 10));
    assert!(text.contains("▶   4123   3.21 s mmap"), "{text}");
}

#[test]
fn a_category_its_regions_and_what_can_be_done() {
    let mut state = opened();
    state.key(Key::Enter);
    let text = drawn(&mut state, (120, 30));
    for part in [
        "redis-server (4123) › glibc malloc arenas",
        "▶0x7f0000000000-0x7f0004000000 rw-p   64.0 MiB",
        "63.0 MiB unused · glibc malloc arena",
        "why  the first malloc of a thread",
        "fix  MALLOC_ARENA_MAX=1: saves up to 63.0 MiB of VIRT, no RSS",
        "not  retain:false: not jemalloc",
        "mapped since tracing began, by",
    ] {
        assert!(text.contains(part), "{part}\nis not in\n{text}");
    }
    state.key(Key::Enter);
    let text = drawn(&mut state, (120, 30));
    assert!(text.contains("redis-server (4123) › 0x7f0000000000") && text.contains("grow"), "{text}");
}

#[test]
fn a_container_has_its_own_figures() {
    let mut state = list();
    let group = Group {
        title: "container web".to_owned(),
        subtitle: "podman · 71ea9a710512".to_owned(),
        pss: Some((31 * MIB, 0)),
        cgroup: Some(Cgroup { current: 450 * MIB, max: Some(512 * MIB), ..Cgroup::default() }),
    };
    state.sample(Sample {
        time_ns: 9_000_000_000,
        processes: vec![process(1, "app", 64 * MIB, 40 * MIB)],
        group: Some(group),
        ..Sample::default()
    });
    let text = drawn(&mut state, (100, 24));
    for part in [
        "container web · podman · 71ea9a710512 · 1 process",
        "PSS 31.0 MiB (what they share counted once; 9 s old)",
        "charged 450.0 MiB · limit 512.0 MiB",
        "ended",
    ] {
        assert!(text.contains(part), "{part}\nis not in\n{text}");
    }
}

#[test]
fn plain_text_has_all_rows_and_no_mark() {
    let mut state = list();
    screen(&mut state, (80, 8), Theme::PLAIN);
    let text = batch(&state, &[]);
    assert_eq!(text.lines().count(), 3 + 4, "{text}");
    assert!(!text.contains('▶') && text.lines().all(|line| line.chars().count() <= 100), "{text}");
    let state = opened();
    let calls = state.shown_calls();
    let text = batch(&state, &calls);
    assert!(text.contains("glibc malloc arenas") && text.contains("grow < main"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
}

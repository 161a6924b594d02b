//! `vmaudit top` on a real terminal (tmux): keys, what the screen then shows, and how it is left.

use crate::support::cgroup::Group;
use crate::support::container::{self, APP, Image, Talk, unique};
use crate::support::tmux::Terminal;
use crate::support::{Guard, program, skip, skip_without_bpf, vmaudit};
use std::path::Path;
use std::process::{Command, Stdio};

fn app() -> Talk {
    Talk::start(&mut Command::new(program("container_app"))).expect("it starts")
}

fn pid(talk: &Talk) -> u32 {
    talk.client.0.id()
}

/// `vmaudit top OPTIONS`, between a line that was there before and one with its exit status.
fn script(options: &str) -> String {
    let vmaudit = vmaudit();
    format!("echo was here before; {} top -i 0.25 {options}; echo \"status $?\"; exec cat", vmaudit.display())
}

fn start(test: &str, size: (u16, u16), options: &str) -> Option<Terminal> {
    Terminal::start(test, size, &script(options)).inspect_err(|why| skip(test, why)).ok()
}

/// What was on the screen is there again, and nothing else.
fn left_as_it_was(terminal: &Terminal, status: u8) {
    let screen = terminal.shows(&["was here before", &format!("status {status}")]);
    assert!(!screen.contains("VIRT"), "{screen}");
}

#[test]
fn a_list_is_sorted_filtered_and_opened() {
    let test = "a_list_is_sorted_filtered_and_opened";
    let mut small = app();
    let mut large = Command::new(program("snapshot_threads"));
    let large = Guard(large.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts"));
    let options = format!("-p {} {}", pid(&small), large.0.id());
    let Some(terminal) = start(test, (100, 30), &options) else { return };
    let first = |screen: &str| screen.lines().nth(3).unwrap_or_default().to_owned();
    terminal.until(|screen| screen.contains("unused↓") && first(screen).contains("snapshot_thread"));
    terminal.press(&["s", "s"]);
    terminal.until(|screen| screen.contains("NAME↑") && first(screen).contains("container_app"));
    terminal.press(&["r"]);
    terminal.until(|screen| screen.contains("NAME↓") && first(screen).contains("snapshot_thread"));
    terminal.press(&["/", "CONT", "Enter"]);
    let screen = terminal.shows(&["1 named “CONT”", "container_app"]);
    assert!(!screen.contains("snapshot_thread"), "{screen}");
    terminal.press(&["Enter"]);
    terminal.shows(&[&format!("container_app · pid {}", pid(&small)), "growth 0", "program and libraries"]);
    small.send("m");
    terminal.shows(&["growth +3.0 MiB", "+3.0 MiB"]);
    // Paused, what is shown stays, whatever keys draw.
    terminal.press(&["Space"]);
    terminal.shows(&["paused", "space go on"]);
    small.send("m");
    terminal.press(&["h"]);
    terminal.shows(&["any key"]);
    terminal.press(&["h"]);
    terminal.shows(&["paused", "growth +3.0 MiB"]);
    terminal.press(&["Space"]);
    terminal.shows(&["growth +6.0 MiB"]);
    terminal.press(&["End", "Home", "Enter"]);
    terminal.shows(&["container_app (", "address range", "why, and what can be done"]);
    terminal.press(&["Escape"]);
    terminal.shows(&["regions", "growth"]);
    terminal.press(&["Escape"]);
    terminal.shows(&["1 named “CONT”"]);
    terminal.press(&["Escape"]);
    terminal.until(|screen| !screen.contains("named") && screen.contains("snapshot_thread"));
    terminal.press(&["q"]);
    left_as_it_was(&terminal, 0);
}

#[test]
fn a_new_reservation_comes_with_its_stack() {
    let test = "a_new_reservation_comes_with_its_stack";
    if skip_without_bpf(test) {
        return;
    }
    let mut app = app();
    let Some(terminal) = start(test, (100, 30), &format!("-t -p {}", pid(&app))) else { return };
    terminal.shows(&["none since tracing began", "traced by bpf"]);
    app.send("m");
    let screen = terminal.shows(&["reserve_inner < reserve_outer < main"]);
    let call = screen.lines().find(|line| line.contains("reserve_inner")).unwrap_or_default();
    assert!(call.contains("mmap") && call.contains("3.0 MiB") && call.contains("container_app"), "{call}");
    terminal.press(&["Tab", "Enter"]);
    terminal.shows(&[
        "mmap(NULL, 3145728, PROT_READ|PROT_WRITE",
        "reserve_outer",
        "container_app.c:",
        "main",
    ]);
    terminal.press(&["Escape"]);
    terminal.shows(&["reserved by", "growth +3.0 MiB"]);
    // The category that grew, and who made it grow.
    terminal.press(&["Tab", "s"]);
    terminal.until(|screen| screen.contains("growth↓"));
    terminal.press(&["Enter"]);
    terminal.shows(&["mapped since tracing began", "reserve_inner < reserve_outer < main"]);
    terminal.press(&["Enter"]);
    terminal.shows(&["reserve_inner", "container_app.c:"]);
    terminal.press(&["C-c"]);
    left_as_it_was_after_tracing(&terminal);
}

/// What tracing began with is there, too.
fn left_as_it_was_after_tracing(terminal: &Terminal) {
    let screen = terminal.shows(&["was here before", "status 0"]);
    assert!(screen.contains("tracing container_app") && !screen.contains("VIRT"), "{screen}");
}

#[test]
fn a_cgroup_has_the_processes_that_are_in_it() {
    let test = "a_cgroup_has_the_processes_that_are_in_it";
    let group = match Group::new("top") {
        Ok(group) => group,
        Err(why) => return skip(test, &why),
    };
    let (first, second) = (app(), app());
    group.put(&first);
    let path = group.0.to_str().expect("a path").to_owned();
    if let Some(terminal) = start(test, (120, 30), &format!("--cgroup {path}")) {
        terminal.shows(&["cgroup /", "1 process", "PSS ", &pid(&first).to_string()]);
        group.put(&second);
        terminal.shows(&["2 processes", &pid(&second).to_string()]);
        drop(first);
        terminal.until(|screen| screen.contains("1 process ") || screen.contains("1 process\n"));
        terminal.press(&["q"]);
        let screen = terminal.shows(&["was here before", "status 0"]);
        assert!(!screen.contains("VIRT"), "{screen}");
    }
    drop(second);
}

/// An image with the program and its libraries, and no tool.
fn bare(folder: &Path) -> Image {
    let image = Image::empty(folder);
    let app = program("container_app");
    image.add(&app, APP);
    image.add_libraries_of(&app);
    image
}

#[test]
fn a_container_by_its_name_traced() {
    let test = "a_container_by_its_name_traced";
    let name = unique("live");
    let Some((_engine, mut talk)) = container::start(test, &name, bare) else { return };
    let Some(terminal) = start(test, (120, 30), &format!("-t --container {name}")) else { return };
    terminal.shows(&[&format!("container {name} · podman"), "1 process", "PSS ", "worker"]);
    talk.send("f");
    terminal.shows(&["2 processes"]);
    talk.send("m");
    terminal.press(&["End", "Home", "Enter"]);
    // Whichever of the two is larger now.
    terminal.shows(&["worker · pid ", " inside)", "reserved by", "reserve_inner < reserve_outer"]);
    terminal.press(&["C-c"]);
    terminal.shows(&["was here before", "status 0"]);
}

#[test]
fn the_end_of_the_process_leaves_its_last_state() {
    let test = "the_end_of_the_process_leaves_its_last_state";
    let mut app = app();
    let Some(terminal) = start(test, (80, 24), &format!("-p {}", pid(&app))) else { return };
    terminal.shows(&["program and libraries"]);
    app.client.0.kill().expect("it lives");
    app.client.0.wait().expect("it ends");
    terminal.shows(&["has ended; this is its last state", "program and libraries"]);
    terminal.press(&["Escape"]);
    terminal.shows(&["no process is there to be shown"]);
    terminal.press(&["q"]);
    left_as_it_was(&terminal, 0);
}

#[test]
fn any_size_and_a_signal_that_ends_it() {
    let test = "any_size_and_a_signal_that_ends_it";
    let app = app();
    let Some(terminal) = start(test, (80, 24), &format!("-p {}", pid(&app))) else { return };
    terminal.shows(&["program and libraries"]);
    for size in [(40, 10), (200, 50), (10, 3), (80, 24)] {
        terminal.resize(size);
        terminal.until(|screen| {
            let lines: Vec<&str> = screen.lines().collect();
            // the keys are in the last line
            lines.len() == usize::from(size.1) && lines.last().is_some_and(|line| line.contains('q'))
        });
    }
    terminal.shows(&["program and libraries"]);
    assert!(terminal.colored().contains("\x1b["), "there are colours");
    // SAFETY: plain system call on the child of the terminal's shell, which waits for it.
    unsafe { libc::kill(terminal.child(), libc::SIGTERM) };
    left_as_it_was(&terminal, 0);
}

#[test]
fn stopped_and_continued_by_the_shell() {
    let test = "stopped_and_continued_by_the_shell";
    let app = app();
    let shell = "exec env PS1='prompt: ' bash --norc --noprofile -i";
    let Ok(terminal) = Terminal::start(test, (80, 24), shell).inspect_err(|why| skip(test, why)) else {
        return;
    };
    terminal.shows(&["prompt:"]);
    let command = format!("{} top -i 0.25 -p {}", vmaudit().display(), pid(&app));
    terminal.press(&[&command, "Enter"]);
    terminal.shows(&["program and libraries", "q quit"]);
    terminal.press(&["C-z"]);
    terminal.until(|screen| screen.contains("Stopped") && !screen.contains("q quit"));
    terminal.press(&["fg", "Enter"]);
    terminal.shows(&["program and libraries", "q quit"]);
    terminal.press(&["q"]);
    // What is typed before the shell reads again would be top's.
    terminal.until(|screen| !screen.contains("q quit") && screen.trim_end().ends_with("prompt:"));
    terminal.press(&["echo status $?", "Enter"]);
    terminal.until(|screen| screen.contains("status 0") && !screen.contains("q quit"));
}

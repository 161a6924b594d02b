//! Stacks of threads whose stack pointers are elsewhere, and stacks that are no thread's, held against the kernel's list of
//! tasks; what a smaller stack saves is measured.

use crate::support::managed::{installed, waiting};
use crate::support::report::{category, list, number};
use crate::support::{
    AuditReport, Guard, audit, go_program, manifest_dir, program, program_by, skip, skip_without_bpf,
    vmaudit, watchdog,
};
use serde_json::Value;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

fn snapshot(target: &Guard) -> Value {
    let pid = target.0.id().to_string();
    let output = watchdog::output(
        Command::new(vmaudit()).args(["snapshot", "-f", "json", "-p", &pid]).stdin(Stdio::null()),
    );
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    AuditReport::parse(&output.stdout).first().clone()
}

fn number_of(process: &Value, id: &str) -> u64 {
    let row = category(process, id).unwrap_or_else(|| panic!("no {id}: {}", process["categories"]));
    number(row, "regions")
}

/// What the findings of a category promise in all for a knob, bytes.
fn promised(process: &Value, id: &str, knob: &str) -> u64 {
    let mine = list(process, "findings").iter().filter(|finding| finding["category"] == id);
    let fixes = mine.flat_map(|finding| list(finding, "fix"));
    let fixes = fixes.filter(|fix| fix["knob"].as_str().is_some_and(|own| own.starts_with(knob)));
    fixes.map(|fix| number(fix, "saves_virt")).sum()
}

fn virt(target: &Guard) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", target.0.id())).expect("it lives");
    let line = status.lines().find_map(|line| line.strip_prefix("VmSize:")).expect("VmSize");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

#[test]
fn stacks_of_fibres_are_no_threads() {
    const TEST: &str = "stacks_of_fibres_are_no_threads";
    let Some(ruby) = installed("ruby") else { return skip(TEST, "no ruby") };
    let script = manifest_dir().join("tests/programs/fibres.rb");
    let (name, smaller) = ("RUBY_FIBER_MACHINE_STACK_SIZE", "131072");
    let start =
        |size: Option<&str>| waiting(Command::new(&ruby).arg(&script).envs(size.map(|size| (name, size))));
    let (as_it_is, small) = (start(None), start(Some(smaller)));
    let process = snapshot(&as_it_is);
    assert_eq!((number_of(&process, "fibre-stack"), number_of(&process, "thread-stack")), (256, 4));
    assert!(
        process["findings"].to_string().contains("256 stacks of Ruby's fibres"),
        "{}",
        process["findings"]
    );
    assert!(!process["findings"].to_string().contains("exited"), "nobody has");
    let promised_here = promised(&process, "fibre-stack", name);
    let saved = virt(&as_it_is) - virt(&small);
    assert!(saved.abs_diff(promised_here) < 1 << 20, "{promised_here} promised, {saved} saved");
    if skip_without_bpf(TEST) {
        return;
    }
    let launched = audit(&[], &[ruby.as_os_str(), script.as_os_str()]);
    let process = launched.report().first();
    assert_eq!(promised(process, "fibre-stack", name), promised_here);
    assert_eq!(number_of(process, "thread-stack"), 4);
}

/// Goroutines have stacks of their own, and Lisp's control stacks are not the C library's.
#[test]
fn threads_live_as_long_as_the_kernel_lists_them() {
    const TEST: &str = "threads_live_as_long_as_the_kernel_lists_them";
    const LISP: &str = "(progn (loop repeat 4 do (sb-thread:make-thread (lambda () (sleep 600)))) \
                        (format t \"READY~%\") (finish-output) (read-line *standard-input* nil) \
                        (sb-ext:exit :abort t))";
    let mut all = Vec::new();
    match go_program("cgo_threads", &[]) {
        Some(program) => all.push(Command::new(program)),
        None => skip(TEST, "no go"),
    }
    match installed("sbcl") {
        Some(sbcl) => {
            let mut command = Command::new(sbcl);
            command.args(["--noinform", "--no-sysinit", "--no-userinit", "--eval", LISP]);
            all.push(command);
        }
        None => skip(TEST, "no sbcl"),
    }
    for mut command in all {
        let target = waiting(&mut command);
        target.stop();
        let process = snapshot(&target);
        let tasks = std::fs::read_dir(format!("/proc/{}/task", target.0.id())).expect("threads");
        let tasks = tasks.flatten().filter_map(|task| task.file_name().to_string_lossy().parse::<u64>().ok());
        let others: BTreeSet<u64> = tasks.filter(|&tid| tid != u64::from(target.0.id())).collect();
        let regions = list(&process, "regions").iter();
        let stacks =
            regions.filter(|region| region["category"] == "thread-stack" && region["part"] == "thread stack");
        let owners: BTreeSet<u64> = stacks.filter_map(|region| region["thread"].as_u64()).collect();
        assert_eq!(owners, others, "{command:?}");
        assert!(others.len() >= 4, "{command:?}");
        // what lies beside a given stack in its mapping is not counted as more of them
        let stacks = list(&process, "regions").iter();
        let stacks = stacks
            .filter(|region| region["category"] == "thread-stack" && region["part"] == "thread stack")
            .filter_map(|region| region["instance"].as_u64());
        assert_eq!(stacks.collect::<BTreeSet<u64>>().len(), others.len(), "{command:?}");
    }
}

/// C++'s threads take `ulimit -s`, and only they: as much as the finding says.
#[test]
fn a_smaller_limit_saves_what_is_promised() {
    const TEST: &str = "a_smaller_limit_saves_what_is_promised";
    let path = program("cxx_threads");
    let limited = |kib: u64| {
        let mut command = Command::new("sh");
        waiting(command.arg("-c").arg(format!("ulimit -s {kib}; exec \"$0\"")).arg(&path))
    };
    let (usual, small) = (limited(8192), limited(1024));
    let saved = virt(&usual) - virt(&small);
    let mut all = vec![snapshot(&usual)];
    if !skip_without_bpf(TEST) {
        all.push(audit(&[], &[&path]).report().first().clone());
    }
    for process in &all {
        assert_eq!(promised(process, "thread-stack", "ulimit -s 1024"), saved);
        let stacks = process["findings"].to_string();
        assert!(!stacks.contains("RUST_MIN_STACK") && !stacks.contains("Rust"), "{stacks}");
    }
    assert_eq!(saved, 2 * (7 << 20));
    assert!(
        all[0]["findings"].to_string().contains("2 of 8 MiB and 17 of 704 KiB"),
        "{}",
        all[0]["findings"]
    );
}

/// glibc goes by the limit that held when the program started, and servers lift theirs afterwards.
#[test]
fn a_limit_that_the_program_lifted_itself_still_sizes_its_stacks() {
    const TEST: &str = "a_limit_that_the_program_lifted_itself_still_sizes_its_stacks";
    const LIFTS: &str = "import resource, sys, threading\n\
        resource.setrlimit(resource.RLIMIT_STACK, (resource.RLIM_INFINITY,) * 2)\n\
        for _ in range(4): threading.Thread(target=threading.Event().wait, daemon=True).start()\n\
        print('READY', flush=True)\n\
        sys.stdin.read()\n";
    let Some(python) = installed("python3") else { return skip(TEST, "no python3") };
    let unlimited = Command::new("sh").args(["-c", "[ \"$(ulimit -H -s)\" = unlimited ]"]).status();
    if !unlimited.is_ok_and(|status| status.success()) {
        return skip(TEST, "the limit cannot be lifted");
    }
    let started = |kib: &str| {
        let mut shell = Command::new("sh");
        shell.env("MALLOC_ARENA_MAX", "1").args(["-c", "ulimit -S -s $0; exec \"$1\" -c \"$2\"", kib]);
        waiting(shell.arg(&python).arg(LIFTS))
    };
    let (plain, small) = (started("8192"), started("1024"));
    let promised = promised(&snapshot(&plain), "thread-stack", "ulimit -s");
    assert_eq!(promised, 4 * (7 << 20));
    let saved = virt(&plain) - virt(&small);
    assert!(saved.abs_diff(promised) < 1 << 20, "{promised} promised, {saved} saved");
}

/// Stacks that are locked in memory are resident whole: a smaller size saves of both.
#[test]
fn locked_stacks_are_resident() {
    let path = program("locked_threads");
    let start = |kib: u64| {
        let mut command = Command::new("bash");
        waiting(command.arg("-c").arg(format!("ulimit -s {kib}; exec \"$0\"")).arg(&path))
    };
    let (usual, small) = (start(8192), start(1024));
    let process = snapshot(&usual);
    let all = list(&process, "findings").iter();
    let stacks: Vec<&Value> = all.filter(|finding| finding["category"] == "thread-stack").collect();
    assert!(!stacks.is_empty(), "{}", process["findings"]);
    for finding in &stacks {
        let why = finding["why"].as_str().expect("text");
        assert!(why.contains("locked in memory") && !why.contains("really used"), "{why}");
    }
    let rss = |process: &Value| number(category(process, "thread-stack").expect("stacks"), "rss");
    let saved = (virt(&usual) - virt(&small), rss(&process) - rss(&snapshot(&small)));
    let fixes = stacks.iter().flat_map(|finding| list(finding, "fix"));
    let fixes = fixes.filter(|fix| fix["knob"].as_str().is_some_and(|knob| knob.starts_with("ulimit -s")));
    let promised = fixes
        .fold((0, 0), |(virt, rss), fix| (virt + number(fix, "saves_virt"), rss + number(fix, "saves_rss")));
    assert_eq!((promised, saved), ((21 << 20, 21 << 20), (21 << 20, 21 << 20)));
}

/// As the kernel shows it, a stack that the program mapped itself is one VMA with what lies above it. The C library's
/// block for the thread shows where it ends.
#[test]
fn a_stack_ends_where_its_thread_s_block_does() {
    const TEST: &str = "a_stack_ends_where_its_thread_s_block_does";
    const STACK: u64 = 1 << 20;
    let path = program("given_stack");
    let mut waiting = Command::new(&path);
    let mut waiting = Guard(waiting.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts"));
    let mut line = String::new();
    let mut out = BufReader::new(waiting.0.stdout.take().expect("a pipe"));
    out.read_line(&mut line).expect("it speaks");
    let process = snapshot(&waiting);
    let of = |id: &str| category(&process, id).map_or(0, |row| number(row, "virt"));
    assert_eq!(
        (of("thread-stack"), of("unknown")),
        (STACK + 4096, 2 * STACK + 4096),
        "{}",
        process["categories"]
    );
    // aligned memory is memory that the program requested
    if !skip_without_bpf(TEST) {
        let launched = audit(&["--top", "100"], &[&path]);
        let findings = list(launched.report().first(), "findings");
        let arena = findings.iter().find(|finding| finding["category"] == "glibc-arena").expect("one");
        let why = arena["why"].as_str().expect("text");
        assert!(!why.contains("nobody asked"), "{why}");
        // what the same call mapped beside the stack is none, and who mapped it is named
        let process = launched.report().first();
        let virt = number(category(process, "thread-stack").expect("one"), "virt");
        assert_eq!(virt, STACK + 4096, "{}", process["categories"]);
        given(process, "given_stack, main mapped it");
    }
    given(&process, "the program mapped it");
}

/// The finding on a stack that the C library did not map has none of its settings.
fn given(process: &Value, who: &str) {
    let mut findings = list(process, "findings").iter();
    let stack = findings.find(|finding| finding["category"] == "thread-stack").expect("one");
    let why = stack["why"].as_str().expect("text");
    assert!(why.contains("a thread runs on it") && why.contains(who), "{why}");
    assert_eq!(list(stack, "threads").len(), 1, "{stack}");
    assert!(list(stack, "fix").is_empty(), "{stack}");
}

/// glibc keeps stacks of threads that were joined for later ones; until then it keeps them for who joins. musl keeps none,
/// and has none of glibc's tunables.
#[test]
fn only_glibc_keeps_stacks_of_ended_threads() {
    const TEST: &str = "only_glibc_keeps_stacks_of_ended_threads";
    if skip_without_bpf(TEST) {
        return;
    }
    let musl = program_by(("ended_thread-musl", "ended_thread"), "musl-gcc", &["-static"]);
    let musl = musl.map_err(|_| skip(TEST, "no musl-gcc")).ok();
    for (path, is_glibc) in [(Some(program("ended_thread")), true), (musl, false)] {
        let Some(path) = path else { continue };
        for is_joined in [false, true] {
            let mut command = vec![path.as_os_str()];
            command.extend(is_joined.then_some(OsStr::new("join")));
            let launched = audit(&["--top", "100"], &command);
            let mut findings = list(launched.report().first(), "findings").iter();
            let stack = findings.find(|finding| finding["category"] == "thread-stack");
            let text = stack.map(Value::to_string).unwrap_or_default();
            assert_eq!(text.contains("its thread has exited"), is_glibc || !is_joined, "{text}");
            assert_eq!(text.contains("nobody has joined"), is_glibc && !is_joined, "{text}");
            assert_eq!(text.contains("GLIBC_TUNABLES"), is_glibc && is_joined, "{text}");
            assert_eq!(text.contains("of such stacks for the next"), is_glibc && is_joined, "{text}");
        }
    }
}

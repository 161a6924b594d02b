//! Memory that is no allocator's: sanitizers, OpenMP, Rust's threads, stacks with hidden guards, what the
//! kernel and devices name, PostgreSQL. Each on a real program, launched, attached to, and as a
//! snapshot alone: category sums, evidence, and what the report says.

use crate::support::postgres::Postgres;
use crate::support::report::{category, list, number};
use crate::support::{self, AuditReport, Guard, program, program_built, skip, skip_without_bpf, vmaudit};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;
const TIB: u64 = 1024 * 1024 * MIB;

/// What a program printed up to "ready", and the program.
fn ready(command: &mut Command) -> (Guard, Vec<String>) {
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut guard = Guard(child);
    let lines = BufReader::new(guard.0.stdout.as_mut().expect("piped")).lines();
    let said: Vec<String> =
        lines.map(|line| line.expect("text")).take_while(|line| line != "ready").collect();
    (guard, said)
}

/// Once all threads wait in a call: a running one shows no stack pointer.
fn settle(pid: u32) {
    let waits = |task: std::fs::DirEntry| {
        let text = std::fs::read_to_string(task.path().join("syscall")).unwrap_or_default();
        !text.starts_with("running") && !text.is_empty()
    };
    for _ in 0..1_000_000 {
        if std::fs::read_dir(format!("/proc/{pid}/task")).expect("threads").flatten().all(waits) {
            return;
        }
        std::thread::yield_now();
    }
    panic!("the threads of {pid} go on running");
}

fn report(command: &mut Command) -> AuditReport {
    let output = support::watchdog::output(command);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    AuditReport::parse(&output.stdout)
}

fn snapshot(pid: u32) -> AuditReport {
    report(Command::new(vmaudit()).args(["snapshot", "-f", "json", "-p", &pid.to_string()]))
}

fn attach(pid: u32) -> AuditReport {
    let pid = pid.to_string();
    let mut command = Command::new(vmaudit());
    report(command.args(["attach", "-f", "json", "--duration", "0.1", "-p", &pid]).stdin(Stdio::null()))
}

/// `run` on a program that ends when its standard input does.
fn run(path: &std::path::Path, environment: &[(&str, &str)]) -> AuditReport {
    run_line(&[path], environment)
}

fn run_line(line: &[&std::path::Path], environment: &[(&str, &str)]) -> AuditReport {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("report.json");
    let mut command = support::run_command(&file, &[], line);
    command.envs(environment.iter().copied()).stdin(Stdio::null());
    let audit = support::finished(support::watchdog::output(&mut command), &file);
    audit.report().assert_exact();
    audit.report.expect("a report")
}

/// (how, its process) of a program: launched, attached to, snapshot alone.
fn three_ways(
    test: &str,
    path: &std::path::Path,
    environment: &[(&str, &str)],
) -> Vec<(&'static str, Value)> {
    let (guard, _) = ready(Command::new(path).envs(environment.iter().copied()));
    let pid = guard.0.id();
    settle(pid);
    let mut all = vec![("snapshot", snapshot(pid).first().clone())];
    if !skip_without_bpf(test) {
        all.push(("attach", attach(pid).first().clone()));
        all.push(("run", run(path, environment).first().clone()));
    }
    all
}

fn virt(process: &Value, id: &str) -> u64 {
    category(process, id).map_or(0, |row| number(row, "virt"))
}

fn things(process: &Value, id: &str) -> u64 {
    category(process, id).map_or(0, |row| number(row, "regions"))
}

/// The largest finding of a category.
fn finding<'a>(process: &'a Value, id: &str) -> &'a Value {
    let all = list(process, "findings").iter();
    let mine = all.filter(|finding| finding["category"] == id);
    mine.max_by_key(|f| number(f, "virt"))
        .unwrap_or_else(|| panic!("no finding {id}: {}", process["findings"]))
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().expect("text")
}

/// All knobs of fixes and of what does not help.
fn knobs(finding: &Value) -> String {
    let none = finding["no_help"].as_array().map_or(&[][..], Vec::as_slice);
    let all = list(finding, "fix").iter().chain(none);
    all.map(|advice| text(advice, "knob")).collect::<Vec<_>>().join("; ")
}

/// The evidence of a category's regions, each once.
fn evidence(process: &Value, id: &str) -> Vec<String> {
    let mine = list(process, "regions").iter().filter(|r| r["category"] == id);
    let mut all: Vec<String> = mine.map(|r| text(r, "evidence").to_owned()).collect();
    all.sort();
    all.dedup();
    all
}

/// A program of tests/programs with these arguments of its compiler, or None with a SKIP line.
fn built(test: &str, source: &str, compiler: &[&str]) -> Option<PathBuf> {
    let found = program_built(source, compiler);
    found.map_err(|why| skip(test, &format!("{}: {why}", compiler.join(" ")))).ok()
}

#[test]
fn sanitizers_are_named_and_called_harmless() {
    let test = "sanitizers_are_named_and_called_harmless";
    // (compiler, its option, the report's word for it, at least so much)
    let all = [
        ("gcc", "address", "AddressSanitizer", 20 * TIB),
        ("gcc", "thread", "ThreadSanitizer", 120 * TIB),
        ("gcc", "leak", "LeakSanitizer", 4 * TIB),
        ("clang", "address", "AddressSanitizer", 20 * TIB),
        ("clang", "memory", "MemorySanitizer", 90 * TIB),
        ("clang", "thread", "ThreadSanitizer", 100 * TIB),
    ];
    for (compiler, option, name, least) in all {
        let option = format!("-fsanitize={option}");
        let Some(path) = built(test, "waits.c", &[compiler, "-g", &option]) else { continue };
        for (how, process) in three_ways(test, &path, &[]) {
            let who = format!("{compiler} {option}, {how}");
            let virt_of_it = virt(&process, "sanitizer-shadow");
            assert!(virt_of_it >= least - TIB / 100, "{who}: {}", process["categories"]);
            assert!(virt(&process, "unknown") < 64 * MIB, "{who}: {}", process["categories"]);
            let largest = &list(&process, "findings")[0];
            assert_eq!(largest["category"], "sanitizer-shadow", "{who}");
            assert!(text(largest, "title").contains(name), "{who}: {}", largest["title"]);
            assert!(text(largest, "why").contains("harmless"), "{who}: {}", largest["why"]);
            assert!(knobs(largest).contains("ulimit -v"), "{who}: {}", knobs(largest));
            // what it was mapped for is the program's own: nothing else is taken for it
            assert!(virt(&process, "main-stack") >= 128 * KIB, "{who}");
            let expected: &[&str] = if how == "run" { &["name", "stack"] } else { &["header", "name"] };
            let seen = evidence(&process, "sanitizer-shadow");
            assert!(seen.iter().all(|e| expected.contains(&e.as_str())), "{who}: {seen:?}");
        }
    }
}

#[test]
fn openmp_threads_are_named_where_their_stacks_show_it() {
    let test = "openmp_threads_are_named_where_their_stacks_show_it";
    let Some(path) = built(test, "omp_threads.c", &["gcc", "-O2", "-g", "-fopenmp"]) else { return };
    for (how, process) in three_ways(test, &path, &[("OMP_NUM_THREADS", "4")]) {
        assert_eq!(things(&process, "thread-stack"), 3, "{how}");
        assert_eq!(virt(&process, "unknown"), 0, "{how}");
        let stacks = finding(&process, "thread-stack");
        if how == "run" {
            assert_eq!(stacks["title"], "3 stacks of OpenMP threads");
            assert!(knobs(stacks).contains("OMP_STACKSIZE") && knobs(stacks).contains("OMP_NUM_THREADS"));
        } else {
            assert!(text(stacks, "why").contains("libgomp is loaded"), "{how}: {}", stacks["why"]);
        }
    }
    if !skip_without_bpf(test) {
        let small = run(&path, &[("OMP_NUM_THREADS", "4"), ("OMP_STACKSIZE", "256K")]);
        assert_eq!(virt(small.first(), "thread-stack"), 3 * 260 * KIB);
    }
}

#[test]
fn rust_threads_and_their_signal_stacks() {
    let test = "rust_threads_and_their_signal_stacks";
    let Some(path) = built(test, "rust_threads.rs", &["rustc", "-O", "-g"]) else { return };
    for (how, process) in three_ways(test, &path, &[]) {
        // a stack of 2 MiB and a signal stack each; one more signal stack for the first thread
        assert_eq!(things(&process, "thread-stack"), 4 + 5 - u64::from(how == "run"), "{how}");
        assert_eq!(virt(&process, "unknown"), 0, "{how}: {}", process["categories"]);
        let stacks = finding(&process, "thread-stack");
        if how == "run" {
            assert!(text(stacks, "why").contains("Rust's std"), "{}", stacks["why"]);
            assert!(knobs(stacks).contains("RUST_MIN_STACK") && knobs(stacks).contains("ulimit -s"));
            assert!(list(stacks, "no_help").iter().any(|none| none["knob"] == "ulimit -s"));
        }
    }
    if !skip_without_bpf(test) {
        // the size is not the one that std has without the variable
        let larger = run(&path, &[("RUST_MIN_STACK", "4194304")]);
        let stacks = finding(larger.first(), "thread-stack");
        let no_help = list(stacks, "no_help").iter().find(|none| none["knob"] == "ulimit -s").expect("said");
        assert!(!text(no_help, "why").contains("2 MiB"), "{no_help}");
        assert!(knobs(stacks).contains("thread::Builder::stack_size"), "{stacks}");
    }
}

#[test]
fn stacks_without_a_guard_of_their_own_are_distinguished() {
    let test = "stacks_without_a_guard_of_their_own_are_distinguished";
    let path = program("hidden_guards");
    let (guard, said) = ready(&mut Command::new(&path));
    if said.iter().any(|line| line == "refused") {
        return skip(test, "no MADV_GUARD_INSTALL (Linux 6.13)");
    }
    drop(guard);
    for (how, process) in three_ways(test, &path, &[]) {
        assert_eq!((things(&process, "thread-stack"), virt(&process, "unknown")), (3, 0), "{how}");
        assert_eq!(virt(&process, "thread-stack"), 3 * (MIB + 4 * KIB), "{how}");
        let mine = list(&process, "regions").iter().filter(|r| r["category"] == "thread-stack");
        let guards: Vec<u64> = mine.filter(|r| r["part"] == "guard").map(|r| number(r, "virt")).collect();
        assert_eq!(guards, [4 * KIB; 3], "{how}");
        let why = text(finding(&process, "thread-stack"), "why");
        assert!(why.contains("MADV_GUARD_INSTALL"), "{how}: {why}");
    }
    // none at all: stack pointers decide
    let (guard, _) = ready(Command::new(&path).arg("none"));
    settle(guard.0.id());
    let report = snapshot(guard.0.id());
    assert_eq!(things(report.first(), "thread-stack"), 3);
    assert_eq!(evidence(report.first(), "thread-stack"), ["thread"]);
}

#[test]
fn what_the_kernel_names_is_recognised_by_its_name() {
    let test = "what_the_kernel_names_is_recognised_by_its_name";
    let path = program("special_mappings");
    let (guard, said) = ready(&mut Command::new(&path));
    drop(guard);
    let has = |word: &str| said.iter().any(|line| line == word);
    for (how, process) in three_ways(test, &path, &[]) {
        let expect = |id: &str, parts: &[(&str, u64)]| {
            let sum: u64 = parts.iter().filter(|(word, _)| has(word)).map(|(_, bytes)| bytes).sum();
            assert_eq!(virt(&process, id), sum, "{id}, {how}: {}", process["categories"]);
        };
        expect("io-uring", &[("io-uring", (132 + 256) * KIB)]);
        expect("kernel-buffer", &[("perf", 36 * KIB), ("bpf", 192 * KIB)]);
        expect("memfd", &[("memfd", 5 * MIB)]);
        expect("sysv-shm", &[("sysv", 3584 * KIB)]);
        expect("shared-anon", &[("shared", 1536 * KIB), ("posix", 2560 * KIB)]);
        expect("hugetlb", &[("memfd-huge", 4 * MIB), ("hugetlb", 8 * MIB)]);
        assert_eq!(evidence(&process, "memfd"), ["name"], "{how}");
        let titles: Vec<&str> = list(&process, "findings").iter().map(|f| text(f, "title")).collect();
        assert!(
            titles.iter().any(|title| title.contains("memfd \u{201c}picture cache\u{201d}")),
            "{titles:?}"
        );
        // a kernel without CONFIG_ANON_VMA_NAME shows the name in the traced call
        if has("named") || how == "run" {
            let named = titles.iter().any(|title| title.contains("named \u{201c}tile store\u{201d}"));
            assert!(named, "{how}: {titles:?}");
            assert_eq!(virt(&process, "unknown"), 0, "{how}");
        }
        if has("hugetlb") {
            let huge = text(finding(&process, "hugetlb"), "why");
            assert!(huge.contains("never count as RSS"), "{how}: {huge}");
            assert!(huge.contains("2.0 MiB of it are in use") || how == "run", "{how}: {huge}");
        }
    }
    if !has("hugetlb") {
        skip(test, "huge pages: the pool is empty (vm.nr_hugepages)");
    }
}

#[test]
fn valgrinds_own_memory_is_not_the_programs() {
    let test = "valgrinds_own_memory_is_not_the_programs";
    let mut command = Command::new("valgrind");
    if command.arg("--version").output().is_err() {
        return skip(test, "no valgrind (apt-get install valgrind)");
    }
    let mut command = Command::new("valgrind");
    let (guard, _) = ready(command.arg("-q").arg(program("waits")));
    let report = snapshot(guard.0.id());
    let process = report.first();
    assert!(virt(process, "valgrind") > 20 * MIB, "{}", process["categories"]);
    assert!(virt(process, "unknown") < MIB, "{}", process["categories"]);
    assert!(evidence(process, "valgrind").contains(&"header".to_owned()));
}

#[test]
fn postgresql_shares_its_memory_by_fork() {
    let test = "postgresql_shares_its_memory_by_fork";
    let server = match Postgres::start() {
        Ok(server) => server,
        Err(why) => return skip(test, why),
    };
    let mut session = server.session();
    session.query("select count(*) from pg_class;");
    let mut reports = vec![("snapshot", snapshot(session.pid))];
    if !skip_without_bpf(test) {
        reports.push(("attach", attach(session.pid)));
    }
    for (how, report) in &reports {
        let process = report.first();
        // 128 MiB of buffers by default, and what else is shared
        assert!(virt(process, "shared-anon") > 128 * MIB, "{how}: {}", process["categories"]);
        assert!(virt(process, "unknown") <= MIB, "{how}: {}", process["categories"]);
        let shared = finding(process, "shared-anon");
        assert_eq!(shared["title"], "PostgreSQL's shared memory", "{how}");
        for words in ["inherited by each of its processes", "Pss"] {
            assert!(text(shared, "why").contains(words), "{how}: {}", shared["why"]);
        }
        assert!(knobs(shared).contains("shared_buffers") && knobs(shared).contains("huge_pages=off"));
        let seen = evidence(process, "shared-anon");
        assert!(seen.iter().all(|e| ["kernel", "name"].contains(&e.as_str())), "{how}: {seen:?}");
    }
}

#[test]
fn only_names_that_can_be_read_name_memory() {
    let test = "only_names_that_can_be_read_name_memory";
    if skip_without_bpf(test) {
        return;
    }
    let report = run(&program("named_parts"), &[]);
    let process = report.first();
    assert_eq!((virt(process, "app-mmap"), virt(process, "v8")), (24 * MIB, 4 * MIB));
    let named =
        list(process, "regions").iter().filter(|r| r["category"] == "app-mmap" && r["evidence"] == "name");
    assert_eq!(named.map(|region| number(region, "virt")).sum::<u64>(), 4 * MIB);
    let titles: Vec<&str> = list(process, "findings").iter().map(|f| text(f, "title")).collect();
    assert!(titles.iter().any(|title| title.contains("\u{201c}middle part\u{201d}")), "{titles:?}");
    assert!(
        !titles.iter().any(|t| ["\u{201c}\u{201d}", "forgotten", "no name"].iter().any(|w| t.contains(w)))
    );
}

/// Debian calls musl's one file libc.so; as other systems call it, it is a loader by its name.
#[test]
fn what_a_program_on_musl_maps_itself_is_its_own() {
    let test = "what_a_program_on_musl_maps_itself_is_its_own";
    let Some(path) = built(test, "own_mmap.c", &["musl-gcc", "-O1", "-g"]) else { return };
    if skip_without_bpf(test) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let loader = folder.path().join("ld-musl-x86_64.so.1");
    std::fs::copy("/lib/ld-musl-x86_64.so.1", &loader).expect("musl's loader");
    for line in [&[path.as_path()][..], &[loader.as_path(), path.as_path()]] {
        let report = run_line(line, &[]);
        let process = report.first();
        assert_eq!(virt(process, "app-mmap"), 8 * MIB, "{line:?}: {}", process["categories"]);
        let (malloc, stacks) = (virt(process, "musl-malloc"), virt(process, "thread-stack"));
        assert!((12 * MIB..13 * MIB).contains(&malloc), "{line:?}: {}", process["categories"]);
        assert_eq!((things(process, "thread-stack"), stacks), (4, 4 * 140 * KIB), "{line:?}");
        assert!(virt(process, "loader") < MIB, "{line:?}: {}", process["categories"]);
    }
    // Without a call to go by, malloc's own descriptions show what is malloc's.
    let mut waiting = Command::new(&path);
    let mut waiting = Guard(waiting.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts"));
    let mut line = String::new();
    let mut said = BufReader::new(waiting.0.stdout.take().expect("a pipe"));
    said.read_line(&mut line).expect("it speaks");
    let alone = snapshot(waiting.0.id());
    let process = alone.first();
    assert_eq!(virt(process, "unknown"), 8 * MIB, "{}", process["categories"]);
    let malloc = list(process, "regions").iter().filter(|region| region["category"] == "musl-malloc");
    let (mut sum, mut headers) = (0, true);
    for region in malloc {
        sum += number(region, "virt");
        headers &= region["evidence"] == "header";
    }
    assert!((12 * MIB..13 * MIB).contains(&sum) && headers, "{}", process["regions"]);
}

/// A stripped program has its libc inside, and no names: which call is malloc's shows in the call.
#[test]
fn what_is_mapped_into_a_reservation_is_not_musls() {
    let test = "what_is_mapped_into_a_reservation_is_not_musls";
    let static_and_stripped = ["musl-gcc", "-O1", "-static", "-s"];
    let Some(path) = built(test, "opened_reservation.c", &static_and_stripped) else { return };
    if skip_without_bpf(test) {
        return;
    }
    let found = run(&path, &[]);
    let process = found.first();
    assert!(virt(process, "musl-malloc") < MIB, "{}", process["categories"]);
    assert_eq!(virt(process, "app-mmap"), 1 << 30, "{}", process["categories"]);
}

//! `vmaudit heap -p PID --arenas`: what it reads in a process' memory is what glibc says there, and what it
//! promises of `malloc_trim(0)` is what that gives back.

use crate::support::heap::{Obedient, first, frames};
use crate::support::report::{list, number};
use crate::support::unprivileged::{Bench, as_nobody, skip_without_root};
use crate::support::{program, skip, static_program, vmaudit, watchdog};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

fn arenas(pid: u32, options: &[&str]) -> Output {
    watchdog::output(Command::new(vmaudit()).args(["heap", "--arenas", "-p", &pid.to_string()]).args(options))
}

fn fragmentation(pid: u32) -> Value {
    let output = arenas(pid, &["-f", "json"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let report: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}"));
    assert!(output.status.success(), "{said}");
    let found = first(&report)["fragmentation"].clone();
    assert_eq!(found["knows_pages"], true, "{said}");
    list(&found, "arenas").iter().for_each(assert_adds_up);
    assert_adds_up(&found["total"]);
    found
}

fn assert_adds_up(arena: &Value) {
    let parts = ["in_use", "thread_caches", "fast", "free", "top", "own"];
    assert_eq!(parts.iter().map(|part| number(arena, part)).sum::<u64>(), number(arena, "read"), "{arena}");
    let (pages, trim) = (&arena["pages"], &arena["trim"]);
    let resident = ["used", "beside", "whole"].iter().map(|part| number(pages, part)).sum::<u64>();
    assert_eq!(resident + number(trim, "inside") + number(trim, "top"), number(pages, "resident"), "{arena}");
    let absent = number(pages, "absent") + number(pages, "swapped");
    assert_eq!(number(pages, "resident") + absent, number(arena, "read"), "{arena}");
}

/// An arena as malloc_info(3) has it.
#[derive(Default, Debug, PartialEq, Eq)]
struct Counted {
    fast: (u64, u64),
    rest: (u64, u64),
    system: u64,
}

/// The number in `name="…"` of a line.
fn attribute(line: &str, name: &str) -> u64 {
    let (_, rest) = line.split_once(&format!("{name}=\"")).unwrap_or_else(|| panic!("{line}"));
    rest.split('"').next().and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{line}"))
}

struct Truth {
    arenas: Vec<Counted>,
    /// arena, uordblks, fordblks, fsmblks, keepcost, hblks, hblkhd.
    mallinfo: Vec<u64>,
}

fn truth_of(target: &mut Obedient) -> Truth {
    let mut arenas = Vec::new();
    let mut line = target.order("info");
    loop {
        let counted = |line: &str| (attribute(line, "count"), attribute(line, "size"));
        match line.trim_start() {
            text if text.starts_with("<heap ") => arenas.push(Counted::default()),
            text if text.starts_with("</malloc>") => break,
            text => {
                // Behind the last arena the same is said of all together.
                let open = arenas.last_mut().filter(|reported: &&mut Counted| reported.system == 0);
                match open {
                    Some(reported) if text.starts_with("<total type=\"fast\"") => {
                        reported.fast = counted(text)
                    }
                    Some(reported) if text.starts_with("<total type=\"rest\"") => {
                        reported.rest = counted(text)
                    }
                    Some(reported) if text.starts_with("<system type=\"current\"") => {
                        reported.system = attribute(text, "size");
                    }
                    _ => {}
                }
            }
        }
        line = target.answer();
    }
    let line = std::iter::from_fn(|| Some(target.answer())).find(|line| line.starts_with("mallinfo"));
    Truth { arenas, mallinfo: numbers(&line.expect("a line")) }
}

fn numbers(line: &str) -> Vec<u64> {
    line.split_whitespace().skip(1).map(|word| word.parse().expect("a number")).collect()
}

fn ready(path: &Path, arguments: &[&str]) -> Obedient {
    let mut target = Obedient::start(path, arguments);
    assert_eq!(target.answer(), "ready");
    target
}

fn agrees_with_glibc(path: &Path, arguments: &[&str]) {
    let mut target = ready(path, arguments);
    let pid = target.program.0.id();
    let truth = truth_of(&mut target);
    let found = fragmentation(pid);
    let arenas = list(&found, "arenas");
    let reported = arenas.iter().map(|arena| {
        assert!(arena["doubt"].is_null(), "{arena}");
        let blocks = number(arena, "free_blocks");
        // What it sums up of lists has the flag PREV_INUSE of each block in it.
        let rest = number(arena, "free") + number(arena, "top") + blocks;
        let fast = (number(arena, "fast_blocks"), number(arena, "fast"));
        Counted { fast, rest: (blocks + 1, rest), system: number(arena, "mapped") }
    });
    assert_eq!(reported.collect::<Vec<_>>(), truth.arenas);
    let total = &found["total"];
    let [arena, uordblks, fordblks, fsmblks, keepcost, hblks, hblkhd] = truth.mallinfo[..] else {
        panic!("{:?}", truth.mallinfo)
    };
    let of = |names: &[&str]| names.iter().map(|name| number(total, name)).sum::<u64>();
    assert_eq!(of(&["mapped"]), arena);
    assert_eq!(of(&["in_use", "thread_caches", "own"]), uordblks);
    assert_eq!(of(&["free", "top", "fast"]), fordblks);
    assert_eq!(of(&["fast"]), fsmblks);
    assert_eq!(number(&arenas[0], "top"), keepcost);
    let mapped = &found["mapped_blocks"];
    assert_eq!((number(mapped, "blocks"), number(mapped, "bytes")), (hblks, hblkhd));

    let promised = number(&total["trim"], "inside") + number(&total["trim"], "top");
    assert!(promised > 1 << 20, "{total}");
    let [fallen] = numbers(&target.order("trim"))[..] else { panic!("one number") };
    // The stack or the C library may have touched a page meanwhile.
    assert!(fallen.abs_diff(promised) <= 16 * 4096, "{promised} promised, {fallen} fallen");
    let after = fragmentation(pid);
    let trim = &after["total"]["trim"];
    assert_eq!(number(trim, "inside") + number(trim, "top"), 0, "{trim}");
}

#[test]
fn each_arena_is_what_malloc_info_says() {
    agrees_with_glibc(&program("arenas"), &["3", "20000"]);
}

#[test]
fn of_one_thread() {
    agrees_with_glibc(&program("arenas"), &["0", "20000"]);
}

/// Of more than 64 MiB: several heaps each.
#[test]
fn of_several_heaps() {
    agrees_with_glibc(&program("arenas"), &["1", "120000"]);
}

/// The program's data have the main arena, and brk was in use before malloc.
#[test]
fn of_a_static_program() {
    agrees_with_glibc(&static_program("arenas"), &["1", "20000"]);
}

/// brk begins where the program's data end, amid a page.
#[test]
fn without_randomised_addresses() {
    let path = program("arenas");
    let setarch = ["-R", path.to_str().expect("UTF-8"), "1", "20000"];
    agrees_with_glibc(Path::new("setarch"), &setarch);
}

#[test]
fn a_user_reads_processes_of_his_own() {
    if skip_without_root("a_user_reads_processes_of_his_own") {
        return;
    }
    let bench = Bench::new();
    let target = bench.copy(&program("arenas"), "target", 0o755);
    let mut target = Obedient::spawn(as_nobody(&[]).arg(target).arg("1"));
    assert_eq!(target.answer(), "ready");
    let pid = target.program.0.id();
    let output = watchdog::output(bench.with(&[]).args(["heap", "--arenas", "-p", &pid.to_string()]));
    let (text, said) =
        (String::from_utf8_lossy(&output.stdout).into_owned(), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}");
    assert!(text.contains("malloc_trim(0) frees") && text.contains("main"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    let other =
        watchdog::output(bench.with(&[]).args(["heap", "--arenas", "-p", &std::process::id().to_string()]));
    assert!(!other.status.success() && String::from_utf8_lossy(&other.stderr).contains("may not be read"));
}

/// With the blocks that are counted, rounding is exact, and who holds nearly empty pages has a name.
#[test]
fn what_was_requested_and_which_stacks_hold_pages() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("report.json");
    let mut vmaudit = Command::new(vmaudit());
    vmaudit.args(["heap", "--as-root", "--method", "preload", "--duration", "2", "-f", "json", "--report"]);
    let mut target =
        Obedient::spawn(vmaudit.arg(&file).arg("--").arg(program("arenas")).args(["2", "20000"]));
    assert_eq!(target.answer(), "ready");
    let [blocks, requested, usable] = numbers(&target.order("held"))[..] else { panic!("three numbers") };
    // The program goes on until its standard input ends.
    let _open = target.program.0.stdin.take();
    let status = target.program.0.wait().expect("vmaudit ends");
    assert!(status.success());
    let report: Value = serde_json::from_slice(&std::fs::read(&file).expect("a report")).expect("JSON");
    let process = first(&report);
    let found = &process["fragmentation"];
    let known = &found["total"]["known"];
    // The C library's own blocks, and the threads', are known, too.
    let few = |known: u64, of: u64| (of..=of + 200 * 1024).contains(&known);
    assert!(
        few(number(known, "blocks"), blocks) && number(known, "blocks") < blocks + 100,
        "{known} {blocks}"
    );
    assert!(few(number(known, "asked"), requested), "{known} {requested}");
    assert!(number(known, "rounding").abs_diff(usable - requested) < 2048, "{known} {}", usable - requested);
    let holders = list(found, "holders");
    let largest = holders.first().expect("a holder");
    let row = &list(process, "rows")[largest["row"].as_u64().expect("a row") as usize];
    let frames = frames(&report, row);
    assert!(frames.iter().any(|frame| frame["symbol"] == "fill"), "{row}");
    let kept: u64 = holders.iter().map(|holder| number(holder, "kept")).sum();
    let pages = &found["total"]["pages"];
    let free = number(pages, "sparse_pages") * 4096 - number(pages, "sparse_used");
    assert!(kept <= free && kept * 10 >= free * 9, "{kept} of {free}");
}

/// What cannot be read is named, with the evidence for it.
#[test]
fn allocators_that_are_not_read_are_named() {
    // A library that has the name, and no segments.
    let folder = tempfile::tempdir().expect("a temporary folder");
    let other = folder.path().join("libmimalloc.so.3");
    std::fs::copy("/lib/x86_64-linux-gnu/libdl.so.2", &other).expect("glibc's library");
    let tcmalloc = Path::new("/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4");
    for (file, name, variable) in
        [(other.as_path(), "mimalloc 3", "MIMALLOC_SHOW_STATS"), (tcmalloc, "tcmalloc 4", "MALLOCSTATS")]
    {
        if !file.exists() {
            skip("allocators_that_are_not_read_are_named", &format!("no {}", file.display()));
            continue;
        }
        let mut target = Obedient::spawn(Command::new("cat").env("LD_PRELOAD", file));
        assert_eq!(target.order("it runs"), "it runs");
        let pid = target.program.0.id();
        let output = arenas(pid, &["-f", "json"]);
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let found = &first(&report)["fragmentation"];
        let [unread] = list(found, "unread") else { panic!("{found}") };
        assert!(unread["allocator"].as_str().is_some_and(|found| found.starts_with(name)), "{unread}");
        let text = arenas(pid, &[]);
        let text = String::from_utf8_lossy(&text.stdout).into_owned();
        assert!(text.contains(name) && text.contains(variable), "{text}");
    }
}

//! `vmaudit heap -p PID --arenas`: mimalloc's segments are what mimalloc itself counts in its heaps.

use crate::support::heap::{Obedient, first};
use crate::support::report::{list, number};
use crate::support::{program_with, skip_this, vmaudit, watchdog};
use serde_json::Value;
use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

fn numbers(line: &str) -> HashMap<String, u64> {
    let pairs = line.split(' ').skip(1).map(|word| word.split_once('=').expect("name=value"));
    pairs.map(|(name, value)| (name.to_owned(), value.parse().expect("a number"))).collect()
}

fn arenas(pid: u32, format: &str) -> String {
    let mut command = Command::new(vmaudit());
    let output = watchdog::output(command.args(["heap", "--arenas", "-p", &pid.to_string(), "-f", format]));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn segments(pid: u32) -> Value {
    let report: Value = serde_json::from_str(&arenas(pid, "json")).expect("JSON");
    let fragmentation = &first(&report)["fragmentation"];
    assert_eq!(fragmentation["unread"], Value::Null, "{fragmentation}");
    let [found] = list(fragmentation, "segments") else { panic!("{fragmentation}") };
    assert_eq!(found["doubtful"], 0, "{found}");
    for heap in list(found, "heaps") {
        let of = |names: &[&str]| names.iter().map(|name| number(heap, name)).sum::<u64>();
        assert_eq!(of(&["used", "returned", "inside", "padding"]), number(heap, "pages"), "{heap}");
        assert_eq!(of(&["pages", "free", "own"]), number(heap, "mapped"), "{heap}");
        assert!(number(heap, "resident") <= number(heap, "pages"), "{heap}");
    }
    found.clone()
}

/// What the process has in memory where mimalloc's segments are.
fn rss_at(pid: u32, expected: impl Fn(u64) -> bool) -> u64 {
    let smaps = std::fs::read_to_string(format!("/proc/{pid}/smaps")).expect("it lives");
    let (mut inside, mut kib) = (false, 0);
    for line in smaps.lines() {
        let first = line.split(' ').next().unwrap_or_default();
        if let Some((start, _)) = first.split_once('-') {
            inside = u64::from_str_radix(start, 16).is_ok_and(&expected);
        } else if inside && first == "Rss:" {
            kib += line.split_whitespace().nth(1).and_then(|text| text.parse::<u64>().ok()).expect("kB");
        }
    }
    kib << 10
}

#[test]
fn the_figures_are_those_of_mi_heap_visit_blocks() {
    let library = "/usr/lib/x86_64-linux-gnu/libmimalloc.so.2.0";
    let path = program_with("segments", "-lmimalloc").filter(|_| Path::new(library).exists());
    let Some(path) = path else { return skip_this("no libmimalloc.so.2.0 (libmimalloc-dev)") };
    let mut target = Obedient::start(&path, &["3"]);
    let version = numbers(&target.answer())["version"];
    let pid = target.program.0.id();
    let before = segments(pid);
    let total = &before["total"];
    // What other threads freed lies in lists until the owner takes it back, and mimalloc counts it until then.
    assert!(number(total, "returned_blocks") > 100, "{total}");
    let text = arenas(pid, "text");
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    assert!(text.contains("to be taken back") && text.contains("thread 0x"), "{text}");
    // This one places segments where the kernel places nothing.
    let resident = ["resident", "free_resident", "own_resident"].map(|name| number(total, name));
    let rss = rss_at(pid, |start| (0x200_0000_0000..0x1e00_0000_0000).contains(&start));
    assert_eq!(resident.iter().sum::<u64>(), rss, "{total}");

    target.order("collect");
    let visited = numbers(&target.order("visit"));
    let after = segments(pid);
    for found in [&before, &after] {
        let total = &found["total"];
        let ended = list(found, "heaps").iter().filter(|heap| heap["owner"] == "ended");
        let (blocks, bytes) = ended.fold((0, 0), |(blocks, bytes), heap| {
            (blocks + number(heap, "used_blocks"), bytes + number(heap, "used"))
        });
        assert_eq!(number(total, "used_blocks") - blocks, visited["blocks"], "{total}");
        assert_eq!(number(total, "used") - bytes, visited["bytes"], "{total}");
    }
    assert_eq!(number(&after["total"], "returned_blocks"), 0, "{after}");
    let allocator = before["allocator"].as_str().expect("a name");
    assert_eq!((version, allocator), (209, "mimalloc 2.0.9 to 2.1.2"));
}

/// Blocks that a thread left when it ended, and that no other thread adopted.
#[test]
fn what_a_thread_left_is_reported() {
    let Some(path) = program_with("segments", "-lmimalloc") else {
        return skip_this("no libmimalloc.so (libmimalloc-dev)");
    };
    let mut target = Obedient::start(&path, &["0"]);
    target.answer();
    let found = segments(target.program.0.id());
    let visited = numbers(&target.order("visit"));
    let left: Vec<&Value> = list(&found, "heaps").iter().filter(|heap| heap["thread"].is_null()).collect();
    let sum = |name: &str| left.iter().map(|heap| number(heap, name)).sum::<u64>();
    assert_eq!(sum("used_blocks"), visited["left_blocks"], "{found}");
    assert_eq!(sum("used"), visited["left_bytes"], "{found}");
}

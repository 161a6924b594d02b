//! `vmaudit heap -p PID --arenas`: jemalloc's extents are what jemalloc says of itself, to the byte.

use crate::support::heap::{Obedient, first};
use crate::support::report::{list, number};
use crate::support::{program_with, skip_this, vmaudit, watchdog};
use serde_json::Value;
use std::collections::HashMap;
use std::process::Command;

const PAGE: u64 = 4096;

fn numbers(line: &str) -> HashMap<String, u64> {
    let pairs = line.split(' ').skip(1).map(|word| word.split_once('=').expect("name=value"));
    pairs.map(|(name, value)| (name.to_owned(), value.parse().expect("bytes"))).collect()
}

fn arenas(pid: u32, format: &str) -> String {
    let mut command = Command::new(vmaudit());
    let output = watchdog::output(command.args(["heap", "--arenas", "-p", &pid.to_string(), "-f", format]));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn extents(pid: u32) -> Value {
    let report: Value = serde_json::from_str(&arenas(pid, "json")).expect("JSON");
    let heap = first(&report)["fragmentation"]["extents"][0].clone();
    assert_eq!(heap["doubtful"], 0, "{heap}");
    for arena in list(&heap, "arenas") {
        let of = |names: &[&str]| names.iter().map(|name| number(arena, name)).sum::<u64>();
        assert_eq!(of(&["small", "inside", "large", "padding"]), number(arena, "active"), "{arena}");
        assert_eq!(of(&["active", "dirty", "muzzy", "retained"]), number(arena, "mapped"), "{arena}");
    }
    heap
}

/// Nothing is purged by itself meanwhile.
fn agrees(options: &str) {
    let Some(path) = program_with("extents", "-ljemalloc") else {
        return skip_this("no libjemalloc.so (libjemalloc-dev)");
    };
    let mut target = Obedient::spawn(Command::new(path).arg("3").env("MALLOC_CONF", options));
    assert_eq!(target.answer(), "ready");
    let pid = target.program.0.id();
    let reported = numbers(&target.order("stats"));
    let heap = extents(pid);
    let total = &heap["total"];
    let of = |names: &[&str]| names.iter().map(|name| number(total, name)).sum::<u64>();
    assert_eq!(of(&["small", "large"]), reported["allocated"], "{total}");
    assert_eq!(of(&["active"]), reported["active"], "{total}");
    assert_eq!(of(&["retained"]), reported["retained"], "{total}");
    assert_eq!(of(&["dirty"]), reported["pdirty"] * PAGE, "{total}");
    assert_eq!(of(&["muzzy"]), reported["pmuzzy"] * PAGE, "{total}");
    // Each of the threads has an arena of its own, in addition to the first one.
    assert!(list(&heap, "arenas").len() >= 3, "{heap}");
    let allocator = heap["allocator"].as_str().expect("a name");
    assert!(allocator.starts_with("jemalloc 5."), "{allocator}");

    let promised = of(&["purge"]);
    let text = arenas(pid, "text");
    assert!(text.contains(allocator) && text.contains("purging frees"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    let fallen = numbers(&target.order("purge"))["fallen"];
    assert!(promised > 4 << 20, "{total}");
    // Purging itself touches pages of the stack and of jemalloc's own.
    assert!(fallen.abs_diff(promised) <= 16 * PAGE, "{promised} promised, {fallen} fallen");
    let after = extents(pid);
    assert_eq!(number(&after["total"], "purge"), 0, "{after}");
}

#[test]
fn the_figures_are_those_of_mallctl() {
    agrees("dirty_decay_ms:-1");
}

/// Its own profile is named, with the file that the program writes, and nothing of that changes a figure.
#[test]
fn a_profile_that_is_on_is_named() {
    let Some(path) = program_with("extents", "-ljemalloc") else {
        return skip_this("no libjemalloc.so (libjemalloc-dev)");
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let prefix = folder.path().join("own").display().to_string();
    let options = format!("prof:true,prof_final:true,lg_prof_sample:0,prof_prefix:{prefix}");
    let mut target = Obedient::spawn(Command::new(path).arg("1").env("MALLOC_CONF", options));
    assert_eq!(target.answer(), "ready");
    let pid = target.program.0.id();
    let heap = extents(pid);
    let said = heap["profile"].as_str().expect("a sentence");
    assert!(said.contains("prof:true") && said.contains(&format!("to {prefix}.PID.")), "{said}");
    let text = arenas(pid, "text").split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("jeprof reads these files"), "{text}");
    // The program ends when nothing more can be ordered, and writes what was named.
    drop(target.program.0.stdin.take());
    assert!(target.program.0.wait().expect("it ends").success());
    let written: Vec<String> = std::fs::read_dir(folder.path())
        .expect("a folder")
        .map(|file| file.expect("a file").file_name().to_string_lossy().into_owned())
        .collect();
    assert!(written.iter().any(|name| name == &format!("own.{pid}.0.f.heap")), "{written:?}");
}

/// Extents are unmapped where they are not retained.
#[test]
fn without_retained_extents() {
    agrees("dirty_decay_ms:-1,retain:false");
}

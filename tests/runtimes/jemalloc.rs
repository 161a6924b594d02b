//! What jemalloc says about itself, and what `vmaudit heap` says about it from outside.

use crate::support::heap::{Obedient, Watching, first, rows_of, sum};
use crate::support::report::{list, number};
use crate::support::{audit, program_by, program_with, skip, skip_without_bpf};
use serde_json::Value;
use std::collections::HashMap;

const BLOCK: u64 = 512 << 10;
const PAGE: u64 = 4096;
/// A 512 KiB block has a page more, to be able to start anywhere in its first page
/// (`opt.cache_oblivious`; large_malloc of jemalloc 5).
const EXTENT: u64 = BLOCK + PAGE;

/// `allocated asked=2621440 …`
struct Step {
    name: String,
    bytes: HashMap<String, u64>,
}

impl Step {
    fn of(line: &str) -> Step {
        let mut words = line.split(' ');
        let name = words.next().expect("a name").to_owned();
        let pairs = words.map(|word| word.split_once('=').expect("name=value"));
        let bytes = pairs.map(|(key, value)| (key.to_owned(), value.parse().expect("bytes"))).collect();
        Step { name, bytes }
    }

    fn get(&self, name: &str) -> u64 {
        self.bytes[name]
    }
}

/// At one step: what the program says there, and what is seen from outside while it waits there.
fn at_step(number: usize) -> Option<(Step, Value)> {
    let path = program_with("c2", "-ljemalloc")?;
    let mut watched = Obedient::start(&path, &[]);
    let mut step = Step::of(&watched.answer());
    let watching = Watching::of(watched.program.0.id(), &[]);
    for _ in 0..number {
        step = Step::of(&watched.order(""));
    }
    Some((step, watching.stop()))
}

#[test]
fn the_same_as_jemalloc_says_of_itself() {
    if skip_without_bpf("heap_beside") {
        return;
    }
    let mut resident = Vec::new();
    for (at, name) in ["start", "allocated", "freed", "purged"].into_iter().enumerate() {
        let Some((step, report)) = at_step(at) else {
            return skip("heap_beside", "no libjemalloc.so (libjemalloc-dev)");
        };
        assert_eq!(step.name, name);
        let process = first(&report);
        let beside = &process["beside"];
        let seen = |key: &str| number(beside, key);
        println!(
            "{name}: asked {} mapped {} resident {} purged {} untouched {}; jemalloc {:?}",
            seen("asked"),
            seen("mapped"),
            seen("resident"),
            seen("purged"),
            seen("untouched"),
            step.bytes
        );
        // What the program requested in `ask`, to the byte; stdio's buffer for input comes on top.
        assert_eq!(sum(&rows_of(&report, "ask"), "bytes"), step.get("asked"), "{name}");
        assert!(seen("asked") - step.get("asked") <= PAGE, "{name}: {beside:#}");
        assert_eq!(beside["asked_incomplete"], true);
        // To the byte: `retained` are mappings that jemalloc keeps without using them, and all mappings
        // of jemalloc are in one of the two.
        assert_eq!(seen("mapped"), step.get("mapped") + step.get("retained"), "{name}");
        // stats.resident is documented as an upper bound: it counts pages that were never touched.
        assert!(seen("resident") <= step.get("resident"), "{name}");
        // stats.allocated has the classes' sizes, and blocks of before vmaudit attached.
        assert!(step.get("allocated") >= seen("asked"), "{name}");
        assert!(seen("resident") >= seen("asked"), "{name}: all was written to");
        assert_eq!(seen("kept"), seen("resident") - seen("asked"), "{name}");
        assert_eq!(
            seen("mapped"),
            seen("resident") + seen("swapped") + seen("purged") + seen("untouched"),
            "{name}"
        );
        resident.push((seen("resident"), seen("purged")));
    }
    let [start, allocated, freed, purged] = resident[..] else { unreachable!("four steps") };
    // The blocks were written to; the additional page of each need not be. jemalloc's own records of
    // five extents take some pages.
    let grew = allocated.0 - start.0;
    assert!((5 * BLOCK..=5 * EXTENT + 16 * PAGE).contains(&grew), "{grew}");
    // Freed blocks stay: freed but kept.
    assert_eq!(freed.1, 0);
    assert!(freed.0.abs_diff(allocated.0) <= 4 * PAGE, "{freed:?} {allocated:?}");
    // Purged: three extents, and whatever else was dirty, some pages.
    let shrank = freed.0 - purged.0;
    assert!((3 * BLOCK..=3 * EXTENT + 4 * PAGE).contains(&shrank), "{shrank}");
    assert!((3 * BLOCK..=3 * EXTENT + 4 * PAGE).contains(&purged.1), "{purged:?}");
}

/// What `narenas:1` is said to save of the blocks in which jemalloc keeps its own bookkeeping, whether it is said not to
/// help, and how large all of jemalloc is.
fn bookkeeping(process: &Value) -> (u64, bool, u64) {
    let names = |entry: &&Value| entry["knob"] == "MALLOC_CONF=narenas:1";
    let found = || list(process, "findings").iter().filter(|f| f["category"] == "jemalloc");
    let promised =
        found().flat_map(|f| list(f, "fix")).filter(names).map(|fix| number(fix, "saves_virt")).sum();
    let no_help = found().filter_map(|f| f["no_help"].as_array()).flatten().any(|no| names(&no));
    let all = list(process, "categories").iter().find(|row| row["id"] == "jemalloc");
    (promised, no_help, all.map_or(0, |row| number(row, "virt")))
}

/// Arenas that jemalloc made for threads are fewer with `narenas:1`, by as much as is promised; those that the program
/// made itself are as many, and nothing is promised.
#[test]
fn narenas_is_promised_of_arenas_that_it_limits() {
    const TEST: &str = "narenas_is_promised_of_arenas_that_it_limits";
    if skip_without_bpf(TEST) {
        return;
    }
    // with the names of its functions, which the shared library does not have
    let library = ["-l:libjemalloc_pic.a", "-lm", "-lstdc++", "-ldl"];
    let Ok(path) = program_by(("jemalloc_arenas-static", "jemalloc_arenas"), "gcc", &library) else {
        return skip(TEST, "no libjemalloc_pic.a (libjemalloc-dev)");
    };
    let path = path.to_str().expect("UTF-8");
    let run = |arenas: &str, mode: &str| {
        let set = format!("MALLOC_CONF=narenas:{arenas}");
        bookkeeping(audit(&["--env", &set], &[path, mode]).report().first())
    };
    let (promised, no_help, before) = run("8", "threads");
    let (_, _, after) = run("1", "threads");
    assert!(promised >= 10 << 20 && !no_help, "{promised}");
    assert!(before - after >= promised, "{before} to {after}: {promised} were promised");
    let (promised, no_help, before) = run("8", "made");
    let (_, _, after) = run("1", "made");
    assert_eq!((promised, no_help), (0, true));
    assert!(before >= 16 << 20 && after == before, "{before} to {after}");
}

/// Its bookkeeping is the same memory whether its functions have names, or only the headers of the blocks say so.
#[test]
fn bookkeeping_is_told_from_extents_in_stripped_programs() {
    const TEST: &str = "bookkeeping_is_told_from_extents_in_stripped_programs";
    if skip_without_bpf(TEST) {
        return;
    }
    let library = ["-l:libjemalloc_pic.a", "-lm", "-lstdc++", "-ldl"];
    let stripped = [&library[..], &["-s"]].concat();
    let of = |name: &str, arguments: &[&str]| program_by((name, "jemalloc_arenas"), "gcc", arguments).ok();
    let (Some(named), Some(stripped)) =
        (of("jemalloc_arenas-static", &library), of("jemalloc_arenas-stripped", &stripped))
    else {
        return skip(TEST, "no libjemalloc_pic.a (libjemalloc-dev)");
    };
    let own = |path: &std::path::Path| {
        let audited = audit(&[], &[path.to_str().expect("UTF-8"), "made"]);
        let process = audited.report().first();
        let is_own = |finding: &&Value| finding["title"] == "jemalloc's own bookkeeping";
        let own: Vec<Value> = list(process, "findings").iter().filter(is_own).cloned().collect();
        let promised =
            own.iter().flat_map(|finding| list(finding, "fix")).map(|fix| number(fix, "saves_virt")).sum();
        (own.iter().map(|finding| number(finding, "virt")).sum::<u64>(), promised, bookkeeping(process).2)
    };
    let (with_names, _, all) = own(&named);
    let (without, promised, again): (u64, u64, u64) = own(&stripped);
    assert!(with_names >= 16 << 20, "{with_names}: eight arenas");
    assert_eq!(
        (without, again, promised),
        (with_names, all, 0),
        "the program made them: nothing is promised"
    );
}

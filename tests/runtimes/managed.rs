//! Go, the JVM, Node.js and CPython as they are: launched, attached to, and from a snapshot alone, each piece
//! of them is distinguished, and the JVM's own count of its memory agrees.

use crate::support::managed::{
    NMT, NODE, PYTHON, attach, installed, parts, reserved_by_nmt, serving_jvm, snapshot, sums, top, waiting,
};
use crate::support::report::{list, number};
use crate::support::{Guard, audit, go_program, program, skip, skip_without_bpf};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use vmaudit::compare::advice::Setting;

const MIB: u64 = 1 << 20;

fn or_skip(test: &str, what: &str, found: Option<PathBuf>) -> Option<PathBuf> {
    if found.is_none() {
        skip(test, &format!("no {what}"));
    }
    found
}

/// Stopped: threads of a runtime go on starting, each with an arena of its own, when the program waits.
fn still(program: Guard) -> Guard {
    program.stop();
    program
}

/// Categories of the runtime's own agree between two snapshots of a process that is stopped.
#[track_caller]
fn agree(one: &Value, other: &Value, ids: &[&str], slack: u64) {
    let (one, other) = (sums(one), sums(other));
    for id in ids {
        let of = |sums: &BTreeMap<String, u64>| sums.get(*id).copied().unwrap_or_default();
        assert!(of(&one).abs_diff(of(&other)) <= slack, "{id}: {} and {}", of(&one), of(&other));
    }
}

#[track_caller]
fn few_unknown(process: &Value, most: u64) {
    let unknown = sums(process).get("unknown").copied().unwrap_or_default();
    assert!(unknown <= most, "{} KiB unknown: {:#?}", unknown >> 10, parts(process));
}

/// What both count, by NMT's name and ours.
const COUNTED: [(&str, &str); 6] = [
    ("Java Heap", "jvm-heap"),
    ("Class", "jvm-class-space"),
    ("Metaspace", "jvm-metaspace"),
    ("Shared class space", "jvm-shared-classes"),
    ("Code", "jvm-code-cache"),
    ("GC", "jvm-gc"),
];

/// `slack` is for tables that are committed as a whole (a snapshot cannot distinguish them from other memory)
/// and for what neighbours of theirs are merged with.
#[track_caller]
fn as_nmt_counts(process: &Value, nmt: &BTreeMap<String, u64>, slack: u64) {
    let ours = sums(process);
    for (theirs, id) in COUNTED {
        let (counted, found) = (nmt.get(theirs).copied(), ours.get(id).copied().unwrap_or_default());
        let counted = counted.unwrap_or_default();
        let allowed = if id == "jvm-gc" || id == "jvm-code-cache" { slack } else { 0 };
        assert!(
            counted.abs_diff(found) <= allowed,
            "{theirs}: {} KiB by NMT, {} KiB found: {:#?}",
            counted >> 10,
            found >> 10,
            parts(process)
        );
    }
}

#[test]
fn a_launched_jvm_is_what_it_counts_itself() {
    const TEST: &str = "a_launched_jvm";
    let Some(java) = or_skip(TEST, "java", installed("java")) else { return };
    if skip_without_bpf(TEST) {
        return;
    }
    let variants: [&[&str]; 4] = [
        &["-XX:+UseG1GC"],
        &["-XX:+UseSerialGC"],
        &["-XX:+UseZGC"],
        // committed whole, tables and all
        &["-XX:+UseG1GC", "-Xms1g"],
    ];
    for options in variants {
        let mut command = vec![java.to_str().expect("UTF-8")];
        command.extend(NMT);
        command.extend(options);
        command.push("--version");
        // Its 44 MB of stacks come at once: a debug build that shares the processors would leave some of them behind.
        let run = audit(&["--queue-bytes", "268435456"], &command);
        let process = run.report().first();
        assert!(
            run.report().json["events"].get("without_stack").is_none(),
            "{}",
            run.report().json["events"]
        );
        // by stack all is known: nothing is allowed to differ, but for small tables that were committed whole
        let slack = if options.contains(&"-Xms1g") { MIB } else { 0 };
        as_nmt_counts(process, &reserved_by_nmt(&run.stdout), slack);
        let instances = |id: &str| {
            let rows = process["categories"].as_array().expect("rows");
            rows.iter().find(|row| row["id"] == id).map(|row| row["regions"].clone())
        };
        // committed in several steps, one each all the same
        for id in ["jvm-heap", "jvm-class-space", "jvm-metaspace"] {
            // ZGC maps its heap at three places
            let once = if id == "jvm-heap" && options.contains(&"-XX:+UseZGC") { 3 } else { 1 };
            assert_eq!(instances(id), Some(once.into()), "{id}: {:#?}", parts(process));
        }
        let (title, no_help) = top(process);
        assert!(
            ["Java heap, ", "Java heap at 3 addresses", "JVM compressed class space, "]
                .iter()
                .any(|t| title.starts_with(t)),
            "{title}"
        );
        assert!(no_help.iter().any(|knob| knob == "-Xms" || knob == "-Xmx"), "{no_help:?}");
        // what is said not to help is not advised
        for finding in list(process, "findings").iter().filter(|f| f["category"] == "jvm-heap") {
            let fix = list(finding, "fix").iter().filter_map(|fix| fix["knob"].as_str());
            assert!(fix.clone().all(|knob| !knob.contains("-Xms")), "{finding}");
            assert!(fix.clone().any(|knob| knob.contains("-Xmx")), "{finding}");
        }
    }
}

/// The JVM's end, and what it says then.
fn end(jvm: Guard) -> BTreeMap<String, u64> {
    jvm.signal(libc::SIGTERM);
    jvm.signal(libc::SIGCONT);
    let output = jvm.finish().expect("it ends");
    reserved_by_nmt(&String::from_utf8_lossy(&output.stdout))
}

#[test]
fn a_living_jvm_from_a_snapshot_and_attached() {
    const TEST: &str = "a_living_jvm";
    let Some(java) = or_skip(TEST, "java", installed("java")) else { return };
    let jvm = still(serving_jvm(&java, &["-XX:+UseG1GC"]));
    let alone = snapshot(jvm.0.id());
    let attached = (!skip_without_bpf(TEST)).then(|| attach(jvm.0.id()));
    let counted = end(jvm);
    // G1's marking stack of 32 MiB is not reported where it merged with malloc's blocks
    as_nmt_counts(alone.first(), &counted, 34 * MIB);
    few_unknown(alone.first(), 48 * MIB);
    if let Some(attached) = attached {
        let ids = COUNTED.map(|(_, id)| id);
        agree(alone.first(), attached.report().first(), &ids, 33 * MIB);
    }
}

#[test]
fn other_collectors_and_heaps_from_a_snapshot() {
    const TEST: &str = "other_collectors";
    let Some(java) = or_skip(TEST, "java", installed("java")) else { return };
    let variants: [&[&str]; 5] = [
        &["-XX:+UseShenandoahGC"],
        &["-XX:+UseSerialGC"],
        &["-XX:+UseParallelGC"],
        &["-XX:+UseG1GC", "-XX:-UseCompressedOops"],
        &["-XX:+UseZGC", "-Xmx64m"],
    ];
    for options in variants {
        let jvm = serving_jvm(&java, options);
        let alone = snapshot(jvm.0.id());
        let counted = end(jvm);
        // Parallel's tables are committed as a whole; ZGC's are, too, but known by the place of its views
        let slack = if options[0] == "-XX:+UseZGC" { MIB } else { 40 * MIB };
        as_nmt_counts(alone.first(), &counted, slack);
        few_unknown(alone.first(), 56 * MIB);
    }
}

/// Where `compare --advice` puts an option, it counts: over the command line, and instead of a collector that
/// is selected there.
#[test]
fn options_are_put_where_a_runtime_reads_them() {
    const TEST: &str = "options_of_runtimes";
    let with = |command: &mut Command, knob: &str, started: &[&str]| {
        let started: Vec<String> = started.iter().map(|word| (*word).to_owned()).collect();
        let Some(Setting::Variable { name, value }) = Setting::parse(knob, &started) else {
            panic!("{knob} is no variable")
        };
        let output = command.args(&started).env(name, value).output().expect("it starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    if let Some(java) = or_skip(TEST, "java", installed("java")) {
        let started = ["-Xmx1g", "-XX:+UseParallelGC", "-XX:+PrintFlagsFinal", "-version"];
        let value = |printed: &str, flag: &str| {
            let line = printed.lines().find(|line| line.split_whitespace().nth(1) == Some(flag));
            line.and_then(|line| line.split_whitespace().nth(3).map(str::to_owned))
        };
        let printed = with(&mut Command::new(&java), "-Xmx64m", &started);
        assert_eq!(value(&printed, "MaxHeapSize").as_deref(), Some("67108864"));
        let printed = with(&mut Command::new(&java), "-XX:+UseSerialGC", &started);
        assert_eq!(value(&printed, "UseSerialGC").as_deref(), Some("true"));
    }
    if let Some(node) = or_skip(TEST, "node", installed("node")) {
        let printed = with(
            &mut Command::new(node),
            "--jitless",
            &["-p", "process.allowedNodeEnvironmentFlags.has('--jitless') && typeof WebAssembly"],
        );
        assert_eq!(printed, "undefined\n", "without a compiler there is no WebAssembly");
    }
}

#[test]
fn go_by_stack_and_by_its_layout() {
    const TEST: &str = "go_programs";
    for (name, flags) in [("waits", &[][..]), ("waits", &["-ldflags", "-s -w"]), ("waits_cgo", &[])] {
        let Some(program) = or_skip(TEST, "go", go_program(name, flags)) else { return };
        let living = still(waiting(&mut Command::new(&program)));
        let alone = snapshot(living.0.id());
        few_unknown(alone.first(), 2 * MIB);
        let (title, no_help) = top(alone.first());
        assert_eq!(title, "Go runtime, reserved but not used");
        assert!(no_help.contains(&"GOMEMLIMIT".to_string()), "{no_help:?}");
        let found = parts(alone.first());
        let arenas = found["go-heap/heap arena"] + found["go-heap/heap arena, reserved"];
        assert_eq!(arenas % (64 * MIB), 0, "{found:#?}");
        assert!(found["go-heap/page summaries and scavenger's index"] > 512 * MIB, "{found:#?}");
        if skip_without_bpf(TEST) {
            continue;
        }
        let attached = attach(living.0.id());
        agree(alone.first(), attached.report().first(), &["go-heap", "thread-stack", "glibc-arena"], MIB);
        drop(living);
        let run = audit(&[], &[&program]);
        let launched = run.report().first();
        few_unknown(launched, 0);
        // threads come and go, and with them small tables; the arenas may have grown
        agree(alone.first(), launched, &["go-heap"], 66 * MIB);
        assert_eq!(top(launched).0, "Go runtime, reserved but not used");
    }
}

/// With the copies of the built-in functions in them. A range that address randomisation put within 2 GiB of the
/// program, which few starts in a hundred have, holds none.
fn code_ranges(of: &BTreeMap<String, u64>) -> u64 {
    let copies = of.get("v8/copy of the built-in functions").copied().unwrap_or_default();
    of["v8/code range"] + copies
}

#[test]
fn node_its_worker_and_webassembly() {
    const TEST: &str = "node_programs";
    let Some(node) = or_skip(TEST, "node", installed("node")) else { return };
    let worker = "const { Worker } = require('worker_threads'); const w = new Worker('setTimeout(() => {}, 1e6)', \
                  { eval: true }); w.on('online', () => process.stdout.write('READY\\n')); \
                  process.stdin.on('end', () => process.exit(0)); process.stdin.resume();";
    let wasm =
        format!("let m = [1, 2].map(() => new WebAssembly.Memory({{ initial: 1, maximum: 9 }})); {NODE}");
    let titles = ["V8 code range, reserved", "2 V8 code ranges, reserved", "V8: guards around 2 WebAssembly"];
    for (script, title) in [NODE, worker, &wasm].into_iter().zip(titles) {
        let living = still(waiting(Command::new(&node).args(["-e", script])));
        let alone = snapshot(living.0.id());
        few_unknown(alone.first(), 8 * MIB);
        let (found, no_help) = top(alone.first());
        assert!(found.starts_with(title), "{found}");
        assert!(no_help.contains(&"--max-old-space-size".to_string()), "{no_help:?}");
        let isolates = if script == worker { 2 } else { 1 };
        let of = parts(alone.first());
        assert_eq!(code_ranges(&of), isolates * 512 * MIB, "{of:#?}");
        if script == wasm {
            let memories = of["v8/WebAssembly memory"] + of["v8/WebAssembly memory, guard"];
            assert_eq!(memories, 2 * 10240 * MIB, "{of:#?}");
        }
        if skip_without_bpf(TEST) {
            continue;
        }
        let attached = attach(living.0.id());
        agree(alone.first(), attached.report().first(), &["v8", "glibc-arena", "thread-stack"], 4 * MIB);
    }
    if !skip_without_bpf(TEST) {
        let run = audit(&[], &[node.to_str().expect("UTF-8"), "-e", NODE]);
        let of = parts(run.report().first());
        assert_eq!(code_ranges(&of), 512 * MIB, "{of:#?}");
        few_unknown(run.report().first(), 0);
    }
}

/// A block of malloc's that is advised about as arrays are, memory of the size of many arenas, arenas; and how many
/// those are.
const PYTHON_BLOCKS: &str = "import ctypes, mmap, os, sys\n\
    libc = ctypes.CDLL(None)\n\
    libc.malloc.restype = ctypes.c_void_p\n\
    n = 40 << 20\n\
    at = libc.malloc(ctypes.c_size_t(n))\n\
    page = (at + 4095) & ~4095\n\
    libc.madvise(ctypes.c_void_p(page), ctypes.c_size_t(n - (page - at)), 14)\n\
    buffer = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n\
    buffer[:65536] = b'x' * 65536\n\
    kept = [(i, str(i)) for i in range(100000)]\n\
    os.dup2(os.open(sys.argv[1], os.O_WRONLY), 2)\n\
    sys._debugmallocstats()\n\
    print('READY', flush=True)\n\
    sys.stdin.read()\n";

#[test]
fn python_arenas_and_blocks_are_proven_by_their_headers() {
    const TEST: &str = "python_arenas_and_blocks_are_proven_by_their_headers";
    let Some(python) = or_skip(TEST, "python3", installed("python3")) else { return };
    let stats = tempfile::NamedTempFile::new().expect("a temporary file");
    let living = waiting(Command::new(&python).args(["-c", PYTHON_BLOCKS]).arg(stats.path()));
    let said = std::fs::read_to_string(stats.path()).expect("statistics");
    let counted = said.lines().find_map(|line| line.strip_prefix("# arenas allocated current"));
    let arenas: u64 = counted.expect("a line").trim_matches([' ', '=']).parse().expect("a number");
    assert!(arenas >= 4, "{said}");

    let alone = snapshot(living.0.id());
    let of = parts(alone.first());
    assert_eq!(of["python-arena/arena"], arenas * MIB, "{of:#?}");
    let regions = list(alone.first(), "regions");
    let mine = regions.iter().filter(|r| r["category"] == "python-arena");
    assert!(mine.into_iter().all(|region| region["evidence"] == "header"));
    let blocks = regions.iter().filter(|r| r["category"] == "glibc-mmapped").map(|r| number(r, "virt"));
    let blocks: Vec<u64> = blocks.filter(|&bytes| bytes == 40 * MIB || bytes == 4096).collect();
    assert_eq!(blocks, [4096, 40 * MIB], "its header's page, and the rest");
    let finding = list(alone.first(), "findings").iter().find(|f| f["category"] == "glibc-mmapped");
    let finding = finding.expect("a finding");
    let whole = sums(alone.first())["glibc-mmapped"];
    assert_eq!(number(finding, "virt"), whole);
    let title = finding["title"].as_str().expect("a title");
    let others = regions.iter().filter(|r| r["category"] == "glibc-mmapped").count() - 2;
    match others {
        0 => assert_eq!(title, "large malloc block"),
        n => assert_eq!(title, format!("{} large malloc blocks", n + 1)),
    }
}

#[test]
fn python_and_its_threads() {
    const TEST: &str = "python_program";
    let Some(python) = or_skip(TEST, "python3", installed("python3")) else { return };
    let living = still(waiting(Command::new(&python).args(["-c", PYTHON])));
    let alone = snapshot(living.0.id());
    few_unknown(alone.first(), 16 * MIB);
    let of = parts(alone.first());
    // a lower bound: those that merged with a neighbour are not known
    assert!(of.get("python-arena/arena").is_some_and(|bytes| bytes % MIB == 0), "{of:#?}");
    assert_eq!(sums(alone.first())["glibc-arena"], 4 * 64 * MIB);
    assert_eq!(top(alone.first()).0, "4 glibc malloc arenas");
    if skip_without_bpf(TEST) {
        return;
    }
    let attached = attach(living.0.id());
    agree(alone.first(), attached.report().first(), &["glibc-arena", "thread-stack", "python-arena"], 0);
    let run = audit(&[], &[python.to_str().expect("UTF-8"), "-c", PYTHON]);
    let of = parts(run.report().first());
    assert!(of.get("python-arena/arena").is_some_and(|bytes| *bytes >= 4 * MIB), "{of:#?}");
    few_unknown(run.report().first(), 0);
    assert_eq!(top(run.report().first()).0, "4 glibc malloc arenas");
}

/// Go's page allocator looks so, and what others reserve and open does, too.
#[test]
fn what_others_open_of_a_reservation_is_not_gos() {
    const TEST: &str = "what_others_open_of_a_reservation_is_not_gos";
    let path = program("opened_reservation");
    let holds = |process: &Value| {
        let found = sums(process);
        assert!(!found.contains_key("go-heap"), "{found:?}");
    };
    let living = waiting(Command::new(&path).arg("wait"));
    holds(snapshot(living.0.id()).first());
    if !skip_without_bpf(TEST) {
        let run = audit(&[], &[&path]);
        holds(run.report().first());
        assert!(sums(run.report().first())["app-mmap"] >= 1 << 30);
    }
}

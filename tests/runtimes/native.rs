//! Real programs on every allocator that Debian packages, launched, attached to, and examined without any
//! trace: the same result three times, compared with the kernel's own VmFlags.

use crate::support::report::{list, number};
use crate::support::{
    self, AuditReport, Guard, finished, program_by, skip, skip_without_bpf, vmaudit, watchdog,
};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};

const SOURCE: &str = "native_alloc";

/// One way of having an allocator in a program.
struct Case {
    name: &'static str,
    compiler: &'static str,
    arguments: &'static [&'static str],
    /// Its category, and what else its memory is filed under (glibc: brk, blocks of their own).
    category: &'static str,
    also: &'static [&'static str],
    /// (Launched: evidence of most of it; snapshot: of most of it.)
    evidence: (&'static str, &'static str),
    /// Part of the first advice's knob, empty where there is none.
    fix: &'static str,
    /// Part of what will not help.
    wont: &'static str,
    /// Bytes of [category] that are the kernel's rw-p or ---p VMAs with this flag; None: not so marked.
    flag: Option<&'static str>,
    /// Snapshots do not recognise this much of it, KiB.
    unrecognised: u64,
}

const CASE: Case = Case {
    name: "",
    compiler: "gcc",
    arguments: &[],
    category: "",
    also: &[],
    evidence: ("stack", "shape"),
    fix: "",
    wont: "MALLOC_ARENA_MAX",
    flag: None,
    unrecognised: 256,
};

struct Target {
    guard: Guard,
    out: BufReader<ChildStdout>,
}

impl Target {
    fn start(program: &Path, expected: &str) -> Target {
        Target::start_as(&mut Command::new(program), expected)
    }

    fn start_as(command: &mut Command, expected: &str) -> Target {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut guard = Guard(command.spawn().expect("the program starts"));
        let out = BufReader::new(guard.0.stdout.take().expect("a pipe"));
        let mut target = Target { guard, out };
        target.until("start");
        if expected != "start" {
            target.go_on(expected);
        }
        target
    }

    fn until(&mut self, expected: &str) {
        let mut line = String::new();
        self.out.read_line(&mut line).expect("it speaks");
        assert_eq!(line, format!("READY {expected}\n"));
    }

    fn go_on(&mut self, expected: &str) {
        self.guard.0.stdin.as_mut().expect("a pipe").write_all(b"\n").expect("it listens");
        self.until(expected);
    }

    fn pid(&self) -> u32 {
        self.guard.0.id()
    }
}

fn snapshot(pid: u32) -> AuditReport {
    let output = watchdog::output(
        Command::new(vmaudit()).args(["snapshot", "-f", "json", "-p", &pid.to_string()]).stdin(Stdio::null()),
    );
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    AuditReport::parse(&output.stdout)
}

/// Attaches before the program allocates.
fn attached(program: &Path) -> AuditReport {
    let mut target = Target::start(program, "start");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("report.json");
    let mut command = Command::new(vmaudit());
    command.args(["attach", "-f", "json", "--report"]).arg(&file).args(["-p", &target.pid().to_string()]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut auditor = Guard(command.spawn().expect("vmaudit starts"));
    let mut stderr = BufReader::new(auditor.0.stderr.take().expect("a pipe"));
    let mut said = String::new();
    let mut waiting = true;
    while let Ok(1..) = stderr.read_line(&mut said) {
        if waiting && said.contains("Ctrl-C ends tracing") {
            waiting = false;
            target.go_on("done");
            auditor.signal(libc::SIGINT);
        }
    }
    let output = auditor.finish().expect("it ends");
    finished(output, &file).report.unwrap_or_else(|| panic!("no report: {said}"))
}

/// Launches it, to its end; also what `report` says of the recording.
fn launched(program: &Path) -> (AuditReport, AuditReport) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let recording = folder.path().join("recording");
    let record = ["-o", recording.to_str().expect("a plain path")];
    let audit = support::audit(&record, &[program]);
    assert_eq!(audit.code(), Some(0), "{}", audit.stderr);
    let output = watchdog::output(
        Command::new(vmaudit()).args(["report", "-f", "json"]).arg(&recording).stdin(Stdio::null()),
    );
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    (audit.report.expect("a report"), AuditReport::parse(&output.stdout))
}

fn kib(process: &Value, category: &str) -> u64 {
    let row = list(process, "categories").iter().find(|row| row["id"] == category);
    row.map_or(0, |row| number(row, "virt") >> 10)
}

fn kib_of(process: &Value, case: &Case) -> u64 {
    case.also.iter().map(|id| kib(process, id)).sum::<u64>() + kib(process, case.category)
}

/// The evidence on which most bytes of a category rest.
fn evidence<'a>(process: &'a Value, category: &str) -> &'a str {
    let mut sums: Vec<(&str, u64)> = Vec::new();
    for region in list(process, "regions").iter().filter(|region| region["category"] == category) {
        let kind = region["evidence"].as_str().expect("a word");
        match sums.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, sum)) => *sum += number(region, "virt"),
            None => sums.push((kind, number(region, "virt"))),
        }
    }
    sums.into_iter().max_by_key(|(_, sum)| *sum).map_or("nothing", |(kind, _)| kind)
}

fn check_advice(process: &Value, case: &Case, how: &str) {
    let findings = list(process, "findings");
    let finding = findings.iter().find(|finding| finding["category"] == case.category);
    let finding = finding.unwrap_or_else(|| panic!("{} {how}: no finding", case.name));
    let knobs = |key: &str| -> String {
        let all = finding[key].as_array().into_iter().flatten();
        all.filter_map(|advice| advice["knob"].as_str()).collect::<Vec<_>>().join(" | ")
    };
    assert!(knobs("fix").contains(case.fix), "{} {how}: fix {}", case.name, knobs("fix"));
    assert_eq!(knobs("fix").is_empty(), case.fix.is_empty(), "{} {how}: fix {}", case.name, knobs("fix"));
    assert!(knobs("no_help").contains(case.wont), "{} {how}: no_help {}", case.name, knobs("no_help"));
}

/// Private anonymous VMAs with a flag, KiB, straight from smaps.
fn flagged(pid: u32, flag: &str) -> u64 {
    let smaps = std::fs::read_to_string(format!("/proc/{pid}/smaps")).expect("it lives");
    let (mut size, mut sum) = (0, 0);
    for line in smaps.lines() {
        if let Some(rest) = line.strip_prefix("Size:") {
            size = rest.trim().trim_end_matches(" kB").parse().expect("a number");
        } else if let Some(flags) = line.strip_prefix("VmFlags:")
            && flags.split_whitespace().any(|known| known == flag)
        {
            sum += size;
        }
    }
    sum
}

/// Two runs of one program differ by a jemalloc extent, an arena's first step.
const SPREAD: u64 = 8 << 10;

fn check(case: &Case) {
    let test = case.name;
    let program = match program_by((&format!("native-{test}"), SOURCE), case.compiler, case.arguments) {
        Ok(program) => program,
        Err(why) => return skip(test, &why),
    };
    let target = Target::start(&program, "done");
    let alone = snapshot(target.pid());
    let by_flag = case.flag.map(|flag| flagged(target.pid(), flag));
    drop(target);
    let process = alone.first();
    let reported = kib_of(process, case);
    if let Some(by_flag) = by_flag {
        let own = kib(process, case.category);
        assert!(own <= by_flag && by_flag - own <= case.unrecognised, "{test}: {own} of {by_flag} KiB");
    }
    assert!(kib(process, "unknown") <= case.unrecognised, "{test}: {} KiB unknown", kib(process, "unknown"));
    assert_eq!(evidence(process, case.category), case.evidence.1, "{test}, snapshot");
    check_advice(process, case, "snapshot");
    if skip_without_bpf(test) {
        return;
    }
    let (launched, again) = launched(&program);
    let by_trace = kib_of(launched.first(), case);
    assert!(reported.abs_diff(by_trace) <= SPREAD, "{test}: {reported} KiB by shape, {by_trace} traced");
    assert_eq!(kib(launched.first(), "unknown"), 0, "{test}, launched");
    assert_eq!(evidence(launched.first(), case.category), case.evidence.0, "{test}, launched");
    check_advice(launched.first(), case, "launched");
    assert_eq!(again.json["processes"][0]["findings"], launched.json["processes"][0]["findings"], "{test}");

    let attached = attached(&program);
    let process = attached.first();
    let found = kib_of(process, case);
    assert!(reported.abs_diff(found) <= SPREAD, "{test}: {reported} KiB by shape, {found} attached");
    assert!(kib(process, "unknown") <= case.unrecognised, "{test}: {} KiB unknown", kib(process, "unknown"));
    check_advice(process, case, "attached");
}

#[test]
fn glibc() {
    let case = Case {
        name: "glibc",
        category: "glibc-arena",
        also: &["glibc-main-heap", "glibc-mmapped"],
        evidence: ("stack", "header"),
        fix: "MALLOC_ARENA_MAX=1",
        wont: "malloc_trim",
        flag: Some("nr"),
        ..CASE
    };
    check(&case);
    check(&Case {
        name: "glibc-static-stripped",
        arguments: &["-static", "-s"],
        evidence: ("header", "header"),
        ..case
    });
}

#[test]
fn jemalloc() {
    let library = Case {
        name: "jemalloc",
        arguments: &["-ljemalloc"],
        category: "jemalloc",
        fix: "MALLOC_CONF=retain:false",
        flag: Some("nr"),
        ..CASE
    };
    check(&library);
    // No name is left in the program: its content decides.
    let inside = Case {
        name: "jemalloc-stripped",
        arguments: &["-s", "-l:libjemalloc.a", "-lstdc++", "-lm"],
        evidence: ("shape", "shape"),
        ..library
    };
    check(&inside);
    check(&Case {
        name: "jemalloc-static-stripped",
        arguments: &["-static", "-s", "-l:libjemalloc.a", "-lstdc++", "-lm"],
        ..inside
    });
}

/// Unmapping pieces leaves mappings of any size: recognised by where every malloc of the process goes.
#[test]
fn jemalloc_that_keeps_nothing() {
    const TEST: &str = "jemalloc_that_keeps_nothing";
    let program = match program_by(("native-jemalloc", SOURCE), "gcc", &["-ljemalloc"]) {
        Ok(program) => program,
        Err(why) => return skip(TEST, &why),
    };
    let mut command = Command::new(&program);
    let target = Target::start_as(command.env("MALLOC_CONF", "retain:false,dirty_decay_ms:0"), "done");
    let report = snapshot(target.pid());
    let by_flag = flagged(target.pid(), "nr");
    let reported = kib(report.first(), "jemalloc");
    assert!(reported <= by_flag && by_flag - reported <= 256, "{reported} of {by_flag} KiB");
    assert!(kib(report.first(), "unknown") <= 256);
}

#[test]
fn gperftools() {
    let library = Case {
        name: "gperftools",
        arguments: &["-l:libtcmalloc_minimal.so.4"],
        category: "tcmalloc",
        fix: "TCMALLOC_AGGRESSIVE_DECOMMIT",
        wont: "TCMALLOC_RELEASE_RATE",
        ..CASE
    };
    check(&library);
}

#[test]
fn mimalloc() {
    check(&Case {
        name: "mimalloc",
        arguments: &["-l:libmimalloc.so.2"],
        category: "mimalloc",
        fix: "MIMALLOC_RESET_DELAY=0",
        flag: Some("nr"),
        ..CASE
    });
}

#[test]
fn musl() {
    let shared = Case {
        name: "musl",
        compiler: "musl-gcc",
        arguments: &["-DWITH_FREE"],
        category: "musl-malloc",
        evidence: ("stack", "header"),
        ..CASE
    };
    check(&shared);
    let inside = Case {
        name: "musl-static-stripped",
        arguments: &["-static", "-s", "-DWITH_FREE"],
        evidence: ("shape", "header"),
        ..shared
    };
    check(&inside);
    // without free(): all in brk, by another malloc
    let evidence = ("shape", "shape");
    check(&Case { name: "musl-never-frees", arguments: &["-static", "-s"], evidence, ..inside });
}

/// jemalloc under a prefix, as in Rust programs: the C library's own calls go to glibc's malloc, and each
/// thread that makes one gets an arena next to jemalloc.
#[test]
fn an_arena_next_to_a_prefixed_jemalloc() {
    const TEST: &str = "an_arena_next_to_a_prefixed_jemalloc";
    let program = match prefixed() {
        Ok(program) => program,
        Err(why) => return skip(TEST, &why),
    };
    let target = Target::start(&program, "done");
    let alone = snapshot(target.pid());
    let by_flag = flagged(target.pid(), "nr");
    drop(target);
    let process = alone.first();
    assert_eq!(kib(process, "glibc-arena"), 4 * 65_536);
    assert_eq!(kib(process, "glibc-arena") + kib(process, "jemalloc"), by_flag, "merged or not");
    let arenas = list(process, "findings").iter().find(|f| f["category"] == "glibc-arena");
    let arenas = arenas.expect("a finding");
    let why = arenas["why"].as_str().expect("text");
    assert!(why.contains("beside jemalloc") && why.contains("is not exported"), "{why}");
    assert!(arenas["no_help"][0]["knob"].as_str().is_some_and(|knob| knob == "settings of jemalloc"));
    let je = list(process, "findings").iter().find(|f| f["category"] == "jemalloc").expect("a finding");
    assert!(
        je["fix"][0]["knob"].as_str().is_some_and(|knob| knob.contains("MALLOC_CONF=retain:false")),
        "{je}"
    );
    if skip_without_bpf(TEST) {
        return;
    }
    let (launched, again) = launched(&program);
    for report in [&launched, &attached(&program)] {
        assert_eq!(kib(report.first(), "glibc-arena"), 4 * 65_536);
    }
    assert_eq!(evidence(launched.first(), "glibc-arena"), "stack");
    assert_eq!(again.json["processes"][0]["findings"], launched.json["processes"][0]["findings"]);
}

/// libjemalloc.a with its functions renamed, and the program linked with it.
fn prefixed() -> Result<PathBuf, String> {
    let found =
        Command::new("gcc").arg("-print-file-name=libjemalloc.a").output().map_err(|e| e.to_string())?;
    let library = String::from_utf8_lossy(&found.stdout).trim().to_owned();
    if !library.starts_with('/') {
        return Err("no libjemalloc.a (libjemalloc-dev)".into());
    }
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).map_err(|e| e.to_string())?;
    let renamed = folder.path().join("libprefixed.a");
    let mut objcopy = Command::new("objcopy");
    for name in FUNCTIONS {
        objcopy.args(["--redefine-sym", &format!("{name}=je_{name}")]);
    }
    let output = objcopy.arg(&library).arg(&renamed).output().map_err(|e| format!("objcopy: {e}"))?;
    if !output.status.success() {
        return Err(format!("objcopy: {}", String::from_utf8_lossy(&output.stderr)));
    }
    let renamed = renamed.to_string_lossy();
    let arguments = ["-s", "-DPREFIXED", &renamed, "-lstdc++", "-lm"];
    program_by(("native-prefixed", SOURCE), "gcc", &arguments)
}

const FUNCTIONS: &[&str] = &[
    "malloc",
    "calloc",
    "realloc",
    "free",
    "posix_memalign",
    "aligned_alloc",
    "memalign",
    "valloc",
    "malloc_usable_size",
    "mallocx",
    "rallocx",
    "xallocx",
    "sallocx",
    "dallocx",
    "sdallocx",
    "nallocx",
    "mallctl",
    "mallctlnametomib",
    "mallctlbymib",
    "malloc_stats_print",
    "malloc_conf",
    "malloc_message",
];

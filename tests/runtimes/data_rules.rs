//! Rules as data on the real programs that they are about (docs/rules.md; scripts/prove.sh runs more of them).

use crate::support::managed::{installed, snapshot, waiting};
use crate::support::report::{list, number};
use crate::support::{self, skip, skip_without, skip_without_bpf, vmaudit};
use serde_json::Value;
use std::process::{Command, Output, Stdio};

const MIB: u64 = 1 << 20;

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_else(|| panic!("{key} is no text in {value}"))
}

/// The findings of a program's process that some rule is named in, and what `vmaudit rules --test` says of the report.
fn found(command: &[&str]) -> (Vec<Value>, String) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("report.json");
    let mut run = support::run_command(&file, &[], command);
    run.stdin(Stdio::null());
    let audit = support::finished(support::watchdog::output(&mut run), &file);
    audit.report().assert_exact();
    let process = audit.report().first();
    let findings = list(process, "findings").iter().filter(|finding| !finding["rule"].is_null());
    let mut test = Command::new(vmaudit());
    let tested = test.args(["rules", "--test"]).arg(&file).output().expect("vmaudit starts");
    assert!(tested.status.success(), "{}", String::from_utf8_lossy(&tested.stderr));
    (findings.cloned().collect(), String::from_utf8(tested.stdout).expect("text"))
}

fn of<'a>(findings: &'a [Value], rule: &str) -> &'a Value {
    let found = findings.iter().find(|finding| text(finding, "rule") == rule);
    found.unwrap_or_else(|| panic!("{rule} is none of {findings:?}"))
}

#[test]
fn buffers_of_openblas_are_recognised_by_the_function_that_took_them() {
    const TEST: &str = "buffers_of_openblas_are_recognised_by_the_function_that_took_them";
    // As they are at the end: OpenBLAS gives them back when it is unloaded.
    const PROGRAM: &str = "import numpy, os; a = numpy.ones((600, 600)); b = a @ a; os._exit(0)";
    let library = "/usr/lib/x86_64-linux-gnu/openblas-pthread/libopenblas.so.0";
    if skip_without_bpf(TEST) || skip_without(TEST, library) {
        return;
    }
    let numpy = Command::new("/usr/bin/python3").args(["-c", "import numpy"]).stderr(Stdio::null()).status();
    if !numpy.is_ok_and(|status| status.success()) {
        return skip(TEST, "no numpy");
    }
    let (findings, tested) = found(&["/usr/bin/python3", "-c", PROGRAM]);
    let buffers = of(&findings, "openblas.buffers");
    let (things, virt) = (number(buffers, "regions"), number(buffers, "virt"));
    assert!(things > 0 && virt > things * 16 * MIB, "{buffers}");
    assert_eq!(text(buffers, "category"), "app-mmap");
    let fixes = list(buffers, "fix");
    // With one buffer there is nothing to save.
    assert_eq!(fixes.len(), usize::from(things > 1), "{buffers}");
    assert!(fixes.iter().all(|fix| number(fix, "saves_virt") == virt - virt / things), "{buffers}");
    assert!(tested.contains("openblas.buffers "), "{tested}");
}

#[test]
fn the_heap_of_sbcl_is_recognised_by_the_function_that_reserved_it() {
    const TEST: &str = "the_heap_of_sbcl_is_recognised_by_the_function_that_reserved_it";
    if skip_without_bpf(TEST) || skip_without(TEST, "/usr/bin/sbcl") {
        return;
    }
    let program =
        ["sbcl", "--dynamic-space-size", "2GB", "--noinform", "--no-userinit", "--eval", "(exit :abort t)"];
    let (findings, tested) = found(&program);
    let heap = of(&findings, "sbcl.dynamic-space");
    let virt = number(heap, "virt");
    // Less what the core file lies on.
    assert!((1900 * MIB..=2048 * MIB).contains(&virt), "{heap}");
    assert_eq!(number(&list(heap, "fix")[0], "saves_virt"), virt - 256 * MIB);
    assert!(tested.contains("sbcl.dynamic-space "), "{tested}");
}

/// Of interpreters whose functions have no names: the file alone maps memory for one purpose, or an exported function did.
#[test]
fn memory_of_gforth_luajit_and_prolog_is_recognised_by_whose_code_mapped_it() {
    const TEST: &str = "memory_of_gforth_luajit_and_prolog_is_recognised_by_whose_code_mapped_it";
    const LUA: &str = "t = {} for i = 1, 100000 do t[i] = {i} end os.exit(0)";
    const PROLOG: &str = "numlist(1, 300000, L), length(L, _)";
    if skip_without_bpf(TEST) {
        return;
    }
    // so many bytes at least, and the setting with what it saves at least
    type Case<'a> = (&'a str, &'a [&'a str], u64, Option<(&'a str, u64)>);
    let cases: [Case<'_>; 3] = [
        (
            "gforth.dictionary",
            &["gforth", "-e", "bye"],
            7 * MIB,
            Some(("gforth --dictionary-size=1M", 6 * MIB)),
        ),
        // 100,000 tables with an element each have more than 64 bytes
        ("luajit.heap", &["luajit", "-e", LUA], 6 * MIB, None),
        // three words each, in two cells of a list
        ("swipl.stacks", &["swipl", "-g", PROLOG, "-t", "halt"], 300_000 * 24, None),
    ];
    for (rule, command, least, setting) in cases {
        if skip_without(TEST, &format!("/usr/bin/{}", command[0])) {
            continue;
        }
        let (findings, tested) = found(command);
        let virt: u64 =
            findings.iter().filter(|f| text(f, "rule") == rule).map(|finding| number(finding, "virt")).sum();
        assert!(virt >= least && virt < 4 * least, "{rule}: {virt} of {least}");
        let fixes = list(of(&findings, rule), "fix");
        assert_eq!(fixes.len(), usize::from(setting.is_some()), "{fixes:?}");
        if let Some((knob, saves)) = setting {
            assert_eq!(text(&fixes[0], "knob"), knob);
            assert!(number(&fixes[0], "saves_virt") >= saves, "{fixes:?}");
        }
        assert!(tested.contains(rule), "{tested}");
    }
}

/// SBCL maps the stacks of its threads itself: its own option sizes them, and no limit does.
#[test]
fn threads_of_sbcl_get_the_option_that_sizes_them() {
    const TEST: &str = "threads_of_sbcl_get_the_option_that_sizes_them";
    const THREADS: &str = "(dotimes (i 3) (sb-thread:make-thread (lambda () (sleep 600))))";
    if skip_without_bpf(TEST) || skip_without(TEST, "/usr/bin/sbcl") {
        return;
    }
    let program = ["sbcl", "--noinform", "--no-userinit", "--eval", THREADS];
    let (findings, _) = found(&[&program[..], &["--eval", "(exit :abort t)"]].concat());
    let threads = of(&findings, "sbcl.thread");
    let fixes = list(threads, "fix");
    assert_eq!(text(&fixes[0], "knob"), "sbcl --control-stack-size 1MB");
    // the default is 2 MiB
    assert_eq!(number(&fixes[0], "saves_virt"), number(threads, "regions") * MIB, "{threads}");

    let mut sbcl = Command::new("sbcl");
    let wait = ["--eval", "(progn (princ \"READY\") (terpri) (finish-output) (read-line))"];
    let sbcl = waiting(sbcl.args(&program[1..]).args(wait));
    let alone = snapshot(sbcl.0.id());
    let stacks = list(alone.first(), "findings").iter().find(|finding| finding["category"] == "thread-stack");
    let stacks = stacks.unwrap_or_else(|| panic!("no stacks: {:?}", alone.first()["findings"]));
    assert_eq!(text(&list(stacks, "fix")[0], "knob"), "sbcl --control-stack-size 1MB", "{stacks}");
    let no_help = list(stacks, "no_help").iter().any(|no| text(no, "knob").contains("ulimit -s"));
    assert!(no_help, "{stacks}");

    // The image of its heap is no ELF image, and what it wrote to is not shared.
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", sbcl.0.id())).expect("it lives");
    let (mut core, mut in_maps) = (0, 0);
    for line in maps.lines().filter(|line| line.ends_with(".core")) {
        let (start, end) =
            line.split_once(' ').and_then(|(range, _)| range.split_once('-')).expect("a range");
        let address = |digits| u64::from_str_radix(digits, 16).expect("an address");
        in_maps += address(end) - address(start);
    }
    for region in list(alone.first(), "regions") {
        if region["path"].as_str().is_some_and(|path| path.ends_with(".core")) {
            assert_eq!(text(region, "category"), "file", "{region}");
            core += number(region, "virt");
        }
    }
    assert!(core > 20 * MIB && core == in_maps, "{core} of {in_maps}");
    // its addresses and the core's pages distinguish the spaces where no call was seen
    for (rule, least, most) in [("sbcl.dynamic-space", 256, 8192), ("sbcl.immobile-space", 100, 200)] {
        let mut found = list(alone.first(), "findings").iter().filter(|finding| finding["rule"] == rule);
        let space = found.next().unwrap_or_else(|| panic!("no {rule}: {}", alone.first()["findings"]));
        assert!((least * MIB..=most * MIB).contains(&number(space, "virt")), "{space}");
        assert!(found.next().is_none(), "{rule} twice");
    }
    let findings = list(alone.first(), "findings").iter().filter(|finding| finding["rule"] == "sbcl.core");
    let findings: Vec<&Value> = findings.collect();
    assert_eq!(findings.len(), 1, "{findings:#?}");
    assert!(text(findings[0], "why").contains("copies of its own"), "{findings:#?}");
}

/// Erlang chooses the stacks of most of its threads itself; those of the first few are the C library's.
#[test]
fn threads_of_erlang_get_the_options_that_size_them() {
    const TEST: &str = "threads_of_erlang_get_the_options_that_size_them";
    if skip_without_bpf(TEST) || skip_without(TEST, "/usr/bin/erl") {
        return;
    }
    let (findings, _) =
        found(&["/usr/bin/erl", "+A", "16", "-noshell", "-eval", "erlang:halt(0, [{flush, false}])."]);
    let stacks = |rule: &str| -> Vec<Value> {
        findings.iter().filter(|finding| text(finding, "rule") == rule).cloned().collect()
    };
    let schedulers = stacks("erlang.schedulers");
    assert!(!schedulers.is_empty(), "{findings:#?}");
    for finding in &schedulers {
        let fixes = list(finding, "fix");
        assert_eq!(text(&fixes[0], "knob"), "ERL_FLAGS='+sss 20 +sssdcpu 20 +sssdio 20'", "{finding}");
        let left = number(finding, "regions") * 172 * 1024;
        assert_eq!(number(&fixes[0], "saves_virt"), number(finding, "virt") - left, "{finding}");
        let once = fixes.iter().filter(|fix| fix["knob"] == fixes[0]["knob"]).count();
        assert_eq!(once, 1, "{finding}");
    }
    let asynchronous = &stacks("erlang.async")[0];
    assert_eq!(number(asynchronous, "regions"), 16);
    assert_eq!(text(&list(asynchronous, "fix")[0], "knob"), "ERL_FLAGS='+A 1'");
}

/// Ends what a run leaves running.
struct Left(i32);

impl Drop for Left {
    fn drop(&mut self) {
        // SAFETY: a plain system call.
        unsafe { libc::kill(self.0, libc::SIGKILL) };
    }
}

/// The server as it is when it listens: its reservation of 8 TiB, its caches, and its bss, which is no neighbour's.
#[test]
fn a_server_of_mariadb_is_recognised_by_its_functions_and_its_program_headers() {
    const TEST: &str = "a_server_of_mariadb_is_recognised_by_its_functions_and_its_program_headers";
    if skip_without_bpf(TEST) || skip_without(TEST, "/usr/sbin/mariadbd") {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let data = folder.path().join("data");
    std::fs::create_dir(&data).expect("a folder");
    let (data, socket) = (format!("--datadir={}", data.display()), folder.path().join("socket"));
    let listen = format!("--socket={}", socket.display());
    let server = [
        "/usr/sbin/mariadbd",
        "--no-defaults",
        "--user=root",
        &data,
        "--skip-networking",
        "--skip-grant-tables",
    ];
    let mut bootstrap = Command::new(server[0]);
    let bootstrap =
        bootstrap.args(&server[1..]).arg("--bootstrap").stdin(Stdio::null()).output().expect("it starts");
    assert!(bootstrap.status.success(), "{}", String::from_utf8_lossy(&bootstrap.stderr));
    let file = folder.path().join("report.json");
    let ready = format!("until [ -S {} ]; do [ -d /proc/$VMAUDIT_PID ] || exit 1; done", socket.display());
    let mut run = support::run_command(&file, &["--load", &ready], &[&server[..], &[&listen]].concat());
    // Not into pipes: a server that does not end has them, too.
    let said = folder.path().join("stderr");
    run.stdin(Stdio::null()).stdout(Stdio::null()).stderr(std::fs::File::create(&said).expect("a file"));
    let status = run.status().expect("vmaudit starts");
    let stderr = std::fs::read(&said).expect("what it said");
    let audit = support::finished(Output { status, stdout: Vec::new(), stderr }, &file);
    let process = audit.report().first();
    let _left = Left(i32::try_from(number(process, "pid")).expect("a pid"));
    audit.report().assert_exact();
    let findings: Vec<Value> =
        list(process, "findings").iter().filter(|f| !f["rule"].is_null()).cloned().collect();
    let most = of(&findings, "mariadb.buffer-pool-max");
    assert!(number(most, "virt") > 7 << 40, "{most}");
    assert_eq!(number(&list(most, "fix")[0], "saves_virt"), number(most, "virt") - (1 << 30), "{most}");
    for rule in ["mariadb.buffer-pool", "mariadb.aria", "mariadb.key-buffer"] {
        assert!(number(of(&findings, rule), "virt") > 100 * MIB, "{rule}");
    }
    let bss: u64 =
        list(process, "regions").iter().filter(|r| r["part"] == "bss").map(|r| number(r, "virt")).sum();
    let unknown: u64 = list(process, "categories")
        .iter()
        .filter(|row| row["id"] == "unknown")
        .map(|row| number(row, "virt"))
        .sum();
    assert!(bss > 0 && unknown == 0, "bss {bss}, unknown {unknown}");
}

/// Without a call to go by, a page of Ruby's objects is recognised by its description, which points back at
/// it.
#[test]
fn pages_of_rubys_objects_are_recognised_in_a_snapshot() {
    const TEST: &str = "pages_of_rubys_objects_are_recognised_in_a_snapshot";
    const OBJECTS: &str =
        "a = (1..100000).map { |i| \"text #{i}\" * 3 }; STDOUT.puts 'READY'; STDOUT.flush; STDIN.read";
    if skip_without(TEST, "/usr/bin/ruby") {
        return;
    }
    let version =
        Command::new("/usr/bin/ruby").args(["-e", "print RUBY_VERSION"]).output().expect("it starts");
    if !String::from_utf8_lossy(&version.stdout).starts_with("3.1.") {
        return skip(TEST, "the layout of another Ruby's pages is not known");
    }
    let ruby = waiting(Command::new("/usr/bin/ruby").args(["-e", OBJECTS]));
    let alone = snapshot(ruby.0.id());
    // 100,000 objects of 40 bytes at least, all of them in use: no finding
    let regions = list(alone.first(), "regions").iter().filter(|region| region["category"] == "app-mmap");
    let (transient, regions): (Vec<&Value>, Vec<&Value>) =
        regions.partition(|region| number(region, "virt") >= 32 * MIB);
    assert_eq!(transient.len(), 1, "{transient:#?}");
    assert_eq!(text(transient[0], "evidence"), "header");
    let rules: Vec<Value> = list(alone.first(), "findings")
        .iter()
        .filter(|finding| !finding["rule"].is_null())
        .cloned()
        .collect();
    let heap = of(&rules, "ruby.transient-heap");
    assert_eq!(number(heap, "virt"), 32 * MIB);
    // a page of each of 1,024 blocks has a header
    assert!(number(heap, "rss") >= 4 * MIB, "{heap}");
    let pages: Vec<u64> = regions.iter().map(|region| number(region, "virt")).collect();
    assert!(pages.len() > 200 && pages.iter().sum::<u64>() > 4 * MIB, "{} pages", pages.len());
    assert!(regions.iter().all(|region| region["evidence"] == "header"));
}

/// The range of .NET's collector has no function's name in a program that carries its runtime, and is as long as the machine
/// or a setting says. It was taken for Go's page allocator.
#[test]
fn the_range_of_dotnets_collector_is_as_long_as_it_computes() {
    const TEST: &str = "the_range_of_dotnets_collector_is_as_long_as_it_computes";
    let Some(program) = installed("azmcp") else { return skip(TEST, "no azmcp") };
    if skip_without_bpf(TEST) {
        return;
    }
    let program = program.to_str().expect("UTF-8");
    let range = |setting: &[&str]| {
        let (findings, _) = found(&[&["env"], setting, &[program, "--version"]].concat());
        of(&findings, "dotnet.gc-range").clone()
    };
    let figures = std::fs::read_to_string("/proc/meminfo").expect("meminfo");
    let total = figures.lines().find_map(|line| line.strip_prefix("MemTotal:")).expect("MemTotal");
    let memory = total.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10;
    let as_it_is = range(&[]);
    let virt = number(&as_it_is, "virt");
    assert!(virt.abs_diff(2 * memory) <= 4096, "{virt}: {as_it_is}");
    assert!(text(&as_it_is, "why").contains("twice the machine's memory"), "{as_it_is}");
    let small = range(&["DOTNET_GCRegionRange=0x200000000"]);
    let saved = virt - number(&small, "virt");
    let fixes =
        list(&as_it_is, "fix").iter().filter(|fix| text(fix, "knob").starts_with("DOTNET_GCRegionRange="));
    let promised: u64 = fixes.map(|fix| number(fix, "saves_virt")).sum();
    assert!(promised.abs_diff(saved) <= 4096, "{promised} promised, {saved} saved");
    assert_eq!(list(&small, "fix").len(), 0, "it leaves all of it: {small}");
    // the table over a range of this length is as long as Go's
    assert_eq!(number(&range(&["DOTNET_GCRegionRange=0x1000000000"]), "virt") >> 30, 64);
}

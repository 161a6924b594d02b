//! What a program maps itself is its own, also where an allocator or a runtime is on the stack further out, or lends
//! it its mmap.

use crate::support::managed::{installed, snapshot, sums};
use crate::support::report::{category, list, number};
use crate::support::{
    Guard, audit, go_program, go_program_of, manifest_dir, program, program_built, program_by, shared_object,
    skip, skip_without_bpf, watchdog,
};
use serde_json::Value;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

const MIB: u64 = 1 << 20;

/// The one finding of the program's own; its first process.
#[track_caller]
fn own_finding<S: AsRef<OsStr>>(command: &[S], bytes: u64) -> (Value, Value) {
    let audit = audit(&["--top", "100"], command);
    assert_eq!(audit.status.code(), Some(0), "{}", audit.stderr);
    let process = audit.report().first();
    let own =
        list(process, "findings").iter().find(|f| f["category"] == "app-mmap" && number(f, "virt") == bytes);
    let own = own.unwrap_or_else(|| panic!("no {bytes} bytes of its own: {:#?}", process["categories"]));
    (own.clone(), process.clone())
}

#[test]
fn what_a_go_program_maps_itself_is_not_its_runtimes() {
    const TEST: &str = "what_a_go_program_maps_itself_is_not_its_runtimes";
    let Some(path) = go_program("maps_itself", &[]) else { return skip(TEST, "no go") };
    if skip_without_bpf(TEST) {
        return;
    }
    let (own, process) = own_finding(&[&path], 64 * MIB);
    assert!(own["why"].as_str().expect("text").contains(", main.grab;"), "{own}");
    assert!(sums(&process)["go-heap"] > 64 * MIB, "{:#?}", process["categories"]);
}

#[test]
fn what_c_code_of_a_go_program_maps_is_not_its_runtimes() {
    const TEST: &str = "what_c_code_of_a_go_program_maps_is_not_its_runtimes";
    let Some(path) = go_program_of("maps_itself_cgo", "go-c", &[]) else { return skip(TEST, "no go") };
    if skip_without_bpf(TEST) {
        return;
    }
    let (own, _) = own_finding(&[&path], 96 * MIB);
    assert!(own["why"].as_str().expect("text").contains(", grab;"), "{own}");
}

/// gperftools exports mmap, too.
#[test]
fn what_is_mapped_through_tcmallocs_mmap_is_not_tcmallocs() {
    const TEST: &str = "what_is_mapped_through_tcmallocs_mmap_is_not_tcmallocs";
    let arguments = ["-Wl,--no-as-needed", "-l:libtcmalloc_minimal.so.4"];
    let Ok(path) = program_by(("own_mmap-tcmalloc", "own_mmap"), "gcc", &arguments) else {
        return skip(TEST, "no libtcmalloc_minimal.so.4 (libtcmalloc-minimal4)");
    };
    if skip_without_bpf(TEST) {
        return;
    }
    let (own, process) = own_finding(&[&path], 8 * MIB);
    assert!(own["why"].as_str().expect("text").contains(", own;"), "{own}");
    assert!(sums(&process).contains_key("tcmalloc"), "{:#?}", process["categories"]);
    // from outside, too
    let mut waiting = Command::new(&path);
    let mut waiting = Guard(waiting.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts"));
    let mut line = String::new();
    let mut out = BufReader::new(waiting.0.stdout.take().expect("a pipe"));
    out.read_line(&mut line).expect("it speaks");
    let alone = snapshot(waiting.0.id());
    assert_eq!(sums(alone.first())["unknown"], 8 * MIB, "{:#?}", alone.first()["categories"]);
}

#[test]
fn what_an_addon_maps_is_not_node_s() {
    const TEST: &str = "what_an_addon_maps_is_not_node_s";
    let Some(node) = installed("node") else { return skip(TEST, "no node") };
    if skip_without_bpf(TEST) {
        return;
    }
    let script = format!("process.dlopen({{exports: {{}}}}, {:?})", shared_object("maps_inside"));
    let (own, process) = own_finding(&[node.as_os_str(), "-e".as_ref(), script.as_ref()], 48 * MIB);
    assert!(own["why"].as_str().expect("text").contains("maps_inside"), "{own}");
    assert!(sums(&process).contains_key("v8"), "{:#?}", process["categories"]);
}

#[test]
fn what_a_native_method_maps_is_not_the_jvms() {
    const TEST: &str = "what_a_native_method_maps_is_not_the_jvms";
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (Some(java), Some(())) = (installed("java"), javac(folder.path())) else {
        return skip(TEST, "no java and javac");
    };
    if skip_without_bpf(TEST) {
        return;
    }
    let library = shared_object("maps_inside");
    let command = [
        java.as_os_str(),
        "-cp".as_ref(),
        folder.path().as_os_str(),
        "MapsInside".as_ref(),
        library.as_os_str(),
    ];
    let (own, process) = own_finding(&command, 48 * MIB);
    assert!(own["why"].as_str().expect("text").contains("maps_inside"), "{own}");
    assert!(sums(&process).contains_key("jvm-heap"), "{:#?}", process["categories"]);
}

fn javac(folder: &Path) -> Option<()> {
    let mut javac = Command::new(installed("javac")?);
    let made = watchdog::output(
        javac
            .arg("-d")
            .arg(folder)
            .arg(manifest_dir().join("tests/programs/MapsInside.java"))
            .stdin(Stdio::null()),
    );
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    Some(())
}

/// In a stripped static program no name distinguishes its calls from those of musl's malloc.
#[test]
fn what_is_mapped_at_a_chosen_address_is_not_musls() {
    const TEST: &str = "what_is_mapped_at_a_chosen_address_is_not_musls";
    let path = match program_built("maps_at.c", &["musl-gcc", "-O1", "-static", "-s"]) {
        Ok(path) => path,
        Err(why) => return skip(TEST, &why),
    };
    if skip_without_bpf(TEST) {
        return;
    }
    let audit = audit(&[], &[&path]);
    assert_eq!(audit.status.code(), Some(0), "{}", audit.stderr);
    let report = audit.report();
    let sums = sums(report.first());
    assert_eq!(sums["app-mmap"], 64 * MIB, "{sums:?}");
    assert!((3 * MIB..4 * MIB).contains(&sums["musl-malloc"]), "{sums:?}");
}

/// What the finding on large blocks says of malloc's threshold: a larger one moves them into the heap, a smaller one does
/// not.
#[test]
fn a_larger_threshold_moves_blocks_into_the_heap() {
    const TEST: &str = "a_larger_threshold_moves_blocks_into_the_heap";
    if skip_without_bpf(TEST) {
        return;
    }
    let path = program("own_mmap");
    let audited =
        |bytes: &str| audit(&["--top", "100", "--env", &format!("MALLOC_MMAP_THRESHOLD_={bytes}")], &[&path]);
    let (smaller, larger) = (audited("65536"), audited("33554432"));
    let process = smaller.report().first();
    assert_eq!(sums(process)["glibc-mmapped"], 4 * (3 * MIB + 4096), "{:#?}", process["categories"]);
    let blocks = list(process, "findings").iter().find(|f| f["category"] == "glibc-mmapped").expect("one");
    assert!(blocks["fix"].to_string().contains("a larger threshold only moves it into the heap"), "{blocks}");
    let process = larger.report().first();
    assert!(!sums(process).contains_key("glibc-mmapped"), "{:#?}", process["categories"]);
}

/// The range for the heap of a GraalVM native image, which has no names and, here, musl within: recognised by the section
/// of the file whose code requested it.
#[test]
fn the_range_of_a_native_image_is_known_by_the_heap_in_its_file() {
    const TEST: &str = "the_range_of_a_native_image_is_known_by_the_heap_in_its_file";
    let Some(program) = installed("compiler") else {
        return skip(TEST, "no compiler (google-closure-compiler)");
    };
    if skip_without_bpf(TEST) {
        return;
    }
    let program = program.to_str().expect("UTF-8");
    let audited = |option: &str| {
        let audit = audit(&["--top", "100"], &[program, option, "--version"]);
        assert_eq!(audit.status.code(), Some(0), "{}", audit.stderr);
        audit.report().first().clone()
    };
    let range = |process: &Value| {
        let mut all = list(process, "findings").iter();
        all.find(|f| f["title"] == "addresses for the heap of a GraalVM native image").expect("known").clone()
    };
    let (as_it_is, small) = (audited("-Xmx256m"), audited("-XX:ReservedAddressSpaceSize=4g"));
    let fix = &list(&range(&as_it_is), "fix")[0].clone();
    let saved = number(&range(&as_it_is), "virt") - number(&range(&small), "virt");
    assert!(number(fix, "saves_virt").abs_diff(saved) < 64 * MIB, "{fix}: {saved} saved");
    assert!(list(&range(&small), "fix").is_empty(), "nothing is left to save");
    assert!(number(&range(&as_it_is), "virt") > 31 << 30, "-Xmx leaves it");
    // the chunks of the heap lie in it: nothing is left that the image mapped there for another reason
    let own = |process: &Value| {
        let virt = category(process, "app-mmap").map_or(0, |row| number(row, "virt"));
        virt - number(&range(process), "virt")
    };
    assert!(own(&as_it_is) < MIB, "{}", as_it_is["findings"]);
    // a snapshot knows it by the file's second mapping
    let child =
        Command::new(program).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let child = Guard(child.expect("it starts"));
    let is_up = || {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", child.0.id())).expect("it lives");
        maps.lines().filter(|line| line.ends_with("/compiler")).count() > 3 && maps.lines().count() > 20
    };
    while !is_up() {
        std::thread::yield_now();
    }
    let seen = snapshot(child.0.id()).first().clone();
    assert!(number(&range(&seen), "virt") > 31 << 30, "{}", seen["findings"]);
    assert!(category(&seen, "unknown").is_none_or(|row| number(row, "virt") < MIB), "{}", seen["categories"]);
}

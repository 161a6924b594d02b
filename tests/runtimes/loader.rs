//! Images: their bss, held against the program headers as readelf prints them.

use crate::support::report::{list, number};
use crate::support::{self, AuditReport, Guard, program_by, skip, skip_without_bpf, vmaudit, watchdog};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

fn hex(text: &str) -> u64 {
    u64::from_str_radix(text.trim_start_matches("0x"), 16).expect("a hexadecimal number")
}

fn page_up(at: u64) -> u64 {
    (at + 4095) & !4095
}

/// (Offset, address, size in the file, size in memory, executable) of each PT_LOAD header.
fn loads(path: &str) -> Vec<(u64, u64, u64, u64, bool)> {
    let output = Command::new("readelf").args(["-lW", path]).output().expect("readelf (binutils)");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let loads = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let loads = loads.filter(|words| words.first() == Some(&"LOAD"));
    loads.map(|w| (hex(w[1]), hex(w[2]), hex(w[4]), hex(w[5]), w[6..].contains(&"E"))).collect()
}

/// Every bss of the process, from maps and readelf.
fn truth(pid: u32) -> Vec<(u64, u64)> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("it lives");
    let mut found = Vec::new();
    for line in maps.lines().filter(|line| line.contains("r-xp")) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let Some(path) = words.get(5).filter(|path| path.starts_with('/')) else { continue };
        let (start, offset) = (hex(words[0].split('-').next().expect("a range")), hex(words[2]));
        let loads = loads(path);
        let code = loads.iter().find(|l| l.4 && l.0 & !4095 == offset).expect("a segment with code");
        let bias = start - (code.1 & !4095);
        let bss = loads.iter().map(|l| (page_up(l.1 + l.2), page_up(l.1 + l.3)));
        found.extend(bss.filter(|(from, to)| from < to).map(|(from, to)| (bias + from, bias + to)));
    }
    found.sort_unstable();
    found
}

/// What the report calls bss; neighbours joined.
fn reported(process: &Value, evidence: &str) -> Vec<(u64, u64)> {
    let mut joined: Vec<(u64, u64)> = Vec::new();
    for region in list(process, "regions").iter().filter(|region| region["part"] == "bss") {
        assert_eq!(
            (&region["category"], &region["evidence"]),
            (&"loader".into(), &evidence.into()),
            "{region}"
        );
        let ends = ["start", "end"].map(|key| hex(region[key].as_str().expect("an address")));
        match joined.last_mut() {
            Some(last) if last.1 == ends[0] => last.1 = ends[1],
            _ => joined.push((ends[0], ends[1])),
        }
    }
    joined
}

/// The report on a program that waits for its input after a line READY.
fn check(command: &mut Command) -> Value {
    let mut target = Guard(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts"));
    let mut out = BufReader::new(target.0.stdout.take().expect("a pipe"));
    let mut line = String::new();
    out.read_line(&mut line).expect("it speaks");
    assert_eq!(line, "READY\n", "{command:?}");
    let pid = target.0.id();
    let snapshot = ["snapshot", "-f", "json", "-p", &pid.to_string()];
    let output = watchdog::output(Command::new(vmaudit()).args(snapshot).stdin(Stdio::null()));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report = AuditReport::parse(&output.stdout);
    assert_eq!(reported(report.first(), "header"), truth(pid), "{command:?}");
    report.first().clone()
}

#[test]
fn a_bss_ends_where_the_program_headers_say() {
    const TEST: &str = "a_bss_ends_where_the_program_headers_say";
    for flags in [&["-pie"][..], &["-no-pie"], &["-static"]] {
        let name = format!("bss-neighbours{}", flags[0]);
        let program = program_by((&name, "bss_neighbours"), "gcc", flags).expect("gcc");
        let process = check(&mut Command::new(&program));
        // its own 64 KiB right above, in the same VMA
        let unknown = list(&process, "regions").iter().filter(|region| region["category"] == "unknown");
        assert_eq!(unknown.map(|region| number(region, "virt")).max(), Some(64 << 10), "{name}");
        if skip_without_bpf(TEST) {
            continue;
        }
        let launched = support::audit(&[], &[&program]);
        let process = launched.report().first();
        let own = list(process, "categories").iter().find(|row| row["id"] == "app-mmap");
        assert_eq!(own.map(|row| number(row, "virt")), Some(64 << 10), "{name}, launched");
    }
}

/// Programs whose allocators map memory right above libraries.
#[test]
fn the_bss_of_real_programs() {
    const TEST: &str = "the_bss_of_real_programs";
    const SCRIPTS: [(&str, &str, &str); 2] = [
        ("php", "-r", "echo \"READY\\n\"; fgets(STDIN);"),
        ("python3", "-c", "import numpy; print('READY', flush=True); input()"),
    ];
    for (program, option, script) in SCRIPTS {
        let mut command = Command::new(program);
        let probe = ["-c", "import numpy"];
        let there = match program {
            "python3" => command.args(probe).output().is_ok_and(|output| output.status.success()),
            _ => command.arg("--version").output().is_ok(),
        };
        if !there {
            skip(TEST, &format!("no {program} (with numpy)"));
            continue;
        }
        check(Command::new(program).args([option, script]));
    }
}

/// A block below a library is the loader's where its own lists lead into it, and nowhere else.
#[test]
fn what_lies_below_a_library_is_not_the_loaders_for_that() {
    let program = program_by(("below_libraries", "below_libraries"), "gcc", &[]).expect("gcc");
    let process = check(&mut Command::new(&program));
    let sum = |category: &str| -> u64 {
        let own = list(&process, "regions").iter().filter(|region| region["category"] == category);
        own.map(|region| number(region, "virt")).sum()
    };
    assert_eq!(sum("unknown"), 64 << 10, "its own mapping, and nothing else");
    let tls = list(&process, "regions").iter().filter(|region| region["part"] == "TLS and loader data");
    let evidence: Vec<&str> = tls.map(|region| region["evidence"].as_str().expect("text")).collect();
    assert!(!evidence.is_empty() && evidence.iter().all(|evidence| *evidence == "header"), "{evidence:?}");
}

/// Four threads of a program on another glibc than the system's (scripts/other-libc.sh unpacks one).
#[test]
fn arenas_of_another_glibc_are_its_own() {
    const TEST: &str = "arenas_of_another_glibc_are_its_own";
    let Some(folder) = std::env::var_os("VMAUDIT_OTHER_LIBC").map(std::path::PathBuf::from) else {
        return skip(TEST, "VMAUDIT_OTHER_LIBC names no folder with a glibc");
    };
    let program = program_by(("own_mmap", "own_mmap"), "gcc", &["-pthread"]).expect("gcc");
    let mut command = Command::new(folder.join("ld-linux-x86-64.so.2"));
    command.arg("--library-path").arg(&folder).arg(&program);
    let mut target = Guard(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts"));
    let mut line = String::new();
    let mut out = BufReader::new(target.0.stdout.take().expect("a pipe"));
    out.read_line(&mut line).expect("it speaks");
    assert_eq!(line, "ready\n");
    let snapshot = ["snapshot", "-f", "json", "-p", &target.0.id().to_string()];
    let output = watchdog::output(Command::new(vmaudit()).args(snapshot).stdin(Stdio::null()));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let alone = AuditReport::parse(&output.stdout);
    drop(target);
    let virt = |process: &Value, id: &str| {
        let row = list(process, "categories").iter().find(|row| row["id"] == id);
        row.map_or(0, |row| number(row, "virt"))
    };
    // each thread's malloc has made an arena, the program's own 8 MiB are no malloc's
    let arenas = 4 * (64 << 20);
    assert_eq!(virt(alone.first(), "glibc-arena"), arenas, "{}", alone.first()["categories"]);
    assert_eq!(virt(alone.first(), "unknown"), 8 << 20, "{}", alone.first()["categories"]);
    if skip_without_bpf(TEST) {
        return;
    }
    let words = [folder.join("ld-linux-x86-64.so.2"), "--library-path".into(), folder.clone(), program];
    let launched = support::audit(&[], &words);
    let process = launched.report().first();
    assert_eq!(virt(process, "glibc-arena"), arenas, "{}", process["categories"]);
    assert_eq!(virt(process, "app-mmap"), 8 << 20, "{}", process["categories"]);
}

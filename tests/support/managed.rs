//! Programs of managed runtimes that wait, and snapshots of them.

use super::report::{list, number};
use super::{Audit, AuditReport, Guard, finished, skip, skip_without_bpf, vmaudit};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub const NODE: &str = "process.stdout.write('READY\\n'); process.stdin.on('end', () => process.exit(0)); \
                        process.stdin.resume();";
pub const PYTHON: &str = "import sys, threading\n\
                          kept = [(i, str(i)) for i in range(100000)]\n\
                          over = threading.Event()\n\
                          for _ in range(4): threading.Thread(target=over.wait, daemon=True).start()\n\
                          print('READY', flush=True)\n\
                          sys.stdin.read()\n";

/// The path of an installed program.
pub fn installed(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let mut places: Vec<PathBuf> = std::env::split_paths(&path).collect();
    places.insert(0, PathBuf::from("/usr/bin"));
    places.into_iter().map(|folder| folder.join(name)).find(|file| file.exists())
}

/// The interpreters of these versions (3.x) on this machine; and those in `$VMAUDIT_PYTHONS`, separated by colons.
pub fn pythons(minors: RangeInclusive<u32>) -> Vec<PathBuf> {
    let more = std::env::var_os("VMAUDIT_PYTHONS").unwrap_or_default();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> =
        std::env::split_paths("/usr/bin").chain(std::env::split_paths(&path)).collect();
    let names: Vec<OsString> = minors.map(|minor| format!("python3.{minor}").into()).collect();
    let on_path = names.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
    let is_program = |file: &PathBuf| fs::read(file).is_ok_and(|bytes| bytes.starts_with(b"\x7fELF"));
    let is_one = |file: &PathBuf| file.file_name().is_some_and(|name| names.iter().any(|one| one == name));
    let all: BTreeSet<PathBuf> =
        std::env::split_paths(&more).chain(on_path).filter_map(|file| fs::canonicalize(file).ok()).collect();
    all.into_iter().filter(|file| is_one(file) && is_program(file)).collect()
}

/// Those whose frames are read; a line says where there are none.
pub fn pythons_or_skip(test: &str) -> Vec<PathBuf> {
    let found = if skip_without_bpf(test) { Vec::new() } else { pythons(11..=14) };
    if found.is_empty() {
        skip(test, "no python3.11 to python3.14");
    }
    found
}

/// A program that says READY and waits.
pub fn waiting(command: &mut Command) -> Guard {
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut guard = Guard(child.expect("the program starts"));
    let mut out = BufReader::new(guard.0.stdout.take().expect("a pipe"));
    let mut line = String::new();
    out.read_line(&mut line).expect("it speaks");
    assert_eq!(line, "READY\n");
    guard
}

/// A JVM that serves on loopback until it gets the request to end, and then prints what its native memory
/// tracking counted.
pub fn serving_jvm(java: &Path, options: &[&str]) -> Guard {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port").port();
    let mut command = Command::new(java);
    command.args(NMT).args(options).args(["-m", "java.rmi/sun.rmi.registry.RegistryImpl", &port.to_string()]);
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut guard = Guard(child.expect("java starts"));
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        let ended = guard.0.try_wait().expect("its state");
        assert!(ended.is_none(), "java ended: {ended:?}");
        std::thread::yield_now();
    }
    guard
}

pub const NMT: &[&str] = &[
    "-XX:NativeMemoryTracking=summary",
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:+PrintNMTStatistics",
    // one heap and one number of tables on every machine
    "-Xmx1g",
];

/// What native memory tracking says was reserved by mmap, by its categories, bytes.
pub fn reserved_by_nmt(printed: &str) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    let mut category = String::new();
    let figure = |text: &str| {
        let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
        let unit = if text[digits.len()..].starts_with("KB") { 1024 } else { 1 };
        digits.parse::<u64>().expect("a number") * unit
    };
    for line in printed.lines().map(str::trim) {
        if let Some((name, _)) = line.strip_prefix('-').and_then(|rest| rest.split_once(" (reserved=")) {
            category = name.trim().to_string();
        } else if let Some(rest) = line.strip_prefix("(mmap: reserved=").filter(|_| !category.is_empty()) {
            found.insert(category.clone(), figure(rest));
        }
    }
    found
}

pub fn snapshot(pid: u32) -> AuditReport {
    let mut command = Command::new(vmaudit());
    let output = command.args(["snapshot", "-f", "json", "-p", &pid.to_string()]).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    AuditReport::parse(&output.stdout)
}

/// Attaches, and lets go as soon as it traces.
pub fn attach(pid: u32) -> Audit {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("report.json");
    let mut command = Command::new(vmaudit());
    command.args(["attach", "-f", "json", "--report"]).arg(&file).args(["-p", &pid.to_string()]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut auditor = Guard(command.spawn().expect("vmaudit starts"));
    let mut stderr = BufReader::new(auditor.0.stderr.take().expect("a pipe"));
    let mut said = String::new();
    let mut traces = false;
    while let Ok(1..) = stderr.read_line(&mut said) {
        if said.contains("Ctrl-C ends tracing") && !std::mem::replace(&mut traces, true) {
            auditor.signal(libc::SIGINT);
        }
    }
    let mut output = auditor.finish().expect("it ends");
    output.stderr = said.into_bytes();
    finished(output, &file)
}

/// VIRT by category, bytes.
pub fn sums(process: &Value) -> BTreeMap<String, u64> {
    let rows = list(process, "categories").iter();
    rows.map(|row| (row["id"].as_str().expect("an id").to_string(), number(row, "virt"))).collect()
}

/// VIRT by category and part, bytes.
pub fn parts(process: &Value) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    for region in list(process, "regions") {
        let part = region["part"].as_str().unwrap_or_default();
        let key = format!("{}/{part}", region["category"].as_str().unwrap_or_default());
        *found.entry(key).or_default() += number(region, "virt");
    }
    found
}

/// The first finding's title, and the knobs that it says will not help.
pub fn top(process: &Value) -> (String, Vec<String>) {
    let Some(first) = list(process, "findings").first() else { return Default::default() };
    let no_help = first["no_help"].as_array().map_or(&[][..], Vec::as_slice);
    let knobs = no_help.iter().map(|no| no["knob"].as_str().unwrap_or_default().to_string());
    (first["title"].as_str().unwrap_or_default().to_string(), knobs.collect())
}

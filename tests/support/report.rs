//! The JSON report as tests read it, with the invariants that hold for every report.

use serde_json::Value;
use std::collections::BTreeMap;

/// A parsed report of schema 1 whose sums add up.
pub struct AuditReport {
    pub json: Value,
}

/// `/proc/PID/maps` reduced to what has to agree: adjoining lines of equal rights are one.
#[derive(Debug, PartialEq, Eq, Clone)]
pub struct Span {
    pub start: u64,
    pub end: u64,
    pub prot: String,
}

/// Joins neighbours of equal rights.
pub fn merged(spans: impl IntoIterator<Item = Span>) -> Vec<Span> {
    let mut all: Vec<Span> = Vec::new();
    for span in spans {
        match all.last_mut() {
            Some(last) if last.end == span.start && last.prot == span.prot => last.end = span.end,
            _ => all.push(span),
        }
    }
    all
}

/// The spans of a maps file, without vsyscall, which is no part of the address space's size.
pub fn spans_of_maps(maps: &[u8]) -> Vec<Span> {
    let text = String::from_utf8_lossy(maps);
    let lines = text.lines().filter(|line| !line.ends_with("[vsyscall]"));
    merged(lines.map(|line| {
        let mut fields = line.split(' ');
        let (start, end) = fields.next().and_then(|f| f.split_once('-')).expect("a range");
        let hex = |s: &str| u64::from_str_radix(s, 16).expect("a hexadecimal number");
        Span { start: hex(start), end: hex(end), prot: fields.next().expect("rights").to_owned() }
    }))
}

pub fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("`{key}` is not a number in {value:.300}"))
}

fn hex(value: &Value) -> u64 {
    let text = value.as_str().and_then(|s| s.strip_prefix("0x")).expect("a hexadecimal string");
    u64::from_str_radix(text, 16).expect("a hexadecimal number")
}

pub fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().unwrap_or_else(|| panic!("`{key}` is not a list in {value:.300}"))
}

impl AuditReport {
    /// Parses, and checks the keys and the sums of every process.
    pub fn parse(bytes: &[u8]) -> AuditReport {
        let json: Value = serde_json::from_slice(bytes).expect("the report is JSON");
        assert_eq!(json["schema"], 1);
        let report = AuditReport { json };
        for process in report.processes() {
            check_process(process);
        }
        report
    }

    pub fn processes(&self) -> &[Value] {
        list(&self.json, "processes")
    }

    pub fn stacks(&self) -> &[Value] {
        list(&self.json, "stacks")
    }

    /// The process that `run` started.
    pub fn first(&self) -> &Value {
        self.processes().first().expect("at least one process")
    }

    /// The last address space of a pid.
    pub fn process(&self, pid: u64) -> Option<&Value> {
        self.processes().iter().rfind(|p| p["pid"].as_u64() == Some(pid))
    }

    pub fn event(&self, key: &str) -> u64 {
        number(&self.json["events"], key)
    }

    /// Nothing lost, nothing unexplained, ledger and kernel agree: for every process.
    pub fn assert_exact(&self) {
        assert_eq!(self.event("lost"), 0, "events lost");
        for process in self.processes() {
            let name = format!("{} (pid {})", process["comm"], process["pid"]);
            let coverage = &process["coverage"];
            assert_eq!(number(coverage, "ledger_drift"), 0, "ledger_drift of {name}: {coverage}");
            assert_eq!(number(coverage, "unknown"), 0, "unknown of {name}: {coverage}");
            assert_eq!(number(coverage, "preexisting"), 0, "preexisting of {name}: {coverage}");
            // One thread's calls are known in the order in which they took effect.
            if process["threads_seen"] == 1 && process["snapshot"] == "exit" {
                let kernels = number(&process["totals"], "vm_peak");
                assert_eq!(number(&process["peak"], "virt"), kernels, "VmPeak of {name}");
            }
        }
    }

    /// At least 99 of 100 stacks reach the program's entry.
    pub fn assert_stacks_complete(&self) {
        let (seen, bad) =
            (self.event("seen"), self.event("truncated_stacks") + self.event("unwind_incomplete"));
        assert!(seen > 0, "no events seen");
        assert!(bad * 100 <= seen, "{bad} of {seen} stacks are not complete: {}", self.json["events"]);
    }

    /// Names in the stack with this index, innermost first: `module!symbol`.
    pub fn stack_names(&self, index: &Value) -> Vec<String> {
        let Some(index) = index.as_u64() else { return vec![] };
        let stack = &self.stacks()[index as usize];
        let text = |v: &Value| v.as_str().unwrap_or("?").to_owned();
        list(stack, "frames")
            .iter()
            .map(|f| format!("{}!{}", text(&f["module"]), text(&f["symbol"])))
            .collect()
    }
}

/// The spans of a process's regions.
pub fn spans_of_regions(process: &Value) -> Vec<Span> {
    merged(list(process, "regions").iter().map(|region| Span {
        start: hex(&region["start"]),
        end: hex(&region["end"]),
        prot: region["prot"].as_str().expect("prot").to_owned(),
    }))
}

/// The row of a category, if there is one.
pub fn category<'a>(process: &'a Value, id: &str) -> Option<&'a Value> {
    list(process, "categories").iter().find(|c| c["id"] == id)
}

const PROCESS_KEYS: &[&str] = &[
    "pid",
    "comm",
    "exe",
    "cmdline",
    "exit_code",
    "signal",
    "container",
    "threads_seen",
    "aslr",
    "totals",
    "coverage",
    "categories",
    "regions",
    "findings",
    "timeline",
];
const REGION_KEYS: &[&str] =
    &["start", "end", "prot", "category", "evidence", "virt", "rss", "swap", "path", "origin"];
const FINDING_KEYS: &[&str] =
    &["category", "virt", "rss", "unused", "regions", "stack", "title", "why", "fix"];

fn assert_keys(value: &Value, keys: &[&str]) {
    for key in keys {
        assert!(value.get(key).is_some(), "key `{key}` is missing in {value:.300}");
    }
}

fn check_process(process: &Value) {
    assert_keys(process, PROCESS_KEYS);
    let totals = &process["totals"];
    assert_keys(totals, &["virt", "rss", "swap", "unused", "writable", "reserved", "vm_peak"]);
    let coverage = &process["coverage"];
    let virt = number(totals, "virt");
    let covered: u64 =
        ["traced", "preexisting", "kernel", "unknown"].iter().map(|k| number(coverage, k)).sum();
    assert_eq!(covered, virt, "coverage does not add up to VIRT: {coverage} {totals}");

    let mut by_category: BTreeMap<String, [u64; 4]> = BTreeMap::new();
    let (mut last_end, mut sums) = (0, [0; 3]);
    for region in list(process, "regions") {
        assert_keys(region, REGION_KEYS);
        let (start, end, virt) = (hex(&region["start"]), hex(&region["end"]), number(region, "virt"));
        assert!(last_end <= start && start < end, "regions are not sorted and disjoint at {region}");
        last_end = end;
        assert_eq!(virt, end - start, "{region}");
        let of_region = [virt, number(region, "rss"), number(region, "swap")];
        let row = by_category.entry(region["category"].as_str().expect("category").to_owned()).or_default();
        for (i, bytes) in of_region.iter().enumerate() {
            row[i] += bytes;
            sums[i] += bytes;
        }
        row[3] += 1;
    }
    // Of a small process that has ended the sums are kept.
    let is_left_out = process["left_out"].as_u64().is_some_and(|regions| regions > 0);
    if is_left_out {
        assert_eq!(last_end, 0, "regions that are left out");
    } else {
        assert_eq!(sums[0], virt, "regions do not add up to VIRT");
        assert_eq!(sums[1], number(totals, "rss"), "regions do not add up to RSS");
        assert_eq!(sums[2], number(totals, "swap"), "regions do not add up to swap");
    }

    for key in ["virt", "writable", "rss", "swap", "unused"] {
        let sum: u64 = list(process, "categories").iter().map(|c| number(c, key)).sum();
        assert_eq!(sum, number(totals, key), "categories do not add up to totals.{key}");
    }
    for row in list(process, "categories") {
        let id = row["id"].as_str().expect("id");
        assert!(!row["name"].as_str().expect("name").is_empty());
        if is_left_out {
            continue;
        }
        let expected = by_category.get(id).copied().unwrap_or_default();
        assert_eq!(
            [number(row, "virt"), number(row, "rss"), number(row, "swap")],
            expected[..3],
            "category {id}"
        );
    }
    for point in list(process, "timeline") {
        check_sum(&point["by_category"], point["virt"].as_u64());
        if !point["rss"].is_null() {
            check_sum(&point["rss_by_category"], point["rss"].as_u64());
        }
    }
    if !process["peak"].is_null() {
        check_peak(process);
    }
    for finding in list(process, "findings") {
        assert_keys(finding, FINDING_KEYS);
        for fix in list(finding, "fix") {
            assert_keys(fix, &["knob", "saves_virt", "saves_rss", "note"]);
        }
    }
}

fn check_sum(by_category: &Value, expected: Option<u64>) {
    let parts = by_category.as_object().expect("categories");
    let sum: u64 = parts.values().map(|bytes| bytes.as_u64().expect("bytes")).sum();
    assert_eq!(Some(sum), expected, "{by_category}");
}

fn check_peak(process: &Value) {
    let peak = &process["peak"];
    let virt = number(peak, "virt");
    assert!(virt >= number(&process["totals"], "virt"), "the peak is below the end: {peak:.300}");
    let on_the_way = peak["on_the_way"].as_i64().expect("a signed number");
    let calls = virt.checked_add_signed(-on_the_way).expect("calls explain the peak");
    check_sum(&peak["by_category"], Some(calls));
    let shares = list(peak, "by_stack");
    let sum = |key: &str| shares.iter().map(|s| number(s, key)).sum::<u64>() + number(&peak["rest"], key);
    assert_eq!(sum("bytes"), calls, "shares of the peak");
    assert!(sum("now_bytes") <= number(&process["totals"], "virt"));
}

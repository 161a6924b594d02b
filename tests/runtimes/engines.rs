//! Engines of JavaScript that are not Node's: Deno has V8, Bun has JavaScriptCore and mimalloc.

use crate::support::managed::{installed, snapshot, waiting};
use crate::support::report::{category, list, number};
use crate::support::{audit, skip, skip_without_bpf};
use serde_json::Value;
use std::process::Command;

const MIB: u64 = 1 << 20;
const WAITS: &str = "console.log('READY'); setInterval(() => {}, 1e6);";
const ENDS: &str = "console.log('READY')";

/// Bytes that are reported as a part of a category, by snapshot and under `run`.
fn bytes(process: &Value, id: &str, part: &str) -> u64 {
    let mine = list(process, "regions").iter().filter(|r| r["category"] == id && r["part"] == part);
    mine.map(|region| number(region, "virt")).sum()
}

#[test]
fn deno_has_a_code_range_of_v8() {
    const TEST: &str = "deno_has_a_code_range_of_v8";
    let Some(deno) = installed("deno") else { return skip(TEST, "no deno") };
    let holds = |process: &Value| {
        let code =
            bytes(process, "v8", "code range") + bytes(process, "v8", "copy of the built-in functions");
        assert_eq!(code, 512 * MIB, "{}", process["categories"]);
        assert_eq!(bytes(process, "v8", "cage of the heap of C++ objects"), 16 << 30);
        let finding = |title: &str| {
            let all = list(process, "findings").iter();
            all.filter(|f| f["title"].as_str().is_some_and(|own| own.starts_with(title))).count()
        };
        assert_eq!((finding("V8 code range"), finding("V8's heap of C++ objects")), (1, 1));
    };
    let living = waiting(Command::new(&deno).args(["eval", WAITS]));
    let alone = snapshot(living.0.id());
    holds(alone.first());
    let unknown = category(alone.first(), "unknown").map_or(0, |row| number(row, "virt"));
    assert!(unknown < 16 * MIB, "{unknown}");
}

/// It names its ranges where the kernel has names, and tries to where it has none. They are neither V8's nor
/// mimalloc's, which is in the same process.
#[test]
fn ranges_of_javascriptcore_in_bun() {
    const TEST: &str = "ranges_of_javascriptcore_in_bun";
    let Some(bun) = installed("bun") else { return skip(TEST, "no bun") };
    let holds = |process: &Value| {
        assert!(category(process, "v8").is_none(), "{}", process["categories"]);
        for (rule, virt, saves) in [("structures", 4096 * MIB, 3840 * MIB), ("code", 1024 * MIB, 960 * MIB)] {
            let rule = format!("javascriptcore.{rule}");
            let mut found = list(process, "findings").iter().filter(|f| f["rule"] == rule.as_str());
            let found = found.next().unwrap_or_else(|| panic!("no {rule}: {}", process["findings"]));
            // under `run`, the guards belong to the call
            assert!((virt..=virt + 8192).contains(&number(found, "virt")), "{found}");
            assert!(number(&list(found, "fix")[0], "saves_virt").abs_diff(saves) <= 8192, "{found}");
        }
        let mimalloc = category(process, "mimalloc").map_or(0, |row| number(row, "virt"));
        assert!(mimalloc < 2048 * MIB, "{mimalloc}");
    };
    let living = waiting(Command::new(&bun).args(["-e", WAITS]));
    holds(snapshot(living.0.id()).first());
    if !skip_without_bpf(TEST) {
        holds(audit(&[], &[bun.to_str().expect("UTF-8"), "-e", ENDS]).report().first());
    }
}

//! The engine without the command line: the example that docs name, built with the tests, on a real program.

use crate::support::vmaudit;
use std::path::PathBuf;
use std::process::Command;

/// Cargo builds examples next to the tests.
fn example(name: &str) -> PathBuf {
    let own = std::env::current_exe().expect("the test's own path");
    own.parent().and_then(|deps| deps.parent()).expect("a target folder").join("examples").join(name)
}

#[test]
fn an_audit_in_thirty_lines_says_what_the_command_says() {
    let program = ["python3", "-c", "import mmap, os; m = mmap.mmap(-1, 64 << 20); os._exit(0)"];
    let output = Command::new(example("audit")).args(program).output().expect("the example runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let line = text.lines().find(|line| line.starts_with("python3 (pid ")).expect("a line of the process");
    let numbers: Vec<u64> =
        line.split_once("): ").expect("figures").1.split(' ').filter_map(|word| word.parse().ok()).collect();
    let json = Command::new(vmaudit())
        .args(["run", "-f", "json", "--"])
        .args(program)
        .output()
        .expect("vmaudit runs");
    let report: serde_json::Value = serde_json::from_slice(&json.stdout).expect("a report");
    let totals = &report["processes"][0]["totals"];
    // Where the loader puts things differs from run to run, by gaps of some pages.
    for (own, key) in numbers.iter().zip(["unused", "virt"]) {
        let whole = totals[key].as_u64().expect(key);
        assert!(own.abs_diff(whole) < 1 << 20 && *own > 64 << 20, "{key}: {own}, and {whole} by the command");
    }
    assert_eq!(numbers.len(), 2, "{line}");
}

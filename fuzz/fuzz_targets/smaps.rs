//! Any bytes as /proc/PID/smaps, of a living process and saved in a file; the latter up to its report.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vmaudit::procfs::parse_smaps;
use vmaudit::render::{TextOptions, to_json, to_text};
use vmaudit::report::Report;
use vmaudit::attribution::DataRules;
use vmaudit::session::snapshots::{report_of, saved_snapshot_in};

fuzz_target!(|bytes: &[u8]| {
    parse_smaps(bytes);
    let Ok(snapshot) = saved_snapshot_in("smaps", bytes) else { return };
    let report = report_of(&[snapshot], DataRules::built_in());
    to_text(&report, TextOptions::default());
    let json = to_json(&report).expect("JSON");
    assert_eq!(Report::from_json(json.as_bytes()).expect("a report"), report);
});

//! Any bytes as /proc/PID/maps, of a living process and saved in a file.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vmaudit::procfs::{parse_maps, parse_saved};

fuzz_target!(|bytes: &[u8]| {
    let parsed = parse_maps(bytes);
    let sorted = |a: &vmaudit::model::Mapping, b: &vmaudit::model::Mapping| a.range.end <= b.range.start;
    assert!(parsed.mappings.is_sorted_by(sorted));
    assert!(parsed.mappings.iter().all(|mapping| !mapping.range.is_empty()));
    if let Ok(saved) = parse_saved(bytes) {
        assert!(saved.mappings.is_sorted_by(sorted));
    }
});

//! Any bytes as a report in JSON, read as `diff`, `flame` and `compare` read it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vmaudit::compare::Run;
use vmaudit::diff::{By, Options, Pick, Side, compare};
use vmaudit::render::{
    FlameOptions, FlameSide, FlameSides, TextOptions, diff_to_folded, diff_to_svg, diff_to_text, to_json,
};
use vmaudit::report::Report;

fuzz_target!(|bytes: &[u8]| {
    let Ok(report) = Report::from_json(bytes) else { return };
    let json = to_json(&report).expect("JSON");
    assert_eq!(Report::from_json(json.as_bytes()).expect("a report"), report);
    Run::of(&report, 1);
    let none = Report { schema: 1, ..report.clone() };
    for pick in [Pick::Main, Pick::All] {
        let (Ok(a), Ok(b)) =
            (Side::new(&report, ("a", "report"), pick), Side::new(&none, ("b", "report"), pick))
        else {
            continue;
        };
        for by in [By::Category, By::Stack, By::Finding, By::Address] {
            diff_to_text(&compare(&a, &b, Options { by }), TextOptions::default());
        }
        let sides = FlameSides {
            a: FlameSide::of(&a, "a".into()),
            b: FlameSide::of(&b, "b".into()),
            same_pids: false,
        };
        diff_to_folded(&sides, FlameOptions::default());
        let _ = diff_to_svg(&sides, FlameOptions::default());
    }
});

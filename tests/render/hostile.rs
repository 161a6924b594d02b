//! Names that hold what terminals obey, C1 controls and changes of direction too, in each format.

use crate::flame::reports::{decode, random_report};
use serde_json::Value;
use vmaudit::model::is_hidden;
use vmaudit::render::{
    FlameOptions, FlameSide, FlameSides, TextOptions, Width, diff_to_folded, diff_to_svg, to_folded, to_html,
    to_json, to_pprof, to_svg, to_text,
};
use vmaudit::report::Report;

const HOSTILE: &str = " \u{9b}31m\u{85}\u{7f}\u{1b}[2J\u{202e}\u{2067}\u{200b}\u{feff}\u{61c}";
/// What a target chooses.
const CHOSEN: [&str; 9] = ["comm", "exe", "cmdline", "module", "symbol", "file", "path", "name", "part"];

/// Puts it into everything that a target chooses; the number of strings.
fn spoil(value: &mut Value, chosen: bool) -> usize {
    match value {
        Value::String(text) if chosen => {
            text.push_str(HOSTILE);
            1
        }
        Value::Array(all) => all.iter_mut().map(|each| spoil(each, chosen)).sum(),
        Value::Object(all) => {
            all.iter_mut().map(|(key, each)| spoil(each, CHOSEN.contains(&key.as_str()))).sum()
        }
        _ => 0,
    }
}

#[test]
fn no_format_passes_on_what_a_terminal_obeys() {
    let piece = |at: usize| (1, 9, 3, 1, at % 4, at % 5, Some(at as u64 % 8), at % 5);
    let report = random_report(&[(0..40).map(piece).collect(), (3..9).map(piece).collect()], 7, 1);
    let mut value = serde_json::to_value(&report).expect("JSON");
    assert!(spoil(&mut value, false) > 100, "{value}");
    let report = Report::from_json(value.to_string().as_bytes()).expect("a report");
    let value = serde_json::to_value(&report).expect("JSON");
    let flame = FlameOptions { width: Width::Virt, threads: true, lines: true, ..FlameOptions::default() };
    let sides = FlameSides {
        a: FlameSide::whole(&report, HOSTILE.to_owned()),
        b: FlameSide::whole(&report, HOSTILE.to_owned()),
        same_pids: true,
    };
    let json = to_json(&report).expect("JSON");
    assert_eq!(serde_json::from_str::<Value>(&json).expect("JSON"), value, "the same strings");
    let profile = decode(&to_pprof(&report, Width::Virt).expect("a profile")).profile;
    let texts = [
        ("json", json),
        ("text", to_text(&report, TextOptions::default())),
        ("folded", to_folded(&report, flame)),
        ("svg", to_svg(&report, flame).expect("a graph")),
        ("html", to_html(&report).expect("a page")),
        ("diff, folded", diff_to_folded(&sides, flame)),
        ("diff, svg", diff_to_svg(&sides, flame).expect("a graph")),
        ("pprof", profile.string_table.join("\n")),
    ];
    for (format, text) in texts {
        let passed = text.char_indices().find(|&(_, c)| is_hidden(c) && c != '\n' && c != '\t');
        assert!(passed.is_none(), "{format}: {passed:?} of {}", text.len());
    }
}

//! Any text as a file of rules (docs/rules.md), and what it makes of names.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vmaudit::attribution::{Query, DataRules, Mapped, Named, parse_rules};

fuzz_target!(|text: &str| {
    match parse_rules(text, "fuzzed.toml") {
        Ok(rules) => {
            let all = DataRules::of(rules.clone());
            assert_eq!(all.rules(), rules.as_slice());
            let mapped = Mapped { reserved: false, shared: false, huge: false, caller: "libfoo.so", bytes: 1 << 20 };
            let query = Query { mapped, applies: &|rule| rule < rules.len() };
            let inner = Named { module: "libc.so.6", names: [Some("mmap"), None] };
            for name in text.split('"').take(64) {
                let line = Named { module: name, names: [Some(name), Some(name)] };
                let found = all.by_line(&[inner, line], 1, query);
                assert!(found.is_none() || all.knows(line));
                all.explaining("glibc-mmapped", &[inner, line], query.applies);
                let _ = (all.by_name(name, query), all.by_file(name, query));
            }
            for rule in all.rules() {
                for left in rule.knobs.iter().filter_map(|knob| knob.left) {
                    assert!(left.of(12_345, 7) <= 12_345);
                }
            }
        }
        Err(error) => assert!((1..=text.lines().count() + 1).contains(&error.line), "{error}"),
    }
});

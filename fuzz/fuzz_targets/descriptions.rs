//! Any text as a description of an allocator (docs/heap.md).
#![no_main]

use libfuzzer_sys::fuzz_target;
use vmaudit::heap::describe::parse;

fuzz_target!(|text: &str| {
    match parse(text, "fuzzed.toml") {
        Ok(description) => {
            description.searches("libc.so.6");
            for function in &description.functions {
                assert_eq!(description.function(&function.symbol), Some(function));
            }
        }
        Err(error) => assert!((1..=text.lines().count() + 1).contains(&error.line), "{error}"),
    }
});

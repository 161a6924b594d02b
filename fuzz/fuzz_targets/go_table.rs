//! Any bytes as the table of functions of a Go program's file: its names, lines, inlined calls and frame sizes.
//!
//! The first 4 bytes: an address in the code. A description (`moduledata`) and the tables that it leads to follow, in a file
//! of one segment that holds them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vmaudit::model::arenas::memory_of;
use vmaudit::model::function_table::{described, version_in};

/// Where the bytes are.
const BASE: u64 = 0x1000;

fuzz_target!(|bytes: &[u8]| {
    let Some((address, rest)) = bytes.split_first_chunk::<4>() else { return };
    let address = u64::from(u32::from_le_bytes(*address));
    let words: Vec<u64> = rest.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
    let version = version_in(rest);
    let mut given = memory_of(BASE, rest);
    let Some(table) = described(&words, version.as_ref(), &mut given) else { return };
    let Some(function) = table.function(address, &mut given) else { return };
    assert!((function.start..function.end).contains(&address));
    table.frame_size(function, address, &mut given);
    let name = table.name(function, &mut given);
    let calls = table.calls(function, address, &mut given);
    if let Some(calls) = calls {
        assert_eq!(calls.last().map(|own| (own.inlined, Some(own.name.clone()))), Some((false, name)));
    }
});

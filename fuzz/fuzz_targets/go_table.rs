//! Any bytes as the table of functions of a Go program's file: its names, lines, inlined calls and frame sizes.
//!
//! The first 4 bytes: an address in the code. A description (`moduledata`) and the tables that it leads to follow, in a file
//! of one segment that holds them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vmaudit::model::function_table::{ReadBytes, described, version_in};

/// Where the bytes are.
const BASE: u64 = 0x1000;

struct Given<'b>(&'b [u8]);

impl ReadBytes for Given<'_> {
    fn fill(&mut self, at: u64, into: &mut [u8]) -> bool {
        let from = at.checked_sub(BASE).and_then(|at| usize::try_from(at).ok());
        let bytes = from.and_then(|from| self.0.get(from..from.checked_add(into.len())?));
        bytes.is_some_and(|bytes| {
            into.copy_from_slice(bytes);
            true
        })
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Some((address, rest)) = bytes.split_first_chunk::<4>() else { return };
    let address = u64::from(u32::from_le_bytes(*address));
    let words: Vec<u64> = rest.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
    let version = version_in(rest);
    let mut given = Given(rest);
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

//! Any bytes as an ELF file: its function symbols, in every way they are looked up.
//! A good corpus: small programs, stripped ones, and one with .gnu_debugdata.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vmaudit::objects::{DebugFiles, FunctionTable, Object};

fuzz_target!(|bytes: &[u8]| {
    let Ok(object) = Object::from_bytes(bytes.to_vec()) else { return };
    let table = FunctionTable::read(&object, DebugFiles { file: Some(&object) });
    for function in table.functions() {
        let name = table.name(function);
        assert!(table.by_name(name).any(|found| found.svma == function.svma));
        let probed = table.probed(function);
        assert!(probed.is_none_or(|probed| probed.offset.is_some_and(|at| at < bytes.len() as u64)));
    }
});

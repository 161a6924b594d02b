//! Any bytes as an ELF file: all that is read of it but its unwind tables (`cfi`) and what `functions` lists.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vmaudit::attribution::rules::signs;
use vmaudit::objects::marks::MarkSearch;
use vmaudit::objects::{Object, elf, marks_of, variables};

fuzz_target!(|bytes: &[u8]| {
    elf::foreign(&bytes[..bytes.len().min(64)]);
    elf::no_program(bytes);
    elf::parse_build_id(bytes);
    let Ok(object) = Object::from_bytes(bytes.to_vec()) else { return };
    marks_of(&object, &MarkSearch::new(signs()));
    variables::variable(&object, b"environ");
    for at in [object.layout().entry, 0, u64::MAX] {
        object.calling_function(at);
        object.function_symbols().covering(at);
        object.layout().svma_of(at);
        object.call_leads_to(object.layout().entry, at);
    }
    if let Some(functions) = object.go_functions() {
        functions.frame_size(&object, object.layout().entry);
    }
    for section in &object.layout().sections {
        let _ = object.section_bytes(section);
    }
});

//! The preloaded library reads a process' unwind tables there (`preload/cfi.rs`): what it says of a place is what vmaudit says,
//! which reads the files.

use libc::{RTLD_NOW, c_void};
use std::collections::BTreeMap;
use std::ffi::CString;
use vmaudit::capture::preload::layout;
use vmaudit::model::{FileRef, Mapping, MmKey, StackSample, StackTable, UnwindRow};
use vmaudit::procfs::parse_maps;
use vmaudit::unwind::{ExecMapping, SpaceState, Unwinder};

#[path = "../../../preload"]
mod library {
    #![allow(dead_code)]
    pub mod area;
    pub mod cfi;
    pub mod pages;
    pub mod sys;
}

const MM: MmKey = MmKey(1);

/// Large ones, of several compilers; those that are not installed are left out.
const LIBRARIES: [&str; 6] = [
    "libstdc++.so.6",
    "libcrypto.so.3",
    "libm.so.6",
    "libgcc_s.so.1",
    "libgfortran.so.5",
    "libglib-2.0.so.0",
];

/// glibc's, of where it has a module.
fn module_of(address: u64) -> Option<library::cfi::Module> {
    unsafe extern "C" {
        fn _dl_find_object(address: *mut c_void, object: *mut u64) -> i32;
    }
    let mut object = [0u64; 12];
    // SAFETY: struct dl_find_object has 96 bytes.
    let found = unsafe { _dl_find_object(address as *mut c_void, object.as_mut_ptr()) };
    let [_, start, end, _, header, ..] = object;
    (found == 0).then_some(library::cfi::Module { start, end, header })
}

fn body(row: UnwindRow) -> u64 {
    match row {
        UnwindRow::Root => layout::rule_body(layout::ROOT, 0, 0),
        UnwindRow::Offsets { from_bp, cfa, bp } => {
            layout::rule_body(if from_bp { layout::BY_BP } else { layout::BY_SP }, cfa, bp.unwrap_or(0))
        }
    }
}

#[test]
fn a_process_own_tables_say_what_the_files_say() {
    for name in LIBRARIES {
        let name = CString::new(name).expect("a name");
        // SAFETY: libraries that only define functions.
        unsafe { libc::dlopen(name.as_ptr(), RTLD_NOW) };
    }
    let text = std::fs::read("/proc/self/maps").expect("maps");
    let mut mappings = parse_maps(&text).mappings;
    mappings.retain(|mapping| mapping.prot.exec);
    let files: Vec<Option<FileRef>> = mappings.iter().map(Mapping::file_ref).collect();
    let modules = mappings.iter().zip(&files).map(|(mapping, file)| ExecMapping {
        range: mapping.range,
        offset: mapping.offset,
        file: file.as_ref(),
    });
    let mut unwinder = Unwinder::default();
    let state = SpaceState { mm: MM, generation: 1, pid: std::process::id() as i32 };
    unwinder.set_modules(state, modules, &mut StackTable::default());
    let (mut same, mut through, mut more, mut unsaid) = (0, 0, 0, BTreeMap::<String, u64>::new());
    for (mapping, file) in mappings.iter().zip(&files) {
        let Some(file) = file else { continue };
        let Some(module) = module_of(mapping.range.start.0) else { continue };
        let Some(table) = library::cfi::UnwindTable::of(module) else { continue };
        let (start, end) = (mapping.range.start.0, mapping.range.end.0);
        // What no call returns to is compared as well: a prime number meets all kinds of places.
        for address in (start + 1..end.min(start + (4 << 20))).step_by(13) {
            let sample = StackSample { ip: address, sp: 0x1000, returned: true, ..StackSample::default() };
            let steps = unwinder.plain_rules(MM, &sample);
            let known = steps.first().and_then(|step| step.rule).map(body);
            match (table.rule(address), known) {
                (Some(own), _) if layout::kind_of(own) == layout::THROUGH_BP => {
                    assert_eq!(known, None, "{address:x} of {}", String::from_utf8_lossy(&file.path));
                    through += 1;
                }
                // vmaudit wants to know where all registers are.
                (Some(_), None) => more += 1,
                (Some(own), Some(known)) => {
                    let file = String::from_utf8_lossy(&file.path);
                    assert_eq!(own, known, "{:x} of {file}", address - start + mapping.offset);
                    same += 1;
                }
                (None, Some(_)) => {
                    *unsaid.entry(String::from_utf8_lossy(&file.path).into()).or_default() += 1
                }
                (None, None) => {}
            }
        }
    }
    println!(
        "{same} places alike, {through} of aligned stacks, {more} more, without a rule here: {unsaid:?}"
    );
    assert!(same > 100_000, "{same}");
    assert!(more * 100 < same, "{more}");
    assert!(unsaid.values().sum::<u64>() * 50 < same, "{unsaid:?}");
}

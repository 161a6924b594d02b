//! Real programs, captured by themselves at a system call (tests/programs/unwind_capture.h):
//! every function that was active has to be in the stack, in order, and nothing else.

use crate::unwind::captured::*;
use std::process::Command;
use vmaudit::model::{Completeness, FrameKind, StackTable};
use vmaudit::unwind::{SpaceState, Unwinder};

const DEEP: [&str; 4] = ["deep!inner", "deep!middle", "deep!outer", "deep!main"];

fn deep(flags: &str, mode: &str) -> (vmaudit::model::Stack, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    let program = build(dir.path(), &format!("gcc {flags} unwind_deep.c -pthread"), "deep");
    let (stack, table, _) = unwind_one(Command::new(&program).arg(mode));
    let names = Namer::default().names(&table, &stack);
    (stack, names)
}

#[test]
fn dynamic_without_frame_pointers() {
    let (stack, names) = deep("-O2 -fomit-frame-pointer", "malloc");
    assert_complete(&stack, &names);
    assert_run(&names, &DEEP);
    assert!(names[0].starts_with("libc.so.6!"), "{names:?}");
    assert_eq!(names.last().map(String::as_str), Some("deep!_start"));
    assert_eq!(stack.frames[0].kind, FrameKind::InstructionPointer);
    assert!(stack.frames[1..].iter().all(|f| f.kind == FrameKind::ReturnAddress), "{stack:?}");
}

#[test]
fn direct_call_through_the_plt() {
    let (stack, names) = deep("-O2 -fomit-frame-pointer -fno-pie -no-pie", "direct");
    assert_complete(&stack, &names);
    assert_eq!(&names[1..5], DEEP);
}

#[test]
fn frame_pointers_and_no_optimisation() {
    let (stack, names) = deep("-O0", "malloc");
    assert_complete(&stack, &names);
    assert_run(&names, &DEEP);
}

#[test]
fn static_without_eh_frame_hdr() {
    let (stack, names) = deep("-O2 -static", "malloc");
    assert_complete(&stack, &names);
    assert_run(&names, &DEEP);
    assert_eq!(names.last().map(String::as_str), Some("deep!_start"));
}

#[test]
fn static_pie() {
    let (stack, names) = deep("-O2 -static-pie", "malloc");
    assert_complete(&stack, &names);
    assert_run(&names, &DEEP);
}

#[test]
fn debug_frame_only() {
    let flags = "-O2 -g -fno-asynchronous-unwind-tables -fno-unwind-tables -fno-exceptions";
    let (stack, names) = deep(flags, "malloc");
    assert_complete(&stack, &names);
    assert_run(&names, &DEEP);
    let (stack, names) = deep(&format!("{flags} -gz=zlib"), "malloc");
    assert_complete(&stack, &names);
    assert_run(&names, &DEEP);
}

/// As Chromium is built. A function that is called through a pointer is named by no call instruction: its own code
/// says that it has a frame pointer.
#[test]
fn frame_pointers_and_int3_between_functions() {
    let dir = tempfile::tempdir().unwrap();
    let flags = "-O2 -fno-omit-frame-pointer -fno-asynchronous-unwind-tables -fno-unwind-tables -fno-exceptions \
                 -fno-toplevel-reorder -fno-reorder-functions -falign-functions=16 -fcf-protection=none";
    let program = build(dir.path(), &format!("gcc {flags} unwind_padded.c"), "padded");
    let (stack, table, _) = unwind_one(&mut Command::new(&program));
    let names = Namer::default().names(&table, &stack);
    assert_complete(&stack, &names);
    let framed =
        ["padded!last", "padded!virtual", "padded!table", "padded!early", "padded!start", "padded!main"];
    assert_run(&names, &framed);
    assert!(stack.frames[1..].iter().all(|f| f.kind == FrameKind::ReturnAddress), "{stack:?}");

    let (stack, table, _) = unwind_one(Command::new(&program).arg("unframed"));
    let names = Namer::default().names(&table, &stack);
    assert_run(&names, &["padded!last", "padded!unframed", "padded!virtual"]);
    // Where that one was called from is not proven, nor what follows.
    let unframed = names.iter().position(|name| name == "padded!unframed").unwrap();
    assert!(stack.frames[unframed + 1..].iter().all(|f| f.kind == FrameKind::Guess), "{stack:?}");
}

#[test]
fn stripped_programs() {
    let dir = tempfile::tempdir().unwrap();
    for (number, flags) in ["-O2", "-O2 -static", "-O2 -static-pie"].iter().enumerate() {
        let plain = build(dir.path(), &format!("gcc {flags} unwind_deep.c -pthread"), &format!("d{number}"));
        let stripped = dir.path().join("deep");
        run_tool(Command::new("strip").arg("-s").arg("-o").arg(&stripped).arg(&plain));
        let (stack, table, _) = unwind_one(Command::new(&stripped).arg("malloc"));
        let mut namer = Namer::default();
        namer.load(&stripped, &plain);
        let names = namer.names(&table, &stack);
        assert_complete(&stack, &names);
        assert_run(&names, &DEEP);
    }
}

#[test]
fn without_section_headers() {
    let dir = tempfile::tempdir().unwrap();
    let plain = build(dir.path(), "gcc -O2 unwind_deep.c -pthread", "plain");
    let mut bytes = std::fs::read(&plain).unwrap();
    // e_shoff, e_shnum, e_shstrndx: what `sstrip` and some packers leave.
    bytes[0x28..0x30].fill(0);
    bytes[0x3c..0x40].fill(0);
    let bare = dir.path().join("deep");
    std::fs::copy(&plain, &bare).unwrap();
    std::fs::write(&bare, &bytes).unwrap();
    let (stack, table, _) = unwind_one(Command::new(&bare).arg("malloc"));
    let mut namer = Namer::default();
    namer.load(&bare, &plain);
    let names = namer.names(&table, &stack);
    assert_complete(&stack, &names);
    assert_run(&names, &DEEP);
}

#[test]
fn thread_root() {
    let (stack, names) = deep("-O2 -fomit-frame-pointer", "thread");
    assert_complete(&stack, &names);
    assert_run(&names, &["deep!inner", "deep!middle", "deep!outer", "deep!thread_main"]);
    assert!(names.last().unwrap().starts_with("libc.so.6!"), "{names:?}");
    let (stack, names) = deep("-O2 -static", "thread");
    assert_complete(&stack, &names);
}

#[test]
fn signal_frame() {
    for flags in ["-O2 -fomit-frame-pointer", "-O2 -static"] {
        let (stack, names) = deep(flags, "signal");
        assert_complete(&stack, &names);
        assert_run(&names, &["deep!inner", "deep!middle", "deep!outer", "deep!on_signal"]);
        assert_run(&names, &["deep!interrupted", "deep!main"]);
        // The interrupted instruction is an address of its own, not one behind a call.
        let exact = stack.frames.iter().filter(|f| f.kind == FrameKind::InstructionPointer).count();
        assert_eq!(exact, 2, "{stack:?}");
    }
}

#[test]
fn signal_stack_ends_where_the_bytes_end() {
    let (stack, names) = deep("-O2", "alt");
    assert_run(&names, &["deep!inner", "deep!middle", "deep!outer", "deep!on_signal"]);
    assert_ne!(stack.completeness, Completeness::Complete, "the interrupted stack was not copied");
}

/// A capture to be unwound again with changed bytes.
struct Again {
    whole: vmaudit::model::Stack,
    unwinder: Unwinder,
    capture: Capture,
    /// The program's: its tables may be read at any time.
    _folder: tempfile::TempDir,
}

fn deep_at_malloc() -> Again {
    let folder = tempfile::tempdir().unwrap();
    let program = build(folder.path(), "gcc -O2 unwind_deep.c -pthread", "deep");
    let (whole, _, capture) = unwind_one(Command::new(&program).arg("malloc"));
    let mut unwinder = Unwinder::default();
    let state = SpaceState { mm: MM, generation: 1, pid: 1 };
    unwinder.set_modules(state, capture.modules(), &mut StackTable::default());
    Again { whole, unwinder, capture, _folder: folder }
}

#[test]
fn cut_bytes_are_truncated_and_a_prefix() {
    let Again { whole, mut unwinder, capture, .. } = deep_at_malloc();
    let mut last = 0;
    for len in (0..capture.bytes.len()).step_by(8) {
        let mut captured = capture.stack();
        captured.bytes = &capture.bytes[..len];
        captured.full = false;
        let cut = unwinder.unwind(MM, &captured);
        assert!(whole.frames.starts_with(&cut.frames), "at {len}");
        assert!(cut.frames.len() >= last);
        last = cut.frames.len();
        if cut.frames.len() < whole.frames.len() {
            assert_eq!(cut.completeness, Completeness::Truncated, "at {len}");
        }
        captured.full = true;
        let cut = unwinder.unwind(MM, &captured);
        if cut.frames.len() < whole.frames.len() {
            assert_eq!(cut.completeness, Completeness::Incomplete, "at {len}");
        }
    }
    assert_eq!(last, whole.frames.len());
}

#[test]
fn a_page_that_was_swapped_out_is_no_root() {
    let Again { whole, mut unwinder, capture, .. } = deep_at_malloc();
    let mut cut_short = 0;
    for from in (0..capture.bytes.len()).step_by(512) {
        let mut bytes = capture.bytes.clone();
        bytes[from..].fill(0);
        let mut captured = capture.stack();
        captured.bytes = &bytes;
        captured.holes = true;
        let seen = unwinder.unwind(MM, &captured);
        assert!(whole.frames.starts_with(&seen.frames), "at {from}");
        if seen.frames.len() < whole.frames.len() {
            cut_short += 1;
            assert_eq!(seen.completeness, Completeness::Incomplete, "at {from}");
        }
    }
    assert!(cut_short > 0);
}

#[test]
fn cpp_with_landing_pads_and_a_last_call() {
    let dir = tempfile::tempdir().unwrap();
    let program = build(dir.path(), "g++ -O2 unwind_throw.cc", "throw");
    let (stack, table, _) = unwind_one(&mut Command::new(&program));
    let names = Namer::default().names(&table, &stack);
    assert_complete(&stack, &names);
    // The compiler splits cold parts off (`.cold`) and inlines as it likes: the noinline
    // functions are what has to be there, in order.
    let at = |part: &str| {
        let found = names.iter().position(|name| name.contains(part));
        found.unwrap_or_else(|| panic!("{part} in {names:#?}"))
    };
    let order = [at("never_returns"), at("cold_path"), at("templated"), at("catches"), at("!main")];
    assert!(order.is_sorted(), "{names:#?}");
    assert_eq!(order[0], 1, "{names:#?}");
}

#[test]
fn library_that_is_closed_and_deleted_later() {
    let dir = tempfile::tempdir().unwrap();
    let plugin = build(dir.path(), "gcc -O2 -shared -fPIC unwind_plugin.c", "plugin.so");
    let host = build(dir.path(), "gcc -O2 -rdynamic unwind_dlopen.c", "host");
    let mut program = Program::start(Command::new(&host).arg(&plugin));
    let capture = program.capture().unwrap();
    program.expect_wait();
    let mut unwinder = Unwinder::default();
    let mut table = StackTable::default();
    let state = SpaceState { mm: MM, generation: 1, pid: program.pid() };
    unwinder.set_modules(state, capture.modules(), &mut table);
    let before = unwinder.unwind(MM, &capture.stack());
    let names = Namer::default().names(&table, &before);
    assert_complete(&before, &names);
    let expected = ["plugin.so!plugin_hidden", "plugin.so!plugin_entry", "host!use_plugin", "host!main"];
    assert_run(&names, &expected);

    program.answer();
    program.expect_wait();
    std::fs::remove_file(&plugin).unwrap();
    std::fs::remove_file(&host).unwrap();
    program.finish();
    // Another generation that has it no more, then one that has it again: the event was late.
    let without = capture.modules().filter(|m| m.file.is_none_or(|f| !f.path.ends_with(b"plugin.so")));
    unwinder.set_modules(SpaceState { generation: 2, ..state }, without, &mut table);
    assert_ne!(unwinder.unwind(MM, &capture.stack()).frames, before.frames);
    unwinder.set_modules(SpaceState { generation: 3, ..state }, capture.modules(), &mut table);
    assert_eq!(unwinder.unwind(MM, &capture.stack()), before);
}

#[test]
fn deleted_program_is_found_through_proc() {
    let dir = tempfile::tempdir().unwrap();
    let plugin = build(dir.path(), "gcc -O2 -shared -fPIC unwind_plugin.c", "plugin.so");
    let host = build(dir.path(), "gcc -O2 -rdynamic unwind_dlopen.c", "host");
    let copy = dir.path().join("copy");
    std::fs::copy(&host, &copy).unwrap();
    let mut program = Program::start(Command::new(&host).arg(&plugin));
    let capture = program.capture().unwrap();
    program.expect_wait();
    std::fs::remove_file(&host).unwrap();
    // Another file has the path now; it must not be taken for the one that runs.
    std::fs::write(&host, b"not the program").unwrap();
    let mut unwinder = Unwinder::default();
    let mut table = StackTable::default();
    let state = SpaceState { mm: MM, generation: 1, pid: program.pid() };
    unwinder.set_modules(state, capture.modules(), &mut table);
    let stack = unwinder.unwind(MM, &capture.stack());
    assert_eq!(stack.completeness, Completeness::Complete, "{stack:?}");
    program.finish();
}

#[test]
fn lazy_binding() {
    let dir = tempfile::tempdir().unwrap();
    let library = build(dir.path(), "gcc -O2 -shared -fPIC unwind_lazylib.c", "liblazy.so");
    let flags = format!("-Wl,-z,lazy -Wl,-rpath,{}", dir.path().display());
    let compile = format!("gcc -O2 -fomit-frame-pointer {flags} unwind_lazy.c {}", library.display());
    let program = build(dir.path(), &compile, "lazy");
    let (stack, table, _) = unwind_one(&mut Command::new(program));
    let names = Namer::default().names(&table, &stack);
    assert_complete(&stack, &names);
    assert_run(&names, &["lazy!hook", "liblazy.so!choose"]);
    assert_run(&names, &["lazy!binds", "lazy!main"]);
    assert!(names.iter().any(|n| n.starts_with("ld-linux")), "{names:#?}");
}

#[test]
fn fork_shares_and_forget_forgets() {
    let dir = tempfile::tempdir().unwrap();
    let program = build(dir.path(), "gcc -O2 unwind_deep.c -pthread", "deep");
    let (whole, _, capture) = unwind_one(Command::new(&program).arg("malloc"));
    let (child, mut unwinder) = (vmaudit::model::MmKey(2), Unwinder::default());
    let mut table = StackTable::default();
    unwinder.set_modules(SpaceState { mm: MM, generation: 7, pid: 1 }, capture.modules(), &mut table);
    unwinder.fork(MM, child);
    unwinder.forget(MM);
    assert!(unwinder.is_current(child, 7) && !unwinder.is_current(MM, 7));
    assert_eq!(unwinder.unwind(child, &capture.stack()), whole);
    let orphan = unwinder.unwind(MM, &capture.stack());
    assert_eq!((orphan.frames.len(), orphan.completeness), (1, Completeness::Incomplete));
}

#[test]
fn may_live_in_any_thread() {
    fn is_send<T: Send>() {}
    is_send::<Unwinder>();
    is_send::<vmaudit::symbolize::Symbolizer>();
}

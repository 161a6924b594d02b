//! framehop as a second opinion, and how long a stack takes:
//! `cargo test --release --test capture unwind::speed -- --ignored --nocapture`.

use crate::unwind::captured::*;
use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{ExplicitModuleSectionInfo, Unwinder as _};
use std::process::Command;
use std::time::Instant;
use vmaudit::model::{Completeness, StackTable};
use vmaudit::objects::Object;
use vmaudit::unwind::{SpaceState, Unwinder};

type Framehop = UnwinderX86_64<Vec<u8>>;

/// The directory has to live as long as the files in it are needed.
fn capture() -> (Capture, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let program = build(dir.path(), "gcc -O2 -fomit-frame-pointer unwind_steps.c", "steps");
    let mut program = Program::start(&mut Command::new(program));
    let capture = program.capture().unwrap();
    program.finish();
    (capture, dir)
}

fn ours(capture: &Capture) -> (Unwinder, StackTable) {
    let mut unwinder = Unwinder::default();
    let mut table = StackTable::default();
    unwinder.set_modules(SpaceState { mm: MM, generation: 1, pid: 1 }, capture.modules(), &mut table);
    (unwinder, table)
}

fn framehop_of(capture: &Capture) -> Framehop {
    let mut unwinder = Framehop::new();
    for (range, offset, file) in &capture.mappings {
        let Some(file) = file else { continue };
        let path = String::from_utf8_lossy(&file.path).into_owned();
        let Ok(bytes) = std::fs::read(&path) else { continue };
        let object = Object::from_bytes(bytes).unwrap();
        let layout = object.layout();
        let part = |name: &[u8]| {
            let section = layout.section(name)?;
            Some((section.addr..section.addr + section.size, object.section_bytes(section).ok()?))
        };
        let (eh, hdr) = (part(b".eh_frame"), part(b".eh_frame_hdr"));
        let svma = layout.svma_of(*offset).unwrap();
        let info = ExplicitModuleSectionInfo {
            base_svma: 0,
            eh_frame_svma: eh.as_ref().map(|e| e.0.clone()),
            eh_frame: eh.map(|e| e.1),
            eh_frame_hdr_svma: hdr.as_ref().map(|e| e.0.clone()),
            eh_frame_hdr: hdr.map(|e| e.1),
            ..ExplicitModuleSectionInfo::default()
        };
        let (start, end) = (range.start.0, range.end.0);
        unwinder.add_module(framehop::Module::new(path, start..end, start - svma, info));
    }
    unwinder
}

fn framehop_frames(unwinder: &Framehop, cache: &mut CacheX86_64, capture: &Capture, out: &mut Vec<u64>) {
    let [ip, sp, bp, ..] = capture.registers;
    let mut read = |address: u64| {
        let at = usize::try_from(address.wrapping_sub(sp)).map_err(|_| ())?;
        let word = capture.bytes.get(at..at.checked_add(8).ok_or(())?).ok_or(())?;
        word.try_into().map(u64::from_le_bytes).map_err(|_| ())
    };
    out.clear();
    let mut frames = unwinder.iter_frames(ip, UnwindRegsX86_64::new(ip, sp, bp), cache, &mut read);
    while let Ok(Some(frame)) = frames.next() {
        out.push(frame.address());
    }
}

fn addresses(capture: &Capture, table: &StackTable, stack: &vmaudit::model::Stack) -> Vec<u64> {
    let absolute = |frame: &vmaudit::model::Frame| {
        let path = &table.module(frame.module.unwrap()).path;
        let holds = |(range, offset, file): &&(vmaudit::model::AddrRange, u64, _)| {
            let file: &Option<vmaudit::model::FileRef> = file;
            file.as_ref().is_some_and(|f| f.path == *path)
                && (*offset..*offset + range.len()).contains(&frame.address)
        };
        let (range, offset, _) = capture.mappings.iter().find(holds).unwrap();
        range.start.0 + frame.address - offset
    };
    stack.frames.iter().map(absolute).collect()
}

#[test]
fn framehop_agrees() {
    let (capture, _dir) = capture();
    let (mut unwinder, table) = ours(&capture);
    let stack = unwinder.unwind(MM, &capture.stack());
    assert_eq!(stack.completeness, Completeness::Complete);
    assert!(stack.frames.len() >= 26, "{}", stack.frames.len());
    let mut theirs = Vec::new();
    framehop_frames(&framehop_of(&capture), &mut CacheX86_64::new(), &capture, &mut theirs);
    assert_eq!(addresses(&capture, &table, &stack), theirs);
}

/// Prints times and asserts none: they depend on the machine and on what else runs.
#[test]
#[ignore = "measures; run by hand with --release"]
fn time_per_stack() {
    const ROUNDS: u32 = 1_000_000;
    let (capture, _dir) = capture();
    let (mut unwinder, mut table) = ours(&capture);
    let mut frames = Vec::new();
    unwinder.unwind_into(MM, &capture.stack(), &mut frames);
    let begun = Instant::now();
    for _ in 0..ROUNDS {
        unwinder.unwind_into(MM, &capture.stack(), &mut frames);
    }
    let ours = begun.elapsed() / ROUNDS;
    println!("{} frames: {ours:?} a stack", frames.len());

    let (other, mut cache, mut out) = (framehop_of(&capture), CacheX86_64::new(), Vec::new());
    framehop_frames(&other, &mut cache, &capture, &mut out);
    let begun = Instant::now();
    for _ in 0..ROUNDS {
        framehop_frames(&other, &mut cache, &capture, &mut out);
    }
    println!("framehop, addresses only: {:?}", begun.elapsed() / ROUNDS);

    let begun = Instant::now();
    const CHANGES: u32 = 10_000;
    for generation in 0..CHANGES {
        let state = SpaceState { mm: MM, generation: u64::from(generation) + 2, pid: 1 };
        // The vdso comes and goes: the list differs each time.
        let modules = capture.modules().enumerate().filter(|(i, _)| generation % 2 == 0 || *i != 2);
        unwinder.set_modules(state, modules.map(|(_, module)| module), &mut table);
        unwinder.unwind_into(MM, &capture.stack(), &mut frames);
    }
    println!("with a change of modules before it: {:?}", begun.elapsed() / CHANGES);
}

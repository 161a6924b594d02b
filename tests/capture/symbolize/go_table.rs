//! Names, lines and inlined calls of a stripped Go program's own table, compared at many addresses with what its DWARF
//! and `go tool addr2line` say of the same program unstripped.

use super::truth::{Bench, bench, generous, nm, symbolize};
use crate::goroutines::plain;
use crate::support::{go_program_of, skip};
use crate::unwind::captured::run_tool;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use vmaudit::model::{FrameKind, SymbolFrame};

/// An address in each that many bytes of a function.
const STEP: usize = 29;

/// The addresses of functions that Go's table has: C's and the linker's own are not in it.
fn places(path: &Path) -> Vec<u64> {
    // These have no size.
    let all = run_tool(Command::new("nm").arg(path));
    let at = |name: &str| {
        let line = all.lines().find(|line| line.ends_with(name)).unwrap_or_else(|| panic!("no{name}"));
        u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap()
    };
    let text = at(" runtime.text")..at(" runtime.etext");
    let symbols = nm(path, false);
    let functions = symbols.iter().filter(|((start, end), names)| {
        text.contains(start)
            && end > start
            && !names.iter().any(|n| n == "runtime.text" || n == "runtime.etext")
    });
    functions.flat_map(|(&(start, end), _)| (start..end).step_by(STEP)).collect()
}

/// Function, whether it was compiled into the next one, file and line.
type Line = (String, bool, Option<(String, u32)>);

fn line(frame: &SymbolFrame) -> Line {
    let name = frame.function.as_ref().map_or("", |function| &function.name);
    let place = frame.location.as_ref();
    // What DWARF has no path for is in the folder in which it was compiled.
    let place = place.map(|place| (place.file.trim_start_matches("./").to_owned(), place.line));
    (plain(name), frame.inlined, place)
}

fn lines(bench: &Bench) -> Vec<(u64, Vec<Line>)> {
    let (out, notes) = symbolize(bench, generous());
    assert!(notes.is_empty(), "{notes:?}");
    let of = |(&id, &svma)| (svma, out.frames(id).iter().map(|frame| line(frame)).collect());
    bench.ids.iter().zip(&bench.svmas).map(of).collect()
}

/// `go tool addr2line` of each address: the function with code of its own, file and line.
fn by_go(path: &Path, svmas: &[u64]) -> Vec<(String, String)> {
    let mut command = Command::new("go");
    command.args(["tool", "addr2line"]).arg(path).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let addresses: String = svmas.iter().map(|svma| format!("0x{svma:x}\n")).collect();
    let writer = std::thread::spawn(move || input.write_all(addresses.as_bytes()).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = said.lines().collect();
    lines.chunks_exact(2).map(|pair| (pair[0].to_owned(), pair[1].to_owned())).collect()
}

#[test]
fn a_stripped_programs_table_says_what_go_and_dwarf_say() {
    const TEST: &str = "a_stripped_programs_table_says_what_go_and_dwarf_say";
    for kind in ["go", "pie"] {
        let flags = if kind == "pie" { &["-buildmode=pie"][..] } else { &[] };
        let Some(whole) = go_program_of("go_frames", kind, flags) else { return skip(TEST, "no go") };
        let folder = tempfile::tempdir().unwrap();
        let stripped = folder.path().join("stripped");
        let strip = Command::new("strip").arg("-s").arg("-o").arg(&stripped).arg(&whole).status();
        assert!(strip.unwrap().success());
        let places = places(&whole);
        let table = bench(&stripped, places.iter().copied(), FrameKind::InstructionPointer);
        assert_eq!(table.svmas.len(), places.len());
        let (of_table, of_dwarf) =
            (lines(&table), lines(&bench(&whole, places.iter().copied(), FrameKind::InstructionPointer)));
        // DWARF does not say of each wrapper that the compiler made what was compiled into it.
        few(
            &of_table.iter().zip(&of_dwarf).filter(|(table, dwarf)| table != dwarf).collect::<Vec<_>>(),
            &places,
        );
        // It reads no position independent program of all versions.
        if kind == "go" {
            let by_go = by_go(&whole, &places);
            assert_eq!(by_go.len(), places.len());
            let differs = |((_, lines), (function, place)): &(&(u64, Vec<Line>), &(String, String))| {
                let own = lines.last().map(|(name, ..)| name.clone());
                let innermost = lines.first().and_then(|(_, _, place)| place.clone());
                let innermost = innermost.map_or("?:0".to_owned(), |(file, line)| format!("{file}:{line}"));
                own != Some(plain(function)) || innermost != *place
            };
            few(&of_table.iter().zip(&by_go).filter(differs).collect::<Vec<_>>(), &places);
        }
    }
}

/// Fewer than one in a thousand.
#[track_caller]
fn few<T: std::fmt::Debug>(wrong: &[T], all: &[u64]) {
    assert!(all.len() > 5000, "{}", all.len());
    assert!(wrong.len() * 1000 < all.len(), "{} of {}: {:#?}", wrong.len(), all.len(), wrong.first());
}

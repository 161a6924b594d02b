//! Names compared with what nm(1), addr2line(1) and readelf(1) say about the same addresses.

use crate::support::skip_this;
use crate::unwind::captured::{build, have, run_tool};
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use vmaudit::model::{
    Completeness, Frame, FrameKind, ModuleInfo, Stack, StackId, StackTable, SymbolFrame, SymbolizedStacks,
};
use vmaudit::objects::{FileCache, Object};
use vmaudit::symbolize::{Config, LineBudget, Symbolizer};

/// One module, each address a stack of one frame.
pub(super) struct Bench {
    table: StackTable,
    pub(super) ids: Vec<StackId>,
    pub(super) svmas: Vec<u64>,
}

pub(super) fn object(path: &Path) -> Object {
    Object::from_bytes(std::fs::read(path).unwrap()).unwrap()
}

pub(super) fn bench(path: &Path, svmas: impl IntoIterator<Item = u64>, kind: FrameKind) -> Bench {
    let object = object(path);
    let meta = std::fs::metadata(path).unwrap();
    let mut table = StackTable::default();
    let module = table.intern_module(ModuleInfo {
        path: path.to_string_lossy().as_bytes().to_vec(),
        major: libc::major(meta.dev()),
        minor: libc::minor(meta.dev()),
        inode: meta.ino(),
        build_id: object.build_id().map(str::to_owned),
    });
    let mut out = Bench { table, ids: Vec::new(), svmas: Vec::new() };
    for svma in svmas {
        let Some(address) = object.layout().offset_of(svma) else { continue };
        let frames = vec![Frame { module: Some(module), address, kind }];
        out.ids.push(out.table.intern(&Stack { frames, completeness: Completeness::Complete }));
        out.svmas.push(svma);
    }
    out
}

pub(super) fn symbolize(bench: &Bench, config: Config) -> (SymbolizedStacks, Vec<String>) {
    let mut symbolizer = Symbolizer::new(config);
    let out = symbolizer.symbolize(&bench.table, bench.ids.iter().copied(), &mut FileCache::default());
    (out, symbolizer.take_notes())
}

pub(super) fn names_only(debug_dirs: &[&str]) -> Config {
    Config { debug_dirs: debug_dirs.iter().map(PathBuf::from).collect(), lines: None }
}

pub(super) fn generous() -> Config {
    let budget = LineBudget { time: Duration::from_secs(600), size: 1 << 40 };
    Config { lines: Some(budget), ..Config::default() }
}

/// (start, end) to all names there, from nm.
pub(super) fn nm(path: &Path, dynamic: bool) -> BTreeMap<(u64, u64), Vec<String>> {
    let mut out: BTreeMap<(u64, u64), Vec<String>> = BTreeMap::new();
    let mut command = Command::new("nm");
    command.args(["-S", "--defined-only"]).args(dynamic.then_some("-D")).arg(path);
    for line in run_tool(&mut command).lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let [value, size, kind, name] = words[..]
            && "tTwWiu".contains(kind)
        {
            let (value, size) =
                (u64::from_str_radix(value, 16).unwrap(), u64::from_str_radix(size, 16).unwrap());
            let plain = name.split('@').next().unwrap().to_owned();
            out.entry((value, value + size)).or_default().push(plain);
        }
    }
    out
}

/// Where the function starts that `is` picks by name.
fn start_of(path: &Path, is: impl Fn(&str) -> bool) -> u64 {
    let found = nm(path, false).into_iter().find(|(_, names)| names.iter().any(|n| is(n)));
    found.expect("the function is there").0.0
}

fn text_range(path: &Path) -> std::ops::Range<u64> {
    let object = object(path);
    let text = object.layout().section(b".text").unwrap();
    text.addr..text.addr + text.size
}

fn libc_path() -> PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps.lines().find(|l| l.contains("libc.so.6")).unwrap();
    PathBuf::from(&line[line.find('/').unwrap()..])
}

/// Every address of a file's text at `step`: named only by a symbol that covers it, and by one
/// whenever there is one.
fn check_against_nm(
    path: &Path,
    truths: &[BTreeMap<(u64, u64), Vec<String>>],
    config: Config,
    step: usize,
) -> usize {
    let bench = bench(path, text_range(path).step_by(step), FrameKind::InstructionPointer);
    let (out, _) = symbolize(&bench, config);
    let mut named = 0;
    for (&id, &svma) in bench.ids.iter().zip(&bench.svmas) {
        let [frame] = out.frames(id) else { panic!("{:?}", out.frames(id)) };
        let covering: Vec<(u64, &String)> = truths
            .iter()
            .flat_map(|truth| truth.range(..=(svma, u64::MAX)))
            .filter(|((_, end), _)| svma < *end)
            .flat_map(|((start, _), names)| names.iter().map(|n| (*start, n)))
            .collect();
        match &frame.function {
            Some(function) => {
                let is = (svma - function.offset, &function.linkage);
                assert!(covering.contains(&is), "{svma:#x}: {function:?}, nm has {covering:?}");
                named += 1;
            }
            None => assert!(covering.is_empty(), "{svma:#x} has no name, nm has {covering:?}"),
        }
    }
    assert!(!bench.ids.is_empty());
    named
}

#[test]
fn libc_without_its_debug_file() {
    let libc = libc_path();
    let named = check_against_nm(&libc, &[nm(&libc, true)], names_only(&[]), 61);
    assert!(named > 1000, "{named}");
}

#[test]
fn libc_with_its_debug_file() {
    let libc = libc_path();
    let id = object(&libc).build_id().unwrap().to_owned();
    let debug = PathBuf::from(format!("/usr/lib/debug/.build-id/{}/{}.debug", &id[..2], &id[2..]));
    if !debug.exists() {
        skip_this("libc6-dbg is not installed");
        return;
    }
    let truths = [nm(&libc, true), nm(&debug, false)];
    let with = check_against_nm(&libc, &truths, names_only(&["/usr/lib/debug"]), 61);
    let without = check_against_nm(&libc, &truths[..1], names_only(&[]), 61);
    assert!(with > without + without / 3, "{with} {without}");
}

#[test]
fn other_programs() {
    for path in ["/usr/bin/redis-server", "/usr/bin/python3", "/usr/bin/gdb", "/lib64/ld-linux-x86-64.so.2"] {
        let Ok(path) = std::fs::canonicalize(path) else {
            skip_this(&format!("{path} is not installed"));
            continue;
        };
        check_against_nm(&path, &[nm(&path, true), nm(&path, false)], names_only(&[]), 1013);
    }
}

/// The nearest exported symbol below an internal function must not name it: this is how a fopen
/// was reported as `fgets+0x1bb`.
#[test]
fn fopen_is_not_fgets() {
    let libc = libc_path();
    let symbols = nm(&libc, true);
    let (&(start, end), _) = symbols.iter().find(|(_, names)| names.iter().any(|n| n == "fgets")).unwrap();
    let next = symbols.keys().map(|r| r.0).find(|&s| s >= end).unwrap();
    let bench = bench(&libc, (start..next).step_by(7), FrameKind::ReturnAddress);
    let (out, _) = symbolize(&bench, names_only(&[]));
    let mut bounded = 0;
    for (&id, &svma) in bench.ids.iter().zip(&bench.svmas).skip(1) {
        let [frame] = out.frames(id) else { panic!() };
        let name = frame.function.as_ref().map(|f| f.linkage.as_str());
        assert_eq!(name.is_some_and(|n| n.contains("fgets")), svma <= end, "{svma:#x} {frame:?}");
        bounded += usize::from(name.is_none() && frame.bounds.is_some());
        if let Some((function, offset)) = frame.bounds {
            assert_eq!(function + offset, svma);
            assert!(function >= end);
        }
    }
    assert!(bounded > 10, "{bounded} addresses between fgets and the next symbol have bounds");
}

#[test]
fn stripped_functions_keep_their_bounds() {
    let dir = tempfile::tempdir().unwrap();
    for flags in ["-O2", "-O2 -static", "-O2 -static-pie"] {
        let plain = build(dir.path(), &format!("g++ {flags} symbolize_inline.cc"), "plain");
        let stripped = dir.path().join("stripped");
        run_tool(Command::new("strip").arg("-s").arg("-o").arg(&stripped).arg(&plain));
        let truth = nm(&plain, false);
        let (&(start, end), _) = truth.iter().find(|(_, n)| n.iter().any(|n| n.contains("total"))).unwrap();
        let bench = bench(&stripped, start..end, FrameKind::InstructionPointer);
        let (out, _) = symbolize(&bench, names_only(&[]));
        for (&id, &svma) in bench.ids.iter().zip(&bench.svmas) {
            let [frame] = out.frames(id) else { panic!() };
            assert_eq!((&frame.function, frame.bounds), (&None, Some((start, svma - start))), "{flags}");
        }
    }
}

/// `addr2line -f -i`: (linkage name, file:line) pairs, innermost first.
fn addr2line(path: &Path, svmas: &[u64]) -> Vec<Vec<(String, String)>> {
    let mut command = Command::new("addr2line");
    command.args(["-a", "-f", "-i", "-e"]).arg(path);
    command.args(svmas.iter().map(|s| format!("{s:#x}")));
    let text = run_tool(&mut command);
    let mut out: Vec<Vec<(String, String)>> = Vec::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if line.starts_with("0x") {
            out.push(Vec::new());
        } else {
            let place = lines.next().unwrap().split(" (disc").next().unwrap().to_owned();
            out.last_mut().unwrap().push((line.to_owned(), place));
        }
    }
    out
}

fn place_of(frame: &SymbolFrame) -> String {
    frame.location.as_ref().map_or("??:?".to_owned(), |l| format!("{}:{}", l.file, l.line))
}

/// File name and line; directories are spelt in several ways.
fn short(place: &str) -> String {
    place.rsplit('/').next().unwrap_or(place).to_owned()
}

#[test]
fn inlined_calls_and_lines_as_addr2line_has_them() {
    let dir = tempfile::tempdir().unwrap();
    let path = build(dir.path(), "g++ -g -O2 symbolize_inline.cc", "inline");
    let truth = nm(&path, false);
    let mut deep = 0;
    for function in ["total", "main"] {
        let (&(start, end), _) = truth.iter().find(|(_, n)| n.iter().any(|n| n.contains(function))).unwrap();
        let bench = bench(&path, start..end, FrameKind::InstructionPointer);
        let (out, notes) = symbolize(&bench, generous());
        assert!(notes.is_empty(), "{notes:?}");
        for ((&id, &svma), expected) in bench.ids.iter().zip(&bench.svmas).zip(addr2line(&path, &bench.svmas))
        {
            let frames = out.frames(id);
            let names = frames.iter().map(|f| f.function.as_ref().unwrap().linkage.clone());
            // The symbol table knows the split-off part of a function by a name of its own.
            let names: Vec<_> = names.map(|n| n.trim_end_matches(".cold").to_owned()).collect();
            let places: Vec<_> = frames.iter().map(|f| short(&place_of(f))).collect();
            let expected_names: Vec<_> = expected.iter().map(|w| w.0.clone()).collect();
            assert_eq!(names, expected_names, "{svma:#x}");
            for (ours, theirs) in places.iter().zip(expected.iter().map(|w| short(&w.1))) {
                // addr2line prints "?" for line 0, where no line is known.
                assert!(*ours == theirs || theirs.ends_with(":?"), "{svma:#x}: {places:?} {expected:?}");
            }
            let inlined: Vec<_> = frames.iter().map(|f| f.inlined).collect();
            assert_eq!(inlined.iter().filter(|i| !**i).count(), 1);
            assert_eq!(inlined.last(), Some(&false));
            deep = deep.max(frames.len());
        }
        let all: Vec<&SymbolFrame> =
            bench.ids.iter().flat_map(|&id| out.frames(id)).map(Arc::as_ref).collect();
        if function == "total" {
            let named = |name: &str| all.iter().any(|f| f.function.as_ref().is_some_and(|f| f.name == name));
            assert!(named("shapes::Box<int>::leaf"), "{all:?}");
            assert!(named("shapes::total"));
        }
    }
    assert!(deep >= 3, "{deep}");
}

#[test]
fn debug_link_is_followed_and_a_wrong_one_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let plain = build(dir.path(), "g++ -g -O2 symbolize_inline.cc -Wl,--build-id=none", "plain");
    let (debug, linked) = (dir.path().join("prog.debug"), dir.path().join("prog"));
    run_tool(Command::new("objcopy").arg("--only-keep-debug").arg(&plain).arg(&debug));
    run_tool(Command::new("strip").arg("-s").arg("-o").arg(&linked).arg(&plain));
    let link = format!("--add-gnu-debuglink={}", debug.display());
    run_tool(Command::new("objcopy").arg(link).arg(&linked));
    let start = start_of(&plain, |n| n.contains("total"));
    let bench = bench(&linked, [start + 4], FrameKind::InstructionPointer);
    let (out, _) = symbolize(&bench, generous());
    let frame = out.frames(bench.ids[0]).last().unwrap().as_ref().clone();
    assert_eq!(frame.function.unwrap().name, "shapes::total");
    assert!(short(&frame.location.unwrap().file) == "symbolize_inline.cc");
    // Another build in its place: the checksum differs.
    let other = build(dir.path(), "g++ -g -O0 symbolize_inline.cc -Wl,--build-id=none", "other");
    run_tool(Command::new("objcopy").arg("--only-keep-debug").arg(&other).arg(&debug));
    let (out, _) = symbolize(&bench, generous());
    let frame = out.frames(bench.ids[0]).last().unwrap().as_ref().clone();
    assert_eq!((frame.function, frame.location), (None, None));
    assert_eq!(frame.bounds, Some((start, 4)));
}

#[test]
fn rust_names_are_demangled() {
    if !have("rustc") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("thing.rs");
    let code = "mod deep { pub struct S; impl S { #[inline(never)] pub fn work(&self, n: usize) -> usize \
        { std::hint::black_box(n) + 1 } } } fn main() { println!(\"{}\", deep::S.work(4)); }";
    std::fs::write(&source, code).unwrap();
    let path = dir.path().join("thing");
    run_tool(Command::new("rustc").args(["-g", "-O", "-o"]).arg(&path).arg(&source));
    let start = start_of(&path, |n| n.contains("deep") && n.contains("work"));
    let bench = bench(&path, [start], FrameKind::InstructionPointer);
    let (out, _) = symbolize(&bench, generous());
    let function = out.frames(bench.ids[0]).last().unwrap().function.clone().unwrap();
    assert_eq!(function.name, "thing::deep::S::work");
    assert!(function.linkage.starts_with("_"), "{function:?}");
    assert!(out.frames(bench.ids[0])[0].location.is_some());
}

#[test]
fn lines_beyond_the_budget_are_left_out_with_a_note() {
    let dir = tempfile::tempdir().unwrap();
    let path = build(dir.path(), "g++ -g -O2 symbolize_inline.cc", "inline");
    let start = start_of(&path, |n| n.contains("total"));
    let bench = bench(&path, [start], FrameKind::InstructionPointer);
    let budget = LineBudget { time: Duration::from_secs(600), size: 16 };
    let (out, notes) = symbolize(&bench, Config { lines: Some(budget), ..Config::default() });
    let [frame] = out.frames(bench.ids[0]) else { panic!() };
    assert_eq!(frame.function.as_ref().unwrap().name, "shapes::total");
    assert_eq!(frame.location, None);
    assert_eq!(notes.len(), 1, "{notes:?}");
}

#[test]
fn missing_and_replaced_files_give_no_names() {
    let dir = tempfile::tempdir().unwrap();
    let path = build(dir.path(), "g++ -O2 symbolize_inline.cc", "inline");
    let start = start_of(&path, |n| n.contains("total"));
    let bench = bench(&path, [start], FrameKind::InstructionPointer);
    build(dir.path(), "g++ -O0 symbolize_inline.cc", "inline");
    let (out, notes) = symbolize(&bench, generous());
    let [frame] = out.frames(bench.ids[0]) else { panic!() };
    assert_eq!((&frame.function, frame.bounds, &frame.location), (&None, None, &None));
    assert!(notes.iter().any(|n| n.starts_with("inline: no names")), "{notes:?}");
    std::fs::remove_file(&path).unwrap();
    let (out, _) = symbolize(&bench, generous());
    assert!(out.frames(bench.ids[0])[0].function.is_none());
}

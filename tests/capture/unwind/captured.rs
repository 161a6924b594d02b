//! Builds the programs in tests/programs, runs them, reads the stacks that they print, and names
//! frames with nm(1).
use crate::support::skip_this;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use vmaudit::model::{
    AddrRange, Completeness, FileRef, Frame, FrameKind, MmKey, Stack, StackSample, StackTable,
};
use vmaudit::objects::Object;
use vmaudit::unwind::{ExecMapping, SpaceState, Unwinder};

pub const MM: MmKey = MmKey(1);

pub fn have(tool: &str) -> bool {
    let found = Command::new(tool).arg("--version").output().is_ok();
    if !found {
        skip_this(&format!("{tool} is not installed"));
    }
    found
}

pub fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name)
}

/// `compiler flags… -o dir/out tests/programs/source libs…`
pub fn build(dir: &Path, compile: &str, out: &str) -> PathBuf {
    let mut words = compile.split_whitespace();
    let compiler = words.next().unwrap();
    let path = dir.join(out);
    let mut command = Command::new(compiler);
    command.arg("-o").arg(&path);
    for word in words {
        match word.starts_with("unwind_") || word.starts_with("symbolize_") {
            true => command.arg(source(word)),
            false => command.arg(word),
        };
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{compile}: {}", String::from_utf8_lossy(&output.stderr));
    path
}

pub fn run_tool(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// One printed stack with the mappings at that time.
#[derive(Clone)]
pub struct Capture {
    pub registers: [u64; 8],
    pub full: bool,
    pub bytes: Vec<u8>,
    pub mappings: Vec<(AddrRange, u64, Option<FileRef>)>,
}

impl Capture {
    pub fn stack(&self) -> StackSample<'_> {
        let [ip, sp, bp, bx, r12, r13, r14, r15] = self.registers;
        StackSample {
            ip,
            sp,
            bp,
            bx,
            r12,
            r13,
            r14,
            r15,
            bytes: &self.bytes,
            full: self.full,
            ..StackSample::default()
        }
    }

    pub fn modules(&self) -> impl Iterator<Item = ExecMapping<'_>> {
        self.mappings.iter().map(|(range, offset, file)| ExecMapping {
            range: *range,
            offset: *offset,
            file: file.as_ref(),
        })
    }
}

/// A running program that prints captures.
pub struct Program {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Program {
    pub fn start(command: &mut Command) -> Program {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Program { child, input, output }
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// The next capture; None at the end of output.
    pub fn capture(&mut self) -> Option<Capture> {
        let head = self.line();
        let words: Vec<u64> = numbers(head.strip_prefix("STACK ")?);
        let bytes = numbers(&self.line()).into_iter().flat_map(u64::to_le_bytes).collect();
        let mut mappings = Vec::new();
        loop {
            let line = self.line();
            if line == "END" {
                break;
            }
            mappings.extend(parse_mapping(&line));
        }
        Some(Capture { registers: words[..8].try_into().unwrap(), full: words[8] != 0, bytes, mappings })
    }

    /// Waits until the program waits.
    pub fn expect_wait(&mut self) {
        assert_eq!(self.line(), "WAIT");
    }

    pub fn answer(&mut self) {
        self.input.write_all(b"x").unwrap();
    }

    pub fn finish(mut self) {
        drop(self.input);
        self.child.wait().unwrap();
    }
}

fn numbers(text: &str) -> Vec<u64> {
    text.split_whitespace().map(|w| u64::from_str_radix(w, 16).unwrap()).collect()
}

fn parse_mapping(line: &str) -> Option<(AddrRange, u64, Option<FileRef>)> {
    let mut words = line.splitn(6, ' ');
    let (start, end) = words.next()?.split_once('-')?;
    let prot = words.next()?;
    let offset = u64::from_str_radix(words.next()?, 16).unwrap();
    let (major, minor) = words.next()?.split_once(':')?;
    let inode: u64 = words.next()?.parse().unwrap();
    let path = words.next().unwrap_or("").trim_start();
    if !prot.contains('x') || path == "[vsyscall]" {
        return None;
    }
    let hex = |t: &str| u64::from_str_radix(t, 16).unwrap();
    let range = AddrRange::new(hex(start), hex(end));
    let file = (!path.is_empty()).then(|| FileRef {
        major: hex(major) as u32,
        minor: hex(minor) as u32,
        inode,
        path: path.trim_end_matches(" (deleted)").as_bytes().to_vec(),
        deleted: path.ends_with(" (deleted)"),
    });
    Some((range, offset, file))
}

/// Runs a program to its end and unwinds its only capture.
pub fn unwind_one(command: &mut Command) -> (Stack, StackTable, Capture) {
    let mut program = Program::start(command);
    let capture = program.capture().expect("a capture");
    let mut unwinder = Unwinder::default();
    let mut table = StackTable::default();
    let state = SpaceState { mm: MM, generation: 1, pid: program.pid() };
    unwinder.set_modules(state, capture.modules(), &mut table);
    let stack = unwinder.unwind(MM, &capture.stack());
    program.finish();
    (stack, table, capture)
}

/// Names frames with nm(1): `module!function`, or `module!+offset` where no symbol covers it.
#[derive(Default)]
pub struct Namer {
    files: HashMap<PathBuf, Vec<(u64, u64, String)>>,
}

impl Namer {
    /// Takes the symbols of `unstripped` for frames of a module whose file name is `name`.
    pub fn load(&mut self, path: &Path, unstripped: &Path) {
        let mut symbols = Vec::new();
        for args in [&["-S", "--defined-only"][..], &["-S", "--defined-only", "-D"]] {
            let text = Command::new("nm").args(args).arg(unstripped).output().unwrap().stdout;
            for line in String::from_utf8_lossy(&text).lines() {
                let words: Vec<&str> = line.split_whitespace().collect();
                if let [value, size, kind, name] = words[..]
                    && "tTwWiu".contains(kind)
                {
                    let hex = |t| u64::from_str_radix(t, 16).unwrap();
                    symbols.push((hex(value), hex(size), name.to_owned()));
                }
            }
        }
        self.files.insert(path.to_owned(), symbols);
    }

    pub fn name(&mut self, table: &StackTable, frame: &Frame) -> String {
        let Some(module) = frame.module else { return format!("{:#x}", frame.address) };
        let info = table.module(module).clone();
        let path = PathBuf::from(String::from_utf8_lossy(&info.path).into_owned());
        let short = info.short_name();
        if !self.files.contains_key(&path) {
            self.load(&path.clone(), &path.clone());
        }
        let Ok(bytes) = std::fs::read(&path) else { return format!("{short}!+{:#x}", frame.address) };
        let layout = Object::from_bytes(bytes).unwrap().layout().clone();
        let back = u64::from(frame.kind != FrameKind::InstructionPointer);
        let svma = layout.svma_of(frame.address - back).unwrap();
        let covering =
            self.files[&path].iter().find(|(value, size, _)| (*value..value + size).contains(&svma));
        match covering {
            Some((_, _, name)) => format!("{short}!{name}"),
            None => format!("{short}!+{:#x}", frame.address),
        }
    }

    pub fn names(&mut self, table: &StackTable, stack: &Stack) -> Vec<String> {
        stack.frames.iter().map(|frame| self.name(table, frame)).collect()
    }
}

/// The names contain `expected` in this order, one directly after the other.
pub fn assert_run(names: &[String], expected: &[&str]) {
    let expected: Vec<String> = expected.iter().map(|w| (*w).to_owned()).collect();
    let found = names.windows(expected.len()).any(|window| window == expected);
    assert!(found, "expected {expected:#?} in {names:#?}");
}

pub fn assert_complete(stack: &Stack, names: &[String]) {
    assert_eq!(stack.completeness, Completeness::Complete, "{names:#?}");
}

//! A table made by hand: `main.outer`, which has `main.inner` compiled into it, and a function behind it.

use super::*;
use crate::model::arenas::memory_of;

/// Where the bytes are.
const BASE: u64 = 0x1000;
/// Where the code would be.
const TEXT: u64 = 0x5000;

struct Bytes(Vec<u8>);

impl ReadBytes for Bytes {
    fn fill(&mut self, at: u64, into: &mut [u8]) -> bool {
        memory_of(BASE, &self.0)(Addr(at), into)
    }
}

impl Bytes {
    fn end(&self) -> u64 {
        BASE + self.0.len() as u64
    }

    fn put(&mut self, bytes: &[u8]) -> u64 {
        let at = self.end();
        self.0.extend_from_slice(bytes);
        at
    }

    fn halves(&mut self, halves: &[u64]) -> u64 {
        self.0.resize(self.0.len().next_multiple_of(8), 0);
        self.put(&halves.iter().flat_map(|&half| (half as u32).to_le_bytes()).collect::<Vec<u8>>())
    }

    fn set(&mut self, at: u64, word: u64) {
        let at = (at - BASE) as usize;
        self.0[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }
}

/// A table of values: (value, up to which byte of the function).
fn values(steps: &[(i64, u64)]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut put = |mut number: u64| loop {
        let low = (number & 0x7f) as u8;
        number >>= 7;
        out.push(if number == 0 { low } else { low | 0x80 });
        if number == 0 {
            return;
        }
    };
    let (mut before, mut from) = (-1, 0);
    for &(value, to) in steps {
        let delta: i64 = value - before;
        put(((delta << 1) ^ (delta >> 63)) as u64);
        put(to - from);
        (before, from) = (value, to);
    }
    put(0);
    out
}

/// The bytes, which begin with the description.
fn program(form: Form, file_of: &str) -> Bytes {
    let mut bytes = Bytes(vec![0; WORDS * 8]);
    let header = bytes.put(&form.word());
    bytes.put(&[0; 72]);
    let names = bytes.put(b"\0main.outer\0main.inner\0");
    let files = bytes.put(&[file_of.as_bytes(), b"\0"].concat());
    let units = bytes.halves(&[0]);
    let tables = bytes.put(&[0]);
    let mut table = |steps: &[(i64, u64)]| bytes.put(&values(steps)) - tables;
    let sizes = table(&[(0, 4), (24, 0x100)]);
    let in_file = table(&[(0, 0x100)]);
    let lines = table(&[(10, 0x40), (3, 0x60), (12, 0x100)]);
    let inlined = table(&[(-1, 0x40), (0, 0x60), (-1, 0x100)]);
    let values_end = bytes.end();
    // name at 12, called at 0x3c
    let tree = match form {
        Form::WithStartLines => bytes.halves(&[0, 12, 0x3c, 3]),
        _ => bytes.halves(&[0, 0, 0, 12, 0x3c]),
    };
    let functions = bytes.halves(&[]);
    let index = functions;
    let record = 56;
    let starts: &[u64] = match form {
        Form::Absolute => &[TEXT, 0, record, 0, TEXT + 0x100, 0, record, 0, TEXT + 0x180, 0, 0, 0],
        _ => &[0, record, 0x100, record, 0x180, 0],
    };
    bytes.halves(starts);
    while bytes.end() < functions + record {
        bytes.put(&[0]);
    }
    let begins: &[u64] = if form == Form::Absolute { &[TEXT, 0] } else { &[0] };
    let fields = [1, 0, 0, sizes, in_file, lines, 3, 0];
    let line: &[u64] = if form == Form::WithStartLines { &[3] } else { &[] };
    // of functions and their data there are three and four tables
    bytes.halves(&[begins, &fields, line, &[4 << 24, 0, 0, inlined]].concat());
    match form {
        Form::Absolute => bytes.halves(&[0, 0, 0, 0, 0, 0, tree, 0]),
        _ => bytes.put(&[[0xff; 4], [0xff; 4], [0xff; 4], ((tree - tables) as u32).to_le_bytes()].concat()),
    };
    let (end, offsets) = (bytes.end(), if form == Form::Absolute { 24 } else { 32 });
    bytes.set(header + 8, 2);
    for (number, at) in [names, units, files, tables, functions].into_iter().enumerate() {
        bytes.set(header + offsets + number as u64 * 8, at - header);
        let word = BASE + 8 * (1 + 3 * number as u64);
        let len = match number {
            0 => files - names,
            1 => 1,
            2 => units - files,
            3 => values_end - tables,
            _ => end - functions,
        };
        bytes.set(word, at);
        bytes.set(word + 8, len);
    }
    bytes.set(BASE, header);
    bytes.set(BASE + 16 * 8, index);
    bytes.set(BASE + 17 * 8, 3);
    bytes.set(BASE + 22 * 8, TEXT);
    bytes.set(BASE + 23 * 8, TEXT + 0x180);
    let data = if form == Form::WithStartLines { 40 } else { 38 };
    bytes.set(BASE + data * 8, tables);
    bytes
}

fn version(form: Form) -> Version {
    let minor = match form {
        Form::Absolute => 17,
        Form::Relative => 19,
        Form::WithStartLines => 20,
    };
    Version { text: format!("go1.{minor}"), minor }
}

fn words(bytes: &Bytes) -> Vec<u64> {
    bytes.0.as_chunks().0.iter().take(WORDS).map(|word| u64::from_le_bytes(*word)).collect()
}

const FORMS: [Form; 3] = [Form::Absolute, Form::Relative, Form::WithStartLines];

fn called(name: &str, line: u32, inlined: bool) -> Called {
    Called { name: name.to_owned(), location: Some(("a.go".to_owned(), line)), inlined }
}

#[test]
fn what_was_compiled_into_a_function_and_where_it_was_called() {
    for form in FORMS {
        let mut bytes = program(form, "a.go");
        let words = words(&bytes);
        let table = described(&words, Some(&version(form)), &mut bytes).expect("a table");
        let outer = table.function(TEXT + 0x50, &mut bytes).expect("a function");
        assert_eq!((outer.start, outer.end), (TEXT, TEXT + 0x100));
        assert_eq!(
            table.calls(outer, TEXT + 0x50, &mut bytes),
            Some(vec![called("main.inner", 3, true), called("main.outer", 10, false)]),
            "{form:?}"
        );
        assert_eq!(table.calls(outer, TEXT + 0x60, &mut bytes), Some(vec![called("main.outer", 12, false)]));
        assert_eq!(table.frame_size(outer, TEXT + 3, &mut bytes), Some(0));
        assert_eq!(table.frame_size(outer, TEXT + 4, &mut bytes), Some(24));
        assert_eq!(table.by_name("main.outer", &mut bytes), Some(outer));
        assert_eq!(table.by_name("main.inner", &mut bytes), None);
        assert_eq!(table.function(TEXT - 1, &mut bytes), None);
        assert_eq!(table.function(TEXT + 0x180, &mut bytes), None);
        // Its record says that it begins elsewhere.
        assert_eq!(table.function(TEXT + 0x100, &mut bytes), None);
    }
}

#[test]
fn without_the_version_no_line_is_that_of_another_function() {
    let mut bytes = program(Form::WithStartLines, "a.go");
    let words = words(&bytes);
    let table = described(&words, None, &mut bytes).expect("a table");
    assert_eq!(table.function_data, None);
    let outer = table.function(TEXT + 0x50, &mut bytes).expect("a function");
    let own = Called { name: "main.outer".to_owned(), location: None, inlined: false };
    assert_eq!(table.calls(outer, TEXT + 0x50, &mut bytes), Some(vec![own]));
}

#[test]
fn without_the_version_the_codes_sections_decide() {
    let mut bytes = program(Form::WithStartLines, "a.go");
    let section = bytes.halves(&[0, 0, 0x180, 0]);
    let data = words(&bytes)[40];
    bytes.set(BASE + 40 * 8, 0);
    // As of Go 1.27, where the tables' end is between them; and as of 1.25.
    for (place, between) in [(43, true), (41, false)] {
        let mut bytes = Bytes(bytes.0.clone());
        let end = bytes.end();
        bytes.set(BASE + place * 8, if between { end } else { data });
        let mut at = BASE + (place + 1) * 8;
        if between {
            bytes.set(at, end + 8);
            at += 8;
        }
        for (number, word) in [section, 1, 1].into_iter().enumerate() {
            bytes.set(at + number as u64 * 8, word);
        }
        let table = described(&words(&bytes), None, &mut bytes).expect("a table");
        assert_eq!(table.function_data, Some(if between { end } else { data }));
    }
}

#[test]
fn damaged_bytes_are_read_to_some_end() {
    for form in FORMS {
        let whole = program(form, "a.go");
        for at in 0..whole.0.len() {
            for value in [0, 0x7f, 0xff] {
                let mut bytes = Bytes(whole.0.clone());
                bytes.0[at] = value;
                let words = words(&bytes);
                let Some(table) = described(&words, Some(&version(form)), &mut bytes) else { continue };
                for place in [0, 0x50, 0x100, 0x17f] {
                    let Some(function) = table.function(TEXT + place, &mut bytes) else { continue };
                    assert!((function.start..function.end).contains(&(TEXT + place)));
                    table.frame_size(function, TEXT + place, &mut bytes);
                    let calls = table.calls(function, TEXT + place, &mut bytes).unwrap_or_default();
                    assert!(
                        calls.len() <= DEEPEST + 1 && calls.iter().rev().skip(1).all(|call| call.inlined)
                    );
                }
            }
        }
    }
}

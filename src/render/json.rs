//! Reports, comparisons and whatever else is said, as JSON (docs/report.md, docs/diff.md …).

use crate::heap::HeapReport;
use crate::model::is_hidden;
use crate::report::model::{Frame, Stack};
use crate::report::{Report, StackTexts};
use serde::Serialize;
use serde_json::ser::{CompactFormatter, Formatter, PrettyFormatter};
use serde_json::{Error, Serializer};
use std::io::{self, Write};

/// A report of a run whose allocations were counted, too.
#[derive(Serialize)]
pub struct ReportWithHeap<'a> {
    #[serde(flatten)]
    pub report: &'a Report,
    pub heap: &'a HeapReport,
}

/// Pretty-printed JSON, with a final newline.
///
/// # Errors
/// None in practice: no model holds anything that JSON cannot say.
pub fn to_json(of: &impl Serialize) -> Result<String, Error> {
    text(|out| write_json(of, out))
}

/// Writes to a file what [`to_json`] returns.
///
/// # Errors
/// When it cannot be written.
pub fn write_json(of: &impl Serialize, mut to: impl Write) -> Result<(), Error> {
    of.serialize(&mut Serializer::with_formatter(&mut to, Plain(PrettyFormatter::new())))?;
    to.write_all(b"\n").map_err(Error::io)
}

/// A heap's report, as [`write_json`] writes it, too: with the text of each frame made once, which is most of it.
///
/// # Errors
/// When it cannot be written.
pub fn write_heap_json(report: &HeapReport, mut to: impl Write) -> Result<(), Error> {
    let text = to_json(&HeapReport { stacks: Vec::new(), ..report.clone() })?;
    let Some((head, tail)) = text.rsplit_once(NO_STACKS).filter(|_| !report.stacks.is_empty()) else {
        return write_json(report, to);
    };
    to.write_all(head.as_bytes()).map_err(Error::io)?;
    let gaps = [indented("\n", 8), indented(",\n", 8), indented("\n", 6)];
    let frame = |frame: &Frame| Ok(indented(to_json(frame)?.trim_end(), 8));
    let stack = |stack: &Stack| Ok(indented(to_json(stack)?.trim_end(), 4));
    let mut texts = StackTexts::new((frame, stack), gaps);
    let mut text = String::from("\"stacks\": [");
    for (at, stack) in report.stacks.iter().enumerate() {
        text += if at == 0 { "\n    " } else { ",\n    " };
        texts.add(stack, &mut text)?;
        to.write_all(text.as_bytes()).map_err(Error::io)?;
        text.clear();
    }
    to.write_all(b"\n  ]").and_then(|()| to.write_all(tail.as_bytes())).map_err(Error::io)
}

/// What a heap's report ends with, as far as its fields go.
const NO_STACKS: &str = "\"stacks\": []";

/// The text of a value inside of others. Strings have no line ends, but for escaped ones.
fn indented(text: &str, by: usize) -> String {
    text.replace('\n', &format!("\n{}", " ".repeat(by)))
}

/// JSON on one line, without its end.
///
/// # Errors
/// None in practice.
pub fn json_line(of: &impl Serialize) -> Result<String, Error> {
    text(|out| of.serialize(&mut Serializer::with_formatter(out, Plain(CompactFormatter))))
}

fn text(write: impl FnOnce(&mut Vec<u8>) -> Result<(), Error>) -> Result<String, Error> {
    let mut out = Vec::new();
    write(&mut out)?;
    String::from_utf8(out).map_err(|error| Error::io(io::Error::other(error)))
}

/// Writes what a terminal would obey, or does not show, as `\uXXXX`, which JSON has for any character: the strings
/// stay what they are.
struct Plain<F>(F);

macro_rules! as_inner {
    ($($method:ident($($name:ident: $kind:ty)?);)*) => {
        $(fn $method<W: ?Sized + Write>(&mut self, to: &mut W $(, $name: $kind)?) -> io::Result<()> {
            self.0.$method(to $(, $name)?)
        })*
    };
}

impl<F: Formatter> Formatter for Plain<F> {
    as_inner! {
        begin_array(); end_array(); begin_array_value(first: bool); end_array_value();
        begin_object(); end_object(); begin_object_key(first: bool); end_object_key();
        begin_object_value(); end_object_value();
    }

    fn write_string_fragment<W: ?Sized + Write>(&mut self, to: &mut W, text: &str) -> io::Result<()> {
        let mut shown = 0;
        for (at, hidden) in text.char_indices().filter(|&(_, c)| is_hidden(c)) {
            to.write_all(&text.as_bytes()[shown..at])?;
            for unit in hidden.encode_utf16(&mut [0; 2]) {
                write!(to, "\\u{unit:04x}")?;
            }
            shown = at + hidden.len_utf8();
        }
        to.write_all(&text.as_bytes()[shown..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn a_heaps_report_is_written_as_any_other() {
        let frame = |symbol: &str| Frame {
            module: "prog".to_owned(),
            symbol: Some(symbol.to_owned()),
            file: Some("\u{202e}\n\"stacks\": []".to_owned()),
            ..Frame::default()
        };
        let stack = |names: &[&str]| Stack::new(names.iter().map(|name| frame(name)).collect(), "complete");
        let all = [stack(&["malloc", "load", "main"]), stack(&[]), stack(&["main"])];
        for stacks in [&all[..0], &all[..1], &all[1..2], &all] {
            let report = HeapReport {
                stacks: stacks.to_vec(),
                backend: "\"stacks\": []".to_owned(),
                ..HeapReport::default()
            };
            let mut out = Vec::new();
            write_heap_json(&report, &mut out).expect("JSON");
            assert_eq!(String::from_utf8(out).expect("UTF-8"), to_json(&report).expect("JSON"));
        }
    }

    #[test]
    fn what_a_terminal_obeys_is_escaped_and_stays_the_same_string() {
        let name = "a\u{9b}31mb\u{202e}c\u{7f}\u{1b}[2J\u{2067}\u{feff}d\u{200b} \u{e9}\u{6f22}\u{1f600}\"\\";
        let value = json!({ name: [name, {"empty": []}, 1, null, 2.5, true], "b": {} });
        let (pretty, line) = (to_json(&value).expect("JSON"), json_line(&value).expect("JSON"));
        for text in [&pretty, &line] {
            assert!(!text.chars().any(|c| is_hidden(c) && c != '\n'), "{text:?}");
            assert!(text.contains(
                "a\\u009b31mb\\u202ec\\u007f\\u001b[2J\\u2067\\ufeffd\\u200b \u{e9}\u{6f22}\u{1f600}"
            ));
            assert_eq!(serde_json::from_str::<Value>(text).expect("JSON"), value);
        }
        // Nothing else is changed.
        let plain = json!({ "a": [1, {"b": ["c"]}], "d": {} });
        assert_eq!(
            to_json(&plain).expect("JSON"),
            serde_json::to_string_pretty(&plain).expect("JSON") + "\n"
        );
        assert_eq!(json_line(&plain).expect("JSON"), plain.to_string());
    }
}

//! Reports, comparisons and whatever else is said, as JSON (docs/report.md, docs/diff.md …).

use crate::heap::HeapReport;
use crate::model::is_hidden;
use crate::report::Report;
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

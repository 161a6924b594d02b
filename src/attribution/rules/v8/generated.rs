//! How V8 names the code that it makes (src/logging/code-events.h; V8 9 to 13, `--perf-basic-prof`).

use crate::model::SourceLine;
use crate::model::stack::GeneratedFunction;

/// Kinds of code that are functions of the program.
const FUNCTIONS: [&str; 5] = ["JS:", "LazyCompile:", "Function:", "Script:", "Eval:"];
/// How far it is compiled: not yet, by Sparkplug, Maglev, Turbofan.
const TIERS: [char; 5] = ['~', '^', '+', '*', '\''];

/// `JS:*NAME FILE:LINE:COLUMN`.
pub(super) fn function(entry: &str) -> Option<GeneratedFunction> {
    let code = FUNCTIONS.iter().find_map(|kind| entry.strip_prefix(kind))?;
    let (name, place) = code.strip_prefix(TIERS).unwrap_or(code).split_once(' ').unwrap_or((code, ""));
    let name = name.strip_prefix(TIERS).unwrap_or(name);
    let begins = source_place(place);
    let name = match name {
        "" if place.ends_with(":1:1") => "(top level)",
        "" => "(anonymous)",
        name => name,
    };
    Some(GeneratedFunction { name: name.to_owned(), place: begins })
}

/// `FILE:LINE:COLUMN`, or without the column.
fn source_place(place: &str) -> Option<SourceLine> {
    let (file, last) = place.rsplit_once(':')?;
    let last: u32 = last.parse().ok()?;
    let (file, line) = match file.rsplit_once(':').map(|(file, line)| (file, line.parse::<u32>())) {
        Some((file, Ok(line))) => (file, line),
        _ => (file, last),
    };
    let file = file.strip_prefix("file://").unwrap_or(file);
    (!file.is_empty() && line != 0).then(|| SourceLine { file: file.to_owned(), line })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_have_a_name_and_a_beginning() {
        let of = |entry: &str| {
            let found = function(entry)?;
            let begins = found.place.map(|at| format!(" {}:{}", at.file, at.line));
            Some(found.name + &begins.unwrap_or_default())
        };
        for (entry, parts) in [
            ("JS:*grow /srv/a b.js:12:18", Some("grow /srv/a b.js:12")),
            ("LazyCompile:~grow file:///srv/a.mjs:3", Some("grow /srv/a.mjs:3")),
            ("JS:~ /srv/a.js:1:1", Some("(top level) /srv/a.js:1")),
            ("JS:^ node:internal/fs:40:7", Some("(anonymous) node:internal/fs:40")),
            ("JS:~later", Some("later")),
            ("Builtin:ArrayMap", None),
            ("BytecodeHandler:Add", None),
        ] {
            assert_eq!(of(entry).as_deref(), parts, "{entry}");
        }
    }
}

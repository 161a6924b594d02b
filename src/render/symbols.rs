//! Function symbols as text and as JSON, a line at a time: a browser has hundreds of thousands.

use super::json::json_line;
use super::style::{Color, Tone, clean, truncated, wrapped};
use super::text::{WIDTH, closing_notes};
use crate::model::{ListedFunction, Probe, ProbeCost, ProbeSite, ProbeSummary, Skip};
use crate::report::units::thousands;
use serde::Serialize;
use std::collections::BTreeMap;

/// How to write text.
#[derive(Clone, Copy, Debug)]
pub struct ListOptions {
    pub color: Color,
    /// Names are cut at [`WIDTH`] columns: on a terminal, not in a file.
    pub cut: bool,
}

/// A file whose functions are listed.
#[derive(Clone, Copy, Debug)]
pub struct ListedFile<'a> {
    pub path: &'a str,
    pub build_id: Option<&'a str>,
    /// A separate debug file was found and read.
    pub debug_file: bool,
    pub notes: &'a [String],
    pub summary: &'a ProbeSummary,
}

/// Everything before the name.
fn columns(address: &str, offset: &str, size: &str, [binding, tables, probe]: [&str; 3]) -> String {
    format!("{address:>12}  {offset:>10}  {size:>7}  {binding:<7}  {tables:<13}  {probe:<14}  ")
}

fn heads() -> String {
    columns("address", "offset", "size", ["binding", "tables", "probe"]) + "name"
}

/// The lines above a list.
pub fn head(path: &str, build_id: Option<&str>, options: ListOptions) -> String {
    let mut out = options.color.paint(Tone::Heading, &clean(path));
    if let Some(id) = build_id {
        out += &options.color.paint(Tone::Dim, &format!(" · build id {}", clean(id)));
    }
    out += "\n\n";
    out += &options.color.paint(Tone::Dim, &heads());
    out.push('\n');
    out
}

/// A line of the list.
pub fn row(function: &ListedFunction<'_>, options: ListOptions) -> String {
    let offset = function.offset.map_or("-".to_owned(), |offset| format!("0x{offset:x}"));
    let imported = function.probe == Probe::No(Skip::Imported);
    let address = if imported { "-".to_owned() } else { format!("0x{:x}", function.svma) };
    let tables: Vec<&str> = function.sources.iter().map(|source| source.short()).collect();
    let probe = match (function.probe, function.site) {
        (Probe::No(skip), _) => skip.id().to_owned(),
        (Probe::Yes, Some(ProbeSite { cost: ProbeCost::SingleStepped, .. })) => "yes, slow".to_owned(),
        (Probe::Yes, Some(site)) if site.after_entry > 0 => format!("yes, at {site}"),
        (Probe::Yes, _) => "yes".to_owned(),
    };
    let mut name = if function.name.is_empty() { "(no name)".to_owned() } else { clean(function.demangled) };
    if let Some(of) = function.alias_of {
        name += &format!(" = {}", clean(of));
    }
    if !function.current_version {
        name += " (old version)";
    }
    let before = format!(
        "{address:>12}  {offset:>10}  {:>7}  {:<7}  {:<13}  {probe:<14}  ",
        function.size,
        function.binding.id(),
        tables.join("+"),
    );
    if options.cut {
        name = truncated(&name, WIDTH.saturating_sub(before.chars().count()).max(24));
    }
    let name = if function.probe == Probe::Yes { name } else { options.color.paint(Tone::Dim, &name) };
    format!("{before}{name}\n")
}

/// The lines below a list: how many can be probed, and why the others cannot.
pub fn foot(file: &ListedFile<'_>, matched: bool, options: ListOptions) -> String {
    let summary = file.summary;
    let what = if matched { "function symbols match" } else { "function symbols" };
    let mut out = format!("\n  {} {what}, ", thousands(summary.functions));
    out += &options.color.paint(Tone::Key, &format!("{} can be probed", thousands(summary.probeable)));
    out += if file.debug_file { " (with those of its debug file)\n" } else { "\n" };
    if summary.single_stepped > 0 {
        out += &format!(
            "  {:>9}  {:<14}  the kernel runs a copy of the instruction: 11 to 13 µs a call, not 0.7 to 0.9\n",
            thousands(summary.single_stepped),
            "yes, slow"
        );
    }
    for (skip, count) in by_count(summary) {
        out += &format!("  {:>9}  {:<14}  {}\n", thousands(count), skip.id(), skip.reason());
    }
    closing_notes(file.notes, options.color, &mut out);
    out
}

/// Many first; the order of the reasons among equals.
fn by_count(summary: &ProbeSummary) -> Vec<(Skip, u64)> {
    let mut counts: Vec<(Skip, u64)> = summary.skipped.iter().map(|(&skip, &count)| (skip, count)).collect();
    counts.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
    counts
}

/// One line a file: `vmaudit symbols -p PID`.
pub fn overview(files: &[ListedFile<'_>], options: ListOptions) -> String {
    let mut out = options.color.paint(Tone::Dim, "  functions  probeable   skipped  file");
    out.push('\n');
    for file in files {
        let summary = file.summary;
        out += &format!(
            "{:>11}{:>11}{:>10}  {}{}\n",
            thousands(summary.functions),
            thousands(summary.probeable),
            thousands(summary.functions - summary.probeable),
            clean(file.path),
            if file.debug_file { " (with debug file)" } else { "" },
        );
        for note in file.notes {
            for line in wrapped(&clean(note), WIDTH - 36) {
                out += &format!("{:36}{}\n", "", options.color.paint(Tone::Warning, &line));
            }
        }
    }
    let total = |count: fn(&ProbeSummary) -> u64| files.iter().map(|file| count(file.summary)).sum::<u64>();
    let (functions, probeable) = (total(|s| s.functions), total(|s| s.probeable));
    out += &format!(
        "{:>11}{:>11}{:>10}  {} files\n",
        thousands(functions),
        thousands(probeable),
        thousands(functions - probeable),
        files.len()
    );
    out
}

#[derive(Serialize)]
struct JsonFunction<'a> {
    name: &'a str,
    demangled: &'a str,
    address: Option<String>,
    offset: Option<String>,
    size: u64,
    kind: &'static str,
    binding: &'static str,
    tables: Vec<&'static str>,
    current_version: bool,
    probe: bool,
    site: Option<JsonSite>,
    skipped: Option<&'static str>,
    alias_of: Option<&'a str>,
}

#[derive(Serialize)]
struct JsonSite {
    after_entry: u8,
    cost: &'static str,
}

/// One function, without a line break.
///
/// # Errors
/// None in practice.
pub fn json_row(function: &ListedFunction<'_>) -> Result<String, serde_json::Error> {
    let hex = |number: u64| format!("0x{number:x}");
    json_line(&JsonFunction {
        name: function.name,
        demangled: function.demangled,
        address: (function.probe != Probe::No(Skip::Imported)).then(|| hex(function.svma)),
        offset: function.offset.map(hex),
        size: function.size,
        kind: function.kind.id(),
        binding: function.binding.id(),
        tables: function.sources.iter().map(|source| source.id()).collect(),
        current_version: function.current_version,
        probe: function.probe == Probe::Yes,
        site: function.site.map(|site| JsonSite { after_entry: site.after_entry, cost: site.cost.id() }),
        skipped: match function.probe {
            Probe::Yes => None,
            Probe::No(skip) => Some(skip.id()),
        },
        alias_of: function.alias_of,
    })
}

#[derive(Serialize)]
struct JsonFile<'a> {
    path: &'a str,
    build_id: Option<&'a str>,
    debug_file: bool,
    notes: &'a [String],
    summary: JsonSummary,
}

#[derive(Serialize)]
struct JsonSummary {
    functions: u64,
    probeable: u64,
    skipped: BTreeMap<&'static str, u64>,
}

/// The members of a file's object that precede its functions, without braces.
///
/// # Errors
/// None in practice.
pub fn json_file(file: &ListedFile<'_>) -> Result<String, serde_json::Error> {
    let skipped = file.summary.skipped.iter().map(|(skip, &count)| (skip.id(), count)).collect();
    let text = json_line(&JsonFile {
        path: file.path,
        build_id: file.build_id,
        debug_file: file.debug_file,
        notes: file.notes,
        summary: JsonSummary {
            functions: file.summary.functions,
            probeable: file.summary.probeable,
            skipped,
        },
    })?;
    let inside = text.strip_prefix('{').and_then(|text| text.strip_suffix('}'));
    Ok(inside.unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Binding, FunctionKind, Source, Sources};

    fn function<'a>() -> ListedFunction<'a> {
        ListedFunction {
            svma: 0x1000,
            offset: Some(0x800),
            size: 12,
            binding: Binding::Global,
            kind: FunctionKind::Function,
            sources: Sources::from(Source::Symtab).with(Source::Dynsym.into()),
            current_version: true,
            probe: Probe::Yes,
            site: None,
            name: "_Z1fv",
            demangled: "f",
            alias_of: None,
        }
    }

    const PLAIN: ListOptions = ListOptions { color: Color::Never, cut: false };

    #[test]
    fn rows_stand_below_their_heads() {
        let row = row(&function(), PLAIN);
        for (value, column) in [("global", "binding"), ("sym+dyn", "tables"), ("yes", "probe")] {
            assert_eq!(row.find(value), heads().find(column), "{column}:\n{}\n{row}", heads());
        }
        assert_eq!(row.trim_end().rfind('f'), heads().find("name"));
        assert!(row.contains("0x1000       0x800       12  global"), "{row}");
    }

    #[test]
    fn aliases_say_of_what_and_names_cannot_drive_the_terminal() {
        let alias = ListedFunction {
            probe: Probe::No(Skip::Alias { of: 7 }),
            alias_of: Some("g"),
            demangled: "f\x1b[2J",
            ..function()
        };
        let text = row(&alias, PLAIN);
        assert!(text.contains("alias") && text.contains("f\\u{1b}[2J = g"), "{text}");
        assert!(
            row(
                &ListedFunction { demangled: &"x".repeat(500), ..function() },
                ListOptions { cut: true, ..PLAIN }
            )
            .chars()
            .count()
                <= WIDTH + 1
        );
    }

    #[test]
    fn the_summary_counts_by_reason() {
        let mut summary = ProbeSummary::default();
        for probe in [
            Probe::Yes,
            Probe::No(Skip::ZeroSize),
            Probe::No(Skip::Alias { of: 1 }),
            Probe::No(Skip::Alias { of: 2 }),
        ] {
            summary.add(probe);
        }
        let file = ListedFile { path: "x", build_id: None, debug_file: false, notes: &[], summary: &summary };
        let text = foot(&file, false, PLAIN);
        assert!(text.contains("4 function symbols, 1 can be probed"), "{text}");
        assert!(text.find("2  alias").expect("aliases") < text.find("1  zero-size").expect("zero"), "{text}");
        let json = format!("{{{}}}", json_file(&file).expect("JSON"));
        let value: serde_json::Value = serde_json::from_str(&json).expect("an object");
        assert_eq!(value["summary"]["skipped"]["alias"], 2);
    }
}

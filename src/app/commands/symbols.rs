//! `vmaudit symbols`: every function symbol of a file, and whether it can be probed.

use crate::app::code_files::{self, CodeFile, matches, pattern};
use crate::app::error::AppError;
use crate::app::output;
use crate::cli::{PlainFormat, SymbolsArgs};
use crate::model::{ListedFunction, Probe, ProbeSite, ProbeSummary, Skip};
use crate::objects::{Function, FunctionTable, ProbedEntry, probe_sites};
use crate::render::Color;
use crate::render::symbols::{self, ListOptions, ListedFile};
use crate::session::say::say;
use crate::symbolize::demangle;
use regex::Regex;
use std::io::{self, BufWriter, Write};

/// Lists; returns the exit code.
pub fn symbols(args: &SymbolsArgs) -> Result<u8, AppError> {
    let filter = args.pattern.as_deref().map(pattern).transpose()?;
    let files = match (&args.elf, args.pid, &args.lib) {
        (Some(path), _, _) => vec![code_files::at(path)?],
        (None, Some(pid), lib) => {
            let (files, failures) = code_files::of_process(pid, lib.as_ref())?;
            failures.iter().for_each(say);
            files
        }
        (None, None, Some(name)) => vec![code_files::named(name)?],
        (None, None, None) => return Err(AppError::Usage("name a file, a library or a process".to_owned())),
    };
    let color = output::color(&io::stdout());
    let options = ListOptions { color, cut: color == Color::Always };
    let overview = args.pid.is_some() && args.lib.is_none() && filter.is_none();
    let mut out = BufWriter::with_capacity(1 << 16, io::stdout().lock());
    let written = match args.format {
        PlainFormat::Text if overview => write_overview(&mut out, &files, options),
        PlainFormat::Text => write_text(&mut out, &files, filter.as_ref(), options),
        PlainFormat::Json => write_json(&mut out, &files, (!overview).then_some(filter.as_ref())),
    };
    match written.and_then(|()| out.flush()) {
        // `vmaudit symbols … | head` is no failure; what is left in the buffer goes nowhere.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
            let _ = out.into_parts();
            Ok(0)
        }
        other => other.map(|()| 0).map_err(AppError::Output),
    }
}

/// Calls `each` for every function that matches.
fn for_each<E>(
    (file, table): (&CodeFile, &FunctionTable),
    filter: Option<&Regex>,
    mut each: impl FnMut(&ListedFunction<'_>) -> Result<(), E>,
) -> Result<(), E> {
    let functions = matching(table, filter);
    let probed = |function: &&Function| function.offset.filter(|_| function.probe == Probe::Yes);
    // As `vmaudit probe` does: calls are counted, arguments are not read.
    let entry = |(function, _): &(_, _)| Some(ProbedEntry { offset: probed(function)?, arguments: 0 });
    let entries: Vec<ProbedEntry> = functions.iter().filter_map(entry).collect();
    let mut sites = probe_sites(&file.object, &entries).into_iter();
    for (function, demangled) in functions {
        let site = probed(&function).and_then(|_| sites.next());
        let name = String::from_utf8_lossy(table.name(function));
        with_listed((table, site), function, (&name, &demangled), &mut each)?;
    }
    Ok(())
}

/// The functions that match, with their readable names.
fn matching<'t>(table: &'t FunctionTable, filter: Option<&Regex>) -> Vec<(&'t Function, String)> {
    let named = |function: &'t Function| {
        let name = String::from_utf8_lossy(table.name(function));
        let demangled = demangle(&name);
        let taken = filter.is_none_or(|filter| matches(filter, &name, &demangled));
        taken.then_some((function, demangled))
    };
    table.functions().iter().filter_map(named).collect()
}

fn with_listed<E>(
    (table, site): (&FunctionTable, Option<ProbeSite>),
    function: &Function,
    (name, demangled): (&str, &str),
    each: &mut impl FnMut(&ListedFunction<'_>) -> Result<(), E>,
) -> Result<(), E> {
    let alias = match function.probe {
        Probe::No(Skip::Alias { .. }) => table.probed(function),
        _ => None,
    };
    // Constructors of one class differ only before they are demangled.
    let alias_of = alias.map(|of| {
        let linkage = String::from_utf8_lossy(table.name(of)).into_owned();
        let readable = demangle(&linkage);
        if readable == demangled { linkage } else { readable }
    });
    each(&ListedFunction {
        svma: function.svma,
        offset: function.offset,
        size: function.size,
        binding: function.binding,
        kind: function.kind,
        sources: function.sources,
        current_version: function.current_version,
        probe: function.probe,
        site,
        name,
        demangled,
        alias_of: alias_of.as_deref(),
    })
}

/// What is known of a file besides its functions.
struct FileListing {
    path: String,
    notes: Vec<String>,
    summary: ProbeSummary,
}

impl FileListing {
    fn of(file: &CodeFile, table: &FunctionTable, filter: Option<&Regex>) -> FileListing {
        let mut summary = ProbeSummary::default();
        match filter {
            None => table.functions().iter().for_each(|function| summary.add(function.probe)),
            Some(_) => matching(table, filter).iter().for_each(|(function, _)| summary.add(function.probe)),
        }
        let notes = table.notes().iter().map(ToString::to_string).collect();
        FileListing { path: file.path.to_string_lossy().into_owned(), notes, summary }
    }

    fn listed<'a>(&'a self, file: &'a CodeFile) -> ListedFile<'a> {
        ListedFile {
            path: &self.path,
            build_id: file.object.build_id(),
            debug_file: file.debug.is_some(),
            notes: &self.notes,
            summary: &self.summary,
        }
    }
}

fn write_overview(out: &mut impl Write, files: &[CodeFile], options: ListOptions) -> io::Result<()> {
    let listing: Vec<FileListing> =
        files.iter().map(|file| FileListing::of(file, &file.functions(), None)).collect();
    let listed: Vec<_> = listing.iter().zip(files).map(|(listing, file)| listing.listed(file)).collect();
    out.write_all(symbols::overview(&listed, options).as_bytes())
}

fn write_text(
    out: &mut impl Write,
    files: &[CodeFile],
    filter: Option<&Regex>,
    options: ListOptions,
) -> io::Result<()> {
    let (mut shown, mut without) = (0usize, 0usize);
    for file in files {
        let table = file.functions();
        let mut listing = FileListing::of(file, &table, None);
        // One of many files, of which nothing matches, is not worth a table.
        let mut begun = files.len() == 1;
        let head = |out: &mut dyn Write| {
            let gap = if shown > 0 { "\n" } else { "" };
            let head = symbols::head(&listing.path, file.object.build_id(), options);
            out.write_all(format!("{gap}{head}").as_bytes())
        };
        if begun {
            head(out)?;
        }
        let mut summary = ProbeSummary::default();
        for_each((file, &table), filter, |function| {
            if !begun {
                begun = true;
                head(out)?;
            }
            summary.add_listed(function);
            out.write_all(symbols::row(function, options).as_bytes())
        })?;
        listing.summary = summary;
        if begun {
            shown += 1;
            out.write_all(symbols::foot(&listing.listed(file), filter.is_some(), options).as_bytes())?;
        } else {
            without += 1;
        }
    }
    if without > 0 {
        writeln!(
            out,
            "{}  nothing matches in {without} of {} files",
            if shown > 0 { "\n" } else { "" },
            files.len()
        )?;
    }
    Ok(())
}

/// `list`: None leaves the functions out; then, which of them.
fn write_json(out: &mut impl Write, files: &[CodeFile], list: Option<Option<&Regex>>) -> io::Result<()> {
    out.write_all(b"{\"schema\": 1, \"files\": [")?;
    for (index, file) in files.iter().enumerate() {
        let table = file.functions();
        let filter = list.flatten();
        let listing = FileListing::of(file, &table, filter);
        let gap = if index > 0 { "," } else { "" };
        write!(out, "{gap}\n{{{}", symbols::json_file(&listing.listed(file))?)?;
        if list.is_some() {
            out.write_all(b", \"functions\": [")?;
            let mut first = true;
            for_each((file, &table), filter, |function| {
                let gap = if std::mem::take(&mut first) { "" } else { "," };
                write!(out, "{gap}\n{}", symbols::json_row(function)?)
            })?;
            out.write_all(b"]")?;
        }
        out.write_all(b"}")?;
    }
    out.write_all(b"]}\n")
}

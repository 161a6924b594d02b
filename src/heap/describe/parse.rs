//! Descriptions as TOML (docs/heap.md): text to [`Description`], with the line of whatever is wrong.

use super::value::{PLACES, Size, VALUES, Value, ValueSource};
use super::{ContextLayout, Covers, Description, FunctionDescription, FunctionKind};
use crate::model::toml_file::{FileError, Source};
use serde::Deserialize;
use std::collections::HashMap;
use std::ops::Range;
use toml::Spanned;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawDescription {
    name: Spanned<String>,
    #[serde(default)]
    summary: String,
    #[serde(default)]
    objects: Vec<Spanned<String>>,
    #[serde(default)]
    function: Vec<Spanned<RawFunction>>,
    #[serde(default)]
    context: RawLayout,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct RawLayout {
    name_offset: Option<u32>,
    parent_offset: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFunction {
    symbols: Vec<Spanned<String>>,
    does: Does,
    size: Option<Spanned<RawSize>>,
    pointer: Option<Spanned<String>>,
    old: Option<Spanned<String>>,
    context: Option<Spanned<String>>,
    parent: Option<Spanned<String>>,
    name: Option<Spanned<String>>,
    covers: Option<Spanned<Covers>>,
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "kebab-case")]
enum Does {
    Allocate,
    Free,
    Resize,
    CreateContext,
    ResetContext,
    DeleteContext,
    MoveContext,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a string such as \"arg1\", or a list of two, such as [\"arg1\", \"arg2\"]")]
enum RawSize {
    One(String),
    Product(Vec<String>),
}

/// Reads a description. `file` is what errors call it.
///
/// # Errors
/// The first thing that is wrong, with its line and what is allowed there.
pub fn parse(text: &str, file: &str) -> Result<Description, FileError> {
    let source = Source { text, file };
    let raw: RawDescription = source.read()?;
    let name = raw.name.get_ref();
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-+.".contains(c);
    if name.is_empty() || !name.chars().all(plain) {
        let what = format!("name {name:?}: letters, digits and _ - + . are allowed, and at least one");
        return Err(source.error(Some(raw.name.span()), &what));
    }
    let mut functions: Vec<FunctionDescription> = Vec::new();
    let mut lines = HashMap::new();
    for table in &raw.function {
        let kind = Table { source, span: table.span(), raw: table.get_ref() }.kind()?;
        if table.get_ref().symbols.is_empty() {
            return Err(source.error(Some(table.span()), "symbols: at least one function is needed"));
        }
        for symbol in &table.get_ref().symbols {
            let name = symbol.get_ref();
            if name.is_empty() || name.contains(|c: char| c.is_whitespace() || c.is_control()) {
                let what = format!("symbols: {name:?} is no name of a symbol table (mangled, one word)");
                return Err(source.error(Some(symbol.span()), &what));
            }
            if let Some(line) = lines.insert(name.clone(), source.line(symbol.span().start)) {
                let what = format!("symbols: {name} is described twice, first in line {line}");
                return Err(source.error(Some(symbol.span()), &what));
            }
            functions.push(FunctionDescription { symbol: name.clone(), kind: kind.clone() });
        }
    }
    if !functions
        .iter()
        .any(|f| matches!(f.kind, FunctionKind::Allocate { .. } | FunctionKind::Resize { .. }))
    {
        let what = "no function allocates: add a [[function]] with does = \"allocate\"";
        return Err(source.error(Some(raw.name.span()), what));
    }
    if let Some(bad) = raw.objects.iter().find(|o| o.get_ref().is_empty() || o.get_ref().contains('/')) {
        let what = format!("objects: {:?}: base names of files are compared, without folders", bad.get_ref());
        return Err(source.error(Some(bad.span()), &what));
    }
    Ok(Description {
        name: name.clone(),
        summary: raw.summary,
        objects: raw.objects.into_iter().map(Spanned::into_inner).collect(),
        functions,
        context_layout: ContextLayout {
            name_offset: raw.context.name_offset,
            parent_offset: raw.context.parent_offset,
        },
    })
}

/// One `[[function]]`.
struct Table<'a> {
    source: Source<'a>,
    span: Range<usize>,
    raw: &'a RawFunction,
}

type Field<'a> = (&'static str, &'a Option<Spanned<String>>);

impl Table<'_> {
    fn kind(&self) -> Result<FunctionKind, FileError> {
        let raw = self.raw;
        let (old, pointer, context) =
            (("old", &raw.old), ("pointer", &raw.pointer), ("context", &raw.context));
        let (parent, name) = (("parent", &raw.parent), ("name", &raw.name));
        match raw.does {
            Does::Allocate => {
                self.none_of("allocate", &[old, parent, name], false)?;
                let (size, pointer) = (self.size()?, self.place_or_return(pointer)?);
                Ok(FunctionKind::Allocate { size, pointer, context: self.value(context)? })
            }
            Does::Free => {
                self.none_of("free", &[old, context, parent, name], true)?;
                Ok(FunctionKind::Free { pointer: self.needed_value("free", pointer)? })
            }
            Does::Resize => {
                self.none_of("resize", &[parent, name], false)?;
                let (old, size) = (self.needed_value("resize", old)?, self.size()?);
                let pointer = self.place_or_return(pointer)?;
                Ok(FunctionKind::Resize { old, size, pointer, context: self.value(context)? })
            }
            Does::CreateContext => {
                self.none_of("create-context", &[old, pointer], true)?;
                let (parent, name) = (self.value(parent)?, self.value(name)?);
                Ok(FunctionKind::CreateContext { context: self.place_or_return(context)?, parent, name })
            }
            Does::ResetContext => {
                let (context, covers) = self.emptied("reset-context")?;
                Ok(FunctionKind::ResetContext { context, covers })
            }
            Does::DeleteContext => {
                let (context, covers) = self.emptied("delete-context")?;
                Ok(FunctionKind::DeleteContext { context, covers })
            }
            Does::MoveContext => {
                self.none_of("move-context", &[old, pointer, name], true)?;
                let context = self.needed_value("move-context", context)?;
                Ok(FunctionKind::MoveContext { context, parent: self.needed_value("move-context", parent)? })
            }
        }
    }

    fn emptied(&self, does: &str) -> Result<(Value, Covers), FileError> {
        let raw = self.raw;
        let none =
            [("old", &raw.old), ("pointer", &raw.pointer), ("parent", &raw.parent), ("name", &raw.name)];
        self.unused(does, &none)?;
        self.no_size(does)?;
        let Some(covers) = &raw.covers else {
            let what = format!(
                "does = \"{does}\" needs covers: \"itself\", \"descendants\" or \"tree\" (itself and descendants)"
            );
            return Err(self.wrong(None, &what));
        };
        Ok((self.needed_value(does, ("context", &raw.context))?, *covers.get_ref()))
    }

    fn none_of(&self, does: &str, fields: &[Field<'_>], no_size: bool) -> Result<(), FileError> {
        self.unused(does, fields)?;
        if let Some(covers) = &self.raw.covers {
            let what = format!("covers has no meaning with does = \"{does}\"");
            return Err(self.wrong(Some(covers.span()), &what));
        }
        if no_size { self.no_size(does) } else { Ok(()) }
    }

    fn unused(&self, does: &str, fields: &[Field<'_>]) -> Result<(), FileError> {
        match fields.iter().find_map(|(name, field)| field.as_ref().map(|field| (name, field))) {
            None => Ok(()),
            Some((name, field)) => {
                let what = format!("{name} has no meaning with does = \"{does}\"");
                Err(self.wrong(Some(field.span()), &what))
            }
        }
    }

    fn no_size(&self, does: &str) -> Result<(), FileError> {
        match &self.raw.size {
            None => Ok(()),
            Some(size) => {
                let what = format!("size has no meaning with does = \"{does}\"");
                Err(self.wrong(Some(size.span()), &what))
            }
        }
    }

    fn size(&self) -> Result<Size, FileError> {
        let Some(size) = &self.raw.size else {
            return Err(self.wrong(None, &format!("size is missing: {PLACES}, or a list of two arguments")));
        };
        let wrong = |text: &dyn std::fmt::Debug| {
            let what = format!(
                "size {text:?}: allowed are {PLACES}, or two arguments to multiply [\"arg1\", \"arg2\"]"
            );
            self.wrong(Some(size.span()), &what)
        };
        match size.get_ref() {
            RawSize::One(text) => text.parse().map(Size::One).map_err(|()| wrong(text)),
            RawSize::Product(factors) => match factors.iter().map(|f| f.parse()).collect::<Vec<_>>()[..] {
                [Ok(Value::Argument(a)), Ok(Value::Argument(b))] => Ok(Size::Product(a, b)),
                _ => Err(wrong(factors)),
            },
        }
    }

    /// Absent: what the function returns.
    fn place_or_return(&self, (name, field): Field<'_>) -> Result<ValueSource, FileError> {
        let Some(field) = field else { return Ok(ValueSource::Returned) };
        let text = field.get_ref();
        text.parse()
            .map_err(|()| self.wrong(Some(field.span()), &format!("{name} {text:?}: allowed are {PLACES}")))
    }

    fn value(&self, (name, field): Field<'_>) -> Result<Option<Value>, FileError> {
        let Some(field) = field else { return Ok(None) };
        let text = field.get_ref();
        text.parse()
            .map(Some)
            .map_err(|()| self.wrong(Some(field.span()), &format!("{name} {text:?}: allowed are {VALUES}")))
    }

    fn needed_value(&self, does: &str, field: Field<'_>) -> Result<Value, FileError> {
        let missing = || self.wrong(None, &format!("does = \"{does}\" needs {}: {VALUES}", field.0));
        self.value(field)?.ok_or_else(missing)
    }

    fn wrong(&self, span: Option<Range<usize>>, what: &str) -> FileError {
        self.source.error(Some(span.unwrap_or_else(|| self.span.clone())), what)
    }
}

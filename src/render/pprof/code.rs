//! Frames as pprof knows them: mappings, locations, functions, strings, each once.

use super::proto::{Function, Line, Location, Mapping, Profile, ValueType};
use crate::model::path::base_name;
use crate::render::folded::report::NO_MODULE;
use crate::render::style::clean;
use crate::report::PerFrame;
use crate::report::model::{Frame, Stack};
use std::collections::{BTreeMap, HashMap};

/// Mappings begin at multiples of it.
const PAGE: u64 = 4096;
/// Where the first begins: pprof takes a mapping at 0 for one that is not known.
const FIRST: u64 = 0x40_0000;

/// Each distinct string, and its index.
#[derive(Default)]
pub(super) struct Strings {
    pub list: Vec<String>,
    numbers: HashMap<String, i64>,
}

impl Strings {
    pub fn number(&mut self, text: &str) -> i64 {
        if self.list.is_empty() {
            self.list.push(String::new());
            self.numbers.insert(String::new(), 0);
        }
        let text = clean(text);
        if let Some(number) = self.numbers.get(&text) {
            return *number;
        }
        let number = self.list.len() as i64;
        self.list.push(text.clone());
        self.numbers.insert(text, number);
        number
    }
}

/// A module by its name and its build.
type Module<'a> = (&'a str, Option<&'a str>);

/// Everything that samples refer to.
pub(super) struct Code<'r> {
    of: &'r [Stack],
    pub strings: Strings,
    mappings: Vec<Mapping>,
    locations: Vec<Location>,
    functions: Vec<Function>,
    modules: HashMap<Module<'r>, usize>,
    location_ids: HashMap<(u64, u64, Vec<Line>), u64>,
    function_ids: HashMap<(i64, i64), u64>,
    /// Of frames, by what they are named.
    lines: PerFrame<'r, Line>,
    /// Of frames that nothing is inlined into: as the innermost of a stack, and as a caller.
    alone: [PerFrame<'r, u64>; 2],
    /// Of the report's stacks, innermost first.
    stacks: HashMap<u64, Vec<u64>>,
}

impl<'r> Code<'r> {
    /// With a mapping for each module that has a frame, that of the program (by its path) first, as pprof expects it.
    /// `files`: the paths that are known.
    pub fn new(
        stacks: &'r [Stack],
        program: Option<&'r str>,
        files: impl Iterator<Item = &'r str>,
    ) -> Code<'r> {
        let mut code = Code {
            of: stacks,
            strings: Strings::default(),
            mappings: Vec::new(),
            locations: Vec::new(),
            functions: Vec::new(),
            modules: HashMap::new(),
            location_ids: HashMap::new(),
            function_ids: HashMap::new(),
            lines: PerFrame::default(),
            alone: Default::default(),
            stacks: HashMap::new(),
        };
        let mut ends: BTreeMap<Module<'r>, u64> = BTreeMap::new();
        let frames = stacks.iter().flat_map(|stack| &stack.frames);
        let mut seen: PerFrame<'r, ()> = PerFrame::default();
        for frame in frames {
            seen.of(frame, |frame| {
                if frame.module != NO_MODULE {
                    let end = ends.entry((&frame.module, frame.build_id.as_deref())).or_default();
                    *end = (*end).max(offset(frame).saturating_add(1));
                }
            });
        }
        let paths = paths(files);
        let program = program.map(base_name);
        let mut modules: Vec<(Module<'r>, u64)> = ends.into_iter().collect();
        modules.sort_by_key(|((name, _), _)| Some(*name) != program);
        let mut start = FIRST;
        for (module, end) in modules {
            // As if each file were mapped whole, one after the other: file offsets are addresses less
            // the start, and two profiles of one program have the same addresses.
            let limit = start.saturating_add(end.div_ceil(PAGE).max(1).saturating_mul(PAGE));
            let path = paths.get(module.0).copied().flatten().unwrap_or(module.0);
            code.modules.insert(module, code.mappings.len());
            code.mappings.push(Mapping {
                id: code.mappings.len() as u64 + 1,
                memory_start: start,
                memory_limit: limit,
                file_offset: 0,
                filename: code.strings.number(path),
                build_id: code.strings.number(module.1.unwrap_or_default()),
                has_functions: true,
                has_filenames: true,
                has_line_numbers: true,
                has_inline_frames: true,
            });
            start = limit;
        }
        code
    }

    /// A frame that is no code: what memory is, or why there is no stack.
    pub fn note(&mut self, name: &str) -> u64 {
        let function_id = self.function(name, "");
        self.location(0, 0, vec![Line { function_id, line: 0 }])
    }

    pub fn kind(&mut self, (name, unit): (&str, &str)) -> ValueType {
        ValueType { r#type: self.strings.number(name), unit: self.strings.number(unit) }
    }

    /// A profile of this code, without samples.
    pub fn into_profile(self) -> Profile {
        Profile {
            mapping: self.mappings,
            location: self.locations,
            function: self.functions,
            string_table: self.strings.list,
            ..Profile::default()
        }
    }

    /// One of the report's stacks, and its locations, innermost first; None for one that it does not have.
    pub fn stack(&mut self, at: Option<u64>) -> Option<(&'r Stack, Vec<u64>)> {
        let at = at?;
        let stack: &'r Stack = self.of.get(usize::try_from(at).ok()?)?;
        if let Some(known) = self.stacks.get(&at) {
            return Some((stack, known.clone()));
        }
        let mut out = Vec::with_capacity(stack.frames.len());
        let mut lines = Vec::new();
        for frame in stack.without_aliases() {
            let (is_alone, is_caller) = (lines.is_empty() && !frame.inlined, usize::from(!out.is_empty()));
            if let Some(known) = self.alone[is_caller].get(frame).filter(|_| is_alone) {
                out.push(*known);
                continue;
            }
            lines.push(self.line(frame));
            if frame.inlined {
                continue;
            }
            let lines = std::mem::take(&mut lines);
            // Of a caller the address after the call is known; the call itself is before it.
            let offset = offset(frame).saturating_sub(u64::from(!out.is_empty()));
            let module = self.modules.get(&(frame.module.as_str(), frame.build_id.as_deref()));
            let (id, start) = match module.and_then(|at| self.mappings.get(*at)) {
                Some(mapping) => (mapping.id, mapping.memory_start),
                None => (0, 0),
            };
            let location = self.location(id, start.saturating_add(offset), lines);
            if is_alone {
                self.alone[is_caller].note(frame, location);
            }
            out.push(location);
        }
        if !lines.is_empty() {
            // Inlined into nothing that is known: a report that was cut.
            out.push(self.location(0, 0, lines));
        }
        self.stacks.insert(at, out.clone());
        Some((stack, out))
    }

    fn line(&mut self, frame: &'r Frame) -> Line {
        if let Some(known) = self.lines.get(frame) {
            return *known;
        }
        let name = match (&frame.symbol, &frame.function_start) {
            (Some(symbol), _) => symbol.clone(),
            (None, _) if frame.module == NO_MODULE => "[code outside of all files]".to_owned(),
            (None, Some(start)) => format!("fn@{start} ({})", frame.module),
            (None, None) => format!("+{} ({})", frame.offset, frame.module),
        };
        let function_id = self.function(&name, frame.file.as_deref().unwrap_or_default());
        let line = Line { function_id, line: frame.line.unwrap_or(0).into() };
        self.lines.note(frame, line);
        line
    }

    fn function(&mut self, name: &str, file: &str) -> u64 {
        let key = (self.strings.number(name), self.strings.number(file));
        if let Some(id) = self.function_ids.get(&key) {
            return *id;
        }
        let id = self.functions.len() as u64 + 1;
        self.functions.push(Function { id, name: key.0, system_name: key.0, filename: key.1 });
        self.function_ids.insert(key, id);
        id
    }

    fn location(&mut self, mapping_id: u64, address: u64, line: Vec<Line>) -> u64 {
        let key = (mapping_id, address, line);
        if let Some(id) = self.location_ids.get(&key) {
            return *id;
        }
        let id = self.locations.len() as u64 + 1;
        self.locations.push(Location { id, mapping_id, address, line: key.2.clone() });
        self.location_ids.insert(key, id);
        id
    }
}

fn offset(frame: &Frame) -> u64 {
    let digits = frame.offset.strip_prefix("0x").unwrap_or_default();
    u64::from_str_radix(digits, 16).unwrap_or(0)
}

/// Full paths by base name, where that is the name of one mapped file only (else None).
fn paths<'r>(files: impl Iterator<Item = &'r str>) -> HashMap<&'r str, Option<&'r str>> {
    let mut found: HashMap<&str, Option<&str>> = HashMap::new();
    for path in files.filter(|path| path.starts_with('/')) {
        let path = path.strip_suffix(" (deleted)").unwrap_or(path);
        let known = found.entry(base_name(path)).or_insert(Some(path));
        if *known != Some(path) {
            *known = None;
        }
    }
    found
}

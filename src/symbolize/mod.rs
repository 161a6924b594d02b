//! Names for stacks: functions, source lines, inlined calls.
//!
//! Function names come from symbol tables alone, and only where a symbol covers the address; the
//! symbol tables of separate debug files count, found by build id or `.gnu_debuglink`. Without a
//! symbol, the function's bounds still come from the unwind tables. DWARF adds source lines and
//! inlined functions, within a budget. Each address of a module is looked up once.
//!
//! What is absent here: text. `render` prints frames.

mod demangle;
mod helper;
mod lines;
mod module;

pub use demangle::demangle;
pub use lines::LineBudget;

use crate::model::{
    Frame, FrameKind, FunctionName, ModuleId, SourceLine, StackId, StackTable, SymbolFrame, SymbolizedStacks,
};
use crate::objects::FileCache;
use crate::objects::debug_file::DEBUG_DIRS;
use lines::{LineJob, Lines, resolve};
use module::ModuleNames;
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Where to search, and how much work to do.
#[derive(Clone, Debug)]
pub struct Config {
    /// Directories with debug files; `/usr/lib/debug`.
    pub debug_dirs: Vec<PathBuf>,
    /// None: names only.
    pub lines: Option<LineBudget>,
}

impl Default for Config {
    fn default() -> Config {
        let budget = LineBudget { time: Duration::from_secs(3), size: 2 << 30 };
        Config { debug_dirs: DEBUG_DIRS.iter().map(PathBuf::from).collect(), lines: Some(budget) }
    }
}

/// Names stacks. Keeps symbol tables and names from one call to the next.
pub struct Symbolizer {
    config: Config,
    modules: HashMap<ModuleId, ModuleNames>,
    named: HashMap<Lookup, Named>,
    /// Their debugging information took too long: not read again.
    without_lines: HashSet<ModuleId>,
    notes: Vec<String>,
}

/// An address to look up: the file offset in a module, one byte back for return addresses.
type Lookup = (ModuleId, u64);

impl Symbolizer {
    pub fn new(config: Config) -> Symbolizer {
        Symbolizer {
            config,
            modules: HashMap::new(),
            named: HashMap::new(),
            without_lines: HashSet::new(),
            notes: Vec::new(),
        }
    }

    /// Names the frames of the requested stacks. `files` is the unwinder's cache where there is one, so that
    /// deleted programs have names too. One symbolizer serves one `table`.
    pub fn symbolize(
        &mut self,
        table: &StackTable,
        ids: impl IntoIterator<Item = StackId>,
        files: &mut FileCache,
    ) -> SymbolizedStacks {
        let mut ids: Vec<StackId> = ids.into_iter().filter(|id| (id.0 as usize) < table.len()).collect();
        ids.sort_unstable();
        ids.dedup();
        let distinct = DistinctFrames::of(table, &ids);
        let mut requested: HashMap<ModuleId, HashSet<u64>> = HashMap::new();
        for frame in &distinct.frames {
            if let Some((module, offset)) = lookup_of(frame)
                && !table.module(module).is_generated()
                && !self.named.contains_key(&(module, offset))
            {
                requested.entry(module).or_default().insert(offset);
            }
        }
        let mut jobs = Vec::new();
        let mut svmas: HashMap<Lookup, u64> = HashMap::new();
        for (&id, offsets) in &requested {
            let module = self.modules.entry(id).or_insert_with(|| {
                let info = table.module(id);
                let opened = files.for_module(info);
                if let Err(error) = &opened {
                    self.notes.push(format!("{}: no names: {error}", info.short_name()));
                }
                let names = ModuleNames::read(info, opened.ok(), &self.config.debug_dirs);
                if names.has_tables_left_out() {
                    let name = info.short_name();
                    let note =
                        format!("{name}: tables left out: those of all files would take too much memory");
                    self.notes.push(note);
                }
                names
            });
            let found: Vec<(u64, u64)> = offsets.iter().filter_map(|&o| Some((o, module.svma(o)?))).collect();
            svmas.extend(found.iter().map(|&(offset, svma)| ((id, offset), svma)));
            if let Some((object, size)) = module.dwarf()
                && !found.is_empty()
                && !self.without_lines.contains(&id)
            {
                let mut addresses: Vec<u64> = found.iter().map(|&(_, svma)| svma).collect();
                addresses.sort_unstable();
                let name = table.module(id).short_name();
                jobs.push(LineJob { module: id.0 as usize, name, object, addresses, size });
            }
        }
        let lines = match self.config.lines {
            Some(budget) => {
                let resolved = resolve(jobs, budget);
                for failure in resolved.failures {
                    self.without_lines.insert(ModuleId(failure.module as u32));
                    self.notes.push(failure.note);
                }
                resolved.lines
            }
            None => HashMap::new(),
        };
        for (&(id, offset), &svma) in &svmas {
            let Some(module) = self.modules.get(&id) else { continue };
            let lines = match module.dwarf() {
                Some(_) => lines.get(&(id.0 as usize)).and_then(|l| l.get(&svma)).cloned(),
                None if self.config.lines.is_some() => module.lines(svma),
                None => {
                    module.lines(svma).map(|lines| Lines { function: lines.function, ..Lines::default() })
                }
            };
            let lines = lines.unwrap_or_default();
            self.named.insert((id, offset), name(module, svma, lines));
        }
        distinct.named_stacks(table, &ids, |frame| lines_of_frame(frame, table, &self.named))
    }

    /// What could not be done, in words for the report; each is given once.
    pub fn take_notes(&mut self) -> Vec<String> {
        let mut notes = std::mem::take(&mut self.notes);
        notes.sort_unstable();
        notes.dedup();
        notes
    }
}

/// The frames of some stacks, each once: hundreds of thousands of deep stacks have a few thousand.
struct DistinctFrames {
    /// By the number of a frame in the table: where in `frames` it is, plus 1. 0 for one of other stacks.
    places: Vec<u32>,
    frames: Vec<Frame>,
}

impl DistinctFrames {
    fn of(table: &StackTable, ids: &[StackId]) -> DistinctFrames {
        let mut places = vec![0; table.frames().len()];
        let mut frames = Vec::new();
        for number in ids.iter().flat_map(|&id| table.frame_numbers(id).0) {
            let place = &mut places[number as usize];
            if *place == 0 {
                frames.push(table.frames()[number as usize]);
                *place = frames.len() as u32;
            }
        }
        DistinctFrames { places, frames }
    }

    /// The stacks, put together from the lines of each frame.
    fn named_stacks(
        &self,
        table: &StackTable,
        ids: &[StackId],
        lines: impl Fn(&Frame) -> Vec<SymbolFrame>,
    ) -> SymbolizedStacks {
        let shared = |frame: &Frame| lines(frame).into_iter().map(Arc::new).collect();
        let lines: Vec<Vec<Arc<SymbolFrame>>> = self.frames.iter().map(shared).collect();
        let stack = |&id: &StackId| {
            let numbers = table.frame_numbers(id).0;
            let mut all = Vec::with_capacity(numbers.len());
            for number in numbers {
                let place = self.places[number as usize] as usize;
                all.extend(lines[place - 1].iter().cloned());
            }
            (id, all)
        };
        SymbolizedStacks { stacks: ids.iter().map(stack).collect() }
    }
}

fn lookup_of(frame: &Frame) -> Option<Lookup> {
    let back = match frame.kind {
        FrameKind::InstructionPointer => 0,
        FrameKind::ReturnAddress | FrameKind::Guess => 1,
        FrameKind::Managed => return None,
    };
    Some((frame.module?, frame.address.wrapping_sub(back)))
}

/// What is known about a looked-up address, for the address `svma` itself (not one byte on).
struct Named {
    /// Name, linkage name and start of the function with code of its own.
    function: Option<(String, String, u64)>,
    /// Start of the function by its FDE, where it has no name.
    bounds: Option<u64>,
    svma: u64,
    lines: Lines,
}

fn name(module: &ModuleNames, svma: u64, mut lines: Lines) -> Named {
    let symbol = module.function(svma).or_else(|| lines.function.take().filter(|(name, _)| !name.is_empty()));
    let function = symbol.map(|(linkage, start)| (demangle(&linkage), linkage, start));
    let bounds = if function.is_none() { module.bounds(svma).map(|range| range.start) } else { None };
    Named { function, bounds, svma, lines }
}

fn lines_of_frame(frame: &Frame, table: &StackTable, named: &HashMap<Lookup, Named>) -> Vec<SymbolFrame> {
    let bare = SymbolFrame { frame: *frame, function: None, bounds: None, location: None, inlined: false };
    if let Some((function, begins)) = table.generated_name(frame) {
        let (function, location) = (Some(function.clone()), begins.clone());
        return vec![SymbolFrame { function, location, ..bare }];
    }
    if let Some(place) = table.place(frame) {
        let name = place.function.clone();
        let function = Some(FunctionName { linkage: name.clone(), name, offset: 0 });
        let location = place.line.map(|line| SourceLine { file: place.file.clone(), line });
        return vec![SymbolFrame { function, location, ..bare }];
    }
    let Some((lookup, named)) = lookup_of(frame).and_then(|l| Some((l, named.get(&l)?))) else {
        return vec![bare];
    };
    // The frame's own address: where a call returns to.
    let address = named.svma.wrapping_add(frame.address.wrapping_sub(lookup.1));
    let inlined = named.lines.inlined.iter().map(|inlined| SymbolFrame {
        function: Some(FunctionName {
            name: demangle(&inlined.name),
            linkage: inlined.name.clone(),
            offset: 0,
        }),
        location: inlined.location.clone(),
        inlined: true,
        ..bare.clone()
    });
    let function = named.function.as_ref().map(|(name, linkage, start)| FunctionName {
        name: name.clone(),
        linkage: linkage.clone(),
        offset: address.wrapping_sub(*start),
    });
    let own = SymbolFrame {
        function,
        bounds: named.bounds.map(|start| (start, address.wrapping_sub(start))),
        location: named.lines.location.clone(),
        ..bare.clone()
    };
    inlined.chain([own]).collect()
}

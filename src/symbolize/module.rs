//! One module's sources of names: its own file, and its separate debug file if there is one.

use super::lines::{Inlined, Lines};
use crate::model::{ModuleInfo, SourceLine};
use crate::objects::{FunctionSymbols, Object, debug_file};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

/// Symbols and debugging information of a module.
#[derive(Default)]
pub(super) struct ModuleNames {
    object: Option<Arc<Object>>,
    debug: Option<Arc<Object>>,
    symbols: FunctionSymbols,
}

impl ModuleNames {
    pub fn read(info: &ModuleInfo, object: Option<Arc<Object>>, debug_dirs: &[PathBuf]) -> ModuleNames {
        let Some(object) = object else { return ModuleNames::default() };
        let debug = debug_file::find(&object, &info.path, debug_dirs).map(Arc::new);
        let symbols = FunctionSymbols::read(
            [Some(&*object), debug.as_deref()].into_iter().flatten().map(|object| &**object),
        );
        ModuleNames { object: Some(object), debug, symbols }
    }

    /// What is missing is not for want of it.
    pub fn has_tables_left_out(&self) -> bool {
        [&self.object, &self.debug].into_iter().flatten().any(|object| object.has_tables_left_out())
    }

    /// The virtual address (as the file states it) of a file offset.
    pub fn svma(&self, file_offset: u64) -> Option<u64> {
        self.object.as_ref()?.layout().svma_of(file_offset)
    }

    /// Linkage name and start of the function whose symbol covers the address.
    pub fn function(&self, svma: u64) -> Option<(String, u64)> {
        let symbol = self.symbols.covering(svma)?;
        Some((String::from_utf8_lossy(symbol.name).into_owned(), symbol.range_start))
    }

    /// What a Go program's own table says about an address, in a file without DWARF.
    pub fn lines(&self, svma: u64) -> Option<Lines> {
        let object = self.object.as_ref()?;
        let functions = object.go_functions()?;
        let function = functions.function(object, svma)?;
        let mut inlined = functions.calls(object, function, svma)?;
        let own = inlined.pop()?;
        let location = |place: Option<(String, u32)>| place.map(|(file, line)| SourceLine { file, line });
        let inlined = inlined
            .into_iter()
            .map(|called| Inlined { name: called.name, location: location(called.location) });
        Some(Lines {
            function: Some((own.name, function.start)),
            location: location(own.location),
            inlined: inlined.collect(),
        })
    }

    /// The function's bounds by the unwind tables.
    pub fn bounds(&self, svma: u64) -> Option<Range<u64>> {
        self.object.as_ref()?.cfi().bounds(svma)
    }

    /// The file with DWARF lines, and how much of it there is, in bytes.
    pub fn dwarf(&self) -> Option<(Arc<Object>, u64)> {
        let sources = [self.debug.as_ref(), self.object.as_ref()].into_iter().flatten();
        sources.filter_map(|object| Some((Arc::clone(object), dwarf_size(object)?))).next()
    }
}

/// Sizes of the sections that lookups have to go through; None where there is no line table.
fn dwarf_size(object: &Object) -> Option<u64> {
    let layout = object.layout();
    layout.section(b".debug_line")?;
    layout.section(b".debug_info")?;
    let debug = layout.sections.iter().filter(|s| s.name.starts_with(b".debug_"));
    Some(debug.map(|s| s.size).sum())
}

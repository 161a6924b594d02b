//! From symbol tables to the list.

use super::facts::{Function, Note};
use super::{FunctionTable, code, mini};
use crate::model::{Binding, FunctionKind, Probe, Skip, Source, Sources};
use crate::objects::elf::ElfLayout;
use crate::objects::object::Object;
use crate::objects::symtab::{Entry, MAX_NAME, SymbolTable};
use goblin::elf::section_header::{SHF_EXECINSTR, SHN_LORESERVE, SHN_XINDEX, SHT_DYNSYM, SHT_SYMTAB};
use goblin::elf::sym::{
    STB_GLOBAL, STB_GNU_UNIQUE, STB_LOCAL, STB_WEAK, STT_FUNC, STT_GNU_IFUNC, STT_NOTYPE,
};
use std::cmp::Reverse;
use std::sync::OnceLock;

/// Functions read of one file; the largest browsers with debug symbols have some 1.5 million.
const MAX_FUNCTIONS: usize = 4 << 20;
/// Sections that hold stubs for calls into other files.
const STUBS: [&[u8]; 4] = [b".plt", b".plt.sec", b".plt.got", b".iplt"];

/// Where to search in addition to the file itself.
#[derive(Clone, Copy, Default)]
pub struct DebugFiles<'a> {
    /// The separate debug file ([`debug_file::find`](crate::objects::debug_file::find)).
    pub file: Option<&'a Object>,
}

struct Builder<'o> {
    object: &'o Object,
    layout: &'o ElfLayout,
    file_size: u64,
    functions: Vec<Function>,
    strings: Vec<Vec<u8>>,
    notes: Vec<Note>,
}

pub(super) fn read(object: &Object, debug: DebugFiles<'_>) -> FunctionTable {
    let mut builder = Builder {
        object,
        layout: object.layout(),
        file_size: object.size().unwrap_or(u64::MAX),
        functions: Vec::new(),
        strings: Vec::new(),
        notes: Vec::new(),
    };
    builder.note_sections(object);
    builder.add_tables(object, SHT_SYMTAB, Source::Symtab);
    builder.add_tables(object, SHT_DYNSYM, Source::Dynsym);
    match mini::read(object) {
        Ok(Some(inner)) => builder.add_tables(&inner, SHT_SYMTAB, Source::MiniDebug),
        Ok(None) => {}
        Err(error) => builder.notes.push(Note::Table { table: Source::MiniDebug, error }),
    }
    if let Some(file) = debug.file {
        builder.add_tables(file, SHT_SYMTAB, Source::DebugFile);
    }
    builder.finish()
}

impl Builder<'_> {
    /// Section headers that are not there, or that the layout had to leave out.
    fn note_sections(&mut self, object: &Object) {
        if !self.layout.sections.is_empty() {
            return;
        }
        // Elf64_Ehdr: e_shoff at 40.
        let offset = object.read(40, 8).ok().and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes);
        self.notes.push(match offset {
            Some(offset) if offset != 0 => Note::Sections { offset },
            _ => Note::NoSections,
        });
    }

    fn add_tables(&mut self, object: &Object, kind: u32, table: Source) {
        let mut sections = object.layout().sections.iter().filter(|s| s.kind == kind);
        let Some(section) = sections.next() else { return };
        let more = sections.count();
        if more > 0 {
            self.notes.push(Note::MoreTables { table, more });
        }
        let read = match SymbolTable::read(object, section) {
            Ok(read) => read,
            Err(error) => return self.notes.push(Note::Table { table, error }),
        };
        let strings = self.strings.len() as u8;
        let before = self.functions.len();
        for entry in read.entries() {
            if self.functions.len() >= MAX_FUNCTIONS {
                let read = self.functions.len() - before;
                self.notes.push(Note::TooMany { table, read });
                break;
            }
            let Some(mut function) = self.function(&entry, object.layout()) else { continue };
            function.rank = entry.rank(&read.strings);
            function.strings = strings;
            function.sources = Sources::from(table);
            self.functions.push(function);
        }
        self.strings.push(read.strings);
    }

    /// One entry judged by itself; None for what is no function. `layout` is that of the file that holds
    /// the table: its section numbers are meant.
    fn function(&self, entry: &Entry, layout: &ElfLayout) -> Option<Function> {
        let symbol = &entry.symbol;
        let index = symbol.st_shndx;
        let section = layout.sections.get(index).filter(|_| index != 0 && (index as u32) < SHN_LORESERVE);
        let is_code = section.is_some_and(|s| s.flags & u64::from(SHF_EXECINSTR) != 0);
        let kind = match symbol.st_type() {
            STT_FUNC => FunctionKind::Function,
            STT_GNU_IFUNC => FunctionKind::Ifunc,
            STT_NOTYPE if symbol.st_size > 0 && is_code => FunctionKind::Untyped,
            _ => return None,
        };
        let elsewhere = match index as u32 {
            0 => Some(Skip::Imported),
            // The true number is in another table: the segments have to do.
            SHN_XINDEX => None,
            SHN_LORESERVE.. => Some(Skip::Absolute),
            _ if section.is_some_and(|s| STUBS.contains(&&*s.name)) => Some(Skip::LinkageStub),
            _ if section.is_some() && !is_code => Some(Skip::NotExecutable),
            _ => None,
        };
        let (offset, place) = match elsewhere {
            Some(Skip::Imported | Skip::Absolute) => (None, elsewhere),
            _ => self.place(symbol.st_value),
        };
        let skip = elsewhere.or(match kind {
            FunctionKind::Ifunc => Some(Skip::IfuncResolver),
            _ => place.or((symbol.st_size == 0).then_some(Skip::ZeroSize)),
        });
        Some(Function {
            svma: if elsewhere == Some(Skip::Imported) { 0 } else { symbol.st_value },
            size: symbol.st_size,
            offset,
            binding: match symbol.st_bind() {
                STB_LOCAL => Binding::Local,
                STB_GLOBAL => Binding::Global,
                STB_WEAK => Binding::Weak,
                STB_GNU_UNIQUE => Binding::Unique,
                other => Binding::Other(other),
            },
            kind,
            sources: Sources::default(),
            current_version: entry.current_version,
            probe: skip.map_or(Probe::Yes, Probe::No),
            strings: 0,
            name_at: u32::try_from(entry.name.start).ok()?,
            name_len: entry.name.len().min(MAX_NAME) as u32,
            rank: entry.rank(&[]),
        })
    }

    /// The file offset of an address in an executable segment, or why there is none.
    fn place(&self, svma: u64) -> (Option<u64>, Option<Skip>) {
        let holds = |s: &&crate::objects::Segment| svma.checked_sub(s.vaddr).is_some_and(|d| d < s.file_size);
        let Some(segment) = self.layout.segments.iter().filter(|s| s.exec).find(holds) else {
            let data = self.layout.segments.iter().any(|s| holds(&s));
            return (None, Some(if data { Skip::NotExecutable } else { Skip::NotLoaded }));
        };
        let offset = segment.offset.checked_add(svma - segment.vaddr);
        match offset.filter(|&offset| offset < self.file_size) {
            Some(offset) => (Some(offset), None),
            None => (None, Some(Skip::OutsideFile)),
        }
    }

    fn finish(mut self) -> FunctionTable {
        let mut functions = std::mem::take(&mut self.functions);
        let strings = std::mem::take(&mut self.strings);
        let name = |f: &Function| -> &[u8] {
            let strings = strings.get(usize::from(f.strings)).map_or(&[][..], Vec::as_slice);
            let at = f.name_at as usize;
            strings.get(at..at + f.name_len as usize).unwrap_or_default()
        };
        let imported = |f: &Function| f.probe == Probe::No(Skip::Imported);
        let place = |f: &Function| (imported(f), f.svma);
        // The same function in several tables is one.
        functions.sort_by(|a, b| {
            let same = place(a).cmp(&place(b)).then_with(|| name(a).cmp(name(b)));
            same.then_with(|| a.kind.cmp(&b.kind)).then_with(|| goodness(b).cmp(&goodness(a)))
        });
        functions.dedup_by(|later, first| {
            let same = place(later) == place(first) && later.kind == first.kind && name(later) == name(first);
            if same {
                first.sources = first.sources.with(later.sources);
                first.size = first.size.max(later.size);
            }
            same
        });
        functions.sort_by(|a, b| {
            let place = place(a).cmp(&place(b)).then_with(|| goodness(b).cmp(&goodness(a)));
            place.then_with(|| name(a).cmp(name(b)))
        });
        code::leave_out_vector_code(self.object, &mut functions);
        name_aliases(&mut functions);
        FunctionTable { functions, strings, notes: self.notes, by_name: OnceLock::new() }
    }
}

/// Which symbol of an address represents it: the greatest.
fn goodness(f: &Function) -> impl Ord + use<> {
    (f.probe == Probe::Yes, Reverse(f.probe == Probe::No(Skip::IfuncResolver)), f.rank)
}

/// Of the symbols of one address, sorted best first, only the best is probed.
fn name_aliases(functions: &mut [Function]) {
    let mut best: Option<(u64, u32)> = None;
    for (index, function) in functions.iter_mut().enumerate() {
        match (function.probe, best) {
            (Probe::Yes | Probe::No(Skip::ZeroSize), Some((svma, of))) if svma == function.svma => {
                function.probe = Probe::No(Skip::Alias { of });
            }
            (Probe::Yes, _) => best = Some((function.svma, index as u32)),
            _ => {}
        }
    }
}

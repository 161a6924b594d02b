//! Unwind tables (DWARF call frame information) of one file: `.eh_frame` with or without its
//! header, and `.debug_frame`. Answers "which FDE covers this address" and "what is its row".

use super::budget::Held;
use super::file::ElfFile;
use gimli::{
    BaseAddresses, CieOrFde, DebugFrame, EhFrame, EhFrameHdr, EhFrameOffset, Encoding, EndianSlice,
    Expression, FrameDescriptionEntry, LittleEndian, ParsedEhFrameHdr, Pointer, UnwindContext,
    UnwindExpression, UnwindOffset, UnwindSection, UnwindTableRow,
};
use std::ops::Range;

pub type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// Without section headers the end of `.eh_frame` is not known; its segment ends it, but no more
/// than this is read.
const MAX_UNSIZED: u64 = 64 << 20;

/// Bytes of the smallest row of `.eh_frame_hdr`: two of DW_EH_PE_udata2.
const MIN_ROW: usize = 4;

/// What an FDE says besides its rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FdeFacts {
    /// Virtual addresses (as the file states them) of the code that it describes.
    pub range: Range<u64>,
    /// Augmentation 'S': the frame that a signal handler returns to (`__restore_rt`).
    pub signal: bool,
    pub encoding: Encoding,
}

/// Fetches the bytes of an expression in the table that a row came from.
pub type ExpressionSource<'s, 'd> = dyn Fn(&UnwindExpression<usize>) -> Option<Expression<Slice<'d>>> + 's;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Eh,
    Debug,
}

enum Index {
    /// `.eh_frame_hdr`'s binary search table.
    Header(Vec<u8>),
    /// (start, end, FDE offset), sorted by start: built by walking the entries.
    Built(Vec<(u64, u64, u32)>),
}

struct Table {
    kind: Kind,
    data: Vec<u8>,
    bases: BaseAddresses,
    /// Where `data` is in memory, as the file states it.
    base: u64,
    index: Index,
}

/// The unwind tables of a file.
#[derive(Default)]
pub struct Cfi {
    tables: Vec<Table>,
    held: Vec<Held>,
}

impl Cfi {
    /// Reads what there is; damaged tables are left out.
    pub fn read(file: &ElfFile) -> Cfi {
        // A Go program linked with C has both: .eh_frame for C, .debug_frame for Go.
        let mut cfi = Cfi::default();
        for table in [eh_table(file), debug_table(file)].into_iter().flatten() {
            match Held::take(table.bytes()) {
                Some(held) => cfi.held.push(held),
                None => {
                    file.leave_tables_out();
                    continue;
                }
            }
            cfi.tables.push(table);
        }
        cfi
    }

    pub fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }

    /// The function's bounds as its FDE states them, for a virtual address in it.
    pub fn bounds(&self, svma: u64) -> Option<Range<u64>> {
        self.tables.iter().find_map(|table| match table.kind {
            Kind::Eh => table.find_fde(&table.eh_frame(), svma).map(|fde| fde_range(&fde)),
            Kind::Debug => table.find_fde(&table.debug_frame(), svma).map(|fde| fde_range(&fde)),
        })
    }

    /// The bounds of all functions of each table, sorted by their starts.
    pub fn functions(&self) -> Vec<Vec<Range<u64>>> {
        self.tables.iter().map(Table::functions).collect()
    }

    /// Calls `visit` with the row for a virtual address; None when no FDE covers it or its
    /// instructions are damaged.
    pub fn with_row<T>(
        &self,
        svma: u64,
        context: &mut UnwindContext<usize>,
        visit: &mut dyn FnMut(&UnwindTableRow<usize>, &FdeFacts, &ExpressionSource<'_, '_>) -> T,
    ) -> Option<T> {
        self.tables.iter().find_map(|table| match table.kind {
            Kind::Eh => table.row(&table.eh_frame(), svma, context, visit),
            Kind::Debug => table.row(&table.debug_frame(), svma, context, visit),
        })
    }
}

impl Table {
    fn bytes(&self) -> u64 {
        let index = match &self.index {
            Index::Header(bytes) => bytes.len(),
            Index::Built(entries) => size_of_val(entries.as_slice()),
        };
        (self.data.len() + index) as u64
    }

    fn slice(&self) -> Slice<'_> {
        EndianSlice::new(&self.data, LittleEndian)
    }

    fn eh_frame(&self) -> EhFrame<Slice<'_>> {
        let mut frame = EhFrame::from(self.slice());
        frame.set_address_size(8);
        frame
    }

    fn debug_frame(&self) -> DebugFrame<Slice<'_>> {
        let mut frame = DebugFrame::from(self.slice());
        frame.set_address_size(8);
        frame
    }

    fn functions(&self) -> Vec<Range<u64>> {
        let header = match &self.index {
            Index::Built(entries) => return entries.iter().map(|&(start, end, _)| start..end).collect(),
            Index::Header(bytes) => parse_header(bytes, &self.bases),
        };
        let frame = self.eh_frame();
        let function = |pointer: Pointer| {
            let offset = usize::try_from(pointer.direct().ok()?.checked_sub(self.base)?).ok()?;
            let offset = EhFrameOffset::from(offset);
            frame.fde_from_offset(&self.bases, offset, EhFrame::cie_from_offset).ok()
        };
        let mut functions = Vec::new();
        let Some(search) = header.as_ref().and_then(ParsedEhFrameHdr::table) else { return functions };
        let mut rows = search.iter(&self.bases);
        while let Ok(Some((_, pointer))) = rows.next() {
            functions.extend(function(pointer).map(|fde| fde_range(&fde)));
        }
        functions.sort_unstable_by_key(|function| (function.start, function.end));
        functions
    }

    fn find_fde<'d, S>(&'d self, section: &S, svma: u64) -> Option<FrameDescriptionEntry<Slice<'d>>>
    where
        S: UnwindSection<Slice<'d>>,
        S::Offset: UnwindOffset<usize>,
    {
        let offset = match &self.index {
            Index::Header(bytes) => {
                let header = parse_header(bytes, &self.bases)?;
                let pointer = header.table()?.lookup(svma, &self.bases).ok()?;
                // `pointer_to_offset` of gimli does not check this subtraction.
                usize::try_from(pointer.direct().ok()?.checked_sub(self.base)?).ok()?
            }
            Index::Built(entries) => {
                let after = entries.partition_point(|&(start, _, _)| start <= svma);
                let &(_, end, offset) = entries.get(after.checked_sub(1)?)?;
                if svma >= end {
                    return None;
                }
                offset as usize
            }
        };
        let fde = section.fde_from_offset(&self.bases, S::Offset::from(offset), S::cie_from_offset).ok()?;
        fde.contains(svma).then_some(fde)
    }

    fn row<'d, S, T>(
        &'d self,
        section: &S,
        svma: u64,
        context: &mut UnwindContext<usize>,
        visit: &mut dyn FnMut(&UnwindTableRow<usize>, &FdeFacts, &ExpressionSource<'_, '_>) -> T,
    ) -> Option<T>
    where
        S: UnwindSection<Slice<'d>>,
        S::Offset: UnwindOffset<usize>,
    {
        let fde = self.find_fde(section, svma)?;
        let facts = FdeFacts {
            range: fde_range(&fde),
            signal: fde.is_signal_trampoline(),
            encoding: fde.cie().encoding(),
        };
        let row = fde.unwind_info_for_address(section, &self.bases, context, svma).ok()?;
        let expression = |e: &UnwindExpression<usize>| e.get(section).ok();
        Some(visit(row, &facts, &expression))
    }
}

fn fde_range(fde: &FrameDescriptionEntry<Slice<'_>>) -> Range<u64> {
    fde.initial_address()..fde.end_address()
}

fn parse_header<'d>(bytes: &'d [u8], bases: &BaseAddresses) -> Option<ParsedEhFrameHdr<Slice<'d>>> {
    EhFrameHdr::new(bytes, LittleEndian).parse(bases, 8).ok()
}

/// The search table has rows, and no more than there are bytes for: gimli multiplies without a check.
fn is_whole(header: &ParsedEhFrameHdr<Slice<'_>>, bytes: &[u8], bases: &BaseAddresses) -> bool {
    header.table().is_some_and(|table| table.iter(bases).size_hint().0 <= bytes.len() / MIN_ROW)
}

fn eh_table(file: &ElfFile) -> Option<Table> {
    let layout = file.layout();
    let text = layout.section(b".text").map_or(0, |s| s.addr);
    let got = layout.section(b".got").map_or(0, |s| s.addr);
    let mut bases = BaseAddresses::default().set_text(text).set_got(got);
    let header = layout.eh_frame_hdr.and_then(|segment| {
        let bytes = file.read(segment.offset, segment.file_size).ok()?;
        Some((segment.vaddr, bytes))
    });
    if let Some((addr, _)) = header {
        bases = bases.set_eh_frame_hdr(addr);
    }
    let (base, data) = match layout.section(b".eh_frame") {
        Some(section) => (section.addr, file.section_bytes(section).ok()?),
        None => {
            // No section headers: the header's pointer leads to the table.
            let (_, bytes) = header.as_ref()?;
            let Pointer::Direct(addr) = parse_header(bytes, &bases)?.eh_frame_ptr() else { return None };
            let start = layout.offset_of(addr)?;
            let len = layout.segment_end(addr)?.checked_sub(start)?.min(MAX_UNSIZED);
            (addr, file.read(start, len).ok()?)
        }
    };
    bases = bases.set_eh_frame(base);
    let usable =
        header.filter(|(_, bytes)| parse_header(bytes, &bases).is_some_and(|h| is_whole(&h, bytes, &bases)));
    let mut table = Table { kind: Kind::Eh, data, bases, base, index: Index::Built(Vec::new()) };
    table.index = match usable {
        Some((_, bytes)) => Index::Header(bytes),
        None => Index::Built(build_index(&table.eh_frame(), &table.bases)),
    };
    Some(table)
}

fn debug_table(file: &ElfFile) -> Option<Table> {
    let section = file.layout().section(b".debug_frame")?;
    let data = file.section_bytes(section).ok()?;
    let bases = BaseAddresses::default();
    let mut table = Table { kind: Kind::Debug, data, bases, base: 0, index: Index::Built(Vec::new()) };
    table.index = Index::Built(build_index(&table.debug_frame(), &table.bases));
    Some(table)
}

/// Walks all entries; what comes after a damaged one is not indexed.
fn build_index<'d, S>(section: &S, bases: &BaseAddresses) -> Vec<(u64, u64, u32)>
where
    S: UnwindSection<Slice<'d>>,
    S::Offset: UnwindOffset<usize>,
{
    let mut index = Vec::new();
    let mut entries = section.entries(bases);
    while let Ok(Some(entry)) = entries.next() {
        let CieOrFde::Fde(partial) = entry else { continue };
        let Ok(fde) = partial.parse(S::cie_from_offset) else { continue };
        let Ok(offset) = u32::try_from(fde.offset()) else { break };
        // Discarded functions (--gc-sections) leave entries at address 0.
        if fde.initial_address() != 0 && fde.len() > 0 {
            index.push((fde.initial_address(), fde.end_address(), offset));
        }
    }
    index.sort_unstable();
    index
}

//! What is known of a process, indexed: made once, and read by all threads.

use super::reservations::Reservations;
use super::subject::{Subject, anon_name};
use super::threads::Threads;
use crate::attribution::AuditInput;
use crate::attribution::call::MmapCall;
use crate::attribution::callpath::CallPath;
use crate::attribution::findings::Group;
use crate::attribution::footprint::overlapping;
use crate::ledger::{Origin, OriginId, OriginRecord, Region};
use crate::model::observation::{BlockKind, HeapInfo};
use crate::model::path::base_name_lossy;
use crate::model::{
    Addr, AddrRange, EventId, FileMarks, Mapping, MappingFile, NOT_ELF, Overcommit, StackId, VmaDetail,
};
use std::collections::{HashMap, HashSet};
use std::sync::OnceLock;

/// The part that all threads share.
pub struct Index<'a> {
    pub input: &'a AuditInput<'a>,
    paths: HashMap<StackId, CallPath>,
    /// From the lowest to the highest byte that still belongs to one call.
    spans: HashMap<EventId, AddrRange>,
    /// Base names of the files mapped executable.
    files: HashSet<String>,
    pub threads: Threads<'a>,
    /// `Observations::heap_infos`, sorted.
    heaps: Vec<HeapInfo>,
    /// Files with an executable mapping: ELF images.
    images: HashSet<(u32, u32, u64)>,
    /// Of each rule that is data, whether its program is here.
    applicable: OnceLock<Vec<bool>>,
    /// Calls that reserved addresses (PROT_NONE); made when a rule uses them.
    reservations: OnceLock<Reservations<'a>>,
}

impl<'a> Index<'a> {
    pub(super) fn new(input: &'a AuditInput<'a>) -> Index<'a> {
        let mut paths = HashMap::new();
        for record in &input.reconciled.origins {
            if let Ok(id) = record.stack {
                paths.entry(id).or_insert_with(|| CallPath::new(id, input.stacks, input.symbols));
            }
        }
        let mut spans: HashMap<EventId, AddrRange> = HashMap::new();
        for region in &input.reconciled.regions {
            if let Some(record) = record_of(input, region) {
                let span = spans.entry(record.event).or_insert(region.range);
                span.start = span.start.min(region.range.start);
                span.end = span.end.max(region.range.end);
            }
        }
        let mut files = HashSet::new();
        let mut images = HashSet::new();
        let is_no_elf = |file: MappingFile| {
            let mut found = input.observations.code.files.iter();
            found.any(|marked| marked.file == file && marked.marks.iter().any(|mark| mark == NOT_ELF))
        };
        for mapping in &input.observations.mappings {
            if let Some(file) = mapping.file.filter(|_| mapping.prot.exec) {
                files.insert(base_name_lossy(&mapping.name));
                if !is_no_elf(file) {
                    images.insert((file.major, file.minor, file.inode));
                }
            }
        }
        let seen = input.observations;
        let mut heaps = seen.heap_infos.clone();
        heaps.sort_by_key(|h| h.at);
        Index {
            input,
            paths,
            spans,
            files,
            threads: Threads::of(seen, &input.reconciled.threads),
            heaps,
            images,
            applicable: OnceLock::new(),
            reservations: OnceLock::new(),
        }
    }

    /// From the lowest to the highest byte that still belongs to this call.
    pub fn span(&self, event: EventId) -> Option<AddrRange> {
        self.spans.get(&event).copied()
    }

    pub fn subject(&self, region: &'a Region, range: AddrRange) -> Subject<'_> {
        let record = record_of(self.input, region);
        let path = record.and_then(|r| r.stack.ok()).and_then(|id| self.paths.get(&id));
        let span = record.and_then(|r| self.spans.get(&r.event)).copied().unwrap_or(range);
        Subject {
            range,
            region,
            mapping: self.input.observations.mappings.get(region.vma),
            detail: self.input.observations.details.at(range.start),
            record,
            path,
            call: record.and_then(|r| MmapCall::of(&r.op)),
            span,
        }
    }

    /// The calls that reserved all of `range` (mmap with PROT_NONE), with their places in
    /// [`Index::origins`]; in no order.
    pub fn reservations_containing(
        &self,
        range: AddrRange,
    ) -> impl Iterator<Item = (usize, &'a OriginRecord)> {
        self.reservations.get_or_init(|| Reservations::of(self.origins())).containing(range)
    }

    /// Whether the program or library is here that a rule is about which is data.
    pub fn applies(&self, rule: usize) -> bool {
        let rules = self.input.rules.rules().iter();
        let all = || rules.map(|rule| rule.applies(|test| self.has_file(test))).collect();
        self.applicable.get_or_init(all).get(rule).copied().unwrap_or_default()
    }

    pub fn path(&self, id: StackId) -> Option<&CallPath> {
        self.paths.get(&id)
    }

    pub fn paths(&self) -> impl Iterator<Item = &CallPath> {
        self.paths.values()
    }

    /// The creating call of a region, if it was traced.
    pub fn record(&self, region: &Region) -> Option<&'a OriginRecord> {
        record_of(self.input, region)
    }

    pub fn origins(&self) -> &'a [OriginRecord] {
        &self.input.reconciled.origins
    }

    /// maps' last column of the VMA that holds region number `region`, if it has one.
    pub fn maps_name(&self, region: usize) -> Option<&'a [u8]> {
        let region = self.input.reconciled.regions.get(region)?;
        let name = self.mappings().get(region.vma)?.name.as_slice();
        (!name.is_empty()).then_some(name)
    }

    /// As [`Subject::anon_name`], of what lies at `at` in region number `region`.
    pub fn given_name(&self, region: usize, at: Addr) -> Option<&'a [u8]> {
        let from_call =
            || record_of(self.input, self.input.reconciled.regions.get(region)?)?.anon_names.at(at);
        self.maps_name(region).and_then(anon_name).or_else(from_call)
    }

    /// The process' share of the VMAs that hold a group's pieces; None where it is not known of all.
    pub fn pss(&self, group: &Group<'_>) -> Option<u64> {
        self.sum_of_details(group, |detail| detail.pss)
    }

    /// Huge pages in use in the VMAs that hold a group's pieces; None where it is not known of all.
    pub fn hugetlb_in_use(&self, group: &Group<'_>) -> Option<u64> {
        self.sum_of_details(group, |detail| detail.hugetlb)
    }

    fn sum_of_details(&self, group: &Group<'_>, figure: fn(&VmaDetail) -> u64) -> Option<u64> {
        let regions = &self.input.reconciled.regions;
        let vmas: HashSet<usize> =
            group.pieces.iter().filter_map(|p| Some(regions.get(p.region)?.vma)).collect();
        let of = |vma: &usize| Some(figure(self.detail_at(self.mappings().get(*vma)?.range.start)?));
        vmas.iter().map(of).try_fold(0u64, |sum, bytes| Some(sum.saturating_add(bytes?)))
    }

    /// glibc heap headers, sorted by address.
    pub fn heaps(&self) -> &[HeapInfo] {
        &self.heaps
    }

    /// True if an ELF image whose base name passes `test` is mapped.
    pub fn has_file(&self, test: impl Fn(&str) -> bool) -> bool {
        self.files.iter().any(|f| test(f))
    }

    /// True if a file with code holds this, by its own strings and symbols.
    pub fn has_mark(&self, mark: &str) -> bool {
        self.marked(mark).next().is_some()
    }

    /// True if it is known of every file with code that it does not hold this.
    pub fn lacks_mark(&self, mark: &str) -> bool {
        self.input.observations.code.complete && !self.has_mark(mark)
    }

    /// The files with code that hold this.
    pub fn marked(&self, mark: &str) -> impl Iterator<Item = &'a FileMarks> {
        self.input
            .observations
            .code
            .files
            .iter()
            .filter(move |found| found.marks.iter().any(|own| own == mark))
    }

    /// True if a file of this name, as stacks have modules, holds this.
    pub fn is_marked(&self, mark: &str, module: &str) -> bool {
        self.marked(mark).any(|found| self.file_name(found.file).as_deref() == Some(module))
    }

    /// The base name under which this file is mapped, as stacks have modules.
    pub fn file_name(&self, file: MappingFile) -> Option<String> {
        let found = self.mappings().iter().find(|mapping| mapping.file == Some(file))?;
        Some(base_name_lossy(&found.name))
    }

    /// The file that the C library's own calls of malloc go to; None where that is not known.
    pub fn libc_malloc_in(&self) -> Option<MappingFile> {
        let at = self.input.observations.code.libc_malloc?;
        Mapping::holding(self.mappings(), at)?.file
    }

    /// False where VmFlags say that the kernel accounts this memory: it was not mapped with
    /// MAP_NORESERVE. That flag has no effect under overcommit_memory 2 (mm/mmap.c, `do_mmap`).
    pub fn may_be_noreserve(&self, at: Addr) -> bool {
        let never = self.input.observations.limits.overcommit == Some(Overcommit::Never);
        never || self.detail_at(at).is_none_or(|detail| detail.flags.has("nr"))
    }

    /// What headers prove to lie at this address.
    pub fn block_at(&self, addr: Addr, kind: BlockKind) -> Option<AddrRange> {
        self.blocks_in(AddrRange { start: addr, end: addr.saturating_add(1) }, kind).next()
    }

    /// All of this kind that overlap `range`, sorted.
    pub fn blocks_in(&self, range: AddrRange, kind: BlockKind) -> impl Iterator<Item = AddrRange> {
        let blocks = &self.input.observations.blocks;
        let first = blocks.partition_point(|block| block.range.end <= range.start);
        let inside = blocks[first..].iter().take_while(move |block| block.range.start < range.end);
        inside.filter(move |block| block.kind == kind).map(|block| block.range)
    }

    /// The C library's version, where it contains one.
    pub fn libc_version(&self) -> Option<(u32, u32)> {
        self.input.observations.code.files.iter().find_map(|found| found.version)
    }

    /// True if the file of this mapping is also mapped executable: an ELF image.
    pub fn is_image(&self, mapping: &Mapping) -> bool {
        mapping.file.is_some_and(|f| self.images.contains(&(f.major, f.minor, f.inode)))
    }

    pub fn mappings(&self) -> &'a [Mapping] {
        &self.input.observations.mappings
    }

    /// What smaps shows of the VMA that holds `addr`, where it was read.
    pub fn detail_at(&self, addr: Addr) -> Option<&'a VmaDetail> {
        self.input.observations.details.at(addr)
    }

    /// What smaps shows of this very mapping: it is read a moment after maps, and a process that goes on
    /// may have changed what lies there.
    pub fn detail_of(&self, mapping: &Mapping) -> Option<&'a VmaDetail> {
        let prot = mapping.prot;
        let shown = [("rd", prot.read), ("wr", prot.write), ("ex", prot.exec)];
        let same = |detail: &&VmaDetail| shown.iter().all(|(flag, is)| detail.flags.has(flag) == *is);
        self.detail_at(mapping.range.start).filter(same)
    }

    /// Guard pages inside of `range` that maps does not show (MADV_GUARD_INSTALL), sorted.
    pub fn hidden_guards(&self, range: AddrRange) -> &'a [AddrRange] {
        overlapping(&self.input.observations.details.guards, range)
    }

    /// The VMA that ends where `vma` begins.
    pub fn below(&self, vma: usize) -> Option<&'a Mapping> {
        let own = self.mappings().get(vma)?;
        let below = self.mappings().get(vma.checked_sub(1)?)?;
        (below.range.end == own.range.start).then_some(below)
    }

    /// The VMA that begins where `vma` ends.
    pub fn above(&self, vma: usize) -> Option<&'a Mapping> {
        let own = self.mappings().get(vma)?;
        let above = self.mappings().get(vma + 1)?;
        (own.range.end == above.range.start).then_some(above)
    }

    /// The VMA that holds `addr`.
    pub fn mapping_at(&self, addr: Addr) -> Option<&'a Mapping> {
        Mapping::holding(self.mappings(), addr)
    }

    /// True if a VMA begins at this address.
    pub fn starts_at(&self, addr: Addr) -> bool {
        self.mappings().binary_search_by_key(&addr, |m| m.range.start).is_ok()
    }
}

fn record_of<'a>(input: &AuditInput<'a>, region: &Region) -> Option<&'a OriginRecord> {
    match region.origin {
        Origin::Event(OriginId(index)) => input.reconciled.origins.get(index as usize),
        Origin::Preexisting | Origin::Kernel | Origin::Unknown => None,
    }
}

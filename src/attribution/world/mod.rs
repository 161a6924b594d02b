//! What rules may use: the piece in question, and its process.

mod reservations;
mod subject;
mod threads;

use super::AuditInput;
use super::call::MmapCall;
use super::callpath::CallPath;
use super::category::Claim;
use super::findings::Group;
use super::footprint::{Lookup, overlapping, resident_and_swapped};
use super::rules::RULES;
use crate::ledger::{Origin, OriginId, OriginRecord, Region};
use crate::model::hash::IntMap;
use crate::model::observation::{BlockKind, HeapInfo, ResidencySource};
use crate::model::path::base_name_bytes;
use crate::model::{
    Addr, AddrRange, EventId, FileMarks, Frame, Mapping, MappingFile, ModuleId, NOT_ELF, Overcommit, StackId,
    VmaDetail,
};
use reservations::Reservations;
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::ops::Deref;
use std::sync::{Arc, OnceLock};
pub use subject::Subject;
use subject::anon_name;
pub use threads::Threads;

/// A process, indexed for rules. The latest look-ups and the facts found belong to one thread; another thread uses a
/// [`World::fork`].
pub struct World<'a> {
    index: Arc<Index<'a>>,
    /// Where `Observations::residency` is exact.
    pub resident: Lookup<'a>,
    pub swapped: Lookup<'a>,
    pub purged: Lookup<'a>,
    pub unseen: Lookup<'a>,
    /// By the rules' ids; each list sorted.
    surveys: Arc<[(&'static str, Vec<Surveyed>)]>,
    /// The rule just tried does not handle this level.
    not_for_me: Cell<bool>,
    /// Facts of the process as a whole, by the rules' own names for them: by the addresses of these names,
    /// because tens of thousands of pieces query a dozen each.
    facts: RefCell<IntMap<(usize, usize), bool>>,
    /// Facts of parts of it.
    partial_facts: RefCell<HashMap<(&'static str, About), bool>>,
}

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

impl<'a> Deref for World<'a> {
    type Target = Index<'a>;

    fn deref(&self) -> &Index<'a> {
        &self.index
    }
}

/// What a fact is about.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum About {
    /// All that is called from nowhere that is known.
    Unknown,
    /// All that is called from this module; None: from outside of all.
    Module(Option<ModuleId>),
    /// All whose stacks have this frame as line number …
    Line(Frame, usize),
}

/// A range and what it is, derived from the process as a whole.
#[derive(Clone, Debug)]
pub struct Surveyed {
    pub range: AddrRange,
    pub claim: Claim,
}

impl<'a> World<'a> {
    pub fn new(input: &'a AuditInput<'a>) -> World<'a> {
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
                files.insert(base_name(&mapping.name));
                if !is_no_elf(file) {
                    images.insert((file.major, file.minor, file.inode));
                }
            }
        }
        let seen = input.observations;
        let mut heaps = seen.heap_infos.clone();
        heaps.sort_by_key(|h| h.at);
        let index = Index {
            input,
            paths,
            spans,
            files,
            threads: Threads::of(seen, &input.reconciled.threads),
            heaps,
            images,
            applicable: OnceLock::new(),
            reservations: OnceLock::new(),
        };
        let mut world = World::over(Arc::new(index), Arc::new([]));
        let surveyed = RULES.iter().map(|rule| (rule.id(), rule.survey(&world)));
        world.surveys = surveyed.filter(|(_, found)| !found.is_empty()).collect();
        world
    }

    /// The same process for another thread.
    pub fn fork(&self) -> World<'a> {
        World::over(self.index.clone(), self.surveys.clone())
    }

    fn over(index: Arc<Index<'a>>, surveys: Arc<[(&'static str, Vec<Surveyed>)]>) -> World<'a> {
        let AuditInput { reconciled, observations, .. } = index.input;
        World {
            resident: Lookup::new(&observations.residency.resident),
            swapped: Lookup::new(&observations.residency.swapped),
            purged: Lookup::new(&reconciled.purged),
            unseen: Lookup::new(&reconciled.unseen),
            index,
            surveys,
            not_for_me: Cell::new(false),
            facts: RefCell::default(),
            partial_facts: RefCell::default(),
        }
    }

    /// From the lowest to the highest byte that still belongs to this call.
    pub fn span(&self, event: EventId) -> Option<AddrRange> {
        self.spans.get(&event).copied()
    }

    /// What this rule's survey says of an address.
    pub fn surveyed(&self, rule: &str, addr: Addr) -> Option<&Surveyed> {
        let found = self.survey_of(rule);
        found.get(found.partition_point(|s| s.range.end <= addr)).filter(|s| s.range.contains(addr))
    }

    /// True if this rule's survey found anything.
    pub fn has_survey(&self, rule: &str) -> bool {
        !self.survey_of(rule).is_empty()
    }

    /// True if this rule's survey found such a thing.
    pub fn survey_has(&self, rule: &str, such: impl Fn(&Claim) -> bool) -> bool {
        self.survey_of(rule).iter().any(|found| such(&found.claim))
    }

    fn survey_of(&self, rule: &str) -> &[Surveyed] {
        self.surveys.iter().find(|(own, _)| *own == rule).map_or(&[], |(_, found)| found)
    }

    /// Where the ranges of this rule's survey begin and end.
    pub fn survey_cuts(&self, rule: &str, within: AddrRange) -> Vec<Addr> {
        let found = self.survey_of(rule);
        let inside = found[found.partition_point(|s| s.range.end <= within.start)..].iter();
        let inside = inside.take_while(|s| s.range.start < within.end);
        inside.flat_map(|s| [s.range.start, s.range.end]).collect()
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

    /// What a rule answers that has nothing to say on a level of evidence, whatever the piece is.
    pub fn not_for_me<T>(&self) -> Option<T> {
        self.not_for_me.set(true);
        None
    }

    /// True if the last answer was [`World::not_for_me`]; false then, until the next one is.
    pub fn was_not_for_me(&self) -> bool {
        self.not_for_me.take()
    }

    /// Something that is true of the whole process or not: computed once, because tens of thousands of pieces
    /// may query it.
    pub fn fact(&self, name: &'static str, compute: impl FnOnce() -> bool) -> bool {
        let place = (name.as_ptr().addr(), name.len());
        let known = self.facts.borrow().get(&place).copied();
        known.unwrap_or_else(|| {
            let found = compute();
            self.facts.borrow_mut().insert(place, found);
            found
        })
    }

    /// The same of a part of it.
    pub fn fact_about(&self, name: &'static str, about: About, compute: impl FnOnce() -> bool) -> bool {
        let known = self.partial_facts.borrow().get(&(name, about)).copied();
        known.unwrap_or_else(|| {
            let found = compute();
            self.partial_facts.borrow_mut().insert((name, about), found);
            found
        })
    }

    /// The calls that reserved all of `range` (mmap with PROT_NONE), with their places in
    /// [`World::origins`]; in no order.
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

    /// True if some rule knows from the layout of the whole process what lies there.
    pub fn is_surveyed(&self, addr: Addr) -> bool {
        self.surveys.iter().any(|(rule, _)| self.surveyed(rule, addr).is_some())
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

    /// As [`resident_and_swapped`].
    pub fn resident_and_swapped(&self, range: AddrRange) -> (u64, u64) {
        match self.input.observations.residency.source {
            ResidencySource::PagemapScan | ResidencySource::Pagemap => {
                (self.resident.covered(range), self.swapped.covered(range))
            }
            ResidencySource::SmapsProportion | ResidencySource::None => {
                resident_and_swapped(&self.input.observations.residency, range)
            }
        }
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

    /// The base name under which this file is mapped, as stacks have modules.
    pub fn file_name(&self, file: MappingFile) -> Option<String> {
        let found = self.mappings().iter().find(|mapping| mapping.file == Some(file))?;
        Some(base_name(&found.name))
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

/// Last path component without " (deleted)", lossy.
pub fn base_name(path: &[u8]) -> String {
    String::from_utf8_lossy(base_name_bytes(path)).into_owned()
}

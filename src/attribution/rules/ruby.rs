//! Ruby's pages of objects and its transient heap where no call was seen, and its fibres (cont.c): a pool of stacks that are mapped
//! together, many at a time, each with a guard page. A stack holds what C code uses (512 KiB) and what the interpreter
//! does (128 KiB).

use super::app::APP_MMAP;
use super::data::DataRule;
use super::{Advice, Claim, Fibres, Group, Rule, Subject, World};
use crate::attribution::category::{Evidence, Instance, Merge};
use crate::attribution::findings::Fix;
use crate::ledger::Region;
use crate::model::headers::{CHAIN_HEADER, ChainHeaders, Headers, PAGE_DESCRIPTION, PageHeaders};
use crate::model::observation::BlockKind;
use crate::model::path::base_name_lossy;
use crate::model::{Addr, Mapping, Prot};

/// `fiber_pool_initialize`: both sizes and a page, with the default settings of 64-bit machines.
const DEFAULT: u64 = (512 + 128 + 4) << 10;
/// RUBY_VM_FIBER_MACHINE_STACK_SIZE_MIN is 64 KiB; the figure is for this one.
const MACHINE: u64 = 128 << 10;

/// HEAP_PAGE_SIZE: up to Ruby 3.1, and since.
const PAGES: [u64; 2] = [16 << 10, 64 << 10];
/// TRANSIENT_HEAP_TOTAL_SIZE and TRANSIENT_HEAP_BLOCK_SIZE (transient_heap.c, Ruby 2.6 to 3.2).
const TRANSIENT: (u64, u64) = (32 << 20, 32 << 10);
/// What its headers prove, and the rule that is data and explains that.
const EXPLAINED_BY: [(BlockKind, &str); 2] =
    [(BlockKind::ObjectPage, "ruby.heap-pages"), (BlockKind::ChainedArena, "ruby.transient-heap")];

pub struct RubyRule;

fn is_ruby(module: &str) -> bool {
    module.starts_with("libruby") || module == "ruby" || module.starts_with("ruby3")
}

impl Rule for RubyRule {
    fn id(&self) -> &'static str {
        "ruby"
    }

    fn headers(&self) -> &'static [Headers] {
        &[
            // first: what arrays hold in there may be taken for a page
            Headers::Chains(ChainHeaders { in_process, may_hold, sizes: TRANSIENT, next }),
            Headers::Pages(PageHeaders { in_process, may_hold, least: PAGES[0], page_len }),
        ]
    }

    fn by_header(&self, subject: &Subject<'_>, world: &World<'_>) -> Option<Claim> {
        let block = |(kind, rule)| Some((world.block_at(subject.range.start, kind)?, rule));
        let (block, rule) = EXPLAINED_BY.into_iter().find_map(block)?;
        let own = subject.record.is_none() && block.contains_range(subject.range);
        let explained = || world.input.rules.number_of(rule);
        let claim = Claim::new(APP_MMAP, Evidence::Header, "mmap").merge(Merge::ByCategory);
        let claim = claim.instance(Instance::At(block.start));
        own.then(explained).flatten().map(|rule| claim.label(rule))
    }

    fn cuts(&self, region: &Region, world: &World<'_>) -> Vec<Addr> {
        let blocks = EXPLAINED_BY.into_iter().flat_map(|(kind, _)| world.blocks_in(region.range, kind));
        blocks.flat_map(|block| [block.start, block.end]).collect()
    }

    fn fibres(&self, group: &Group<'_>, sizes: &[u64], world: &World<'_>) -> Option<Fibres> {
        let default = sizes.iter().filter(|size| **size == DEFAULT).count() as u64;
        let own = match group.path {
            Some(path) => path.caller_line().is_some_and(|line| is_ruby(&line.module)),
            None => default > 0 && world.has_file(is_ruby),
        };
        let saves = default * ((512 << 10) - MACHINE);
        let note = "figure for 128 KiB instead of 512; too small a stack raises SystemStackError, or crashes in C code";
        let knob = "RUBY_FIBER_MACHINE_STACK_SIZE=131072";
        own.then(|| Fibres {
            whose: "Ruby's fibres",
            why: "the pool keeps the stacks of fibres that have ended for the next ones",
            fix: Fix::new(knob, saves.min(group.unused()), 0).note(note),
        })
    }

    fn advise(&self, group: &Group<'_>, world: &World<'_>) -> Advice {
        DataRule.advise(group, world)
    }
}

fn in_process(mappings: &[Mapping]) -> bool {
    let name = |m: &Mapping| base_name_lossy(&m.name);
    mappings.iter().any(|mapping| mapping.prot.exec && is_ruby(&name(mapping)))
}

fn may_hold(mapping: &Mapping) -> bool {
    mapping.prot == Prot::RW && mapping.is_plain_anonymous()
}

/// `struct transient_heap_block_header` (transient_heap.c): how much of the block is used, the last object that was
/// marked (-1 for none), how many objects there are; the next block.
fn next(header: &[u8; CHAIN_HEADER]) -> Option<Addr> {
    let short = |at: usize| Some(i16::from_le_bytes(*header.get(at..)?.first_chunk()?));
    let (used, marked, objects) = (short(0)?, short(2)?, short(4)?);
    let limit = i64::try_from(TRANSIENT.1).ok()? - CHAIN_HEADER as i64;
    let fits = (0..=limit).contains(&used.into()) && (-1..=limit).contains(&marked.into()) && objects >= 0;
    // an empty block has no objects
    let fits = fits && (used > 0 || (marked == -1 && objects == 0));
    fits.then_some(Addr(u64::from_le_bytes(*header.get(8..)?.first_chunk()?)))
}

/// `struct heap_page` (gc.c): the size of its slots, how many there are, and as its fifth word where the first one
/// begins, right behind the header of the page.
fn page_len(page: Addr, description: &[u8; PAGE_DESCRIPTION]) -> Option<u64> {
    let short = |at: usize| Some(u64::from(u16::from_le_bytes(*description.get(at..)?.first_chunk()?)));
    let first = u64::from_le_bytes(*description.get(32..)?.first_chunk()?).checked_sub(page.0)?;
    let (slot, slots) = (short(0)?, short(2)?);
    let (begun, end) = (first < slot.max(64), first + slot * slots);
    // what is left at the end is less than a slot and a header
    let fits = |len: &u64| end <= *len && *len < end + slot + 64;
    PAGES.into_iter().find(fits).filter(|_| begun && slot >= 40 && slot.is_multiple_of(8))
}

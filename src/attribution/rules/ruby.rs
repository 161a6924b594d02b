//! Ruby's pages of objects where no call was seen, and its fibres (cont.c): a pool of stacks that are mapped
//! together, many at a time, each with a guard page. A stack holds what C code uses (512 KiB) and what the interpreter
//! does (128 KiB).

use super::app::APP_MMAP;
use super::data::DataRule;
use super::{Advice, Claim, Fibres, Group, Rule, Subject, World};
use crate::attribution::category::{Evidence, Instance, Merge};
use crate::attribution::findings::Fix;
use crate::ledger::Region;
use crate::model::headers::{Headers, PAGE_DESCRIPTION, PageHeaders};
use crate::model::observation::BlockKind;
use crate::model::path::base_name_bytes;
use crate::model::{Addr, Mapping, Prot};

/// `fiber_pool_initialize`: both sizes and a page, with the default settings of 64-bit machines.
const DEFAULT: u64 = (512 + 128 + 4) << 10;
/// RUBY_VM_FIBER_MACHINE_STACK_SIZE_MIN is 64 KiB; the figure is for this one.
const MACHINE: u64 = 128 << 10;

/// HEAP_PAGE_SIZE: up to Ruby 3.1, and since.
const PAGES: [u64; 2] = [16 << 10, 64 << 10];
/// The rule that is data and explains them.
const EXPLAINED_BY: &str = "ruby.heap-pages";

pub struct RubyRule;

fn is_ruby(module: &str) -> bool {
    module.starts_with("libruby") || module == "ruby" || module.starts_with("ruby3")
}

impl Rule for RubyRule {
    fn id(&self) -> &'static str {
        "ruby"
    }

    fn headers(&self) -> Option<Headers> {
        let in_process = |mappings: &[Mapping]| {
            let name = |m: &Mapping| String::from_utf8_lossy(base_name_bytes(&m.name)).into_owned();
            mappings.iter().any(|mapping| mapping.prot.exec && is_ruby(&name(mapping)))
        };
        let may_hold = |mapping: &Mapping| mapping.prot == Prot::RW && mapping.is_plain_anonymous();
        Some(Headers::Pages(PageHeaders { in_process, may_hold, least: PAGES[0], page_len }))
    }

    fn by_header(&self, subject: &Subject<'_>, world: &World<'_>) -> Option<Claim> {
        let page = world.block_at(subject.range.start, BlockKind::ObjectPage)?;
        let own = subject.record.is_none() && page.contains_range(subject.range);
        let explained = || world.input.rules.rules().iter().position(|rule| rule.id == EXPLAINED_BY);
        let claim = Claim::new(APP_MMAP, Evidence::Header, "mmap").merge(Merge::ByCategory);
        let claim = claim.instance(Instance::At(page.start));
        own.then(explained).flatten().map(|rule| claim.label(rule))
    }

    fn cuts(&self, region: &Region, world: &World<'_>) -> Vec<Addr> {
        let pages = world.blocks_in(region.range, BlockKind::ObjectPage);
        pages.flat_map(|page| [page.start, page.end]).collect()
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

//! JavaScriptCore (Bun, WebKit) where no call was seen. It names what it reserves, which many kernels refuse. As maps shows
//! it (Linux x86-64, Bun 1.3):
//!
//! ```text
//! 0x7f8f00000000  rw-p  4 GiB           structure heap, at a multiple of its size (`nr nh`)
//! 0x7f90961fe000  ---p, rwxp 1 GiB, ---p  generated code between two guard pages (`dc nr nh`)
//! ```

use super::app::APP_MMAP;
use super::data::DataRule;
use super::{Advice, Claim, Group, Rule, Subject, World};
use crate::attribution::category::{Evidence, Merge};
use crate::model::{PAGE, Prot, Sign};

/// What it calls the range, which no other engine does.
const MARK: &str = "javascriptcore";
/// structureHeapAddressSize (runtime/StructureID.h).
const STRUCTURES: u64 = 4 << 30;
/// fixedExecutableMemoryPoolSize (jit/ExecutableAllocator.cpp).
const CODE: u64 = 1 << 30;

pub struct JavaScriptCoreRule;

impl Rule for JavaScriptCoreRule {
    fn id(&self) -> &'static str {
        "javascriptcore"
    }

    fn signs(&self) -> &'static [Sign] {
        const { &[Sign::new(MARK, &["JSStructureHeap"])] }
    }

    fn by_shape(&self, subject: &Subject<'_>, world: &World<'_>) -> Option<Claim> {
        if !world.fact("has JavaScriptCore", || world.has_mark(MARK)) {
            return world.not_for_me();
        }
        let own = subject.is_private_anonymous() && subject.record.is_none();
        let flagged = subject.has_flag("nr") && subject.has_flag("nh");
        let rule = match subject.region.prot {
            _ if !own || !flagged => return None,
            Prot::RW if subject.range.len() == STRUCTURES && subject.range.start.is_aligned(STRUCTURES) => {
                "javascriptcore.structures"
            }
            prot if prot.write && prot.exec && subject.range.len() == CODE && is_guarded(subject, world) => {
                "javascriptcore.code"
            }
            _ => return None,
        };
        let rule = world.input.rules.number_of(rule)?;
        Some(Claim::new(APP_MMAP, Evidence::Shape, "mmap").merge(Merge::ByCategory).label(rule))
    }

    fn advise(&self, group: &Group<'_>, world: &World<'_>) -> Advice {
        DataRule.advise(group, world)
    }
}

fn is_guarded(subject: &Subject<'_>, world: &World<'_>) -> bool {
    let vma = subject.region.vma;
    let neighbours = [world.below(vma), world.above(vma)];
    neighbours.iter().all(|guard| guard.is_some_and(|m| m.prot.is_none() && m.range.len() == PAGE))
}

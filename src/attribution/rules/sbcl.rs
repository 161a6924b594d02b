//! SBCL's spaces where no call was seen. Unless something else is there its runtime puts them at addresses of its own,
//! with the pages of its core file at the beginning (src/runtime/coreparse.c). As maps shows it (SBCL 2.2.9, Linux x86-64):
//!
//! ```text
//! 0x50000000    rwxp sbcl.core, rwxp, …   static and immobile space, without a gap
//! 0x1000000000  rwxp sbcl.core, rwxp      dynamic space
//! ```

use super::app::APP_MMAP;
use super::data::DataRule;
use super::runs::runs;
use super::{Advice, Claim, Group, Rule, Subject, Surveyed, World};
use crate::attribution::category::{Evidence, Merge};
use crate::model::{Addr, AddrRange, Mapping, Sharing, Sign};

const ID: &str = "sbcl";
const MARK: &str = "sbcl";
/// DYNAMIC_SPACE_START and STATIC_SPACE_START (src/compiler/x86-64/parms.lisp), and the rule that is data of each.
const SPACES: [(Addr, &str); 2] =
    [(Addr(0x10_0000_0000), "sbcl.dynamic-space"), (Addr(0x5000_0000), "sbcl.immobile-space")];

pub struct SbclRule;

impl Rule for SbclRule {
    fn id(&self) -> &'static str {
        ID
    }

    fn signs(&self) -> &'static [Sign] {
        const { &[Sign::new(MARK, &["missing argument for --dynamic-space-size"])] }
    }

    fn survey(&self, world: &World<'_>) -> Vec<Surveyed> {
        if !world.has_mark(MARK) {
            return Vec::new();
        }
        let spaces = runs(world.mappings(), |m| m.sharing == Sharing::Private).into_iter().flat_map(space);
        let mut found: Vec<Surveyed> =
            spaces.filter_map(|(range, rule)| surveyed(range, rule, world)).collect();
        found.sort_by_key(|each| each.range);
        found
    }

    fn by_header(&self, subject: &Subject<'_>, world: &World<'_>) -> Option<Claim> {
        let found = world.surveyed(ID, subject.range.start)?;
        (subject.is_private_anonymous() && subject.record.is_none()).then(|| found.claim.clone())
    }

    fn advise(&self, group: &Group<'_>, world: &World<'_>) -> Advice {
        DataRule.advise(group, world)
    }
}

/// What is anonymous of the space that this run of neighbours holds. The core's pages have to be where it begins: an
/// address alone proves nothing.
fn space(run: &[Mapping]) -> Vec<(AddrRange, &'static str)> {
    let begins = |m: &Mapping| {
        let (_, rule) = SPACES.iter().find(|(start, _)| *start == m.range.start)?;
        m.file.map(|_| *rule)
    };
    let found = run.iter().enumerate().find_map(|(at, m)| Some((at, begins(m)?)));
    let Some((at, rule)) = found else { return Vec::new() };
    run.iter().skip(at).filter(|m| m.file.is_none()).map(|m| (m.range, rule)).collect()
}

fn surveyed(range: AddrRange, rule: &str, world: &World<'_>) -> Option<Surveyed> {
    let label = world.input.rules.number_of(rule)?;
    let claim = Claim::new(APP_MMAP, Evidence::Header, "mmap").merge(Merge::ByCategory).label(label);
    Some(Surveyed { range, claim })
}

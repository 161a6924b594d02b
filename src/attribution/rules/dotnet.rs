//! .NET's garbage collector. At its start it reserves the range in which its heap may ever lie: what is set, else twice the
//! machine's memory, and a page more so that it can be aligned (src/coreclr/gc/gc.cpp, `regions_range`; .NET 7 and newer).
//! Where the runtime is part of the program its functions have no names. What proves the range is that code of a file with this
//! collector requested it, of just that length, at no address and without access.

use super::app::APP_MMAP;
use super::data::DataRule;
use super::{Advice, Claim, Group, Rule, Subject, World};
use crate::attribution::callpath::Line;
use crate::attribution::category::{Evidence, Merge};
use crate::attribution::world::About;
use crate::model::{Addr, PAGE, Sign};

/// A setting that no other collector has.
const MARK: &str = "dotnet-gc";
const VARIABLE: &str = "DOTNET_GCRegionRange";
const RULE: &str = "dotnet.gc-range";

pub struct DotnetRule;

impl Rule for DotnetRule {
    fn id(&self) -> &'static str {
        "dotnet"
    }

    fn signs(&self) -> &'static [Sign] {
        const { &[Sign { variables: &[VARIABLE], ..Sign::new(MARK, &["System.GC.RegionRange"]) }] }
    }

    fn knows_here(&self, line: &Line, world: &World<'_>) -> bool {
        let holds = || world.is_marked(MARK, &line.module);
        world.fact("has .NET's collector", || world.has_mark(MARK))
            && world.fact_about("holds .NET's collector", About::Module(line.frame.module), holds)
    }

    fn by_stack(&self, subject: &Subject<'_>, world: &World<'_>, at: usize) -> Option<Claim> {
        let call = subject.call.filter(|_| subject.is_private_anonymous())?;
        let own = at == subject.path?.caller() && call.addr == Addr(0) && call.prot.is_none();
        if !own || call.len.checked_sub(PAGE) != range(world) {
            return None;
        }
        let rule = world.input.rules.number_of(RULE)?;
        let part = if subject.is_reserved() { "reserved (PROT_NONE)" } else { "mmap" };
        Some(Claim::new(APP_MMAP, Evidence::Stack, part).merge(Merge::ByCategory).label(rule))
    }

    fn advise(&self, group: &Group<'_>, world: &World<'_>) -> Advice {
        DataRule.advise(group, world)
    }
}

/// How much the collector reserves in this process; its settings are hexadecimal.
fn range(world: &World<'_>) -> Option<u64> {
    let seen = world.input.observations;
    let value = |variable: &String| Some(variable.strip_prefix(VARIABLE)?.strip_prefix('=')?.to_owned());
    match seen.code.variables.iter().find_map(value) {
        Some(set) => u64::from_str_radix(set.trim_start_matches("0x"), 16).ok(),
        None => seen.limits.memory?.checked_mul(2),
    }
}

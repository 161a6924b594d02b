//! Valgrind: the program runs inside of its tool, whose memory is executable, since it translates code, and
//! lies from 64 GiB on (coregrind/m_aspacemgr/aspacemgr-linux.c, `VG_(am_startup)`).

use super::{Advice, Claim, Group, Rule, Subject, World};
use crate::attribution::callpath::Line;
use crate::attribution::category::{Category, CategoryInfo, Evidence, Merge};
use crate::model::{Addr, AddrRange};

pub const VALGRIND: Category = Category(&CategoryInfo {
    id: "valgrind",
    color: 0x47a914,
    name: "Valgrind's own memory",
    one: "memory of Valgrind",
    many: "mappings of Valgrind",
});

const TOOLS: &[&str] = &[
    "memcheck-",
    "helgrind-",
    "drd-",
    "massif-",
    "dhat-",
    "cachegrind-",
    "callgrind-",
    "lackey-",
    "exp-bbv-",
    "none-",
];

/// Where it puts what is its own; the program's memory lies below.
const OWN: AddrRange = AddrRange { start: Addr(0x10_0000_0000), end: Addr(0x1000_0000_0000) };

pub struct ValgrindRule;

/// `memcheck-amd64-linux`.
pub(super) fn is_tool(module: &str) -> bool {
    module.ends_with("-linux") && TOOLS.iter().any(|tool| module.starts_with(tool))
}

impl Rule for ValgrindRule {
    fn id(&self) -> &'static str {
        "valgrind"
    }

    fn categories(&self) -> &'static [Category] {
        &[VALGRIND]
    }

    fn by_header(&self, subject: &Subject<'_>, world: &World<'_>) -> Option<Claim> {
        let own = subject.is_private_anonymous() && OWN.contains(subject.range.start);
        (own && is_inside(world)).then(|| claim(Evidence::Header))
    }

    fn knows(&self, line: &Line) -> bool {
        is_tool(&line.module)
    }

    fn by_stack(&self, subject: &Subject<'_>, _world: &World<'_>, at: usize) -> Option<Claim> {
        // it maps for the program, too, which never gets executable memory unasked
        let own = subject.region.prot.exec || OWN.contains(subject.range.start);
        (at == 0 && own && subject.is_private_anonymous()).then(|| claim(Evidence::Stack))
    }

    fn by_shape(&self, subject: &Subject<'_>, world: &World<'_>) -> Option<Claim> {
        let prot = subject.region.prot;
        let fits = subject.is_private_anonymous() && prot.write && prot.exec;
        (fits && is_inside(world)).then(|| claim(Evidence::Shape))
    }

    fn advise(&self, _group: &Group<'_>, _world: &World<'_>) -> Advice {
        Advice::why(
            "the program runs inside of Valgrind: translated code, shadow of the program's memory, the blocks \
             of its malloc with room to catch errors; none of it is there without Valgrind",
        )
        .wont("the settings of the program's allocator", "Valgrind replaces malloc by its own")
    }
}

fn is_inside(world: &World<'_>) -> bool {
    world.fact("runs inside of Valgrind", || world.has_file(is_tool))
}

fn claim(evidence: Evidence) -> Claim {
    Claim::new(VALGRIND, evidence, "translations, shadow, blocks").merge(Merge::ByCategory)
}

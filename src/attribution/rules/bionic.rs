//! Android's malloc: bionic names what its allocator (scudo, jemalloc before Android 11) maps.

use super::{Advice, Claim, Group, Rule, Subject, World};
use crate::attribution::category::{Category, CategoryInfo, Evidence, Merge};

pub const BIONIC: Category = Category(&CategoryInfo {
    id: "bionic-malloc",
    color: 0x82977b,
    name: "Android malloc (scudo)",
    one: "memory of Android's malloc",
    many: "mappings of Android's malloc",
});

pub struct BionicRule;

impl Rule for BionicRule {
    fn id(&self) -> &'static str {
        "bionic"
    }

    fn categories(&self) -> &'static [Category] {
        &[BIONIC]
    }

    fn by_name(&self, subject: &Subject<'_>, _world: &World<'_>) -> Option<Claim> {
        let part = match subject.anon_name()? {
            // compiler-rt/lib/scudo/standalone
            b"scudo:primary" | b"scudo:primary_reserve" => "small blocks",
            b"scudo:secondary" => "large blocks",
            name if name.starts_with(b"scudo:") => "allocator's own data",
            b"libc_malloc" => "blocks",
            _ => return None,
        };
        Some(Claim::new(BIONIC, Evidence::Name, part).merge(Merge::ByCategory))
    }

    fn advise(&self, _group: &Group<'_>, _world: &World<'_>) -> Advice {
        Advice::why(
            "Android's allocator reserves a region for each size of block, and hands out pieces from its start",
        )
        .wont("MALLOC_ARENA_MAX", "it is glibc's")
    }
}

//! Sanitizers: shadow memory and allocator space, terabytes of reservation by design.

use super::{Advice, Claim, Group, Rule, Subject, World};
use crate::attribution::callpath::Line;
use crate::attribution::category::{Category, Evidence, Merge};
use crate::model::Addr;

pub const SANITIZER: Category = Category {
    id: "sanitizer-shadow",
    name: "sanitizer shadow memory",
    one: "sanitizer shadow memory",
    many: "sanitizer mappings",
};

/// AddressSanitizer's low shadow on x86-64 (compiler-rt, asan_mapping.h).
const ASAN_LOW_SHADOW: Addr = Addr(0x7fff_7000);
/// Its allocator's and LeakSanitizer's space.
const ASAN_ALLOCATOR: Addr = Addr(0x6000_0000_0000);

const PREFIXES: &[&str] =
    &["__asan", "__tsan", "__lsan", "__msan", "__hwasan", "__sanitizer", "__interceptor"];
const LIBRARIES: &[&str] = &["libasan", "libtsan", "liblsan", "libmsan", "libhwasan", "libclang_rt."];

pub struct SanitizerRule;

impl Rule for SanitizerRule {
    fn id(&self) -> &'static str {
        "sanitizer"
    }

    fn categories(&self) -> &'static [Category] {
        &[SANITIZER]
    }

    fn knows(&self, line: &Line) -> bool {
        let names = [line.function.as_deref(), line.display.as_deref()];
        LIBRARIES.iter().any(|l| line.module.starts_with(l))
            || names.into_iter().flatten().any(|n| PREFIXES.iter().any(|p| n.starts_with(p)))
    }

    fn by_stack(&self, subject: &Subject<'_>, _world: &World<'_>, at: usize) -> Option<Claim> {
        // an interceptor around somebody else's call is not the asker: pthread_create, mmap …
        let asker = at == subject.path?.caller();
        (subject.is_private_anonymous() && asker)
            .then(|| Claim::new(SANITIZER, Evidence::Stack, "shadow and allocator").merge(Merge::ByCategory))
    }

    fn by_header(&self, subject: &Subject<'_>, world: &World<'_>) -> Option<Claim> {
        let exact = [ASAN_LOW_SHADOW, ASAN_ALLOCATOR].contains(&subject.range.start);
        (subject.is_private_anonymous() && exact && world.starts_at(ASAN_LOW_SHADOW))
            .then(|| Claim::new(SANITIZER, Evidence::Shape, "shadow and allocator").merge(Merge::ByCategory))
    }

    fn advise(&self, _group: &Group<'_>, _world: &World<'_>) -> Advice {
        Advice::why(
            "a sanitizer reserves shadow memory for every address the program could ever use; it is by design, \
             no option makes it smaller, and it costs only what is touched",
        )
    }
}

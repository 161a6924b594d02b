//! V8 (Node.js): a code range of 512 MiB per isolate, heap pages of 256 KiB.

use super::{Advice, Claim, Group, Rule, Subject, World};
use crate::attribution::callpath::Line;
use crate::attribution::category::{Category, Evidence, Merge};
use crate::attribution::findings::Fix;

pub const V8: Category = Category { id: "v8", name: "V8", one: "V8 memory", many: "mappings of V8" };

const CODE_RANGE: &str = "code range";

pub struct V8Rule;

impl Rule for V8Rule {
    fn id(&self) -> &'static str {
        "v8"
    }

    fn categories(&self) -> &'static [Category] {
        &[V8]
    }

    fn knows(&self, line: &Line) -> bool {
        line.display
            .as_deref()
            .is_some_and(|f| f.starts_with("v8::base::") || f.starts_with("v8::internal::"))
    }

    fn by_stack(&self, subject: &Subject<'_>, _world: &World<'_>, at: usize) -> Option<Claim> {
        let code = subject.path?.any(|l| l.mentions("CodeRange") || l.mentions("VirtualMemoryCage"));
        let part = if code { CODE_RANGE } else { "heap" };
        subject
            .is_private_anonymous()
            .then(|| Claim::new(V8, Evidence::Stack, part).merge(Merge::ByCaller(at)))
    }

    fn advise(&self, group: &Group<'_>, _world: &World<'_>) -> Advice {
        let code = group.part(CODE_RANGE);
        if code.virt > 0 {
            return Advice::why(
                "V8 reserves 512 MiB per isolate (each worker has one) so that compiled code stays within reach \
                 of short jumps; it costs nothing until used",
            )
            .fix(Fix::new("--jitless", code.unused(), 0).note("slower; --max-old-space-size changes nothing here"));
        }
        Advice::why("pages of the JavaScript heap, mapped with room to align them")
    }
}

//! vmaudit's own: what the preloaded library of `vmaudit heap` keeps in a process that it counts in. It is
//! part of the process' VIRT, RSS and control group, and is distinguished because the program did not request
//! it.

use super::{Advice, Claim, Group, Rule, Subject, World};
use crate::attribution::callpath::Line;
use crate::attribution::category::{Category, CategoryInfo, Evidence, Merge};
use crate::attribution::code::{Code, Role};
use crate::attribution::units::size;
use crate::model::heap::own::{AREA, CATEGORY, LIBRARY, TABLES};

pub const OWN: Category = Category(&CategoryInfo {
    id: CATEGORY,
    color: 0x77808c,
    name: "vmaudit's own memory",
    one: "memory of vmaudit's heap counting",
    many: "mappings of vmaudit's heap counting",
});

/// The library, handed over or installed (`--arm`), as stacks name it.
const CODE: &[&str] = &["libvmaudit-heap", "memfd:libvmaudit-heap"];

pub struct OwnRule;

/// `/memfd:NAME (deleted)`, as maps has it.
fn is_ours(name: &[u8]) -> bool {
    if name == TABLES.as_bytes() {
        return true;
    }
    let Some(name) = name.strip_prefix(b"/memfd:") else { return false };
    let name = name.strip_suffix(b" (deleted)").unwrap_or(name);
    [AREA, LIBRARY].iter().any(|own| own.as_bytes() == name)
}

impl Rule for OwnRule {
    fn id(&self) -> &'static str {
        "own"
    }

    fn categories(&self) -> &'static [Category] {
        &[OWN]
    }

    /// It interposes the allocator: its caller requested the memory.
    fn code(&self) -> Code {
        Code { role: Role::Allocator, modules: CODE, ..Code::NONE }
    }

    fn by_name(&self, subject: &Subject<'_>, _world: &World<'_>) -> Option<Claim> {
        is_ours(subject.name()).then(|| Claim::new(OWN, Evidence::Name, "counting").merge(Merge::ByCategory))
    }

    fn knows(&self, line: &Line) -> bool {
        CODE.iter().any(|own| line.module.starts_with(own))
    }

    /// It makes its calls itself: what is called behind it is the allocator's.
    fn by_stack(&self, _subject: &Subject<'_>, _world: &World<'_>, at: usize) -> Option<Claim> {
        (at == 0).then(|| Claim::new(OWN, Evidence::Stack, "counting").merge(Merge::ByCategory))
    }

    fn advise(&self, group: &Group<'_>, _world: &World<'_>) -> Advice {
        let mut advice = Advice::why(format!(
            "vmaudit heap counts what this process allocates, in memory that grows with the blocks and stacks that are \
             counted, and goes when it ends; without it VIRT is {} less, and RSS {}",
            size(group.footprint.virt),
            size(group.footprint.rss)
        ));
        advice.stack_is_noise = true;
        advice
    }
}

#[cfg(test)]
mod tests {
    use super::is_ours;

    #[test]
    fn by_the_whole_name() {
        assert!(is_ours(b"/memfd:vmaudit-heap (deleted)"));
        assert!(is_ours(b"/memfd:libvmaudit-heap.so"));
        assert!(is_ours(b"[anon:vmaudit-heap]"));
        assert!(!is_ours(b"/memfd:vmaudit-heap-of-somebody (deleted)"));
        assert!(!is_ours(b"/tmp/vmaudit-heap"));
    }
}

//! What the kernel maps by itself: vdso and vvar, uprobes' trampolines, aio rings, shadow
//! stacks, the main thread's stack, huge pages asked for by name.

use super::{Advice, Claim, Group, Rule, Subject, World};
use crate::attribution::category::{Category, Evidence, Instance, Merge};
use crate::attribution::findings::Fix;
use crate::ledger::RegionKind;

pub const KERNEL: Category = Category {
    id: "kernel",
    name: "kernel (vdso, vvar, aio …)",
    one: "mapping of the kernel's",
    many: "mappings of the kernel's",
};
pub const MAIN_STACK: Category = Category {
    id: "main-stack",
    name: "main thread's stack",
    one: "main thread's stack",
    many: "main stacks",
};
pub const HUGETLB: Category = Category {
    id: "hugetlb",
    name: "huge pages (hugetlb)",
    one: "reservation of huge pages",
    many: "reservations of huge pages",
};

pub struct KernelRule;

impl Rule for KernelRule {
    fn id(&self) -> &'static str {
        "kernel"
    }

    fn categories(&self) -> &'static [Category] {
        &[KERNEL, MAIN_STACK, HUGETLB]
    }

    fn by_name(&self, subject: &Subject<'_>, _world: &World<'_>) -> Option<Claim> {
        let claim = |category, part| Claim::new(category, Evidence::Kernel, part).merge(Merge::ByCategory);
        match subject.region.kind {
            RegionKind::Special => Some(claim(KERNEL, "vdso, vvar, uprobes")),
            RegionKind::AioRing => {
                Some(Claim::new(KERNEL, Evidence::Kernel, "aio ring").merge(Merge::ByStack))
            }
            RegionKind::ShadowStack => Some(claim(KERNEL, "shadow stack")),
            RegionKind::Stack => {
                Some(claim(MAIN_STACK, "stack").instance(Instance::Named(b"[stack]".into())))
            }
            RegionKind::HugeTlb => Some(Claim::new(HUGETLB, Evidence::Kernel, "huge pages")),
            RegionKind::Anonymous
            | RegionKind::SharedAnonymous
            | RegionKind::File
            | RegionKind::Brk
            | RegionKind::SysvShm => by_special_name(subject.name()),
        }
    }

    fn advise(&self, group: &Group<'_>, _world: &World<'_>) -> Advice {
        if group.category == MAIN_STACK {
            return Advice::why(
                "the kernel grows the first thread's stack on demand and never gives pages back",
            );
        }
        if group.category == HUGETLB {
            return Advice::why(
                "huge pages are counted apart (HugetlbPages in /proc/PID/status) and never as RSS, so they \
                 look unused here even while in use",
            )
            .fix(Fix::new("ask for fewer huge pages", group.unused(), 0));
        }
        Advice::why("the kernel maps these pages into the process by itself; they cost next to nothing")
    }
}

fn by_special_name(name: &[u8]) -> Option<Claim> {
    let part = match name {
        b"[vdso]" => "vdso",
        b"[vvar]" | b"[vvar_vclock]" => "vvar",
        b"[uprobes]" => "uprobes",
        b"/[aio]" | b"/[aio] (deleted)" => "aio ring",
        b"[stack]" => {
            let claim = Claim::new(MAIN_STACK, Evidence::Kernel, "stack").merge(Merge::ByCategory);
            return Some(claim.instance(Instance::Named(b"[stack]".into())));
        }
        _ => return None,
    };
    Some(Claim::new(KERNEL, Evidence::Kernel, part).merge(Merge::ByCategory))
}

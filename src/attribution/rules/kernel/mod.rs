//! What the kernel maps by itself: vdso and vvar, uprobes' trampolines, aio rings, shadow stacks, the main
//! thread's stack, huge pages requested by name.

pub(super) mod buffer;

use super::{Advice, Claim, Group, Rule, Subject, World};
use crate::attribution::category::{Category, CategoryInfo, Evidence, Instance, Merge};
use crate::attribution::findings::Fix;
use crate::attribution::units::size;
use crate::ledger::RegionKind;

pub const KERNEL: Category = Category(&CategoryInfo {
    id: "kernel",
    color: 0x596982,
    name: "kernel (vdso, vvar, aio …)",
    one: "mapping of the kernel's",
    many: "mappings of the kernel's",
});
pub const MAIN_STACK: Category = Category(&CategoryInfo {
    id: "main-stack",
    color: 0x8a55c4,
    name: "main thread's stack",
    one: "main thread's stack",
    many: "main stacks",
});
pub const HUGETLB: Category = Category(&CategoryInfo {
    id: "hugetlb",
    color: 0xcd3337,
    name: "huge pages (hugetlb)",
    one: "reservation of huge pages",
    many: "reservations of huge pages",
});

pub struct KernelRule;

impl Rule for KernelRule {
    fn id(&self) -> &'static str {
        "kernel"
    }

    fn categories(&self) -> &'static [Category] {
        &[KERNEL, MAIN_STACK, HUGETLB]
    }

    fn by_name(&self, subject: &Subject<'_>, _world: &World<'_>) -> Option<Claim> {
        if subject.region.kind == RegionKind::HugeTlb || subject.has_flag("ht") {
            return Some(Claim::new(HUGETLB, Evidence::Kernel, huge_part(subject.name())));
        }
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
            RegionKind::HugeTlb
            | RegionKind::Anonymous
            | RegionKind::SharedAnonymous
            | RegionKind::File
            | RegionKind::Brk
            | RegionKind::SysvShm => by_special_name(subject.name()),
        }
    }

    fn advise(&self, group: &Group<'_>, world: &World<'_>) -> Advice {
        if group.category == MAIN_STACK {
            return Advice::why(
                "the kernel grows the first thread's stack on demand and never gives pages back",
            );
        }
        if group.category == HUGETLB {
            return hugetlb(group, world);
        }
        Advice::why("the kernel maps these pages into the process by itself; they cost next to nothing")
    }
}

/// How huge pages were requested, by their name in maps (mm/hugetlb.c, ipc/shm.c, mm/memfd.c).
fn huge_part(name: &[u8]) -> &'static str {
    if name.starts_with(b"/SYSV") {
        "System V segment (SHM_HUGETLB)"
    } else if name.starts_with(b"/memfd:") {
        "memfd (MFD_HUGETLB)"
    } else if name.is_empty() || name.starts_with(b"/anon_hugepage") {
        "MAP_HUGETLB"
    } else {
        "file on hugetlbfs"
    }
}

fn hugetlb(group: &Group<'_>, world: &World<'_>) -> Advice {
    let used = match world.hugetlb_in_use(group) {
        Some(0) => "none of it is in use".to_string(),
        Some(bytes) => format!("{} of it are in use", size(bytes)),
        None => "how much of it is in use is not known".to_string(),
    };
    let parts: Vec<&str> = group.by_part.keys().copied().collect();
    let saves = world.hugetlb_in_use(group).map_or(0, |used| group.footprint.virt.saturating_sub(used));
    let mut advice = Advice::why(format!(
        "huge pages are taken from a pool of their own (vm.nr_hugepages) and never count as RSS: {used} \
         (HugetlbPages in /proc/PID/status), though it looks unused in every other figure"
    ))
    .fix(Fix::new("ask for fewer huge pages", saves, 0))
    .wont("transparent_hugepage=never", "these are hugetlb pages, which the program asked for by name");
    advice.title = Some(format!("huge pages (hugetlb): {}", parts.join(", ")));
    advice
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

//! Memory shared between processes: MAP_SHARED|MAP_ANONYMOUS, memfd, /dev/shm, System V.

use super::{Advice, Claim, Group, Rule, Subject, World};
use crate::attribution::category::{Category, Evidence, Instance};
use crate::ledger::RegionKind;

pub const SHARED_ANON: Category = Category {
    id: "shared-anon",
    name: "shared memory",
    one: "shared memory",
    many: "mappings of shared memory",
};
pub const SYSV: Category = Category {
    id: "sysv-shm",
    name: "System V shared memory",
    one: "System V shared memory segment",
    many: "System V shared memory segments",
};

pub struct SharedRule;

impl Rule for SharedRule {
    fn id(&self) -> &'static str {
        "shared"
    }

    fn categories(&self) -> &'static [Category] {
        &[SHARED_ANON, SYSV]
    }

    // by kind and name, but after whoever recognises its own stack
    fn by_shape(&self, subject: &Subject<'_>, _world: &World<'_>) -> Option<Claim> {
        let name = subject.name();
        let claim = |category, evidence, part| Some(Claim::new(category, evidence, part));
        if subject.region.kind == RegionKind::SysvShm || name.starts_with(b"/SYSV") {
            return claim(SYSV, Evidence::Kernel, "segment");
        }
        if subject.region.kind == RegionKind::SharedAnonymous {
            let evidence = if subject.path.is_some() { Evidence::Stack } else { Evidence::Kernel };
            return claim(SHARED_ANON, evidence, "MAP_SHARED|MAP_ANONYMOUS");
        }
        let part = if name.starts_with(b"/memfd:") {
            "memfd"
        } else if name.starts_with(b"/dev/shm/") {
            "/dev/shm"
        } else if name.starts_with(b"/dev/zero") || name.starts_with(b"[anon_shmem") {
            "MAP_SHARED|MAP_ANONYMOUS"
        } else {
            return None;
        };
        Some(Claim::new(SHARED_ANON, Evidence::Name, part).instance(Instance::Named(name.to_vec())))
    }

    fn advise(&self, group: &Group<'_>, _world: &World<'_>) -> Advice {
        let mut why = "memory shared between processes: each of them counts all of it as VIRT, and what it \
                       touched as RSS, so sums over processes count it many times (Pss does not)"
            .to_string();
        if group.inherited_from.is_some() {
            why += "; this process did not ask for it";
        }
        Advice::why(why)
    }
}

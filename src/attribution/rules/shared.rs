//! Memory shared between processes: MAP_SHARED|MAP_ANONYMOUS, memfd, /dev/shm, System V; PostgreSQL's.

use super::named::printable;
use super::{Advice, Claim, Group, Rule, Subject, World};
use crate::attribution::callpath::Line;
use crate::attribution::category::{Category, CategoryInfo, Evidence, Instance};
use crate::attribution::findings::Fix;
use crate::attribution::units::size;
use crate::ledger::RegionKind;

pub const SHARED_ANON: Category = Category(&CategoryInfo {
    id: "shared-anon",
    color: 0xc52659,
    name: "shared memory",
    one: "shared memory",
    many: "mappings of shared memory",
});
pub const SYSV: Category = Category(&CategoryInfo {
    id: "sysv-shm",
    color: 0xbb2e79,
    name: "System V shared memory",
    one: "System V shared memory segment",
    many: "System V shared memory segments",
});
pub const MEMFD: Category = Category(&CategoryInfo {
    id: "memfd",
    color: 0x4e7231,
    name: "memfd memory",
    one: "memfd",
    many: "memfds",
});

const DSM: &str = "PostgreSQL's dynamic shared memory";
/// How many names a title has space for.
const SHOWN: usize = 3;

/// Functions of PostgreSQL that are exported, and those that are not (src/backend/port/sysv_shmem.c,
/// storage/ipc/dsm_impl.c).
const POSTGRES: &[&str] =
    &["PGSharedMemoryCreate", "CreateAnonymousSegment", "CreateSharedMemoryAndSemaphores", "dsm_impl_op"];

pub struct SharedRule;

impl Rule for SharedRule {
    fn id(&self) -> &'static str {
        "shared"
    }

    fn categories(&self) -> &'static [Category] {
        &[SHARED_ANON, SYSV, MEMFD]
    }

    // by kind and name, but after rules that recognise their own stack
    fn by_shape(&self, subject: &Subject<'_>, _world: &World<'_>) -> Option<Claim> {
        let name = subject.name();
        // two processes, or two mappings, of one thing have its inode
        let inode = subject.mapping.and_then(|m| m.file).map_or(0, |file| file.inode);
        let instance = || Instance::Named([name, b" ", inode.to_string().as_bytes()].concat());
        let claim = |category, evidence, part| {
            let claim = Claim::new(category, evidence, part);
            Some(if inode == 0 { claim } else { claim.instance(instance()) })
        };
        if subject.region.kind == RegionKind::SysvShm || name.starts_with(b"/SYSV") {
            return claim(SYSV, Evidence::Kernel, "segment");
        }
        if name.starts_with(b"/memfd:") {
            return claim(MEMFD, Evidence::Name, "memfd");
        }
        if subject.region.kind == RegionKind::SharedAnonymous {
            let evidence = if subject.path.is_some() { Evidence::Stack } else { Evidence::Kernel };
            return claim(SHARED_ANON, evidence, "MAP_SHARED|MAP_ANONYMOUS");
        }
        if name.starts_with(b"/dev/shm/PostgreSQL.") {
            claim(SHARED_ANON, Evidence::Name, DSM)
        } else if name.starts_with(b"/dev/shm/") {
            claim(SHARED_ANON, Evidence::Name, "/dev/shm")
        } else if name.starts_with(b"/dev/zero") || name.starts_with(b"[anon_shmem") {
            claim(SHARED_ANON, Evidence::Name, "MAP_SHARED|MAP_ANONYMOUS")
        } else {
            None
        }
    }

    fn advise(&self, group: &Group<'_>, world: &World<'_>) -> Advice {
        let mut advice = if is_postgres(group, world) {
            postgres(group, world)
        } else if group.category == MEMFD {
            memfd(group)
        } else {
            general(group)
        };
        if let Some(pss) = world.pss(group).filter(|_| group.footprint.rss > 0) {
            advice.why += &format!("; this process' share of what is resident is {} (Pss)", size(pss));
        }
        advice
    }
}

/// True where its stack, its name or the program is PostgreSQL's.
fn is_postgres(group: &Group<'_>, world: &World<'_>) -> bool {
    let own = |line: &Line| line.is(POSTGRES);
    group.path.is_some_and(|path| path.any(own))
        || group.part(DSM).virt > 0
        || (group.category != MEMFD && world.has_file(|file| file == "postgres"))
}

fn postgres(group: &Group<'_>, world: &World<'_>) -> Advice {
    let whole = group.footprint.virt;
    let mut why = format!(
        "shared_buffers and what all sessions share (locks, their slots, statistics): made once by the \
         postmaster and inherited by each of its processes, each of which shows all {} in its VIRT and what \
         it touched of it in its RSS",
        size(whole)
    );
    if group.path.is_none() && group.inherited_from.is_none() && world.input.reconciled.events > 0 {
        why += "; no call for it is in this process' trace because it got it by fork";
    }
    let note = "set in postgresql.conf for the whole server; less cache";
    let mut advice = Advice::why(why)
        .fix(Fix::new("shared_buffers, max_connections", 0, 0).note(note))
        .wont("huge_pages=off", "it spares the call that the kernel refuses, and no address space")
        .wont(
            "VIRT or RSS added up over its processes",
            "each counts this memory again: Pss, or the cgroup's memory, counts it once",
        );
    advice.title = Some(if group.category == SYSV && whole <= 64 << 10 {
        "PostgreSQL's interlock (System V)".to_string()
    } else {
        "PostgreSQL's shared memory".to_string()
    });
    advice
}

fn memfd(group: &Group<'_>) -> Advice {
    let mut advice = Advice::why(
        "memory behind a file descriptor (memfd_create): it can be passed to other processes, mapped several \
         times, sealed; it is freed when the last mapping and descriptor are gone",
    );
    advice.title = titled(group, |name| {
        let name = name.strip_prefix(b"/memfd:")?;
        Some(name.strip_suffix(b" (deleted)").unwrap_or(name))
    });
    advice
}

fn general(group: &Group<'_>) -> Advice {
    let mut why = "memory shared between processes: each of them counts all of it as VIRT, and what it \
                   touched as RSS, so sums over processes count it many times (Pss does not)"
        .to_string();
    if group.inherited_from.is_some() {
        why += "; this process did not ask for it";
    }
    if group.category == SYSV {
        why += "; it outlives all processes until it is removed (ipcs -m, ipcrm)";
    }
    let mut advice = Advice::why(why);
    let posix = group.part("/dev/shm").virt > 0 && group.part("/dev/shm").virt == group.footprint.virt;
    if posix {
        advice.title = titled(group, |name| Some(name.strip_suffix(b" (deleted)").unwrap_or(name)));
    }
    advice
}

/// `memfd “wayland-shm”`, `3 memfds: “a”, “b”, …`.
fn titled<'n>(group: &'n Group<'_>, own: impl Fn(&'n [u8]) -> Option<&'n [u8]>) -> Option<String> {
    let mut names: Vec<String> = group.names().filter_map(own).map(printable).collect();
    names.sort();
    names.dedup();
    let mut shown: Vec<String> = names.iter().take(SHOWN).map(|n| format!("\u{201c}{n}\u{201d}")).collect();
    if names.len() > SHOWN {
        shown.push(format!("{} more", names.len() - SHOWN));
    }
    let what = match group.instances {
        1 => group.category.one.to_string(),
        n => format!("{n} {}", group.category.many),
    };
    (!shown.is_empty()).then(|| format!("{what} {}", shown.join(", ")))
}

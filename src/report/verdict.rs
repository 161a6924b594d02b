//! Does VIRT matter here? Judged by what the kernel counts and limits, not by its size.

use super::model::{Check, Verdict};
use super::units::{size, thousands};
use crate::model::{HugePages, Limits, Overcommit};

/// From this many percent of a limit on, it is near.
const NEAR: u64 = 80;
/// Page tables worth a word: this much, and one part in ten of what is resident.
const PAGE_TABLES: u64 = 16 << 20;
/// Huge pages worth a word: this much, and half of what is resident.
const HUGE: u64 = 64 << 20;

/// What is counted of the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counted {
    pub virt: u64,
    pub vm_peak: u64,
    pub rss: u64,
    /// VMAs.
    pub mappings: u64,
}

/// None where the limits are not known: an older recording, a saved file.
pub fn judge(counted: Counted, limits: &Limits) -> Option<Verdict> {
    if !limits.known {
        return None;
    }
    let found = [
        address_space(counted, limits),
        data(limits),
        overcommit(limits),
        maps(counted, limits),
        cgroup(counted, limits),
        page_tables(counted, limits),
        huge_pages(counted, limits),
    ];
    let checks: Vec<Check> = found.into_iter().flatten().collect();
    let matters =
        checks.iter().any(|check| check.counts_virt && check.limit.is_some() && check.state != FREE);
    let text = if matters { matters_text(&checks) } else { harmless_text(&checks, limits) };
    Some(Verdict { matters, text, checks })
}

/// No limit, or far from one that only counts things that VIRT does not cost.
const FREE: &str = "free";
const LIMITED: &str = "limited";
const CLOSE: &str = "near";

fn state(used: u64, limit: u64) -> &'static str {
    if percent(used, limit) >= NEAR { CLOSE } else { LIMITED }
}

/// Rounded down: 100 is the limit itself.
fn percent(used: u64, limit: u64) -> u64 {
    let exact = u128::from(used) * 100 / u128::from(limit.max(1));
    u64::try_from(exact).unwrap_or(u64::MAX)
}

fn address_space(counted: Counted, limits: &Limits) -> Option<Check> {
    let used = counted.virt;
    let Some(limit) = limits.address_space else {
        return Some(check("address-space", used, None, "RLIMIT_AS is unlimited"));
    };
    let peak = match counted.vm_peak > used {
        true => format!(", {} at its peak", size(counted.vm_peak)),
        false => String::new(),
    };
    let text = format!(
        "RLIMIT_AS allows {} of VIRT, {} ({} %) is taken{peak}: a reservation that does not fit fails with \
         ENOMEM, touched or not",
        size(limit),
        size(used),
        percent(used, limit)
    );
    Some(Check {
        state: state(used.max(counted.vm_peak), limit).into(),
        ..check("address-space", used, Some(limit), &text)
    })
}

fn data(limits: &Limits) -> Option<Check> {
    let used = limits.vm_data?;
    let Some(limit) = limits.data else {
        return Some(check("data", used, None, "RLIMIT_DATA is unlimited"));
    };
    let text = format!(
        "RLIMIT_DATA allows {} of private writable memory, {} ({} %) is taken, touched or not; PROT_NONE \
         reservations do not count",
        size(limit),
        size(used),
        percent(used, limit)
    );
    Some(Check { state: state(used, limit).into(), ..check("data", used, Some(limit), &text) })
}

fn overcommit(limits: &Limits) -> Option<Check> {
    let used = limits.committed.unwrap_or_default();
    match limits.overcommit? {
        Overcommit::Never => {
            let limit = limits.commit_limit?;
            let own = limits
                .vm_data
                .map_or_else(String::new, |bytes| format!("; up to {} of it by this process", size(bytes)));
            let text = format!(
                "vm.overcommit_memory is 2: private writable memory counts from the moment it is mapped, \
                 MAP_NORESERVE or not. The machine may promise {}, {} ({} %) is promised{own}",
                size(limit),
                size(used),
                percent(used, limit)
            );
            Some(Check { state: state(used, limit).into(), ..check("overcommit", used, Some(limit), &text) })
        }
        Overcommit::Always => {
            Some(check("overcommit", used, None, "vm.overcommit_memory is 1: no promise is refused"))
        }
        Overcommit::Heuristic => Some(check(
            "overcommit",
            used,
            None,
            "vm.overcommit_memory is 0: only a single call for more than all memory and swap is refused",
        )),
    }
}

fn maps(counted: Counted, limits: &Limits) -> Option<Check> {
    let (used, limit) = (counted.mappings, limits.max_map_count?);
    let near = percent(used, limit) >= NEAR;
    let text = match near {
        true => format!(
            "{} of {} mappings (vm.max_map_count, {} %): soon mmap, and munmap and mprotect in the middle of a \
             mapping, fail with ENOMEM",
            thousands(used),
            thousands(limit),
            percent(used, limit)
        ),
        false => format!("{} of {} mappings", thousands(used), thousands(limit)),
    };
    let state = if near { CLOSE } else { FREE };
    Some(Check { state: state.into(), ..check("mappings", used, Some(limit), &text) })
}

/// Counts what is resident: never a reason for VIRT to matter.
fn cgroup(counted: Counted, limits: &Limits) -> Option<Check> {
    let cgroup = limits.cgroup?;
    let text = format!(
        "the memory limit of its cgroup, {}, counts what is resident, not VIRT: {} ({} %) is in use; the RSS of \
         this process is {}",
        size(cgroup.limit),
        size(cgroup.current),
        percent(cgroup.current, cgroup.limit),
        size(counted.rss)
    );
    let state = if percent(cgroup.current, cgroup.limit) >= NEAR { CLOSE } else { FREE };
    let found = check("cgroup-memory", cgroup.current, Some(cgroup.limit), &text);
    Some(Check { counts_virt: false, state: state.into(), ..found })
}

fn page_tables(counted: Counted, limits: &Limits) -> Option<Check> {
    let used = limits.page_tables?;
    let large = used >= PAGE_TABLES && used >= counted.rss / 10;
    let text = match large {
        true => format!(
            "page tables take {} in addition to the RSS of {}: touched pages lie far apart, and each 2 MiB that is \
             touched anywhere needs a page of its own for its table",
            size(used),
            size(counted.rss)
        ),
        false => format!("page tables take {}", size(used)),
    };
    let state = if large { CLOSE } else { FREE };
    Some(Check { counts_virt: false, state: state.into(), ..check("page-tables", used, None, &text) })
}

fn huge_pages(counted: Counted, limits: &Limits) -> Option<Check> {
    let used = limits.huge.filter(|_| limits.thp == Some(HugePages::Always))?;
    let large = used >= HUGE && used >= counted.rss / 2;
    let text = match large {
        true => format!(
            "{} of the RSS are transparent huge pages: a touched byte makes 2 MiB resident, so a sparse heap \
             costs more than it uses; madvise instead of always in \
             /sys/kernel/mm/transparent_hugepage/enabled leaves that to programs that ask",
            size(used)
        ),
        false => format!("{} in transparent huge pages", size(used)),
    };
    let state = if large { CLOSE } else { FREE };
    Some(Check { counts_virt: false, state: state.into(), ..check("huge-pages", used, None, &text) })
}

fn check(id: &str, used: u64, limit: Option<u64>, text: &str) -> Check {
    Check { id: id.into(), used, limit, counts_virt: true, state: FREE.into(), text: text.into() }
}

fn matters_text(checks: &[Check]) -> String {
    let limits =
        checks.iter().filter(|check| check.counts_virt && check.limit.is_some() && check.state != FREE);
    let near = limits.clone().any(|check| check.state == CLOSE);
    let names: Vec<&str> = limits.map(|check| name(&check.id)).collect();
    let how = if near { "VIRT matters here, and it is near a limit" } else { "VIRT matters here" };
    format!("{how}: {} {} it", names.join(" and "), if names.len() == 1 { "counts" } else { "count" })
}

fn name(id: &str) -> &'static str {
    match id {
        "address-space" => "RLIMIT_AS",
        "data" => "RLIMIT_DATA",
        "overcommit" => "vm.overcommit_memory=2",
        _ => "vm.max_map_count",
    }
}

/// What was examined, so that the reader can check it.
fn harmless_text(checks: &[Check], limits: &Limits) -> String {
    let text = |id: &str| checks.iter().find(|check| check.id == id).map(|check| check.text.clone());
    let mut examined = vec!["RLIMIT_AS and RLIMIT_DATA are unlimited".to_owned()];
    examined.extend(limits.overcommit.map(|mode| match mode {
        Overcommit::Always => "overcommit refuses nothing".to_owned(),
        _ => "overcommit is by heuristics".to_owned(),
    }));
    examined.extend(text("mappings"));
    examined.extend(
        text("page-tables").filter(|_| checks.iter().any(|c| c.id == "page-tables" && c.state == FREE)),
    );
    format!("VIRT does no harm here, no limit counts it ({})", examined.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::CgroupLimit;

    const MIB: u64 = 1 << 20;

    fn plain() -> Limits {
        Limits {
            known: true,
            vm_data: Some(10 * MIB),
            page_tables: Some(MIB / 4),
            max_map_count: Some(65_530),
            overcommit: Some(Overcommit::Heuristic),
            commit_limit: Some(1000 * MIB),
            committed: Some(900 * MIB),
            memory: Some(8000 * MIB),
            thp: Some(HugePages::Madvise),
            cpus: Some(2),
            ..Limits::default()
        }
    }

    const SMALL: Counted = Counted { virt: 100 * MIB, vm_peak: 120 * MIB, rss: 9 * MIB, mappings: 212 };

    fn of(limits: Limits) -> Verdict {
        judge(SMALL, &limits).expect("limits are known")
    }

    fn state_of<'v>(verdict: &'v Verdict, id: &str) -> &'v str {
        verdict.checks.iter().find(|check| check.id == id).map_or("none", |check| &check.state)
    }

    #[test]
    fn without_limits_it_is_harmless() {
        let verdict = of(plain());
        assert!(!verdict.matters);
        assert_eq!(
            verdict.text,
            "VIRT does no harm here, no limit counts it (RLIMIT_AS and RLIMIT_DATA are unlimited, overcommit \
             is by heuristics, 212 of 65,530 mappings, page tables take 256 KiB)"
        );
        assert!(judge(SMALL, &Limits::default()).is_none());
    }

    #[test]
    fn a_limit_on_the_address_space_counts_the_peak() {
        let wide = of(Limits { address_space: Some(200 * MIB), ..plain() });
        assert!(wide.matters && state_of(&wide, "address-space") == LIMITED);
        assert_eq!(wide.text, "VIRT matters here: RLIMIT_AS counts it");
        let tight = of(Limits { address_space: Some(140 * MIB), ..plain() });
        assert_eq!(tight.text, "VIRT matters here, and it is near a limit: RLIMIT_AS counts it");
        assert!(tight.checks[0].text.contains("100.0 MiB (71 %) is taken, 120.0 MiB at its peak"));
    }

    #[test]
    fn strict_overcommit_counts_and_heuristics_do_not() {
        let strict = of(Limits { overcommit: Some(Overcommit::Never), ..plain() });
        assert!(strict.matters && state_of(&strict, "overcommit") == CLOSE);
        let both = Limits { data: Some(100 * MIB), overcommit: Some(Overcommit::Never), ..plain() };
        assert!(of(both).text.ends_with("RLIMIT_DATA and vm.overcommit_memory=2 count it"));
        assert!(!of(Limits { overcommit: Some(Overcommit::Always), ..plain() }).matters);
    }

    #[test]
    fn a_memory_limit_counts_what_is_resident() {
        let cgroup = CgroupLimit { limit: 50 * MIB, current: 49 * MIB };
        let verdict = of(Limits { cgroup: Some(cgroup), ..plain() });
        assert!(!verdict.matters && state_of(&verdict, "cgroup-memory") == CLOSE);
    }

    #[test]
    fn many_mappings_matter_few_do_not() {
        let many = judge(Counted { mappings: 60_000, ..SMALL }, &plain()).expect("limits are known");
        assert!(many.matters && state_of(&many, "mappings") == CLOSE);
        assert!(many.text.ends_with("vm.max_map_count counts it"));
    }

    #[test]
    fn sparse_page_tables_and_huge_pages_are_reported() {
        let sparse = Limits { page_tables: Some(40 * MIB), ..plain() };
        assert_eq!(state_of(&of(sparse), "page-tables"), CLOSE);
        let huge = Limits { thp: Some(HugePages::Always), huge: Some(80 * MIB), ..plain() };
        let counted = Counted { rss: 90 * MIB, ..SMALL };
        let verdict = judge(counted, &huge).expect("limits are known");
        assert_eq!(state_of(&verdict, "huge-pages"), CLOSE);
        assert!(!verdict.matters);
    }
}

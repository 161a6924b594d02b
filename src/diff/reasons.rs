//! Differences in the limits, C library and environment of two processes, with the bytes that they affect.
//! Nothing is guessed: a difference explains what changed in the categories that the allocator's or runtime's
//! rule decides by it, and names the other differences that affect the same memory.

use super::model::{CategoryChange, Reason};
use super::side::Side;
use crate::model::number::signed;
use crate::model::path::base_name;
use crate::report::bears_on;
use crate::report::frames::role_of_module;
use crate::report::model::{Process, Role, Surroundings};
use crate::report::units::{exact_size, thousands};
use std::collections::{BTreeMap, BTreeSet};

const LIBC: &str = "libc";

/// Of two single processes whose surroundings are known.
pub(super) fn reasons(a: &Side<'_>, b: &Side<'_>, changes: &[CategoryChange]) -> Vec<Reason> {
    let ([of_a], [of_b]) = (a.processes.as_slice(), b.processes.as_slice()) else { return Vec::new() };
    let (Some(setup_a), Some(setup_b)) = (&of_a.surroundings, &of_b.surroundings) else {
        return Vec::new();
    };
    let (facts_a, facts_b) = (facts(of_a, setup_a), facts(of_b, setup_b));
    let names: BTreeSet<&String> = facts_a.keys().chain(facts_b.keys()).collect();
    let mut found: Vec<Reason> = Vec::new();
    for what in names {
        let (a_says, b_says) = (facts_a.get(what), facts_b.get(what));
        if a_says == b_says {
            continue;
        }
        let own = bears_on(what);
        let touched: Vec<&CategoryChange> = changes
            .iter()
            .filter(|row| own.contains(&row.id.as_str()) && row.widths.virt.change != 0)
            .collect();
        let explains = touched.iter().map(|row| row.widths.virt.change).reduce(i64::saturating_add);
        found.push(Reason {
            what: what.clone(),
            a: a_says.cloned(),
            b: b_says.cloned(),
            explains,
            categories: touched.iter().map(|row| row.id.clone()).collect(),
            shared_with: Vec::new(),
        });
    }
    let libc = signed(images(b)).saturating_sub(signed(images(a)));
    if let Some(reason) = found.iter_mut().find(|reason| reason.what == LIBC).filter(|_| libc != 0) {
        reason.explains = Some(libc);
        reason.categories = vec!["loader".to_owned()];
    }
    let bearing: Vec<(String, Vec<String>)> =
        found.iter().map(|reason| (reason.what.clone(), reason.categories.clone())).collect();
    for reason in &mut found {
        let others = bearing.iter().filter(|(what, _)| *what != reason.what);
        let shared = others.filter(|(_, ids)| ids.iter().any(|id| reason.categories.contains(id)));
        reason.shared_with = shared.map(|(what, _)| what.clone()).collect();
    }
    found.sort_by_key(|reason| std::cmp::Reverse(reason.explains.map_or(0, i64::unsigned_abs)));
    found
}

/// What is compared, by name, in words. What is not there is not limited, or not set.
fn facts(process: &Process, setup: &Surroundings) -> BTreeMap<String, String> {
    // a limit of the cgroup above what the machine has is none
    let memory = [setup.cgroup_limit, setup.memory].into_iter().flatten().min();
    // as many as a quota pays for, rounded up: what runtimes count
    let quota = setup.cpu_quota.map(|quota| quota.div_ceil(1000).max(1));
    let processors = [setup.processors, quota].into_iter().flatten().min();
    let threads = Some(process.threads_seen).filter(|threads| *threads > 0);
    let facts = [
        (LIBC, setup.libc.clone()),
        ("threads", threads.map(thousands)),
        ("stack limit", setup.stack_limit.map(exact_size)),
        ("address-space limit", setup.address_space_limit.map(exact_size)),
        ("data limit", setup.data_limit.map(exact_size)),
        ("memory", memory.map(exact_size)),
        ("processors", processors.map(thousands)),
    ];
    let facts = facts.into_iter().filter_map(|(what, value)| Some((what.to_owned(), value?)));
    let variables = setup.variables.iter().filter_map(|assignment| {
        let (name, value) = assignment.split_once('=')?;
        Some((name.to_owned(), value.to_owned()))
    });
    facts.chain(variables).collect()
}

/// Bytes of the images of the C library and its loader.
fn images(side: &Side<'_>) -> u64 {
    let own = |path: &str| matches!(role_of_module(base_name(path)), Role::Libc | Role::Loader);
    let regions = side.items.iter().map(|item| item.region);
    regions.filter(|region| region.path.as_deref().is_some_and(own)).map(|region| region.virt).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diff::{By, Options, Pick, compare};
    use crate::report::Report;
    use crate::report::model::{Region, Totals};

    fn report(stacks: u64, threads: u64, setup: Surroundings) -> Report {
        let region = |at: u64, len: u64, category: &str, path: Option<&str>| Region {
            start: format!("{at:#x}"),
            end: format!("{:#x}", at + len),
            prot: "rw-p".into(),
            category: category.into(),
            virt: len,
            path: path.map(str::to_owned),
            ..Region::default()
        };
        let libc = if setup.libc.as_deref() == Some("glibc 2.36") { 0x2000 } else { 0x5000 };
        let regions = vec![
            region(0x10000, stacks, "thread-stack", None),
            region(0x7000_0000, libc, "loader", Some("/lib/libc.so.6")),
        ];
        let virt = stacks + libc;
        let totals = Totals { virt, writable: virt, ..Totals::default() };
        let process = Process {
            totals,
            regions,
            threads_seen: threads,
            surroundings: Some(setup),
            ..Process::default()
        };
        Report { schema: 1, processes: vec![process], ..Report::default() }
    }

    fn reasons_of(a: &Report, b: &Report) -> Vec<Reason> {
        let side = |report, name| Side::new(report, (name, "report"), Pick::Main).expect("sound");
        compare(&side(a, "a"), &side(b, "b"), Options { by: By::Stack }).reasons
    }

    #[test]
    fn each_difference_with_what_it_bears_on() {
        let setup = |libc: &str, stack: u64| Surroundings {
            libc: Some(libc.into()),
            stack_limit: Some(stack),
            memory: Some(8 << 30),
            ..Surroundings::default()
        };
        let a = report(0x10000, 2, setup("glibc 2.36", 8 << 20));
        let b = Surroundings {
            variables: vec!["MALLOC_ARENA_MAX=1".into()],
            cgroup_limit: Some(1 << 30),
            ..setup("glibc 2.41", 1 << 20)
        };
        let b = report(0x4000, 3, b);
        let found = reasons_of(&a, &b);
        let reason = |what: &str| found.iter().find(|reason| reason.what == what).expect(what);
        assert_eq!(reason("libc").explains, Some(0x3000));
        let stacks = reason("stack limit");
        assert_eq!((stacks.a.as_deref(), stacks.b.as_deref()), (Some("8 MiB"), Some("1 MiB")));
        assert_eq!(stacks.explains, Some(-0xc000));
        assert_eq!(stacks.shared_with, ["threads"], "it cannot be distinguished");
        let arenas = reason("MALLOC_ARENA_MAX");
        assert_eq!((arenas.a.as_deref(), arenas.b.as_deref(), arenas.explains), (None, Some("1"), None));
        assert_eq!(reason("memory").explains, None, "there is no JVM");
        assert_eq!(found.len(), 5, "{found:?}");
        assert_eq!(found[0].what, "stack limit");
        assert!(reasons_of(&a, &a).is_empty());
    }
}

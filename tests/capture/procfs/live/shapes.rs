//! Memory of every kind, on every rung, against smaps.

use super::target::{
    RUNGS, Target, compile, compile_with, differences, figures, is_ready, observe_from, smaps_of,
};
use crate::support::skip_this;
use vmaudit::model::observation::ResidencySource;

#[test]
fn every_rung_agrees_with_smaps_for_every_kind_of_memory() {
    let directory = tempfile::tempdir().expect("a directory");
    let Some(program) = compile("procfs_shapes", directory.path()) else { return };
    let target = Target::start(&program, &[], is_ready).settled();
    if !target.lines.iter().any(|line| line == "hugetlb") {
        skip_this("no hugetlb pages on this machine (vm.nr_hugepages)");
    }
    let smaps = smaps_of(target.pid());
    let total: u64 = smaps.iter().map(|entry| entry.rss).sum();
    assert!(total > 8 << 20, "the program has touched its memory");
    for rung in RUNGS {
        let seen = observe_from(target.pid(), rung);
        assert_eq!(seen.residency.source, best_possible(rung));
        let wrong = differences(&seen, &smaps);
        if rung == ResidencySource::Pagemap && !seen.gaps.is_empty() {
            // Without CAP_SYS_ADMIN pages of zeros cannot be recognised, and the snapshot says so.
            assert_eq!(seen.gaps.len(), 1, "{:?}", seen.gaps);
            assert!(seen.gaps[0].contains("pages of zeros"), "{:?}", seen.gaps);
            assert!(!wrong.is_empty() && figures(&seen).values().map(|f| f.0).sum::<u64>() > total);
        } else {
            assert!(seen.gaps.is_empty(), "{:?}", seen.gaps);
            assert!(wrong.is_empty(), "{rung:?}:\n{}", wrong.join("\n"));
        }
        let virt: u64 = seen.mappings.iter().map(|mapping| mapping.range.len()).sum();
        assert_eq!(virt, seen.status.vm_size, "mappings add up to VmSize");
    }
}

/// PAGEMAP_SCAN came with Linux 6.7; before, the next rung is used.
fn best_possible(rung: ResidencySource) -> ResidencySource {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    match rung {
        ResidencySource::PagemapScan if version < (6, 7) => ResidencySource::Pagemap,
        rung => rung,
    }
}

#[test]
fn an_address_space_in_motion_gives_a_sound_picture() {
    let directory = tempfile::tempdir().expect("a directory");
    let Some(program) = compile("procfs_churn", directory.path()) else { return };
    let target = Target::start(&program, &[], is_ready);
    for turn in 0..150 {
        let rung = RUNGS[turn % RUNGS.len()];
        let seen = observe_from(target.pid(), rung);
        assert_eq!(seen.residency.source, best_possible(rung));
        for pair in seen.mappings.windows(2) {
            assert!(pair[0].range.end <= pair[1].range.start, "{pair:?}");
        }
        for runs in [&seen.residency.resident, &seen.residency.swapped] {
            for pair in runs.windows(2) {
                assert!(pair[0].end < pair[1].start, "joined where they meet: {pair:?}");
            }
        }
        let all: u64 = seen.residency.resident.iter().map(|run| run.len()).sum();
        let inside: u64 = figures(&seen).values().map(|figures| figures.0).sum();
        assert!(seen.residency.source == ResidencySource::SmapsProportion || all == inside);
        for (range, (rss, swap)) in figures(&seen) {
            assert!(rss + swap <= range.len(), "{range}: {rss} + {swap}");
        }
    }
}

/// Twenty terabytes, nearly all of it shadow: the scan walks page tables, not addresses, and
/// plain pagemap (eight bytes a page) is not attempted.
#[test]
fn a_sanitizers_shadow_is_no_trap() {
    let directory = tempfile::tempdir().expect("a directory");
    let args = ["-fsanitize=address"];
    let Some(program) = compile_with("procfs_shadow", directory.path(), &args) else { return };
    let target = Target::start(&program, &[], is_ready).settled();
    let smaps = smaps_of(target.pid());
    let virt: u64 = smaps.iter().map(|entry| entry.mapping.range.len()).sum();
    assert!(virt > 10 << 40, "the shadow is there");
    let scanned = observe_from(target.pid(), best_possible(ResidencySource::PagemapScan));
    if scanned.residency.source == ResidencySource::PagemapScan {
        assert_eq!(differences(&scanned, &smaps), Vec::<String>::new());
    }
    let seen = observe_from(target.pid(), ResidencySource::Pagemap);
    assert_eq!(seen.residency.source, ResidencySource::SmapsProportion);
    assert!(seen.gaps.iter().any(|gap| gap.contains("pagemap not read")), "{:?}", seen.gaps);
    assert_eq!(differences(&seen, &smaps), Vec::<String>::new());
}

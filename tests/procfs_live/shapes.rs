//! Memory of every kind, on every rung, against smaps.

use crate::target::{Target, compile, differences, is_ready, observe_from, smaps_of};
use vmaudit::model::observation::ResidencySource;

#[test]
fn every_rung_agrees_with_smaps_for_every_kind_of_memory() {
    let directory = tempfile::tempdir().expect("a directory");
    let Some(program) = compile("procfs_shapes", directory.path()) else { return };
    let target = Target::start(&program, &[], is_ready);
    if !target.lines.iter().any(|line| line == "hugetlb") {
        println!("SKIPPED in part: no hugetlb pages on this machine (vm.nr_hugepages)");
    }
    let smaps = smaps_of(target.pid());
    let total: u64 = smaps.iter().map(|entry| entry.rss).sum();
    assert!(total > 8 << 20, "the program has touched its memory");
    for rung in [ResidencySource::PagemapScan, ResidencySource::Pagemap, ResidencySource::SmapsProportion] {
        let seen = observe_from(target.pid(), rung);
        if rung == ResidencySource::PagemapScan && seen.residency.source != rung {
            println!("SKIPPED in part: no PAGEMAP_SCAN on this kernel");
        } else {
            assert_eq!(seen.residency.source, rung);
        }
        assert!(seen.gaps.is_empty(), "{:?}", seen.gaps);
        let wrong = differences(&seen, &smaps);
        assert!(wrong.is_empty(), "{rung:?}:\n{}", wrong.join("\n"));
        let virt: u64 = seen.mappings.iter().map(|mapping| mapping.range.len()).sum();
        assert_eq!(virt, seen.status.vm_size, "mappings add up to VmSize");
    }
}

//! `model::limits`.

use vmaudit::model::observation::limits::CgroupLimit;
use vmaudit::model::observation::limits::HugePages;
use vmaudit::model::observation::limits::Limits;
use vmaudit::model::observation::limits::Overcommit;

#[test]
fn pairs_and_back() {
    let full = Limits {
        known: true,
        address_space: Some(1),
        data: Some(u64::MAX),
        vm_data: Some(3),
        page_tables: Some(4),
        max_map_count: Some(65_530),
        overcommit: Some(Overcommit::Never),
        commit_limit: Some(5),
        committed: Some(6),
        memory: Some(7),
        cgroup: Some(CgroupLimit { limit: 8, current: 9 }),
        thp: Some(HugePages::Madvise),
        huge: Some(0),
        cpus: Some(2),
        cpu_quota: Some(1500),
    };
    let pairs = full.to_pairs();
    assert_eq!(pairs.len(), 16);
    assert_eq!(Limits::from_pairs(pairs), full);
    assert_eq!(Limits::from_pairs(Limits::default().to_pairs()), Limits::default());
    assert_eq!(Limits::from_pairs([("from-a-later-version", 1)]), Limits::default());
}

//! Snapshots of running processes that are compared after further calls were reported.

use super::{ANON, MM, PID, Story, event_of, mapping, pages};
use vmaudit::ledger::Origin;
use vmaudit::model::MmKey;

/// The snapshot saw four pages; before it is compared the process unmaps them and ends.
fn examined(pending: bool) -> (Option<u64>, u64, u64) {
    let mut story = Story::new(Vec::new());
    if pending {
        story.spaces.snapshot_begins();
    }
    let made = story.mmap(pages(0, 4), 3, ANON);
    let begun = story.count * 1000 + 1;
    story.munmap(pages(0, 4));
    story.exit(0, true);
    let result = story.reconcile_at(vec![mapping(pages(0, 4), "rw-p", "")], begun);
    assert_eq!(result.regions.len(), 1);
    (event_of(&result, &result.regions[0]), made, result.drift.0)
}

#[test]
fn what_was_unmapped_since_has_its_owner_though_the_process_has_ended() {
    let (owner, made, drift) = examined(true);
    assert_eq!((owner, drift), (Some(made), 0));
    // Without a warning nothing is kept for it.
    assert_eq!(examined(false).0, None);
}

#[test]
fn nothing_is_kept_once_snapshots_are_compared() {
    let mut story = Story::new(Vec::new());
    story.spaces.snapshot_begins();
    story.mmap(pages(0, 4), 3, ANON);
    let begun = story.count * 1000 + 1;
    story.munmap(pages(0, 4));
    story.spaces.snapshots_compared();
    let result = story.reconcile_at(vec![mapping(pages(0, 4), "rw-p", "")], begun);
    assert_eq!(result.regions[0].origin, Origin::Unknown);
}

#[test]
fn a_program_executed_since_is_another_one() {
    let mut story = Story::new(Vec::new());
    let begun = story.count * 1000 + 1;
    story.mmap(pages(0, 4), 3, ANON);
    assert!(!story.spaces.replaced_since(PID, begun));
    story.exec(MmKey(MM.0 + 1), Some(Vec::new()));
    assert!(story.spaces.replaced_since(PID, begun));
    assert!(!story.spaces.replaced_since(PID, story.count * 1000 + 1));
    assert!(!story.spaces.replaced_since(999, begun), "nothing is known of it");
}

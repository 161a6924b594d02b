//! Lost events: never a silently wrong answer.

use super::{ANON, MM, PID, Story, event_of, mapping, observed, pages};
use vmaudit::ledger::{Doubt, Origin};
use vmaudit::model::{MmKey, NoStack};

#[test]
fn what_is_older_than_a_loss_is_doubtful() {
    let mut story = Story::new(vec![mapping(pages(50, 52), "r-xp", "[vdso]")]);
    story.mmap(pages(0, 4), 3, ANON);
    story.spaces.note_loss(story.count * 1000 + 500);
    story.mmap(pages(4, 8), 3, ANON);
    let result =
        story.reconcile(vec![mapping(pages(0, 8), "rw-p", ""), mapping(pages(50, 52), "r-xp", "[vdso]")]);
    let doubts: Vec<_> = result.regions.iter().map(|r| r.doubt).collect();
    assert_eq!(doubts, vec![Some(Doubt::EventsLost), None, None]);
}

#[test]
fn another_address_space_begun_later_has_no_doubt() {
    let mut story = Story::new(Vec::new());
    story.mmap(pages(0, 4), 3, ANON);
    story.spaces.note_loss(story.count * 1000 + 500);
    story.exec(MmKey(0xc000), Some(Vec::new()));
    story.mmap(pages(0, 4), 3, ANON);
    let result = story.reconcile(vec![mapping(pages(0, 4), "rw-p", "")]);
    assert_eq!(result.regions[0].doubt, None);
}

#[test]
fn a_lost_stack_is_said() {
    let mut story = Story::new(Vec::new());
    let op = vmaudit::model::VmOp::Mmap {
        addr: pages(0, 1).start,
        len: 4096,
        prot: 3,
        flags: ANON,
        fd: -1,
        offset: 0,
        file: None,
    };
    let mut event = story.event(op, pages(0, 1).start.0 as i64);
    event.stack = Err(NoStack::Lost);
    story.spaces.apply(&event);
    let result = story.reconcile(vec![mapping(pages(0, 1), "rw-p", "")]);
    assert_eq!(result.regions[0].doubt, Some(Doubt::StackLost));
}

#[test]
fn after_a_loss_the_maps_are_taken_over() {
    let mut story = Story::new(Vec::new());
    let kept = story.mmap(pages(0, 4), 3, ANON);
    story.mmap(pages(8, 10), 3, ANON);
    let lost = story.count * 1000 + 500;
    story.spaces.note_loss(lost);
    let maps = || {
        vec![
            mapping(pages(0, 4), "r--p", ""),
            mapping(pages(20, 22), "rw-p", ""),
            mapping(pages(30, 31), "r--p", "/lib/x"),
        ]
    };
    story.spaces.resync(PID, &observed(PID, maps(), lost + 100));
    let result = story.reconcile(maps());
    assert_eq!(result.drift.0, 0);
    assert_eq!(event_of(&result, &result.regions[0]), Some(kept));
    assert_eq!(result.regions[0].doubt, Some(Doubt::EventsLost));
    assert_eq!(result.regions[1].origin, Origin::Unknown);
    // From here on all is known again.
    let own = story.mmap(pages(20, 22), 3, ANON | 0x10);
    let result = story.reconcile(maps());
    let region = &result.regions[1];
    assert_eq!((event_of(&result, region), region.doubt), (Some(own), None));
}

/// Calls change ranges while the maps are read: what was lost in these is taken over the next time.
#[test]
fn what_a_resync_leaves_out_the_next_one_takes_over() {
    let mut story = Story::new(Vec::new());
    story.mmap(pages(0, 4), 3, ANON);
    let lost = story.count * 1000 + 500;
    story.spaces.note_loss(lost);
    // Lost: mmap(8..10). Reported after the maps were begun: mprotect(0..2) and (8..10).
    for range in [pages(0, 2), pages(8, 10)] {
        story.mprotect(range, 1, 0);
    }
    let maps = || {
        vec![
            mapping(pages(0, 2), "r--p", ""),
            mapping(pages(2, 4), "rw-p", ""),
            mapping(pages(8, 10), "r--p", ""),
        ]
    };
    assert!(!story.spaces.resync(PID, &observed(PID, maps(), lost + 100)), "some was left out");
    let late = story.count * 1000 + 500;
    let result = story.reconcile(maps());
    assert_eq!(result.drift, pages(8, 10).bytes(), "what was lost below a call is not known yet");
    assert!(story.spaces.resync(PID, &observed(PID, maps(), late)), "nothing moves now");
    let result = story.reconcile(maps());
    assert_eq!(result.drift.0, 0);
    let last = &result.regions[2];
    assert_eq!((last.origin, last.doubt), (Origin::Unknown, Some(Doubt::EventsLost)));
}

#[test]
fn a_landing_on_what_was_lost_proves_nothing() {
    let mut story = Story::new(Vec::new());
    story.thread(11);
    story.mmap(pages(0, 4), 3, ANON);
    story.spaces.note_loss(story.count * 1000 + 500);
    story.mmap(pages(0, 4), 3, ANON);
    let ledger = story.spaces.ledger_of_pid(PID).expect("seen");
    assert_eq!(ledger.unreported_bytes(), 0, "the unmapping itself may be lost");
    // So that the next one counts.
    story.tid = 11;
    story.munmap(pages(0, 4));
    assert_eq!(story.owners(), Vec::new());
}

#[test]
fn after_a_loss_a_strange_process_in_a_known_mm_is_a_new_one() {
    let mut story = Story::new(Vec::new());
    story.mmap(pages(0, 4), 3, ANON);
    story.spaces.note_loss(story.count * 1000 + 500);
    (story.pid, story.tid, story.mm) = (77, 77, MM);
    let own = story.mmap(pages(8, 9), 3, ANON);
    assert_eq!(story.owners(), vec![(pages(8, 9), Some(own))]);
}

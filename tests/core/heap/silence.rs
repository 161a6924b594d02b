//! `heap::silence`.

use vmaudit::heap::mappings::Comparison;
use vmaudit::heap::mappings::Part;
use vmaudit::heap::report::HeapProcess;
use vmaudit::heap::report::model::Doubts;
use vmaudit::heap::report::model::Totals;
use vmaudit::heap::silence::NOT_COUNTED;
use vmaudit::heap::silence::TestCall;
use vmaudit::heap::silence::Watched;
use vmaudit::heap::silence::is_failure;
use vmaudit::heap::silence::is_silent;
use vmaudit::heap::silence::why;
use vmaudit::heap::silence::why_by_library;

fn with_heap(category: &str, mapped: u64) -> HeapProcess {
    let part = Part { category: category.to_owned(), mapped, ..Part::default() };
    let beside = Comparison { mapped, parts: vec![part], ..Comparison::default() };
    HeapProcess { beside: Some(beside), ..HeapProcess::default() }
}

fn watched(test: TestCall, probed: &[(&str, usize)]) -> Watched {
    Watched {
        unprobed: false,
        allocators: vec!["libc".to_owned(), "jemalloc".to_owned()],
        probed: probed.iter().map(|&(file, count)| (file.to_owned(), count)).collect(),
        refused: Vec::new(),
        way: "uprobe multi",
        test,
        from_the_start: true,
    }
}

const LIBC: &[(&str, usize)] = &[("libc.so.6", 9), ("libstdc++.so.6", 1)];

#[test]
fn any_event_ends_the_silence() {
    assert!(is_silent(&HeapProcess::default()));
    for totals in
        [Totals { allocations: 1, ..Totals::default() }, Totals { inherited_blocks: 1, ..Totals::default() }]
    {
        assert!(!is_silent(&HeapProcess { totals, ..HeapProcess::default() }));
    }
    for doubts in [Doubts { lost_events: 1, ..Doubts::default() }, Doubts { refused: 1, ..Doubts::default() }]
    {
        assert!(!is_silent(&HeapProcess { doubts, ..HeapProcess::default() }));
    }
}

/// Probes of which only those at the entry work see frees, and not a single allocation.
#[test]
fn frees_alone_are_none_of_a_process_that_was_watched_from_the_start() {
    for doubts in [
        Doubts { unseen_frees: 2000, ..Doubts::default() },
        Doubts { doubtful_frees: 1, ..Doubts::default() },
    ] {
        let frees = HeapProcess { doubts, ..HeapProcess::default() };
        assert!(is_silent(&frees));
        let broken = why(&frees, &watched(TestCall::Unseen, LIBC));
        assert_eq!((broken.reason.as_str(), is_failure(&broken)), ("probes-do-not-work", true));
        let other = why(&frees, &watched(TestCall::Seen, LIBC));
        assert_eq!((other.reason.as_str(), is_failure(&other)), ("other-functions", true));
        assert!(other.why.contains("it freed"), "{other:?}");
        // What it had before may be what it frees.
        let later = Watched { from_the_start: false, ..watched(TestCall::Seen, LIBC) };
        let quiet = why(&frees, &later);
        assert_eq!((quiet.reason.as_str(), is_failure(&quiet)), ("not-called", false));
    }
}

#[test]
fn what_was_not_counted_is_not_said_not_to_have_been_called() {
    let counted = why_by_library(&HeapProcess::default(), &["libc".to_owned()], None);
    assert!(counted.reason == "not-called" && counted.why.contains("none of them was called"), "{counted:?}");
    let uncounted = HeapProcess { gaps: vec![NOT_COUNTED.to_owned()], ..HeapProcess::default() };
    for other in [None, Some("libx has an allocator of its own")] {
        let nothing = why_by_library(&uncounted, &["libc".to_owned()], other);
        assert_eq!((nothing.reason.as_str(), nothing.why.as_str()), ("not-counted", NOT_COUNTED));
    }
}

#[test]
fn who_never_allocates_is_no_failure() {
    let quiet = HeapProcess::default();
    let nothing = why(&quiet, &watched(TestCall::Seen, LIBC));
    assert_eq!(nothing.reason, "not-called");
    assert!(
        nothing.why.contains("probes on 9 functions of libc.so.6 and 1 of libstdc++.so.6"),
        "{nothing:?}"
    );
    assert!(!is_failure(&nothing));
    let nothing = why(&quiet, &watched(TestCall::NotMade, &[]));
    assert_eq!((nothing.reason.as_str(), is_failure(&nothing)), ("no-function", false));
    assert!(nothing.why.contains("(libc, jemalloc)"), "{nothing:?}");
    // What it had before, and what was not requested, is no proof.
    let before = HeapProcess { attached: true, ..with_heap("jemalloc", 1 << 20) };
    assert!(!is_failure(&why(&before, &watched(TestCall::Seen, LIBC))));
    assert!(!is_failure(&why(&with_heap("mimalloc", 1 << 20), &watched(TestCall::Seen, LIBC))));
}

#[test]
fn allocations_that_nobody_saw_are_a_failure() {
    let quiet = HeapProcess::default();
    let broken = why(&quiet, &watched(TestCall::Unseen, LIBC));
    assert_eq!((broken.reason.as_str(), is_failure(&broken)), ("probes-do-not-work", true));
    assert!(broken.why.contains("uprobe multi"), "{broken:?}");
    let heap = with_heap("glibc-main-heap", 132 << 10);
    let other = why(&heap, &watched(TestCall::Seen, LIBC));
    assert_eq!((other.reason.as_str(), is_failure(&other)), ("other-functions", true));
    assert!(other.why.contains("132 KiB"), "{other:?}");
    let stripped = why(&heap, &watched(TestCall::NotMade, &[]));
    assert_eq!((stripped.reason.as_str(), is_failure(&stripped)), ("no-function", true));
    assert!(stripped.why.contains("it did allocate"), "{stripped:?}");
    let refusals =
        Watched { refused: vec!["libc.so.6: EPERM".to_owned()], ..watched(TestCall::NotMade, &[]) };
    let refused = why(&quiet, &refusals);
    assert_eq!((refused.reason.as_str(), is_failure(&refused)), ("refused", true));
    assert!(refused.why.contains("EPERM"), "{refused:?}");
    // Nobody requested that it is seen.
    let without = Watched { unprobed: true, ..watched(TestCall::Unseen, LIBC) };
    let unprobed = why(&heap, &without);
    assert_eq!((unprobed.reason.as_str(), is_failure(&unprobed)), ("not-probed", false));
}

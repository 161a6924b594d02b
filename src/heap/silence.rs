//! A process of which no allocation was seen: why, as far as that is proven. That nothing is outstanding is
//! another thing, and is said of what was seen only.

use super::mappings::Part;
use super::report::HeapProcess;
use super::report::model::NothingSeen;
use crate::report::heap_description_of;
use crate::report::units::{size, thousands};

/// A call to a function of vmaudit's own, by a child of vmaudit's, that was probed as the allocators' are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TestCall {
    #[default]
    NotMade,
    Seen,
    Unseen,
}

/// How a process was watched.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Watched {
    /// Names of the descriptions.
    pub allocators: Vec<String>,
    /// Files that the process mapped and in which functions are probed: base name, functions.
    pub probed: Vec<(String, usize)>,
    /// What the kernel said to probes that it refused.
    pub refused: Vec<String>,
    /// `uprobe session`.
    pub way: &'static str,
    pub test: TestCall,
    /// It cannot have anything from before to free.
    pub from_the_start: bool,
}

/// True where not a single allocation was seen, whatever was freed.
pub fn is_silent(process: &HeapProcess) -> bool {
    let (totals, doubts) = (&process.totals, &process.doubts);
    let allocations = totals.allocations + totals.inherited_blocks + doubts.lost_events + doubts.refused;
    process.rows.is_empty() && allocations == 0
}

/// Of a silent process.
pub fn why(process: &HeapProcess, watched: &Watched) -> NothingSeen {
    let bytes = allocator_bytes(process, &watched.allocators);
    let frees = match watched.from_the_start {
        true => process.doubts.unseen_frees + process.doubts.doubtful_frees,
        false => 0,
    };
    let names = watched.allocators.join(", ");
    let proof = match (frees, bytes) {
        (0, 0) => String::new(),
        (0, bytes) => format!("; it has {} of their mappings, so it did allocate", size(bytes)),
        (1, _) => "; it freed a block, so it did allocate".to_owned(),
        (frees, _) => format!("; it freed {} blocks, so it did allocate", thousands(frees)),
    };
    let (reason, why) = if watched.probed.is_empty() && !watched.refused.is_empty() {
        ("refused", format!("the kernel refused the probes: {}", watched.refused.join("; ")))
    } else if watched.probed.is_empty() {
        (
            "no-function",
            format!(
                "no function of these allocators ({names}) is in its program or in a library that it mapped: it \
                 has none, or its file has no symbols of them{proof}"
            ),
        )
    } else {
        let placed = format!("{} were in place", probes(&watched.probed));
        match (watched.test, proof.is_empty()) {
            (TestCall::Unseen, _) => (
                "probes-do-not-work",
                format!(
                    "{placed}, but a test call to a function that is probed alike ({}) was not seen either: these \
                     probes do not work on this kernel",
                    watched.way
                ),
            ),
            (_, false) => (
                "other-functions",
                format!(
                    "{placed} and none that allocates was called{proof}, by functions that are not probed"
                ),
            ),
            (TestCall::Seen, true) => (
                "not-called",
                format!(
                    "{placed}, and none that allocates was called; a test call to a function that is probed alike \
                     was seen"
                ),
            ),
            (TestCall::NotMade, true) => {
                ("not-called", format!("{placed}, and none that allocates was called"))
            }
        }
    };
    NothingSeen { reason: reason.to_owned(), why, frees, allocator_bytes: bytes }
}

/// It is certain that there was something to see.
pub fn is_failure(nothing: &NothingSeen) -> bool {
    let proven = nothing.allocator_bytes + nothing.frees > 0;
    proven || matches!(nothing.reason.as_str(), "refused" | "probes-do-not-work")
}

/// Of the mappings of the allocators that are watched. What a process had mapped before it was watched
/// proves nothing.
fn allocator_bytes(process: &HeapProcess, allocators: &[String]) -> u64 {
    let Some(beside) = process.beside.as_ref().filter(|_| !process.attached) else { return 0 };
    let watched = |part: &&Part| {
        heap_description_of(&part.category).is_some_and(|name| allocators.iter().any(|each| each == name))
    };
    let parts = beside.parts.iter().filter(watched);
    parts.map(|part| part.mapped).sum()
}

/// `probes on 9 functions of libc.so.6 and 2 of libjemalloc.so.2`.
fn probes(probed: &[(String, usize)]) -> String {
    let mut of: Vec<String> = Vec::new();
    for (at, (file, count)) in probed.iter().enumerate() {
        let noun = match (at, count) {
            (0, 1) => " function",
            (0, _) => " functions",
            _ => "",
        };
        of.push(format!("{count}{noun} of {file}"));
    }
    format!("probes on {}", of.join(" and "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heap::mappings::Comparison;
    use crate::heap::report::model::{Doubts, Totals};

    fn with_heap(category: &str, mapped: u64) -> HeapProcess {
        let part = Part { category: category.to_owned(), mapped, ..Part::default() };
        let beside = Comparison { mapped, parts: vec![part], ..Comparison::default() };
        HeapProcess { beside: Some(beside), ..HeapProcess::default() }
    }

    fn watched(test: TestCall, probed: &[(&str, usize)]) -> Watched {
        Watched {
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
        for totals in [
            Totals { allocations: 1, ..Totals::default() },
            Totals { inherited_blocks: 1, ..Totals::default() },
        ] {
            assert!(!is_silent(&HeapProcess { totals, ..HeapProcess::default() }));
        }
        for doubts in
            [Doubts { lost_events: 1, ..Doubts::default() }, Doubts { refused: 1, ..Doubts::default() }]
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
        // What it had before, and what nobody asked about, is no proof.
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
    }
}

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
    /// It never had probes.
    pub unprobed: bool,
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

/// A gap of a process in which the preloaded library has announced itself and never begun to count.
pub const NOT_COUNTED: &str = "its allocations were not counted: the library is loaded, but had no address space \
                               (RLIMIT_AS), no memory or no descriptor (RLIMIT_NOFILE) for its tables; what the process \
                               allocated is not known (--method uprobes needs none of these there)";

/// Of a silent process that has the preloaded library. `other`: an allocator that it cannot interpose.
pub fn why_by_library(process: &HeapProcess, allocators: &[String], other: Option<&str>) -> NothingSeen {
    let bytes = allocator_bytes(process, allocators);
    if process.gaps.iter().any(|gap| gap == NOT_COUNTED) {
        let (reason, why) = ("not-counted".to_owned(), NOT_COUNTED.to_owned());
        return NothingSeen { reason, why, frees: 0, allocator_bytes: bytes };
    }
    let frees = if process.forked { 0 } else { process.doubts.unseen_frees };
    let interposed =
        "the library interposes malloc and its relatives, and none of them was called to allocate";
    let (reason, why) = match (other, bytes + frees) {
        (Some(other), _) => ("other-functions", format!("{interposed}; {other}")),
        (None, 0) => ("not-called", interposed.to_owned()),
        (None, _) => (
            "other-functions",
            format!(
                "{interposed}; it has {} of the allocators' mappings, so other functions allocate",
                size(bytes)
            ),
        ),
    };
    NothingSeen { reason: reason.to_owned(), why, frees, allocator_bytes: bytes }
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
    let (reason, why) = if watched.unprobed {
        ("not-probed", "it had no probes (see what is said of it above)".to_owned())
    } else if watched.probed.is_empty() && !watched.refused.is_empty() {
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
    let proven = nothing.allocator_bytes + nothing.frees > 0 && nothing.reason != "not-probed";
    proven || matches!(nothing.reason.as_str(), "refused" | "probes-do-not-work")
}

/// Of the mappings of the allocators that are watched. What a process had mapped before it was watched
/// proves nothing.
fn allocator_bytes(process: &HeapProcess, allocators: &[String]) -> u64 {
    let Some(comparison) = process.beside.as_ref().filter(|_| !process.attached) else { return 0 };
    let watched = |part: &&Part| {
        heap_description_of(&part.category).is_some_and(|name| allocators.iter().any(|each| each == name))
    };
    let parts = comparison.parts.iter().filter(watched);
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

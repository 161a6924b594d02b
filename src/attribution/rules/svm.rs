//! GraalVM native images. At its start an image reserves the addresses in which its heap may ever lie, and maps the heap
//! that was made when it was built into them, from its own file (substratevm: `ImageHeapProvider`). Its functions seldom
//! have names. What proves the range is that code of a file with such a heap requested it without access, and that the
//! file's heap lies in it; from a snapshot that the file is mapped once more, into what is reserved. As maps shows it
//! (GraalVM 23, Linux x86-64):
//!
//! ```text
//! ---p                        no object is at the first addresses
//! r--p, rw-p, r--p  the file  the heap that the image was built with
//! rw-p, ---p, rw-p, …         what the program allocated since, in chunks, with room to align them
//! ---p                        by far the largest: addresses that are left
//! ```

use super::app::{APP_MMAP, caller_of};
use super::runs::runs;
use super::{Advice, Claim, Group, Rule, Subject, Surveyed, World};
use crate::attribution::callpath::Line;
use crate::attribution::category::{Evidence, Merge};
use crate::attribution::findings::Fix;
use crate::attribution::world::About;
use crate::model::{AddrRange, Mapping, MappingFile, Sharing, Sign};

/// The section that holds the heap of the image.
const MARK: &str = "graalvm-native-image";
const SECTION: &str = ".svm_heap";

/// The size that advice is about.
const SMALL: u64 = 4 << 30;

const ID: &str = "svm";

pub struct SvmRule;

fn part(subject: &Subject<'_>) -> &'static str {
    if subject.is_reserved() { "reserved (PROT_NONE)" } else { "mmap" }
}

/// The range and what was mapped into it are one thing to the program.
fn claim(evidence: Evidence, part: &'static str) -> Claim {
    Claim::new(APP_MMAP, evidence, part).merge(Merge::ByKind(MARK))
}

/// The addresses around the second mapping of this file, with what is left of them at their end.
fn range_of(mappings: &[Mapping], image: MappingFile) -> Option<AddrRange> {
    let is_private = |m: &Mapping| m.sharing == Sharing::Private && !m.prot.exec;
    let is_plain = |m: &Mapping| m.file.is_none() && m.name.is_empty();
    let fits = |m: &Mapping| is_private(m) && (is_plain(m) || m.file == Some(image));
    runs(mappings, fits).into_iter().find_map(|run| {
        let heap = run.windows(2).position(|pair| {
            let [below, heap] = pair else { return false };
            is_plain(below) && below.prot.is_none() && heap.file == Some(image)
        })?;
        let reserved = run.iter().skip(heap + 1).filter(|m| is_plain(m) && m.prot.is_none());
        let left = reserved.max_by_key(|m| m.range.len())?;
        Some(AddrRange { start: run.get(heap)?.range.start, end: left.range.end })
    })
}

impl Rule for SvmRule {
    fn id(&self) -> &'static str {
        ID
    }

    fn signs(&self) -> &'static [Sign] {
        const { &[Sign { section: Some(SECTION), ..Sign::new(MARK, &[]) }] }
    }

    fn knows_here(&self, line: &Line, world: &World<'_>) -> bool {
        let holds = || world.is_marked(MARK, &line.module);
        world.fact("has a GraalVM native image", || world.has_mark(MARK))
            && world.fact_about("holds the heap of a native image", About::Module(line.frame.module), holds)
    }

    fn by_stack(&self, subject: &Subject<'_>, world: &World<'_>, at: usize) -> Option<Claim> {
        let call = subject.call.filter(|_| subject.is_private_anonymous())?;
        if at == subject.path?.caller()
            && let Some(found) = world.surveyed(ID, subject.range.start)
        {
            return Some(Claim { part: part(subject), ..found.claim.clone() });
        }
        if at != subject.path?.caller() || !call.is_anonymous() || !call.prot.is_none() {
            return None;
        }
        let holds_image = world.marked(MARK).any(|found| {
            let mut own = world.mappings().iter().filter(|m| m.file == Some(found.file));
            own.any(|m| subject.span.contains_range(m.range))
        });
        holds_image.then(|| claim(Evidence::Stack, part(subject)))
    }

    fn survey(&self, world: &World<'_>) -> Vec<Surveyed> {
        let mut found: Vec<Surveyed> = world
            .marked(MARK)
            .filter_map(|image| range_of(world.mappings(), image.file))
            .map(|range| Surveyed { range, claim: claim(Evidence::Stack, "mmap") })
            .collect();
        found.sort_by_key(|each| each.range);
        found
    }

    fn by_header(&self, subject: &Subject<'_>, world: &World<'_>) -> Option<Claim> {
        world.surveyed(ID, subject.range.start)?;
        let own = subject.is_private_anonymous() && subject.record.is_none();
        own.then(|| claim(Evidence::Header, part(subject)))
    }

    fn advise(&self, group: &Group<'_>, _world: &World<'_>) -> Advice {
        let mut advice = Advice::why(
            "a GraalVM native image reserves the addresses in which its heap may ever lie when it starts; the heap that it \
             was built with is mapped into them, and so is what it allocates",
        );
        if let Some(path) = group.path {
            advice.why += &format!("; reserved by {}", caller_of(path));
        }
        advice.title = Some("addresses for the heap of a GraalVM native image".to_string());
        match group.footprint.virt.checked_sub(SMALL) {
            Some(saves) if saves > 0 => advice.fix(
                Fix::new("-XX:ReservedAddressSpaceSize=4g (an argument of the program)", saves, 0)
                    .note("where the program leaves such arguments to its runtime; it ends when its heap needs more"),
            ),
            _ => advice,
        }
        .wont("-Xmx", "limits how much of the range the heap takes; the range stays")
    }
}

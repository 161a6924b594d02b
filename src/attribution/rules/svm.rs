//! GraalVM native images. At its start an image reserves the addresses in which its heap may ever lie, and maps the heap
//! that was made when it was built into them, from its own file (substratevm: `ImageHeapProvider`). Its functions seldom
//! have names. What proves the range is that code of a file with such a heap requested it without access, and that the
//! file's heap lies in it.

use super::app::{APP_MMAP, caller_of};
use super::{Advice, Claim, Group, Rule, Subject, World};
use crate::attribution::callpath::Line;
use crate::attribution::category::{Evidence, Merge};
use crate::attribution::findings::Fix;
use crate::attribution::world::About;
use crate::model::Sign;

/// The section that holds the heap of the image.
const MARK: &str = "graalvm-native-image";
const SECTION: &str = ".svm_heap";

/// The size that advice is about.
const SMALL: u64 = 4 << 30;

pub struct SvmRule;

impl Rule for SvmRule {
    fn id(&self) -> &'static str {
        "svm"
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
        if at != subject.path?.caller() || !call.is_anonymous() || !call.prot.is_none() {
            return None;
        }
        let holds_image = world.marked(MARK).any(|found| {
            let mut own = world.mappings().iter().filter(|m| m.file == Some(found.file));
            own.any(|m| subject.span.contains_range(m.range))
        });
        let part = if subject.is_reserved() { "reserved (PROT_NONE)" } else { "mmap" };
        holds_image.then(|| Claim::new(APP_MMAP, Evidence::Stack, part).merge(Merge::ByCategory))
    }

    fn advise(&self, group: &Group<'_>, _world: &World<'_>) -> Advice {
        let mut advice = Advice::why(
            "a GraalVM native image reserves the addresses in which its heap may ever lie when it starts; the heap that it \
             was built with is mapped into them",
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

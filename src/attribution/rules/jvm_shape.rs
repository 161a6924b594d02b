//! HotSpot's memory as maps shows it, where no call was seen. OpenJDK 17, Linux x86-64:
//!
//! ```text
//! 0x687400000  rw-p, ---p …           Java heap, below 32 GiB (compressed pointers)
//!              rw-p  classes.jsa      class data, mapped into the heap's end
//! 0x7f80ef…    rw-p, ---p …           metaspace
//!              rw-p  classes.jsa      class data
//!              ---p, rw-p … 1 GiB     class space
//! 0x7f8150…    rw-p, ---p …           the collector's tables
//!              rwxp, ---p, rwxp, …    code cache
//! ```

use super::jvm::{CODE, HEAP, META, OTHER};
use super::{Claim, Subject, World};
use crate::attribution::category::{Category, Evidence, Merge};
use crate::model::{Mapping, Sharing};

/// Compressed pointers reach no further: heaps below are placed there on purpose.
const COMPRESSED_END: u64 = 32 << 30;
/// A launcher without a fixed place, and its bss, lie below.
const LOW: u64 = 256 << 20;
/// VMAs between a piece and what it is known by.
const STEPS: usize = 64;
/// A metaspace node below the shared classes; these and the class space, 1 GiB by default, above.
const NODE: u64 = 64 << 20;
const CLASS_SPACE: u64 = (1 << 30) + (16 << 20);
/// Stacks' guards are smaller.
const TABLE: u64 = 64 << 10;

pub(super) fn by_shape(subject: &Subject<'_>, world: &World<'_>) -> Option<Claim> {
    let jvm = subject.record.is_none()
        && subject.is_private_anonymous()
        && world.has_file(|file| file == "libjvm.so");
    let own = subject.mapping.filter(|own| jvm && is_anonymous(own))?;
    let (category, part) = purpose(own, subject.region.vma, world)?;
    Some(Claim::new(category, Evidence::Shape, part).merge(Merge::ByCategory))
}

fn purpose(own: &Mapping, vma: usize, world: &World<'_>) -> Option<(Category, &'static str)> {
    let code = |mapping: &Mapping| is_anonymous(mapping) && mapping.prot.exec && mapping.prot.write;
    if code(own) || own.prot.is_none() && world.below(vma).is_some_and(code) {
        return Some((CODE, "code cache"));
    }
    if own.range.start.0 >= LOW && own.range.end.0 <= COMPRESSED_END {
        return Some((HEAP, "heap"));
    }
    let start = own.range.start.0;
    let above = |classes: &Mapping| is_class_data(classes) && classes.range.start.0 - start <= NODE;
    let below = |classes: &Mapping| is_class_data(classes) && start - classes.range.start.0 < CLASS_SPACE;
    if beside(world, vma, true).is_some_and(above) || beside(world, vma, false).is_some_and(below) {
        return Some((META, "metaspace"));
    }
    let tables = own.range.len() >= TABLE && up_to(world, vma, code);
    tables.then_some((OTHER, "collector tables"))
}

/// The next mapping above or below that is not anonymous, with nothing unmapped in between.
fn beside<'a>(world: &World<'a>, vma: usize, up: bool) -> Option<&'a Mapping> {
    let mut at = vma;
    for _ in 0..STEPS {
        let (next, index) = match up {
            true => (world.above(at)?, at + 1),
            false => (world.below(at)?, at.checked_sub(1)?),
        };
        if !is_anonymous(next) {
            return Some(next);
        }
        at = index;
    }
    None
}

/// True if anonymous mappings lead up to one that passes `test`.
fn up_to(world: &World<'_>, vma: usize, test: impl Fn(&Mapping) -> bool) -> bool {
    let mut at = vma;
    for _ in 0..STEPS {
        match world.above(at).filter(|next| is_anonymous(next)) {
            Some(next) if test(next) => return true,
            Some(_) => at += 1,
            None => return false,
        }
    }
    false
}

fn is_anonymous(mapping: &Mapping) -> bool {
    mapping.file.is_none() && mapping.name.is_empty() && mapping.sharing == Sharing::Private
}

/// `classes.jsa`, `classes_nocoops.jsa`, or what -XX:SharedArchiveFile names so.
fn is_class_data(mapping: &Mapping) -> bool {
    mapping.file.is_some() && mapping.name.ends_with(b".jsa")
}

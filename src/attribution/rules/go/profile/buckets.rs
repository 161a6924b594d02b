//! The runtime's memory profile: a list of buckets, one for each stack and size.
//!
//! Source: src/runtime/mprof.go, `bucket`, `memRecord`, `stkbucket`, `MemProfile`.
//!
//! ```text
//! next, allnext, typ = 1, hash, size, nstk | nstk addresses | active, future[3]
//! ```
//!
//! A bucket's hash is made of its addresses and its size: what has the right one is a bucket. Up to Go 1.26 a record is
//! allocs, frees, alloc_bytes, free_bytes, and bytes are the size times the number; of 1.27, allocs and frees.

use crate::attribution::rules::peek::Peek;
use crate::model::AddrRange;

/// `memProfile`.
const MEMORY: u64 = 1;
/// Addresses of a stack: 128 unless GODEBUG=profstackdepth says more, of which 1024 is the most.
const DEEPEST: u64 = 1024 + 16;
/// Buckets of a program.
const MOST: usize = 4 << 20;
/// Cycles of collection that are kept apart.
const CYCLES: usize = 3;

/// Counts of one cycle.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    pub allocations: u64,
    pub frees: u64,
}

impl Counts {
    fn add(&mut self, other: Counts) {
        self.allocations = self.allocations.wrapping_add(other.allocations);
        self.frees = self.frees.wrapping_add(other.frees);
    }

    fn is_none(self) -> bool {
        self == Counts::default()
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bucket {
    pub size: u64,
    pub stack: Vec<u64>,
    /// Published, then those that are still counted: of this cycle, and of the next two.
    published: Counts,
    future: [Counts; CYCLES],
}

/// How a record is laid out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layout {
    /// With bytes.
    Four,
    Two,
}

impl Layout {
    fn words(self) -> usize {
        match self {
            Layout::Four => 4,
            Layout::Two => 2,
        }
    }
}

/// `stkbucket`.
pub fn hash(stack: &[u64], size: u64) -> u64 {
    let mix = |hash: u64, word: u64| {
        let hash = hash.wrapping_add(word);
        let hash = hash.wrapping_add(hash << 10);
        hash ^ hash >> 6
    };
    let all = mix(stack.iter().fold(0, |hash, &at| mix(hash, at)), size);
    let all = all.wrapping_add(all << 3);
    all ^ all >> 11
}

/// The bucket at an address, and the next one of all.
fn bucket(at: u64, layout: Layout, peek: &mut Peek<'_, '_>) -> Result<(Bucket, u64), Broken> {
    let [_, next, kind, expected, size, depth] = peek.words(at, 6).ok_or(Broken::Unreadable)?[..] else {
        return Err(Broken::Unreadable);
    };
    if kind != MEMORY || depth > DEEPEST || !at.is_multiple_of(8) {
        return Err(Broken::NoBucket);
    }
    let stack = peek.words(at + 48, depth as usize).ok_or(Broken::Unreadable)?;
    if hash(&stack, size) != expected {
        return Err(Broken::NoBucket);
    }
    let words = layout.words();
    let record = peek.words(at + 48 + depth * 8, words * (1 + CYCLES)).ok_or(Broken::Unreadable)?;
    let mut counts = [Counts::default(); 1 + CYCLES];
    for (counts, words) in counts.iter_mut().zip(record.chunks_exact(words)) {
        let (allocations, frees) = (words[0], words[1]);
        if layout == Layout::Four && words[2..] != [allocations.wrapping_mul(size), frees.wrapping_mul(size)]
        {
            return Err(Broken::Counts);
        }
        *counts = Counts { allocations, frees };
    }
    let [published, future @ ..] = counts;
    Ok((Bucket { size, stack, published, future }, next))
}

/// Why there is no list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Broken {
    Unreadable,
    NoBucket,
    /// Numbers and bytes are not the same: it is counted right now, or this is another layout.
    Counts,
}

/// All buckets from the first on.
pub fn list(first: u64, layout: Layout, peek: &mut Peek<'_, '_>) -> Result<Vec<Bucket>, Broken> {
    let (mut at, mut all) = (first, Vec::new());
    while at != 0 {
        // Buckets are never removed: a list that is longer leads back into itself.
        if all.len() >= MOST {
            return Err(Broken::NoBucket);
        }
        let (bucket, next) = bucket(at, layout, peek)?;
        all.push(bucket);
        at = next;
    }
    Ok(all)
}

/// The first bucket, without symbols: the only variable of the program that leads to one.
pub fn first_without_symbols(variables: AddrRange, peek: &mut Peek<'_, '_>) -> Option<u64> {
    let mut found = None;
    for at in (variables.start.align_down(8).0..variables.end.0).step_by(8) {
        // Pages that were never touched are not there.
        let Some(place) = peek.u64(at).filter(|&place| place > 4096 && place.is_multiple_of(8)) else {
            continue;
        };
        if variables.contains(crate::model::Addr(place)) {
            continue;
        }
        let is_bucket = |peek: &mut Peek<'_, '_>| {
            let [_, _, kind, expected, size, depth] = peek.words(place, 6)?[..] else { return None };
            let fits = kind == MEMORY && (1..=DEEPEST).contains(&depth);
            let stack = fits.then(|| peek.words(place + 48, depth as usize))??;
            (hash(&stack, size) == expected).then_some(())
        };
        if is_bucket(peek).is_some() && found.replace(place).is_some_and(|other| other != place) {
            return None;
        }
    }
    found
}

/// Of which moment a profile is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// As of the latest collection that is complete.
    Collected,
    /// As of the one before it, perhaps: whether the latest is added up already is not known.
    PerhapsBefore,
    /// Nothing was ever collected: all up to now.
    Never,
}

/// What each bucket comes to, as `runtime.MemProfile` has it. `cycle`: the counter of collections, twice, and whether the
/// latest is added up.
pub fn counted(buckets: &[Bucket], cycle: Option<u32>) -> (Vec<Counts>, Moment) {
    let mut counts: Vec<Counts> = buckets.iter().map(|bucket| bucket.published).collect();
    let mut moment = Moment::PerhapsBefore;
    if let Some(cycle) = cycle {
        moment = Moment::Collected;
        if cycle & 1 == 0 {
            let at = (cycle >> 1) as usize % CYCLES;
            for (counts, bucket) in counts.iter_mut().zip(buckets) {
                counts.add(bucket.future[at]);
            }
        }
    }
    if counts.iter().all(|counts| counts.is_none()) {
        for (counts, bucket) in counts.iter_mut().zip(buckets) {
            bucket.future.iter().for_each(|&future| counts.add(future));
        }
        moment = Moment::Never;
    }
    (counts, moment)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::arenas::memory_of;

    const BASE: u64 = 0xc000_0000;

    /// The list of buckets in a page of memory, in words: (size, stack, counts of four cycles).
    fn memory(layout: Layout, made: &[(u64, &[u64], [u64; 8])]) -> (Vec<u64>, u64) {
        let (mut words, mut last) = (vec![0; 512], 0);
        let mut at = 8;
        for (size, stack, counts) in made {
            let place = at;
            let head = [0, last, MEMORY, hash(stack, *size), *size, stack.len() as u64];
            let record = counts.as_chunks::<2>().0.iter().flat_map(|&[allocations, frees]| {
                let bytes = [allocations * size, frees * size];
                let bytes = (layout == Layout::Four).then_some(bytes).into_iter().flatten();
                [allocations, frees].into_iter().chain(bytes)
            });
            for word in head.into_iter().chain(stack.iter().copied()).chain(record) {
                words[at] = word;
                at += 1;
            }
            last = BASE + place as u64 * 8;
        }
        (words, last)
    }

    fn peeked<R>(words: &[u64], read_with: impl FnOnce(&mut Peek<'_, '_>) -> R) -> R {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut read = memory_of(BASE, &bytes);
        read_with(&mut Peek::new(&mut read))
    }

    #[test]
    fn both_layouts() {
        let made: [(u64, &[u64], _); 2] =
            [(64, &[1, 2, 3], [9, 4, 1, 0, 2, 1, 5, 0]), (8192, &[7], [1, 0, 0, 0, 0, 0, 0, 0])];
        for layout in [Layout::Four, Layout::Two] {
            let (words, first) = memory(layout, &made);
            let found = peeked(&words, |peek| list(first, layout, peek)).expect("a list");
            let buckets: Vec<_> = found.iter().map(|bucket| (bucket.size, bucket.stack.as_slice())).collect();
            assert_eq!(buckets, [(8192, &[7][..]), (64, &[1, 2, 3])]);
            let counts = |cycle| {
                let (counts, moment) = counted(&found, cycle);
                (counts[1].allocations, counts[1].frees, moment)
            };
            // Published, and those of cycle 4 (future[1]) that are not added up yet.
            assert_eq!(counts(Some(4 << 1 | 1)), (9, 4, Moment::Collected));
            assert_eq!(counts(Some(4 << 1)), (11, 5, Moment::Collected));
            assert_eq!(counts(None), (9, 4, Moment::PerhapsBefore));
        }
    }

    #[test]
    fn nothing_was_collected() {
        let (words, first) = memory(Layout::Four, &[(32, &[5], [0, 0, 1, 0, 2, 0, 4, 1])]);
        let found = peeked(&words, |peek| list(first, Layout::Four, peek)).expect("a list");
        let expected = Counts { allocations: 7, frees: 1 };
        assert_eq!(counted(&found, Some(1)), (vec![expected], Moment::Never));
    }

    /// The hash, and bytes that are size times number: nothing else is taken.
    #[test]
    fn what_is_no_bucket() {
        let (words, first) = memory(Layout::Four, &[(64, &[1, 2, 3], [9, 4, 1, 0, 2, 1, 5, 0])]);
        let read = |words: &[u64], layout| peeked(words, |peek| list(first, layout, peek));
        for at in 8..8 + 9 {
            let mut other = words.clone();
            other[at] ^= 1 << 4;
            // The pointers to the next ones are not hashed: one that leads nowhere is found out.
            let fails = read(&other, Layout::Four).is_err();
            assert_eq!(fails, at != 8, "word {at}");
        }
        let (two, _) = memory(Layout::Two, &[(64, &[1, 2, 3], [9, 4, 1, 0, 2, 1, 5, 0])]);
        assert_eq!(read(&two, Layout::Four), Err(Broken::Counts));
        let mut deep = words;
        deep[8 + 5] = 1 << 40;
        assert_eq!(read(&deep, Layout::Four), Err(Broken::NoBucket));
    }

    #[test]
    fn the_first_without_symbols() {
        let (mut words, first) = memory(Layout::Four, &[(64, &[1, 2], [9, 4, 0, 0, 0, 0, 0, 0])]);
        let variables = AddrRange::new(BASE + 400 * 8, BASE + 420 * 8);
        let find = |words: &[u64]| peeked(words, |peek| first_without_symbols(variables, peek));
        assert_eq!(find(&words), None);
        words[405] = first;
        words[407] = first + 8;
        assert_eq!(find(&words), Some(first));
    }
}

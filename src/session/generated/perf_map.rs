//! A perf map: `/tmp/perf-PID.map`, in which a program that makes code writes where its functions are
//! (tools/perf/Documentation/jit-interface.txt): `START SIZE NAME`, hexadecimal, a line each.
//!
//! V8 adds a line whenever it makes code, and does not move code meanwhile; a JVM writes all at once. What was made
//! later counts: its place was free by then.

use crate::objects::Held;
use std::collections::BTreeMap;

/// A line that is longer is none.
const LONGEST_LINE: usize = 64 << 10;
/// What is kept of a map, bytes: a program may write without end. A JVM with 100,000 methods has some 30 MiB.
const MOST: u64 = 64 << 20;
/// Bytes that an entry takes, its name apart: its place in the tree, and the allocator's share.
const ENTRY: usize = 144;

/// A function's code.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    pub start: u64,
    pub end: u64,
    /// As it is written.
    pub name: String,
    /// It took the place of other code.
    pub replaced: bool,
    /// It was there at this time (CLOCK_MONOTONIC, ns), and perhaps before.
    pub read_ns: u64,
}

impl Entry {
    /// It was what the address had at that time.
    pub fn was_in_force(&self, time_ns: u64) -> bool {
        !self.replaced || self.read_ns <= time_ns
    }

    fn bytes(&self) -> u64 {
        (ENTRY + self.name.len()) as u64
    }

    fn is_same(&self, other: &Entry) -> bool {
        (self.start, self.end, &self.name) == (other.start, other.end, &other.name)
    }
}

/// The lines so far.
#[derive(Default)]
pub struct PerfMap {
    /// By start; disjoint.
    entries: BTreeMap<u64, Entry>,
    /// The last line's beginning.
    rest: Vec<u8>,
    bytes: u64,
    held: Held,
    is_full: bool,
}

impl PerfMap {
    /// Takes what was added to the file. Where each new function is goes to `seen`.
    pub fn add(&mut self, bytes: &[u8], now_ns: u64, seen: &mut dyn FnMut(u64, u64)) {
        let mut lines = bytes.split_inclusive(|&byte| byte == b'\n');
        for line in &mut lines {
            if self.rest.len() < LONGEST_LINE {
                self.rest.extend_from_slice(line);
            }
            if line.ends_with(b"\n") {
                let whole = std::mem::take(&mut self.rest);
                // Some are written twice.
                let is_new =
                    |new: &Entry| !self.entries.get(&new.start).is_some_and(|known| known.is_same(new));
                if let Some(entry) = parse(&whole).filter(is_new) {
                    seen(entry.start, entry.end);
                    self.insert(Entry { read_ns: now_ns, ..entry });
                }
            }
        }
    }

    /// No more is taken in: [`MOST`], or the memory for all tables, is used up.
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// Takes the place of what it covers, even of parts: what was there is gone.
    fn insert(&mut self, mut entry: Entry) {
        let bytes = entry.bytes();
        if self.bytes + bytes > MOST || !self.held.grow(bytes) {
            self.is_full = true;
            return;
        }
        self.bytes += bytes;
        let first =
            self.entries.range(..entry.start).next_back().filter(|(_, before)| before.end > entry.start);
        let mut gone: Vec<u64> = first.map(|(&start, _)| start).into_iter().collect();
        gone.extend(self.entries.range(entry.start..entry.end).map(|(&start, _)| start));
        for removed in gone.iter().filter_map(|start| self.entries.remove(start)) {
            self.bytes -= removed.bytes();
            self.held.shrink(removed.bytes());
        }
        entry.replaced = !gone.is_empty();
        self.entries.insert(entry.start, entry);
    }

    /// The newest function that covers the address.
    pub fn at(&self, address: u64) -> Option<&Entry> {
        self.entries.range(..=address).next_back().map(|(_, entry)| entry).filter(|entry| address < entry.end)
    }
}

fn parse(line: &[u8]) -> Option<Entry> {
    let line = line.trim_ascii_end();
    if line.len() >= LONGEST_LINE {
        return None;
    }
    let mut parts = line.splitn(3, |&byte| byte == b' ');
    let mut number = || {
        let digits = std::str::from_utf8(parts.next()?).ok()?;
        let digits = digits.strip_prefix("0x").unwrap_or(digits);
        // from_str_radix takes a sign, too.
        let only_digits = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        only_digits.then(|| u64::from_str_radix(digits, 16).ok()).flatten()
    };
    let (start, size) = (number()?, number()?);
    let name = String::from_utf8_lossy(parts.next()?.trim_ascii()).into_owned();
    let end = start.checked_add(size)?;
    (size > 0 && !name.is_empty()).then_some(Entry { start, end, name, replaced: false, read_ns: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn named(map: &PerfMap, at: u64) -> Option<&str> {
        map.at(at).map(|entry| entry.name.as_str())
    }

    #[test]
    fn what_was_written_last_counts() {
        let mut map = PerfMap::default();
        map.add(b"1000 100 JS:~a /x.js:1:1\n2000 10 b c\n0x3000 0x20 d\n", 7, &mut |_, _| {});
        assert_eq!(named(&map, 0x10ff), Some("JS:~a /x.js:1:1"));
        assert_eq!((named(&map, 0x1100), named(&map, 0xfff)), (None, None));
        assert_eq!((named(&map, 0x200f), named(&map, 0x301f)), (Some("b c"), Some("d")));
        // In two parts, over the end of one and all of the other.
        map.add(b"10f0 f1", 7, &mut |_, _| {});
        assert_eq!(named(&map, 0x10f5), Some("JS:~a /x.js:1:1"));
        map.add(b"0 e\n", 7, &mut |start, end| assert_eq!((start, end), (0x10f0, 0x2000)));
        let in_force = |at, time| map.at(at).is_some_and(|entry| entry.was_in_force(time));
        assert_eq!((in_force(0x10f0, 6), in_force(0x10f0, 7), in_force(0x2000, 6)), (false, true, true));
        assert_eq!(
            (named(&map, 0x1000), named(&map, 0x10f0), named(&map, 0x2000)),
            (None, Some("e"), Some("b c"))
        );
    }

    #[test]
    fn a_map_without_end_is_full_and_what_was_replaced_makes_room() {
        let mut map = PerfMap::default();
        let name = "n".repeat(60_000);
        for _ in 0..2 * MOST / 60_000 {
            map.add(format!("1000 10 {name}\n1000 10 b\n").as_bytes(), 7, &mut |_, _| {});
        }
        assert!(!map.is_full(), "one place, written again and again");
        for n in 0..2 * MOST / 60_000 {
            map.add(format!("{n:x}0 10 {name}\n").as_bytes(), 7, &mut |_, _| {});
        }
        assert!(map.is_full());
        let kept: u64 = map.entries.values().map(Entry::bytes).sum();
        assert_eq!((kept <= MOST, kept), (true, map.bytes));
    }

    #[test]
    fn what_makes_no_sense_is_left_out() {
        let mut map = PerfMap::default();
        map.add(
            b"\n1000\n1000 10\n1000 10 \nx 10 a\n+1 10 a\n1000 0 a\nffffffffffffffff 2 a\n-1 1 a\n",
            7,
            &mut |_, _| panic!("none of them is a function"),
        );
        assert!(map.entries.is_empty());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn as_a_list_that_is_searched_from_its_end(
            written in prop::collection::vec((0..64u64, 1..16u64), 0..40),
            cut in 0..200usize,
        ) {
            let text: String =
                written.iter().enumerate().map(|(n, (start, size))| format!("{start:x} {size:x} f{n}\n")).collect();
            let (mut map, cut) = (PerfMap::default(), cut.min(text.len()));
            map.add(&text.as_bytes()[..cut], 7, &mut |_, _| {});
            map.add(&text.as_bytes()[cut..], 7, &mut |_, _| {});
            for at in 0..80 {
                let covers = |&(start, size): &(u64, u64)| (start..start + size).contains(&at);
                // Code that later code covers a part of is gone.
                let last = written.iter().rposition(covers).filter(|&n| {
                    let (start, end) = (written[n].0, written[n].0 + written[n].1);
                    written[n + 1..].iter().all(|&(other, size)| other + size <= start || other >= end)
                });
                let expected = last.map(|n| format!("f{n}"));
                prop_assert_eq!(named(&map, at), expected.as_deref());
            }
        }
    }
}

//! Regions and frames by column: 65,000 regions take some megabytes instead of forty.

use crate::model::number::signed;
use crate::report::model::{Range, Region};
use serde::Serialize;
use std::collections::HashMap;

/// One number for each row, or one for all of them.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum Column {
    Same(i64),
    Each(Vec<i64>),
}

impl FromIterator<i64> for Column {
    fn from_iter<I: IntoIterator<Item = i64>>(rows: I) -> Column {
        let rows: Vec<i64> = rows.into_iter().collect();
        match rows.first() {
            Some(&first) if rows.iter().all(|&row| row == first) => Column::Same(first),
            _ => Column::Each(rows),
        }
    }
}

/// Instead of null.
pub(super) const NONE: i64 = -1;

/// Each text once.
#[derive(Default)]
pub(super) struct Strings {
    all: Vec<String>,
    numbers: HashMap<String, i64>,
}

impl Strings {
    /// The number of a text; control characters and such are made visible.
    pub fn number(&mut self, text: &str) -> i64 {
        if let Some(&number) = self.numbers.get(text) {
            return number;
        }
        let number = self.all.len() as i64;
        self.all.push(crate::render::clean(text));
        self.numbers.insert(text.to_owned(), number);
        number
    }

    pub fn optional(&mut self, text: Option<&str>) -> i64 {
        text.map_or(NONE, |text| self.number(text))
    }

    pub fn into_vec(self) -> Vec<String> {
        self.all
    }
}

/// The bytes of an address as the report writes it; 0 for what is none.
fn address(text: &str) -> i64 {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    signed(u64::from_str_radix(digits, 16).unwrap_or(0))
}

/// Differences to the row before; a row without a number repeats it.
fn steps(rows: impl Iterator<Item = Option<i64>>) -> Column {
    let mut last = 0;
    rows.map(|row| {
        let row = row.unwrap_or(last);
        let step = row.wrapping_sub(last);
        last = row;
        step
    })
    .collect()
}

/// Addresses in units of `unit` bytes: from the end of the last one to the start, and from there to the
/// end.
#[derive(Serialize)]
pub(super) struct Ranges {
    unit: i64,
    gap: Column,
    length: Column,
}

impl Ranges {
    fn of(ranges: &[(i64, i64)]) -> Ranges {
        let unit = unit(ranges.iter().flat_map(|&(start, end)| [start, end]));
        let mut last = 0;
        let gaps: Vec<i64> = ranges
            .iter()
            .map(|&(start, end)| {
                let gap = start.wrapping_sub(last) / unit;
                last = end;
                gap
            })
            .collect();
        let length = ranges.iter().map(|&(start, end)| end.wrapping_sub(start) / unit).collect();
        Ranges { unit, gap: gaps.into_iter().collect(), length }
    }

    pub fn of_finding(ranges: &[Range]) -> Ranges {
        let ranges: Vec<(i64, i64)> = ranges.iter().map(|r| (address(&r.start), address(&r.end))).collect();
        Ranges::of(&ranges)
    }
}

/// Pages, where all are whole ones.
fn unit(mut bytes: impl Iterator<Item = i64>) -> i64 {
    if bytes.all(|n| n % 4096 == 0) { 4096 } else { 1 }
}

/// All regions of a process. Texts are numbers of strings, -1 is null.
#[derive(Serialize)]
pub(super) struct Regions {
    count: usize,
    at: Ranges,
    size_unit: i64,
    rss: Column,
    swap: Column,
    prot: Column,
    category: Column,
    evidence: Column,
    path: Column,
    part: Column,
    /// Differences to the row before.
    instance: Column,
    thread: Column,
    doubt: Column,
    /// -1: no origin.
    op: Column,
    tid: Column,
    comm: Column,
    stack: Column,
    inherited_from: Column,
    /// Differences to the row before.
    event: Column,
    time_ns: Column,
}

impl Regions {
    pub fn of(regions: &[Region], strings: &mut Strings) -> Regions {
        let ranges: Vec<(i64, i64)> = regions.iter().map(|r| (address(&r.start), address(&r.end))).collect();
        let size_unit = unit(regions.iter().flat_map(|r| [signed(r.rss), signed(r.swap)]));
        let mut texts = |of: fn(&Region) -> Option<&str>| -> Column {
            regions.iter().map(|r| strings.optional(of(r))).collect()
        };
        let numbers = |of: fn(&Region) -> Option<i64>| -> Column {
            regions.iter().map(|r| of(r).unwrap_or(NONE)).collect()
        };
        let differences = |of: fn(&Region) -> Option<i64>| -> Column { steps(regions.iter().map(of)) };
        Regions {
            count: regions.len(),
            at: Ranges::of(&ranges),
            size_unit,
            rss: regions.iter().map(|r| signed(r.rss) / size_unit).collect(),
            swap: regions.iter().map(|r| signed(r.swap) / size_unit).collect(),
            prot: texts(|r| Some(&r.prot)),
            category: texts(|r| Some(&r.category)),
            evidence: texts(|r| Some(&r.evidence)),
            path: texts(|r| r.path.as_deref()),
            part: texts(|r| Some(&r.part)),
            instance: differences(|r| Some(signed(r.instance))),
            thread: numbers(|r| r.thread.map(i64::from)),
            doubt: texts(|r| r.doubt.as_deref()),
            op: texts(|r| r.origin.as_ref().map(|o| o.op.as_str())),
            tid: numbers(|r| r.origin.as_ref().map(|o| i64::from(o.tid))),
            comm: texts(|r| r.origin.as_ref().map(|o| o.comm.as_str())),
            stack: numbers(|r| r.origin.as_ref().and_then(|o| o.stack).map(signed)),
            inherited_from: numbers(|r| r.origin.as_ref().and_then(|o| o.inherited_from).map(i64::from)),
            event: differences(|r| r.origin.as_ref().map(|o| signed(o.event))),
            time_ns: differences(|r| r.origin.as_ref().map(|o| signed(o.time_ns))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(start: u64, end: u64) -> Region {
        Region { start: format!("{start:#x}"), end: format!("{end:#x}"), ..Region::default() }
    }

    #[test]
    fn addresses_come_back() {
        let all =
            [region(0x5000, 0x9000), region(0x9000, 0xa000), region(0x7fff_0000_0000, 0x7fff_0001_0000)];
        let json = serde_json::to_value(Regions::of(&all, &mut Strings::default())).unwrap();
        assert_eq!(json["at"]["unit"], 4096);
        let (mut at, mut found) = (0, Vec::new());
        for row in 0..3 {
            let start = at + json["at"]["gap"][row].as_i64().unwrap() * 4096;
            at = start + json["at"]["length"][row].as_i64().unwrap() * 4096;
            found.push(region(start as u64, at as u64));
        }
        assert_eq!(found, all);
        let odd = serde_json::to_value(Regions::of(&[region(0x5001, 0x6002)], &mut Strings::default()));
        assert_eq!(odd.unwrap()["at"]["unit"], 1);
        assert_eq!(json["rss"], 0, "equal in all rows: one number");
    }

    #[test]
    fn equal_texts_are_there_once() {
        let mut strings = Strings::default();
        assert_eq!((strings.number("a"), strings.number("b\n"), strings.number("a")), (0, 1, 0));
        assert_eq!(strings.optional(None), NONE);
        assert_eq!(strings.into_vec(), ["a", "b\\n"]);
    }
}

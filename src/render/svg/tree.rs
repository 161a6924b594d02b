//! Stacks as the boxes of a flame graph: which box has which bytes.

use crate::render::folded::report::Kind;
use std::collections::HashMap;

/// A stack, root first, and how wide it is drawn.
pub(super) struct Row<'a, V> {
    pub frames: Vec<&'a str>,
    pub width: u64,
    pub value: V,
}

/// A box: the frames of equal stacks up to here, merged.
#[derive(Clone, Debug)]
pub(super) struct Box<'a, V> {
    pub name: &'a str,
    pub width: u64,
    pub value: V,
    /// The category that it belongs to, where it is a part of one.
    pub within: Option<&'a str>,
}

/// Boxes by their level (0: all of it) and where they begin, in bytes from the left.
pub(super) struct Boxes<'a, V> {
    by_place: HashMap<(usize, u64), Box<'a, V>>,
    pub total: u64,
}

impl<'a, V: std::ops::AddAssign + Copy + Default> Boxes<'a, V> {
    /// Of rows that are sorted by their frames; those without width are part of no box but that of all.
    pub fn new(rows: &[Row<'a, V>], kinds: &'a HashMap<String, Kind>) -> Boxes<'a, V> {
        let mut by_place: HashMap<(usize, u64), Box<'a, V>> = HashMap::new();
        let mut open: Vec<(&str, u64)> = Vec::new();
        let mut at = 0u64;
        let mut all = V::default();
        for row in rows.iter().filter(|row| row.width > 0) {
            let same = open.iter().zip(&row.frames).take_while(|(open, name)| open.0 == **name).count();
            open.truncate(same);
            open.extend(row.frames.iter().skip(same).map(|name| (*name, at)));
            let mut within = None;
            for (level, (name, start)) in open.iter().enumerate() {
                if let Some(Kind::Category(id)) = kinds.get(*name) {
                    within = Some(id.as_str());
                }
                let empty = || Box { name, width: 0, value: V::default(), within };
                let found = by_place.entry((level + 1, *start)).or_insert_with(empty);
                found.width = found.width.saturating_add(row.width);
                found.value += row.value;
            }
            at = at.saturating_add(row.width);
        }
        rows.iter().for_each(|row| all += row.value);
        by_place.insert((0, 0), Box { name: "all", width: at, value: all, within: None });
        Boxes { by_place, total: at }
    }

    pub fn get(&self, level: usize, start: u64) -> Option<&Box<'a, V>> {
        self.by_place.get(&(level, start))
    }

    pub fn iter(&self) -> impl Iterator<Item = &Box<'a, V>> {
        self.by_place.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_beginnings_are_one_box() {
        let row = |frames: &[&'static str], width| Row { frames: frames.to_vec(), width, value: width };
        let rows = [
            row(&["m"], 1),
            row(&["m", "a"], 2),
            row(&["m", "a", "x"], 4),
            row(&["m", "b"], 8),
            row(&["n"], 0),
        ];
        let kinds = HashMap::new();
        let boxes = Boxes::new(&rows, &kinds);
        let found = |level, start| boxes.get(level, start).map(|b| (b.name, b.value));
        assert_eq!(boxes.total, 15);
        assert_eq!(found(0, 0), Some(("all", 15)));
        assert_eq!(found(1, 0), Some(("m", 15)));
        assert_eq!(found(2, 1), Some(("a", 6)));
        assert_eq!(found(3, 3), Some(("x", 4)));
        assert_eq!(found(2, 7), Some(("b", 8)));
        assert_eq!(boxes.iter().count(), 5);
    }
}

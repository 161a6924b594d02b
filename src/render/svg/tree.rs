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
    /// 0: all of it.
    pub level: usize,
    /// Where it begins, in bytes from the left.
    pub start: u64,
    pub width: u64,
    pub value: V,
    /// The category that it belongs to, where it is a part of one.
    pub within: Option<&'a str>,
}

/// The boxes of rows that are sorted by their frames, each before those upon it, from the left; the first
/// is all of it. Rows without width are part of no other box.
pub(super) fn boxes<'a, V: std::ops::AddAssign + Copy + Default>(
    rows: &[Row<'a, V>],
    kinds: &'a HashMap<String, Kind>,
) -> Vec<Box<'a, V>> {
    let mut all = Box { name: "all", level: 0, start: 0, width: 0, value: V::default(), within: None };
    rows.iter().for_each(|row| all.value += row.value);
    let mut boxes = vec![all];
    // Places of those that the row before is part of.
    let mut open: Vec<usize> = vec![0];
    for row in rows.iter().filter(|row| row.width > 0) {
        let is_same = |(at, name): &(&usize, &&str)| boxes.get(**at).is_some_and(|open| open.name == **name);
        let same = open.iter().skip(1).zip(&row.frames).take_while(is_same).count();
        open.truncate(same + 1);
        let start = boxes.first().map_or(0, |all| all.width);
        for name in row.frames.iter().skip(same) {
            let within = match kinds.get(*name) {
                Some(Kind::Category(id)) => Some(id.as_str()),
                _ => open.last().and_then(|at| boxes.get(*at)).and_then(|below| below.within),
            };
            let level = open.len();
            open.push(boxes.len());
            boxes.push(Box { name, level, start, width: 0, value: V::default(), within });
        }
        for (level, at) in open.iter().enumerate() {
            let Some(found) = boxes.get_mut(*at) else { continue };
            found.width = found.width.saturating_add(row.width);
            if level > 0 {
                found.value += row.value;
            }
        }
    }
    boxes
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
        let found: Vec<_> =
            boxes(&rows, &kinds).iter().map(|b| (b.level, b.start, b.name, b.width, b.value)).collect();
        let boxes = [(0, 0, "all"), (1, 0, "m"), (2, 1, "a"), (3, 3, "x"), (2, 7, "b")];
        let widths = [15, 15, 6, 4, 8];
        let expected: Vec<_> =
            boxes.iter().zip(widths).map(|(&(level, start, name), w)| (level, start, name, w, w)).collect();
        assert_eq!(found, expected);
    }
}

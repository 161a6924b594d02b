//! The table of an allocator's parts: the largest, the others as one row, and the total.

use crate::render::style::Tone;
use crate::render::text::TextOptions;

/// A name, and a cell of 11 columns for each figure.
pub(super) fn line(name: &str, cells: &[String]) -> String {
    let cells: String = cells.iter().map(|cell| format!("{cell:>11}")).collect();
    format!("  {name}{cells}")
}

pub(super) struct PartTable<'a, T> {
    pub head: String,
    /// Largest first.
    pub parts: Vec<&'a T>,
    pub total: &'a T,
    pub name: &'a dyn Fn(&T) -> String,
    pub row: &'a dyn Fn(&str, &T) -> String,
    pub sum: &'a dyn Fn(&[&T]) -> T,
}

impl<T> PartTable<'_, T> {
    pub fn write(&self, options: TextOptions, out: &mut String) {
        let mut put = |text: &str, tone: Option<Tone>| {
            *out += &tone.map_or_else(|| text.to_owned(), |tone| options.color.paint(tone, text));
            out.push('\n');
        };
        put(&self.head, Some(Tone::Dim));
        let (shown, others) = self.parts.split_at(options.top.min(self.parts.len()));
        for part in shown {
            put(&(self.row)(&(self.name)(part), part), None);
        }
        if !others.is_empty() {
            put(&(self.row)(&format!("{} others", others.len()), &(self.sum)(others)), Some(Tone::Dim));
        }
        if self.parts.len() > 1 {
            put(&(self.row)("total", self.total), Some(Tone::Heading));
        }
    }
}

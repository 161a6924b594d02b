//! A selected row of a list that changes under it.

/// Follows what was selected, not the place where it was; at the top it stays at the top.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cursor<K> {
    /// None: the first row, whatever it is.
    key: Option<K>,
    index: usize,
    /// The first row that is shown.
    offset: usize,
}

impl<K> Default for Cursor<K> {
    fn default() -> Cursor<K> {
        Cursor { key: None, index: 0, offset: 0 }
    }
}

impl<K: Clone + PartialEq> Cursor<K> {
    pub fn index(&self) -> usize {
        self.index
    }

    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Moves by rows; at the very first row it stops following its row.
    pub fn step(&mut self, by: isize, rows: &[K]) {
        let last = rows.len().saturating_sub(1);
        self.index = self.index.saturating_add_signed(by).min(last);
        self.key = if self.index == 0 { None } else { rows.get(self.index).cloned() };
    }

    /// After the rows have changed, or the place for them.
    pub fn settle(&mut self, rows: &[K], page: usize) {
        let followed = self.key.as_ref().and_then(|key| rows.iter().position(|row| row == key));
        self.index = followed.unwrap_or(if self.key.is_none() { 0 } else { self.index });
        self.index = self.index.min(rows.len().saturating_sub(1));
        if followed.is_none() && self.key.is_some() {
            self.key = rows.get(self.index).cloned();
        }
        let page = page.max(1);
        let most = rows.len().saturating_sub(page);
        self.offset = self.offset.min(most).min(self.index).max((self.index + 1).saturating_sub(page));
    }
}

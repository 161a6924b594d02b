//! Columns of a row, each proven to be of the type it has to be.

use super::error::Fault;
use rusqlite::Row;
use rusqlite::types::ValueRef;

pub(super) struct Columns<'a, 'stmt>(pub(super) &'a Row<'stmt>);

impl Columns<'_, '_> {
    fn wrong(&self, column: usize, wanted: &str) -> Fault {
        let row: &Row<'_> = self.0;
        let name = row.as_ref().column_name(column).unwrap_or("?");
        Fault::damaged(format!("the column {name} of a row is no {wanted}"))
    }

    pub(super) fn maybe(&self, column: usize) -> Result<Option<i64>, Fault> {
        match self.0.get_ref(column)? {
            ValueRef::Integer(value) => Ok(Some(value)),
            ValueRef::Null => Ok(None),
            _ => Err(self.wrong(column, "number")),
        }
    }

    pub(super) fn int(&self, column: usize) -> Result<i64, Fault> {
        match self.0.get_ref(column)? {
            ValueRef::Integer(value) => Ok(value),
            _ => Err(self.wrong(column, "number")),
        }
    }

    /// Numbers without sign keep their bits.
    pub(super) fn word(&self, column: usize) -> Result<u64, Fault> {
        Ok(self.int(column)? as u64)
    }

    pub(super) fn narrow<T: TryFrom<i64>>(&self, column: usize) -> Result<T, Fault> {
        T::try_from(self.int(column)?).map_err(|_| self.wrong(column, "number in range"))
    }

    pub(super) fn flag(&self, column: usize) -> Result<bool, Fault> {
        match self.int(column)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.wrong(column, "truth value")),
        }
    }

    /// Text or any bytes, borrowed.
    pub(super) fn bytes(&self, column: usize) -> Result<&[u8], Fault> {
        match self.0.get_ref(column)? {
            ValueRef::Text(bytes) | ValueRef::Blob(bytes) => Ok(bytes),
            _ => Err(self.wrong(column, "text")),
        }
    }

    /// Text, or None for NULL.
    pub(super) fn text(&self, column: usize) -> Result<Option<String>, Fault> {
        match self.0.get_ref(column)? {
            ValueRef::Null => Ok(None),
            ValueRef::Text(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => Ok(Some(text.to_owned())),
                Err(_) => Err(self.wrong(column, "UTF-8")),
            },
            _ => Err(self.wrong(column, "text")),
        }
    }
}

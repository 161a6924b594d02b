//! Columns of a row, each proven to be of the type it has to be.

use super::error::Fault;
use super::sum::Sum;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, Params, Row};
use serde::de::DeserializeOwned;

/// Calls `each` with every row that a query gives, each proven by its sum.
pub(super) fn each_row(
    db: &Connection,
    sql: &str,
    values: impl Params,
    mut each: impl FnMut(&Columns<'_, '_>) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let mut query = db.prepare_cached(sql)?;
    let mut rows = query.query(values)?;
    while let Some(row) = rows.next()? {
        each(&Columns::whole(row)?)?;
    }
    Ok(())
}

/// The one row that a query gives, which holds `what`.
pub(super) fn one_row<T>(
    db: &Connection,
    (sql, values): (&str, impl Params),
    what: &str,
    read: impl FnOnce(&Columns<'_, '_>) -> Result<T, Fault>,
) -> Result<T, Fault> {
    let mut query = db.prepare_cached(sql)?;
    let mut rows = query.query(values)?;
    let row = rows.next()?.ok_or_else(|| Fault::damaged(format!("a row is missing: {what}")))?;
    read(&Columns::whole(row)?)
}

/// The value of a key of `meta`, where there is one.
pub(super) fn meta<T>(
    db: &Connection,
    key: &str,
    read: impl FnOnce(&Columns<'_, '_>) -> Result<Option<T>, Fault>,
) -> Result<Option<T>, Fault> {
    let mut query = db.prepare_cached("SELECT * FROM meta WHERE key = ?1")?;
    let mut rows = query.query([key])?;
    rows.next()?.map_or(Ok(None), |row| read(&Columns::whole(row)?))
}

/// Proves that as many rows were read as were written.
pub(super) fn same_count(db: &Connection, key: &str, found: i64) -> Result<(), Fault> {
    // Without it nothing but the tables was written yet.
    let written = meta(db, key, |row| row.int(1).map(Some))?.unwrap_or(0);
    match found == written {
        true => Ok(()),
        false => Err(Fault::damaged(format!("{key}: {found} of {written} are there"))),
    }
}

pub(super) struct Columns<'a, 'stmt>(pub(super) &'a Row<'stmt>);

impl<'a, 'stmt> Columns<'a, 'stmt> {
    /// A row whose last column is the sum of the others, which it has to be.
    pub(super) fn whole(row: &'a Row<'stmt>) -> Result<Columns<'a, 'stmt>, Fault> {
        let last = row.as_ref().column_count() - 1;
        let mut sum = Sum::new();
        for column in 0..last {
            sum.value(row.get_ref(column)?);
        }
        let columns = Columns(row);
        if columns.int(last)? == sum.finish() {
            return Ok(columns);
        }
        let name = row.as_ref().column_name(0).unwrap_or("?");
        let first = columns.maybe(0).ok().flatten().unwrap_or_default();
        Err(Fault::damaged(format!("a row does not add up to its check sum (its {name} is {first})")))
    }
}

impl Columns<'_, '_> {
    fn wrong(&self, column: usize, expected: &str) -> Fault {
        let row: &Row<'_> = self.0;
        let name = row.as_ref().column_name(column).unwrap_or("?");
        Fault::damaged(format!("the column {name} of a row is no {expected}"))
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

    /// JSON that holds `what`.
    pub(super) fn json<T: DeserializeOwned>(&self, column: usize, what: &str) -> Result<T, Fault> {
        serde_json::from_slice(self.bytes(column)?)
            .map_err(|error| Fault::damaged(format!("{what}: {error}")))
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

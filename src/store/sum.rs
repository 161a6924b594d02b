//! A check sum in each row: SQLite notices a damaged tree, but not a damaged number in it.

use super::error::Fault;
use rusqlite::types::{ToSql, ToSqlOutput, ValueRef};
use rusqlite::{CachedStatement, Connection, Statement};

/// Of the values of a row, in order. Text and the same bytes as a blob count alike.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sum(u64);

impl Sum {
    pub(super) fn new() -> Sum {
        Sum(0x243f_6a88_85a3_08d3)
    }

    fn word(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
    }

    pub(super) fn number(&mut self, value: Option<i64>) {
        match value {
            Some(value) => self.word(value as u64),
            // No number that occurs: `word` of it is one of 2^64.
            None => self.word(0x9e37_79b9_7f4a_7c15),
        }
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.word(!(bytes.len() as u64));
        let mut words = bytes.chunks_exact(8);
        for chunk in words.by_ref() {
            self.word(chunk.iter().fold(0, |word, &byte| word << 8 | u64::from(byte)));
        }
        self.word(words.remainder().iter().fold(0, |word, &byte| word << 8 | u64::from(byte)));
    }

    pub(super) fn value(&mut self, value: ValueRef<'_>) {
        match value {
            ValueRef::Null => self.number(None),
            ValueRef::Integer(value) => self.number(Some(value)),
            ValueRef::Real(value) => self.word(value.to_bits()),
            ValueRef::Text(bytes) | ValueRef::Blob(bytes) => self.bytes(bytes),
        }
    }

    /// 32 bits, as `sum` holds them.
    pub(super) fn finish(mut self) -> i64 {
        self.word(0);
        (self.0 >> 32) as i64
    }
}

/// A statement that inserts rows of `values` and their sum into a table: all its columns, in the schema's order.
pub(super) fn inserter<'c>(
    db: &'c Connection,
    table: &str,
    values: usize,
) -> Result<CachedStatement<'c>, Fault> {
    Ok(db.prepare_cached(&format!("INSERT INTO {table} VALUES({}?)", "?, ".repeat(values)))?)
}

/// Inserts a row of `values` and their sum into a table. Gives how many were inserted.
pub(super) fn insert(db: &Connection, table: &str, values: &[&dyn ToSql]) -> Result<usize, Fault> {
    insert_with(&mut *inserter(db, table, values.len())?, values)
}

/// As [`insert`], many times.
pub(super) fn insert_with(statement: &mut Statement<'_>, values: &[&dyn ToSql]) -> Result<usize, Fault> {
    let mut sum = Sum::new();
    for (index, value) in values.iter().enumerate() {
        let bound = value.to_sql()?;
        match &bound {
            ToSqlOutput::Borrowed(value) => sum.value(*value),
            ToSqlOutput::Owned(value) => sum.value(value.into()),
            _ => return Err(Fault::damaged("a value of an unknown kind")),
        }
        statement.raw_bind_parameter(index + 1, bound)?;
    }
    statement.raw_bind_parameter(values.len() + 1, sum.finish())?;
    Ok(statement.raw_execute()?)
}

//! Reports of a heap (`heap -o`), one a moment: in parts, and with the stacks that they share.

use super::error::{Fault, StoreError};
use super::read::{Columns, each_row, one_row, same_count};
use super::recording::Recording;
use super::row::HeapMoment;
use super::schema::has_heaps;
use super::sum;
use crate::model::timeline::stride;
use rusqlite::{Connection, params};
use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

/// Reports of intervals that are kept: beyond that every second one, then every fourth …
const MAX_MOMENTS: u64 = 256;

/// Writes them.
#[derive(Default)]
pub(super) struct HeapMoments {
    /// Moments that were seen, and those in the file.
    seen: u64,
    in_file: i64,
    parts: i64,
    stacks: i64,
    /// Stacks by a hash of their JSON.
    known: HashMap<u64, Vec<i64>>,
}

impl HeapMoments {
    pub(super) fn in_file(&self) -> i64 {
        self.in_file
    }

    pub(super) fn add(&mut self, db: &Connection, moment: &HeapMoment) -> Result<(), Fault> {
        self.seen += 1;
        let first = self.parts + 1;
        for json in &moment.parts {
            self.parts += 1;
            sum::insert(db, "heap_part", params![self.parts, json])?;
        }
        let stacks: Vec<i64> =
            moment.stacks.iter().map(|json| self.stack(db, json)).collect::<Result<_, _>>()?;
        let stacks = serde_json::to_string(&stacks).unwrap_or_default();
        let parts = moment.parts.len() as i64;
        let values = params![self.seen as i64, moment.time_ns as i64, first, parts, stacks];
        self.in_file += sum::insert(db, "heap_moment", values)? as i64;
        self.thin_out(db)
    }

    /// The number of a stack; the same one is in the file once.
    fn stack(&mut self, db: &Connection, json: &str) -> Result<i64, Fault> {
        let mut hasher = DefaultHasher::new();
        json.hash(&mut hasher);
        let alike = self.known.entry(hasher.finish()).or_default();
        let mut same = db.prepare_cached("SELECT 1 FROM heap_stack WHERE id = ?1 AND json = ?2")?;
        for id in alike.iter() {
            if same.exists(params![id, json])? {
                return Ok(*id);
            }
        }
        self.stacks += 1;
        alike.push(self.stacks);
        sum::insert(db, "heap_stack", params![self.stacks, json])?;
        Ok(self.stacks)
    }

    /// The newest stays in any case.
    fn thin_out(&mut self, db: &Connection) -> Result<(), Fault> {
        let newest = self.seen;
        let every = stride(newest - 1, MAX_MOMENTS);
        if every == 1 {
            return Ok(());
        }
        // Those before the newest have been thinned out already, unless the stride has just grown.
        let from = if every == stride(newest.saturating_sub(2), MAX_MOMENTS) { newest - 1 } else { 1 };
        let mut which = db.prepare_cached(
            "SELECT id, first_part, first_part + parts FROM heap_moment WHERE id >= ?1 AND id < ?2 AND id % ?3 <> 0",
        )?;
        let found = which.query_map(params![from as i64, newest as i64, every as i64], |row| {
            Ok([row.get::<_, i64>(0)?, row.get(1)?, row.get(2)?])
        })?;
        let surplus: Vec<[i64; 3]> = found.collect::<Result<_, _>>()?;
        let mut parts = db.prepare_cached("DELETE FROM heap_part WHERE id >= ?1 AND id < ?2")?;
        let mut moment = db.prepare_cached("DELETE FROM heap_moment WHERE id = ?1")?;
        for [id, begin, end] in surplus {
            parts.execute([begin, end])?;
            self.in_file -= moment.execute([id])? as i64;
        }
        Ok(())
    }
}

/// Where a report of a heap is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeapPlace {
    /// CLOCK_MONOTONIC.
    pub time_ns: u64,
    id: i64,
}

impl Recording {
    /// # Errors
    /// Where this is of a heap: it has no steps then.
    pub fn has_steps(&self) -> Result<(), StoreError> {
        match self.meta().heap {
            Some(_) => Err(StoreError::OfAHeap { path: self.path().to_owned() }),
            None => Ok(()),
        }
    }

    /// The reports of a heap, in their order.
    ///
    /// # Errors
    /// When the file is damaged.
    pub fn heap_moments(&self) -> Result<Vec<HeapPlace>, StoreError> {
        let mut found = Vec::new();
        if !has_heaps(&self.db).map_err(|fault| fault.at(&self.path, "reading its version"))? {
            return Ok(found);
        }
        let read = each_row(&self.db, "SELECT * FROM heap_moment ORDER BY id", [], |row| {
            found.push(HeapPlace { time_ns: row.word(1)?, id: row.int(0)? });
            Ok(())
        });
        let read = read.and_then(|()| same_count(&self.db, "heap_rows", found.len() as i64));
        read.map_err(|fault| fault.at(&self.path, "reading the reports of the heap"))?;
        Ok(found)
    }

    /// Hands over the parts of one of them and then its stacks, as JSON.
    ///
    /// # Errors
    /// When the file is damaged, or one of the two says so.
    pub fn heap_report(
        &self,
        place: HeapPlace,
        part: &mut dyn FnMut(&[u8]) -> Result<(), String>,
        stack: &mut dyn FnMut(&[u8]) -> Result<(), String>,
    ) -> Result<(), StoreError> {
        let read = self.heap_parts(place, part).and_then(|stacks| {
            let mut query = self.db.prepare_cached("SELECT * FROM heap_stack WHERE id = ?1")?;
            for id in stacks {
                let mut rows = query.query([id])?;
                let missing = || Fault::damaged(format!("stack {id} of the heap is missing"));
                let row = rows.next()?.ok_or_else(missing)?;
                stack(Columns::whole(row)?.bytes(1)?)
                    .map_err(|why| Fault::damaged(format!("stack {id} of the heap: {why}")))?;
            }
            Ok(())
        });
        read.map_err(|fault| fault.at(&self.path, "reading the report of the heap"))
    }

    fn heap_parts(
        &self,
        place: HeapPlace,
        each: &mut dyn FnMut(&[u8]) -> Result<(), String>,
    ) -> Result<Vec<i64>, Fault> {
        let query = ("SELECT * FROM heap_moment WHERE id = ?1", [place.id]);
        let (first, parts, stacks) = one_row(&self.db, query, "a report of the heap", |row| {
            Ok((row.int(2)?, row.int(3)?, row.json::<Vec<i64>>(4, "the stacks of a heap's report")?))
        })?;
        let end = first.checked_add(parts).ok_or_else(|| Fault::damaged("a report's parts have no end"))?;
        let mut next = first;
        let sql = "SELECT * FROM heap_part WHERE id >= ?1 AND id < ?2 ORDER BY id";
        each_row(&self.db, sql, [first, end], |row| {
            if row.int(0)? != next {
                return Err(Fault::damaged(format!("part {next} of the heap's reports is missing")));
            }
            next += 1;
            each(row.bytes(1)?).map_err(|why| Fault::damaged(format!("a part of the heap's report: {why}")))
        })?;
        match next == end {
            true => Ok(stacks),
            false => Err(Fault::damaged(format!("part {next} of the heap's reports is missing"))),
        }
    }
}

//! Points of timelines, thinned out as they come: a run that never ends does not fill the disk.

use super::error::Fault;
use super::read::{Columns, each_row, one_row, same_count};
use super::row::StepPosition;
use super::snapshot_read::complete;
use super::sum;
use crate::model::timeline::stride;
use crate::model::{CategorySize, Pid, SizePoint};
use rusqlite::{Connection, params};

/// Points kept of a process at most. A power of two times what a report shows: the report made of
/// these points is the one made of all.
const MAX_POINTS: u64 = 16_384;

/// Writes points.
#[derive(Default)]
pub(super) struct Points {
    in_file: i64,
}

impl Points {
    /// How many points the file holds.
    pub(super) fn in_file(&self) -> i64 {
        self.in_file
    }

    pub(super) fn add(
        &mut self,
        db: &Connection,
        place: StepPosition,
        point: &SizePoint,
    ) -> Result<(), Fault> {
        let (pid, number) = (point.pid, point.number as i64);
        sum::insert(
            db,
            "point",
            params![
                pid,
                number,
                place.id,
                place.after_event,
                point.time_ns as i64,
                point.rss_known,
                point.categories.len() as i64
            ],
        )?;
        self.in_file += 1;
        let mut insert = sum::inserter(db, "point_size", 5)?;
        for size in &point.categories {
            let (virt, rss) = (size.virt as i64, size.rss as i64);
            sum::insert_with(&mut insert, params![pid, number, &*size.category, virt, rss])?;
        }
        self.thin_out(db, point)
    }

    /// The newest two stay in any case: the newest may be taken away again.
    fn thin_out(&mut self, db: &Connection, newest: &SizePoint) -> Result<(), Fault> {
        let before = |n: u64| newest.number.saturating_sub(n);
        let every = stride(before(1), MAX_POINTS);
        if every != stride(before(2), MAX_POINTS) {
            return self.delete(db, ("number % ?2 <> 0 AND number < ?3", newest.pid), (every, before(1)));
        }
        let third = before(2);
        match third % every {
            0 => Ok(()),
            _ => self.delete(db, ("number >= ?2 AND number < ?3", newest.pid), (third, before(1))),
        }
    }

    pub(super) fn discard_newest(&mut self, db: &Connection, pid: Pid) -> Result<(), Fault> {
        let newest: Option<i64> = db
            .prepare_cached("SELECT max(number) FROM point WHERE pid = ?1")?
            .query_row([pid], |row| row.get(0))?;
        let Some(newest) = newest else { return Ok(()) };
        self.delete(db, ("number >= ?2 AND number <= ?3", pid), (newest as u64, newest as u64))
    }

    fn delete(
        &mut self,
        db: &Connection,
        (which, pid): (&str, Pid),
        (a, b): (u64, u64),
    ) -> Result<(), Fault> {
        let values = params![pid, a as i64, b as i64];
        db.prepare_cached(&format!("DELETE FROM point_size WHERE pid = ?1 AND {which}"))?.execute(values)?;
        let mut delete = db.prepare_cached(&format!("DELETE FROM point WHERE pid = ?1 AND {which}"))?;
        self.in_file -= delete.execute(values)? as i64;
        Ok(())
    }
}

/// Calls `each` with place, process and number of every point.
pub(super) fn places(db: &Connection, each: &mut dyn FnMut(StepPosition, Key)) -> Result<(), Fault> {
    let mut query = db.prepare("SELECT pid, number, id, after_event FROM point")?;
    let mut rows = query.query([])?;
    let mut count = 0;
    while let Some(row) = rows.next()? {
        // Its sum is checked when it is read whole.
        let row = Columns(row);
        each(StepPosition { id: row.int(2)?, after_event: row.int(3)? }, (row.narrow(0)?, row.int(1)?));
        count += 1;
    }
    same_count(db, "point_rows", count)
}

/// Process and number.
pub(super) type Key = (Pid, i64);

pub(super) fn read(db: &Connection, (pid, number): Key) -> Result<SizePoint, Fault> {
    let mut categories = Vec::new();
    let sql = "SELECT * FROM point_size WHERE pid = ?1 AND number = ?2 ORDER BY category";
    each_row(db, sql, [i64::from(pid), number], |size| {
        let category = size.text(2)?.unwrap_or_default().into();
        categories.push(CategorySize { category, virt: size.word(3)?, rss: size.word(4)? });
        Ok(())
    })?;
    let sql = "SELECT * FROM point WHERE pid = ?1 AND number = ?2";
    one_row(db, (sql, [i64::from(pid), number]), &format!("point {number} of {pid}"), |row| {
        Ok(SizePoint {
            pid,
            number: row.word(1)?,
            time_ns: row.word(4)?,
            rss_known: row.flag(5)?,
            categories: complete(categories, row.int(6)?, "categories")?,
        })
    })
}

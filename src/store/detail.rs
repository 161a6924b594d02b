//! What smaps and pagemap report of each VMA, as rows.

use super::error::Fault;
use super::read::one_row;
use super::snapshot_read::{complete, part, range};
use super::sum;
use crate::model::{VmFlags, VmaDetail, VmaDetails};
use rusqlite::{Connection, params};

pub(super) fn write(db: &Connection, snapshot: i64, details: &VmaDetails) -> Result<(), Fault> {
    let count = (details.vmas.len() + details.guards.len()) as i64;
    sum::insert(db, "vma_details", params![snapshot, count])?;
    let mut insert = sum::inserter(db, "vma_detail", 9)?;
    let mut n = 0i64;
    for vma in &details.vmas {
        let (start, size) = (vma.range.start.0 as i64, vma.range.len() as i64);
        let figures = [vma.pss, vma.page_size, vma.hugetlb].map(|bytes| bytes as i64);
        let flags = vma.flags.to_string();
        let [pss, page_size, hugetlb] = figures;
        sum::insert_with(
            &mut insert,
            params![snapshot, n, start, size, "vma", flags, pss, page_size, hugetlb],
        )?;
        n += 1;
    }
    let none: Option<i64> = None;
    for guard in &details.guards {
        let (start, size) = (guard.start.0 as i64, guard.len() as i64);
        sum::insert_with(&mut insert, params![snapshot, n, start, size, "guard", none, none, none, none])?;
        n += 1;
    }
    Ok(())
}

pub(super) fn delete(db: &Connection, snapshot: i64) -> Result<(), Fault> {
    for sql in ["DELETE FROM vma_detail WHERE snapshot = ?1", "DELETE FROM vma_details WHERE snapshot = ?1"] {
        db.prepare_cached(sql)?.execute([snapshot])?;
    }
    Ok(())
}

pub(super) fn read(db: &Connection, snapshot: i64) -> Result<VmaDetails, Fault> {
    let sql = "SELECT * FROM vma_details WHERE snapshot = ?1";
    let what = format!("the details of snapshot {snapshot}");
    let count = one_row(db, (sql, [snapshot]), &what, |row| row.int(1))?;
    let sql = "SELECT * FROM vma_detail WHERE snapshot = ?1 ORDER BY n";
    let mut details = VmaDetails::default();
    let found = part(db, (sql, snapshot), |row| {
        let range = range(row.word(2)?, row.word(3)?)?;
        match row.bytes(4)? {
            b"vma" => details.vmas.push(VmaDetail {
                range,
                flags: VmFlags::parse(row.bytes(5)?),
                pss: row.word(6)?,
                page_size: row.word(7)?,
                hugetlb: row.word(8)?,
            }),
            b"guard" => details.guards.push(range),
            _ => return Err(Fault::damaged(format!("the details of snapshot {snapshot}"))),
        }
        Ok(())
    })?;
    complete(found, count, "details of mappings")?;
    Ok(details)
}

//! Reads a recording.

use super::check;
use super::error::{Fault, StoreError};
use super::facts::{Facts, RunMeta};
use super::read::{self, Columns, each_row};
use super::snapshot_read;
use super::symbols::{FrameNames, kind_of};
use crate::model::{Completeness, Frame, ModuleId, ModuleInfo, Observations, StackTable};
use rusqlite::Connection;
use std::path::{Path, PathBuf};

/// A recording that is open for reading. Nothing is changed but this: when the vmaudit that
/// wrote it was killed, the transaction that it left open is undone.
pub struct Recording {
    pub(super) db: Connection,
    pub(super) path: PathBuf,
    meta: RunMeta,
    facts: Option<Facts>,
}

impl Recording {
    /// # Errors
    /// When `path` is no recording, is damaged, cut, of a newer version, or still being written.
    pub fn open(path: &Path) -> Result<Recording, StoreError> {
        let db = check::open(path)?;
        let read = || -> Result<(RunMeta, Option<Facts>), Fault> { Ok((meta(&db)?, facts(&db)?)) };
        let (meta, facts) = read().map_err(|fault| fault.at(path, "reading what was run"))?;
        Ok(Recording { db, path: path.to_owned(), meta, facts })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn meta(&self) -> &RunMeta {
        &self.meta
    }

    /// What was known at the end; None when vmaudit did not live to see it.
    pub fn facts(&self) -> Option<&Facts> {
        self.facts.as_ref()
    }

    /// Hands the parts of the run's report over, in order, as JSON. False where it did not come to its end.
    ///
    /// # Errors
    /// When the file is damaged, or `each` says that a part is.
    pub fn report(&self, each: &mut dyn FnMut(&[u8]) -> Result<(), String>) -> Result<bool, StoreError> {
        if self.facts.is_none() {
            return Ok(false);
        }
        self.report_parts(each).map_err(|fault| fault.at(&self.path, "reading the report"))?;
        Ok(true)
    }

    fn report_parts(&self, each: &mut dyn FnMut(&[u8]) -> Result<(), String>) -> Result<(), Fault> {
        let mut parts = 0;
        each_row(&self.db, "SELECT * FROM report ORDER BY id", [], |row| {
            parts += 1;
            if row.int(0)? != parts {
                return Err(Fault::damaged(format!("part {parts} of the report is missing")));
            }
            each(row.bytes(1)?).map_err(|why| Fault::damaged(format!("part {parts} of the report: {why}")))
        })?;
        // Written with the parts; a single one may be without.
        match number(&self.db, "report_rows")?.unwrap_or(1) {
            expected if expected == parts => Ok(()),
            expected => Err(Fault::damaged(format!("the report has {parts} parts instead of {expected}"))),
        }
    }

    /// The newest snapshot of each process.
    ///
    /// # Errors
    /// When the file is damaged.
    pub fn newest_snapshots(&self) -> Result<Vec<Observations>, StoreError> {
        let read = || -> Result<Vec<Observations>, Fault> {
            let backings = snapshot_read::backings(&self.db)?;
            let sql = "SELECT max(id) FROM snapshot WHERE kind = 'look' GROUP BY pid";
            let mut query = self.db.prepare(sql)?;
            let mut rows = query.query([])?;
            let mut found = Vec::new();
            while let Some(row) = rows.next()? {
                // Its sum is checked when it is read whole.
                found.push(snapshot_read::snapshot(&self.db, &backings, Columns(row).int(0)?)?);
            }
            Ok(found)
        };
        read().map_err(|fault| fault.at(&self.path, "reading the snapshots of processes"))
    }

    /// All stacks, under the numbers that the steps use.
    ///
    /// # Errors
    /// When the file is damaged.
    pub fn stacks(&self) -> Result<StackTable, StoreError> {
        stacks(&self.db).map_err(|fault| fault.at(&self.path, "reading stacks"))
    }

    /// The names of frames that were resolved when the recording was made.
    ///
    /// # Errors
    /// When the file is damaged.
    pub fn names(&self, stacks: &StackTable) -> Result<FrameNames, StoreError> {
        FrameNames::read(&self.db, stacks.frames()).map_err(|fault| fault.at(&self.path, "reading names"))
    }
}

/// The value of a key; None where it is missing or NULL.
fn number(db: &Connection, key: &str) -> Result<Option<i64>, Fault> {
    read::meta(db, key, |row| row.maybe(1))
}

fn text(db: &Connection, key: &str) -> Result<String, Fault> {
    let found = read::meta(db, key, |row| row.text(1))?;
    found.ok_or_else(|| Fault::damaged(format!("{key} is missing from meta")))
}

fn required(db: &Connection, key: &str) -> Result<u64, Fault> {
    number(db, key)?.map(|n| n as u64).ok_or_else(|| Fault::damaged(format!("{key} is missing from meta")))
}

fn meta(db: &Connection) -> Result<RunMeta, Fault> {
    let command = text(db, "command")?;
    let main = required(db, "main_pid")?;
    Ok(RunMeta {
        version: text(db, "version")?,
        backend: text(db, "backend")?,
        command: serde_json::from_str(&command).map_err(|e| Fault::damaged(format!("command: {e}")))?,
        main: i32::try_from(main).map_err(|_| Fault::damaged(format!("main_pid is {main}")))?,
        timeline: number(db, "timeline")?.is_some_and(|flag| flag != 0),
        touch: number(db, "touch")?.is_some_and(|flag| flag != 0),
        heap: read::meta(db, "heap", |row| row.text(1))?,
        started_ns: required(db, "started_ns")?,
        started_unix_ns: required(db, "started_unix_ns")?,
    })
}

fn facts(db: &Connection) -> Result<Option<Facts>, Fault> {
    match text(db, "state")?.as_str() {
        "recording" => return Ok(None),
        "complete" => {}
        other => return Err(Fault::damaged(format!("its state is {other:?}"))),
    }
    let exit_code = number(db, "exit_code")?;
    Ok(Some(Facts {
        events: required(db, "events")?,
        dropped: required(db, "dropped")?,
        without_stack: required(db, "without_stack")?,
        truncated: required(db, "truncated_stacks")?,
        incomplete: required(db, "unwind_incomplete")?,
        ended_ns: required(db, "ended_ns")?,
        exit_code: exit_code
            .map(u8::try_from)
            .transpose()
            .map_err(|_| Fault::damaged("the exit code is out of range"))?,
    }))
}

fn stacks(db: &Connection) -> Result<StackTable, Fault> {
    let mut table = StackTable::default();
    let out_of_order = |what: &str, id: i64| Fault::damaged(format!("{what} {id} is missing or there twice"));
    each_row(db, "SELECT * FROM module ORDER BY id", [], |row| {
        let expected = table.modules().len() as i64;
        let info = ModuleInfo {
            path: row.bytes(1)?.to_vec(),
            major: row.narrow(2)?,
            minor: row.narrow(3)?,
            inode: row.word(4)?,
            build_id: row.text(5)?,
        };
        if row.int(0)? != expected || i64::from(table.intern_module(info).0) != expected {
            return Err(out_of_order("module", expected));
        }
        Ok(())
    })?;
    let mut frames: Vec<Frame> = Vec::new();
    each_row(db, "SELECT * FROM frame ORDER BY id", [], |row| {
        let module = row.maybe(1)?;
        let known = |n: i64| usize::try_from(n).is_ok_and(|n| n < table.modules().len());
        if row.int(0)? != frames.len() as i64 || module.is_some_and(|module| !known(module)) {
            return Err(out_of_order("frame", frames.len() as i64));
        }
        let module = module.map(|module| ModuleId(module as u32));
        frames.push(Frame { module, address: row.word(2)?, kind: kind_of(row.int(3)?)? });
        Ok(())
    })?;
    let mut stack: Vec<Frame> = Vec::new();
    each_row(db, "SELECT * FROM stack ORDER BY id", [], |row| {
        let expected = table.len() as i64;
        let completeness = match row.bytes(1)? {
            b"complete" => Completeness::Complete,
            b"truncated" => Completeness::Truncated,
            b"incomplete" => Completeness::Incomplete,
            _ => return Err(Fault::damaged(format!("the completeness of stack {expected}"))),
        };
        stack.clear();
        frames_of(row.bytes(2)?, &frames, &mut stack)
            .ok_or_else(|| Fault::damaged(format!("the frames of stack {expected}")))?;
        if row.int(0)? != expected || i64::from(table.intern_frames(&stack, completeness).0) != expected {
            return Err(out_of_order("stack", expected));
        }
        Ok(())
    })?;
    if table.frames() != frames {
        return Err(Fault::damaged("frames that no stack has, or in another order"));
    }
    Ok(table)
}

/// `[1,2,3]`, a JSON array of indices into `frames`.
fn frames_of(text: &[u8], frames: &[Frame], stack: &mut Vec<Frame>) -> Option<()> {
    let inner = text.strip_prefix(b"[")?.strip_suffix(b"]")?;
    if inner.is_empty() {
        return Some(());
    }
    for number in inner.split(|&byte| byte == b',') {
        if number.is_empty() || number.len() > 9 {
            return None;
        }
        let mut index = 0usize;
        for &digit in number {
            index = index * 10 + usize::from(digit.checked_sub(b'0').filter(|&d| d < 10)?);
        }
        stack.push(*frames.get(index)?);
    }
    Some(())
}

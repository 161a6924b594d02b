//! The thread that inserts rows: one transaction a second, or one a snapshot.

use super::error::{Fault, StoreError};
use super::facts::{Facts, RunMeta};
use super::heap::HeapMoments;
use super::point::Points;
use super::row::{EventRow, ProcessStep, Row, SnapshotKind};
use super::schema;
use super::snapshot::LastSnapshots;
use super::sum::{self, Sum};
use rusqlite::limits::Limit;
use rusqlite::types::{ToSql, ToSqlOutput, ValueRef};
use rusqlite::{CachedStatement, Connection, OpenFlags, params};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How long a transaction stays open, and how many rows it takes at most.
const TRANSACTION: Duration = Duration::from_secs(1);
const TRANSACTION_ROWS: usize = 200_000;

pub(super) enum Message {
    Rows(Vec<Row>),
    Commit,
}

/// Any bytes: text where it is text, so that people can read it.
pub(super) struct Name<'a>(pub(super) &'a [u8]);

impl ToSql for Name<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        let text = std::str::from_utf8(self.0).is_ok() && !self.0.contains(&0);
        let value = if text { ValueRef::Text(self.0) } else { ValueRef::Blob(self.0) };
        Ok(ToSqlOutput::Borrowed(value))
    }
}

pub(super) struct Writer<'c> {
    db: &'c Connection,
    event: CachedStatement<'c>,
    snapshots: LastSnapshots,
    points: Points,
    heaps: HeapMoments,
    began: Option<Instant>,
    rows: usize,
    counts: Counts,
    safe_event: &'c AtomicU64,
}

/// How many rows there have to be, written with each transaction.
#[derive(Clone, Copy, Default)]
struct Counts {
    events: i64,
    last_event: i64,
    losses: i64,
    symbols: i64,
    report_parts: i64,
}

impl Writer<'_> {
    /// Creates the tables in the empty file at `path`, then goes on in a thread until the sender
    /// is gone.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(super) fn start(
        path: &Path,
        (meta, longest): (&RunMeta, i32),
        (messages, used): (Receiver<Message>, SyncSender<Vec<Row>>),
        safe_event: Arc<AtomicU64>,
    ) -> Result<JoinHandle<Result<(), StoreError>>, StoreError> {
        let db = create(path, (meta, longest)).map_err(|fault| fault.at(path, "creating it"))?;
        let path: PathBuf = path.to_owned();
        // The session waits for signals in its own thread: none may end up here.
        let blocked = nix::sys::signal::SigSet::all();
        let before = blocked.thread_swap_mask(nix::sys::signal::SigmaskHow::SIG_BLOCK);
        let name = thread::Builder::new().name("recording".to_owned());
        let for_errors = path.clone();
        let started = name.spawn(move || {
            let written = write_all(&db, (&messages, &used), &safe_event);
            let written = written.map_err(|fault| fault.of_writing(&db));
            if written.is_err() {
                // What can be: an empty journal would be left behind.
                let _ = db.execute_batch("ROLLBACK");
                let _ = db.pragma_update_and_check(None, "journal_mode", "DELETE", |_| Ok(()));
            }
            written.map_err(|fault| fault.at(&path, "writing it"))
        });
        if let Ok(before) = before {
            let _ = before.thread_set_mask();
        }
        started.map_err(|source| StoreError::Io { path: for_errors, source })
    }
}

fn create(path: &Path, (meta, longest): (&RunMeta, i32)) -> Result<Connection, Fault> {
    // The path has no links, unless somebody puts one there now.
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let db = Connection::open_with_flags(path, flags)?;
    // What is longer could not be read again.
    db.set_limit(Limit::SQLITE_LIMIT_LENGTH, longest)?;
    begin(&db, meta).map_err(|fault| fault.of_writing(&db))?;
    Ok(db)
}

fn begin(db: &Connection, meta: &RunMeta) -> Result<(), Fault> {
    // A single writer; no reader sees a half-written recording or makes the writer wait.
    db.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
    db.pragma_update_and_check(None, "journal_mode", "TRUNCATE", |_| Ok(()))?;
    // The kernel keeps what was written when vmaudit is killed; only a power cut could need more.
    db.pragma_update(None, "synchronous", "OFF")?;
    db.pragma_update(None, "cache_size", -16_384)?;
    db.pragma_update(None, "temp_store", "MEMORY")?;
    db.execute_batch("BEGIN EXCLUSIVE")?;
    schema::create(db)?;
    let command = serde_json::to_string(&meta.command).unwrap_or_default();
    let known: [(&str, &dyn ToSql); 9] = [
        ("state", &"recording"),
        ("version", &meta.version),
        ("backend", &meta.backend),
        ("command", &command),
        ("main_pid", &meta.main),
        ("timeline", &meta.timeline),
        ("touch", &meta.touch),
        ("started_ns", &(meta.started_ns as i64)),
        ("started_unix_ns", &(meta.started_unix_ns as i64)),
    ];
    for (key, value) in known {
        set(db, key, value)?;
    }
    if let Some(heap) = &meta.heap {
        set(db, "heap", heap)?;
    }
    db.execute_batch("COMMIT")?;
    Ok(())
}

fn set(db: &Connection, key: &str, value: &dyn ToSql) -> Result<(), Fault> {
    replace(db, "meta", params![key, value])
}

/// As `insert`, of a row that may be there already.
fn replace(db: &Connection, table: &str, values: &[&dyn ToSql]) -> Result<(), Fault> {
    let mut insert = db.prepare_cached(&format!("REPLACE INTO {table} VALUES(?, ?, ?)"))?;
    sum::insert_with(&mut insert, values).map(drop)
}

fn write_all(
    db: &Connection,
    (messages, used): (&Receiver<Message>, &SyncSender<Vec<Row>>),
    safe_event: &AtomicU64,
) -> Result<(), Fault> {
    let event = sum::inserter(db, "event", 18)?;
    let mut writer = Writer {
        db,
        event,
        snapshots: LastSnapshots::default(),
        points: Points::default(),
        heaps: HeapMoments::default(),
        began: None,
        rows: 0,
        counts: Counts::default(),
        safe_event,
    };
    loop {
        match messages.recv_timeout(TRANSACTION) {
            Ok(Message::Rows(mut rows)) => {
                for row in rows.drain(..) {
                    writer.row(row)?;
                }
                let _ = used.try_send(rows);
                writer.commit_if_due()?;
            }
            Ok(Message::Commit) => writer.commit()?,
            Err(RecvTimeoutError::Timeout) => writer.commit()?,
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    writer.begin()?;
    writer.snapshots.write_waiting(writer.db)?;
    writer.commit()?;
    drop(writer);
    // Takes the empty journal away.
    db.pragma_update_and_check(None, "journal_mode", "DELETE", |_| Ok(()))?;
    Ok(())
}

impl Writer<'_> {
    fn begin(&mut self) -> Result<(), Fault> {
        if self.began.is_none() {
            self.db.prepare_cached("BEGIN")?.execute([])?;
            self.began = Some(Instant::now());
        }
        Ok(())
    }

    fn commit(&mut self) -> Result<(), Fault> {
        if self.snapshots.are_due() {
            self.begin()?;
            self.snapshots.write_waiting(self.db)?;
        }
        if self.began.take().is_some() {
            let counts = self.counts;
            set(self.db, "event_rows", &counts.events)?;
            set(self.db, "last_event", &counts.last_event)?;
            set(self.db, "loss_rows", &counts.losses)?;
            set(self.db, "symbol_rows", &counts.symbols)?;
            if counts.report_parts > 0 {
                set(self.db, "report_rows", &counts.report_parts)?;
            }
            if self.heaps.in_file() > 0 {
                set(self.db, "heap_rows", &self.heaps.in_file())?;
            }
            set(self.db, "snapshot_rows", &self.snapshots.in_file())?;
            set(self.db, "point_rows", &self.points.in_file())?;
            self.db.prepare_cached("COMMIT")?.execute([])?;
            self.safe_event.store(counts.last_event as u64, Ordering::Relaxed);
            self.rows = 0;
        }
        Ok(())
    }

    fn commit_if_due(&mut self) -> Result<(), Fault> {
        let due = self.rows >= TRANSACTION_ROWS || self.began.is_some_and(|b| b.elapsed() >= TRANSACTION);
        if due { self.commit() } else { Ok(()) }
    }

    fn row(&mut self, row: Row) -> Result<(), Fault> {
        self.begin()?;
        self.rows += 1;
        match row {
            Row::Event(event) => return self.event(&event),
            Row::Snapshot { place, kind: SnapshotKind::Snapshot, seen } => {
                return self.snapshots.take(self.db, place, seen);
            }
            Row::Snapshot { place, kind, seen } => {
                self.snapshots.write(self.db, place, kind, &seen)?;
            }
            Row::Point { place, point } => self.points.add(self.db, place, &point)?,
            Row::DiscardSnapshot { pid } => {
                self.snapshots.discard(self.db, pid)?;
                self.points.discard_newest(self.db, pid)?;
            }
            Row::Facts(facts) => {
                self.snapshots.write_waiting(self.db)?;
                return finish(self.db, &facts);
            }
            Row::Process { id, step } => return process(self.db, id, &step),
            Row::Thread { id, process, pid, tid, name } => {
                self.insert("thread", params![id, process, pid, tid, Name(&name)])?
            }
            Row::Space { id, mm } => self.insert("space", params![id, mm])?,
            Row::File { id, file } => self.insert(
                "file",
                params![id, file.major, file.minor, file.inode as i64, Name(&file.path), file.deleted],
            )?,
            Row::VmaName { id, name } => self.insert("vma_name", params![id, Name(&name)])?,
            Row::Module { id, info } => self.insert(
                "module",
                params![id, Name(&info.path), info.major, info.minor, info.inode as i64, info.build_id],
            )?,
            Row::Frame { id, frame } => self.insert(
                "frame",
                params![
                    id,
                    frame.module.map(|module| module.0),
                    frame.address as i64,
                    super::symbols::kind_number(frame.kind)
                ],
            )?,
            Row::Stack { id, completeness, frames } => {
                self.insert("stack", params![id, completeness, frames])?
            }
            Row::Fork(fork) => {
                let list = self.snapshots.list(self.db, fork.mappings.as_deref())?;
                self.insert(
                    "fork",
                    params![
                        fork.event,
                        fork.child.0,
                        fork.child.1,
                        fork.space,
                        fork.sp,
                        fork.brk,
                        fork.is_thread,
                        list,
                        fork.mappings.map_or(0, |list| list.len() as i64)
                    ],
                )?;
            }
            Row::Exec(exec) => {
                let list = self.snapshots.list(self.db, exec.mappings.as_deref())?;
                self.insert(
                    "exec",
                    params![
                        exec.event,
                        exec.exe,
                        exec.start_brk,
                        exec.brk,
                        exec.start_stack,
                        exec.compat,
                        list,
                        exec.mappings.map_or(0, |list| list.len() as i64)
                    ],
                )?;
            }
            Row::Loss { place, time_ns } => {
                self.counts.losses += 1;
                self.insert("loss", params![place.id, place.after_event, time_ns])?;
            }
            Row::Symbol { frame, n, named } => {
                self.counts.symbols += super::symbols::insert(self.db, (frame, n), &named)? as i64;
            }
            Row::HeapReport(moment) => self.heaps.add(self.db, &moment)?,
            Row::Report { json } => {
                self.counts.report_parts += 1;
                self.insert("report", params![self.counts.report_parts, json])?;
            }
        }
        Ok(())
    }

    fn insert(&self, table: &str, values: &[&dyn ToSql]) -> Result<(), Fault> {
        sum::insert(self.db, table, values).map(drop)
    }

    fn event(&mut self, row: &EventRow) -> Result<(), Fault> {
        let a = &row.arguments;
        let values = [
            Some(row.id),
            Some(row.time_ns),
            Some(row.thread),
            Some(row.space),
            Some(a.op),
            Some(row.ret),
            Some(row.stack),
            row.virt,
            a.addr,
            a.len,
            a.prot,
            a.flags,
            a.file,
            a.fd,
            a.offset,
            a.new_addr,
            a.new_len,
            a.value,
        ];
        let mut sum = Sum::new();
        for (index, value) in values.iter().enumerate() {
            sum.number(*value);
            self.event.raw_bind_parameter(index + 1, value)?;
        }
        self.event.raw_bind_parameter(values.len() + 1, sum.finish())?;
        self.event.raw_execute()?;
        self.counts.events += 1;
        self.counts.last_event = row.id;
        Ok(())
    }
}

fn process(db: &Connection, id: i64, step: &ProcessStep) -> Result<(), Fault> {
    match step {
        ProcessStep::Seen { pid, parent, began_ns, name } => db
            .prepare_cached(
                "INSERT INTO process(id, pid, parent, began_ns, name) VALUES(?1, ?2, ?3, ?4, ?5)",
            )?
            .execute(params![id, pid, parent, began_ns, Name(name)])?,
        ProcessStep::Exec { time_ns, exe, name } => db
            .prepare_cached("UPDATE process SET exec_ns = ?2, exe = ?3, name = ?4 WHERE id = ?1")?
            .execute(params![id, time_ns, exe, Name(name)])?,
        ProcessStep::Ended { time_ns, status, name } => db
            .prepare_cached("UPDATE process SET ended_ns = ?2, status = ?3, name = ?4 WHERE id = ?1")?
            .execute(params![id, time_ns, status, Name(name)])?,
    };
    Ok(())
}

fn finish(db: &Connection, facts: &Facts) -> Result<(), Fault> {
    let known: [(&str, u64); 6] = [
        ("events", facts.events),
        ("dropped", facts.dropped),
        ("without_stack", facts.without_stack),
        ("truncated_stacks", facts.truncated),
        ("unwind_incomplete", facts.incomplete),
        ("ended_ns", facts.ended_ns),
    ];
    for (key, value) in known {
        set(db, key, &(value as i64))?;
    }
    set(db, "exit_code", &facts.exit_code)?;
    set(db, "state", &"complete")
}

//! The thread that inserts rows: one transaction a second, or one a look.

use super::error::{Fault, StoreError};
use super::facts::{Facts, RunMeta};
use super::look::Looks;
use super::row::{EventRow, ProcessStep, Row, SnapshotKind};
use super::schema;
use rusqlite::types::{ToSql, ToSqlOutput, ValueRef};
use rusqlite::{Connection, OpenFlags, Statement, params};
use std::path::{Path, PathBuf};
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
    event: Statement<'c>,
    looks: Looks,
    began: Option<Instant>,
    rows: usize,
}

impl Writer<'_> {
    /// Creates the tables in the empty file at `path`, then goes on in a thread until the sender
    /// is gone.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(super) fn start(
        path: &Path,
        meta: &RunMeta,
        messages: Receiver<Message>,
        used: SyncSender<Vec<Row>>,
    ) -> Result<JoinHandle<Result<(), StoreError>>, StoreError> {
        let db = create(path, meta).map_err(|fault| fault.at(path, "creating it"))?;
        let path: PathBuf = path.to_owned();
        // The session waits for signals in its own thread: none may end up here.
        let blocked = nix::sys::signal::SigSet::all();
        let before = blocked.thread_swap_mask(nix::sys::signal::SigmaskHow::SIG_BLOCK);
        let name = thread::Builder::new().name("recording".to_owned());
        let for_errors = path.clone();
        let started = name
            .spawn(move || write_all(&db, &messages, &used).map_err(|fault| fault.at(&path, "writing it")));
        if let Ok(before) = before {
            let _ = before.thread_set_mask();
        }
        started.map_err(|source| StoreError::Io { path: for_errors, source })
    }
}

fn create(path: &Path, meta: &RunMeta) -> Result<Connection, Fault> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Connection::open_with_flags(path, flags)?;
    // One writer, and nobody who reads a half-written recording or makes the writer wait.
    db.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
    db.pragma_update_and_check(None, "journal_mode", "TRUNCATE", |_| Ok(()))?;
    // The kernel keeps what was written when vmaudit is killed; only a power cut could need more.
    db.pragma_update(None, "synchronous", "OFF")?;
    db.pragma_update(None, "cache_size", -16_384)?;
    db.pragma_update(None, "temp_store", "MEMORY")?;
    db.execute_batch("BEGIN EXCLUSIVE")?;
    schema::create(&db)?;
    let command = serde_json::to_string(&meta.command).unwrap_or_default();
    let known: [(&str, &dyn ToSql); 7] = [
        ("state", &"recording"),
        ("version", &meta.version),
        ("backend", &meta.backend),
        ("command", &command),
        ("main_pid", &meta.main),
        ("started_ns", &(meta.started_ns as i64)),
        ("started_unix_ns", &(meta.started_unix_ns as i64)),
    ];
    for (key, value) in known {
        set(&db, key, value)?;
    }
    db.execute_batch("COMMIT")?;
    Ok(db)
}

fn set(db: &Connection, key: &str, value: &dyn ToSql) -> Result<(), Fault> {
    db.execute("INSERT OR REPLACE INTO meta(key, value) VALUES(?1, ?2)", params![key, value])?;
    Ok(())
}

fn write_all(
    db: &Connection,
    messages: &Receiver<Message>,
    used: &SyncSender<Vec<Row>>,
) -> Result<(), Fault> {
    let event = db.prepare(
        "INSERT INTO event(id, time_ns, thread, space, op, ret, stack, virt, addr, len, prot, flags, \
         file, fd, offset, new_addr, new_len, value) \
         VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18)",
    )?;
    let mut writer = Writer { db, event, looks: Looks::default(), began: None, rows: 0 };
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
    writer.looks.write_waiting(writer.db)?;
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
        if self.looks.are_due() {
            self.begin()?;
            self.looks.write_waiting(self.db)?;
        }
        if self.began.take().is_some() {
            self.db.prepare_cached("COMMIT")?.execute([])?;
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
            Row::Snapshot { place, kind: SnapshotKind::Look, seen } => {
                return self.looks.take(self.db, place, seen);
            }
            Row::Snapshot { place, kind, seen } => {
                self.looks.write(self.db, place, kind, &seen)?;
            }
            Row::DiscardLook { pid } => self.looks.discard(self.db, pid)?,
            Row::Facts(facts) => {
                self.looks.write_waiting(self.db)?;
                return finish(self.db, &facts);
            }
            Row::Process { id, step } => return process(self.db, id, &step),
            Row::Thread { id, process, pid, tid, name } => self.insert(
                "INSERT INTO thread(id, process, pid, tid, name) VALUES(?1, ?2, ?3, ?4, ?5)",
                params![id, process, pid, tid, Name(&name)],
            )?,
            Row::Space { id, mm } => {
                self.insert("INSERT INTO space(id, mm) VALUES(?1, ?2)", params![id, mm])?;
            }
            Row::File { id, file } => self.insert(
                "INSERT INTO file(id, major, minor, inode, path, deleted) VALUES(?1, ?2, ?3, ?4, ?5, ?6)",
                params![id, file.major, file.minor, file.inode as i64, Name(&file.path), file.deleted],
            )?,
            Row::VmaName { id, name } => {
                self.insert("INSERT INTO vma_name(id, name) VALUES(?1, ?2)", params![id, Name(&name)])?;
            }
            Row::Module { id, info } => self.insert(
                "INSERT INTO module(id, path, major, minor, inode, build_id) VALUES(?1, ?2, ?3, ?4, ?5, ?6)",
                params![id, Name(&info.path), info.major, info.minor, info.inode as i64, info.build_id],
            )?,
            Row::Frame { id, frame } => self.insert(
                "INSERT INTO frame(id, module, address, kind) VALUES(?1, ?2, ?3, ?4)",
                params![
                    id,
                    frame.module.map(|module| module.0),
                    frame.address as i64,
                    super::symbols::kind_number(frame.kind)
                ],
            )?,
            Row::Stack { id, completeness, frames } => self.insert(
                "INSERT INTO stack(id, completeness, frames) VALUES(?1, ?2, ?3)",
                params![id, completeness, frames],
            )?,
            Row::Fork(fork) => {
                let list = self.looks.list(self.db, fork.mappings.as_deref())?;
                self.insert(
                    "INSERT INTO fork(event, child_pid, child_tid, child_space, child_sp, child_brk, \
                     is_thread, list) VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
                    params![
                        fork.event,
                        fork.child.0,
                        fork.child.1,
                        fork.space,
                        fork.sp,
                        fork.brk,
                        fork.is_thread,
                        list
                    ],
                )?;
            }
            Row::Exec(exec) => {
                let list = self.looks.list(self.db, exec.mappings.as_deref())?;
                self.insert(
                    "INSERT INTO exec(event, exe, start_brk, brk, start_stack, compat, list) \
                     VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7)",
                    params![
                        exec.event,
                        exec.exe,
                        exec.start_brk,
                        exec.brk,
                        exec.start_stack,
                        exec.compat,
                        list
                    ],
                )?;
            }
            Row::Loss { place, time_ns } => self.insert(
                "INSERT INTO loss(id, after_event, time_ns) VALUES(?1, ?2, ?3)",
                params![place.id, place.after_event, time_ns],
            )?,
            Row::Symbol { frame, n, named } => super::symbols::insert(self.db, (frame, n), &named)?,
            Row::Report { json } => {
                self.insert("INSERT OR REPLACE INTO report(id, json) VALUES(1, ?1)", params![json])?;
            }
        }
        Ok(())
    }

    fn insert(&self, sql: &str, values: impl rusqlite::Params) -> Result<(), Fault> {
        self.db.prepare_cached(sql)?.execute(values)?;
        Ok(())
    }

    fn event(&mut self, row: &EventRow) -> Result<(), Fault> {
        let a = &row.arguments;
        self.event.execute(params![
            row.id,
            row.time_ns,
            row.thread,
            row.space,
            a.op,
            row.ret,
            row.stack,
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
            a.value
        ])?;
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

//! The steps of a recording, one after the other, without holding them all.

use super::error::{Fault, StoreError};
use super::op::{self, narrow};
use super::point;
use super::read::{Columns, each_row, one_row, same_count};
use super::recording::Recording;
use super::snapshot_read;
use super::snapshot_read::{Backings, lookup, numbered};
use super::sum::Sum;
use crate::model::{
    Addr, AddrRange, EventId, FileRef, Mapping, MmKey, NoStack, StackId, Step, Task, VmEvent, VmOp,
};
use rusqlite::{Connection, Row};
use std::ops::ControlFlow;

/// Steps other than events, each with its position among them.
struct Landmark {
    id: i64,
    after_event: i64,
    what: StepKind,
}

enum StepKind {
    Lost(u64),
    Snapshot,
    Found(MmKey),
    Resync,
    Point(point::Key),
}

/// What events refer to, by number from 1.
struct Dictionary {
    tasks: Vec<Task>,
    spaces: Vec<MmKey>,
    files: Vec<FileRef>,
    names: Vec<Vec<u8>>,
    backings: Backings,
}

impl Recording {
    /// Calls `each` with every step in order, until it says to stop. Events are read one by one; the step is
    /// borrowed for the call.
    ///
    /// # Errors
    /// When the file is damaged: steps before the damage have been handed over then.
    pub fn steps(&self, each: &mut dyn FnMut(&Step) -> ControlFlow<()>) -> Result<(), StoreError> {
        let stacks = || -> Result<i64, Fault> { count(&self.db, "SELECT count(*) FROM stack") };
        stacks()
            .and_then(|stacks| Reader { db: &self.db, stacks, last: 0 }.run(each))
            .map_err(|fault| fault.at(&self.path, "reading events"))
    }
}

fn count(db: &Connection, sql: &str) -> Result<i64, Fault> {
    Ok(db.query_row(sql, [], |row| row.get(0))?)
}

struct Reader<'a> {
    db: &'a Connection,
    stacks: i64,
    last: i64,
}

impl Reader<'_> {
    fn run(mut self, each: &mut dyn FnMut(&Step) -> ControlFlow<()>) -> Result<(), Fault> {
        let dictionary = dictionary(self.db)?;
        let mut landmarks = landmarks(self.db, &dictionary.spaces)?.into_iter().peekable();
        let mut query = self.db.prepare("SELECT * FROM event ORDER BY id")?;
        let mut rows = query.query([])?;
        let mut step = Step::Event(empty());
        let mut count = 0;
        while let Some(row) = rows.next()? {
            let id = Columns(row).int(0)?;
            while let Some(landmark) = landmarks.next_if(|l| l.after_event < id) {
                if each(&self.landmark(&landmark, &dictionary)?).is_break() {
                    return Ok(());
                }
            }
            if let Step::Event(event) = &mut step {
                self.event(row, &dictionary, event)?;
            }
            self.last = id;
            count += 1;
            if each(&step).is_break() {
                return Ok(());
            }
        }
        same_count(self.db, "event_rows", count)?;
        same_count(self.db, "last_event", self.last)?;
        for landmark in landmarks {
            if each(&self.landmark(&landmark, &dictionary)?).is_break() {
                return Ok(());
            }
        }
        Ok(())
    }

    fn landmark(&self, landmark: &Landmark, known: &Dictionary) -> Result<Step, Fault> {
        let seen = || snapshot_read::snapshot(self.db, &known.backings, landmark.id).map(Box::new);
        Ok(match landmark.what {
            StepKind::Lost(time_ns) => Step::Lost { time_ns },
            StepKind::Snapshot => Step::Snapshot(seen()?),
            StepKind::Found(mm) => Step::Found { mm, seen: seen()? },
            StepKind::Resync => Step::Resync(seen()?),
            StepKind::Point(key) => Step::Point(Box::new(point::read(self.db, key)?)),
        })
    }

    /// Reads a row into `event`, whose buffers are used again.
    fn event(&self, row: &Row<'_>, known: &Dictionary, event: &mut VmEvent) -> Result<(), Fault> {
        let row = Numbers::of(row)?;
        let id = row.int(0)?;
        if id <= 0 {
            return Err(Fault::damaged(format!("an event with the number {id}")));
        }
        event.id = EventId(id as u64);
        event.time_ns = row.word(1)?;
        let task = lookup(&known.tasks, row.int(2)?, "thread")?;
        (event.task.pid, event.task.tid) = (task.pid, task.tid);
        event.task.comm.clone_from(&task.comm);
        event.mm = *lookup(&known.spaces, row.int(3)?, "space")?;
        event.ret = row.int(5)?;
        event.stack = match row.int(6)? {
            -1 => Err(NoStack::NotTaken),
            -2 => Err(NoStack::Lost),
            -3 => Err(NoStack::Unreadable),
            stack if (0..self.stacks).contains(&stack) => Ok(StackId(stack as u32)),
            stack => return Err(Fault::damaged(format!("event {id} has the stack {stack}"))),
        };
        event.total_vm = row.maybe(7)?.map(|bytes| bytes as u64);
        event.op = self.operation(&row, known)?;
        Ok(())
    }

    fn operation(&self, row: &Numbers, known: &Dictionary) -> Result<VmOp, Fault> {
        let addr = || row.word(8).map(Addr);
        let len = || row.word(9);
        let flags = || row.word(11);
        let mapped = || -> Result<Option<AddrRange>, Fault> {
            let Some(start) = row.maybe(15)? else { return Ok(None) };
            Ok(Some(AddrRange::from_len(Addr(start as u64), row.word(16)?)))
        };
        Ok(match row.int(4)? {
            op::MMAP => VmOp::Mmap {
                addr: addr()?,
                len: len()?,
                prot: row.word(10)?,
                flags: flags()?,
                fd: row.narrow(13)?,
                offset: row.word(14)?,
                file: match row.maybe(12)? {
                    Some(file) => Some(lookup(&known.files, file, "file")?.clone()),
                    None => None,
                },
            },
            op::MUNMAP => VmOp::Munmap { addr: addr()?, len: len()? },
            op::MREMAP => VmOp::Mremap {
                old: addr()?,
                old_len: len()?,
                new_len: row.word(16)?,
                flags: flags()?,
                new_addr: Addr(row.word(15)?),
            },
            op::BRK => VmOp::Brk { requested: addr()?, current: row.maybe(15)?.map(|at| Addr(at as u64)) },
            op::MPROTECT => VmOp::Mprotect { addr: addr()?, len: len()?, prot: row.word(10)?, pkey: None },
            op::PKEY_MPROTECT => VmOp::Mprotect {
                addr: addr()?,
                len: len()?,
                prot: row.word(10)?,
                pkey: Some(row.narrow(17)?),
            },
            op::MADVISE => VmOp::Madvise { addr: addr()?, len: len()?, advice: row.narrow(17)? },
            op::PROCESS_MADVISE => {
                VmOp::ProcessMadvise { pidfd: row.narrow(13)?, iovecs: len()?, advice: row.narrow(17)? }
            }
            op::SHMAT => {
                VmOp::Shmat { shmid: row.narrow(17)?, addr: addr()?, flags: flags()?, mapped: mapped()? }
            }
            op::SHMDT => VmOp::Shmdt { addr: addr()? },
            op::REMAP_FILE_PAGES => {
                VmOp::RemapFilePages { addr: addr()?, len: len()?, pgoff: row.word(14)?, flags: flags()? }
            }
            op::IO_SETUP => VmOp::IoSetup { nr_events: row.word(17)?, mapped: mapped()? },
            op::MAP_SHADOW_STACK => VmOp::MapShadowStack { addr: addr()?, len: len()?, flags: flags()? },
            op::SET_VMA_NAME => VmOp::SetVmaName {
                addr: addr()?,
                len: len()?,
                name: match row.maybe(12)? {
                    Some(name) => Some(lookup(&known.names, name, "VMA name")?.clone()),
                    None => None,
                },
            },
            op::SET_MM => VmOp::SetMm { option: row.narrow(17)?, value: row.word(8)? },
            op::SECCOMP => VmOp::SeccompListenerBusy,
            op::CLONE => self.fork(row.int(0)?, known)?,
            op::EXECVE => self.exec(row.int(0)?, known)?,
            op::EXIT => VmOp::Exit { code: row.narrow(17)?, group_dead: row.flag(11)? },
            op::RENAME => VmOp::Rename,
            op::IO_DESTROY => VmOp::IoDestroy { ctx: addr()? },
            other => return Err(Fault::damaged(format!("a call with the number {other}"))),
        })
    }

    fn fork(&self, event: i64, known: &Dictionary) -> Result<VmOp, Fault> {
        let sql = "SELECT * FROM fork WHERE event = ?1";
        one_row(self.db, (sql, [event]), &format!("fork {event}"), |row| {
            Ok(VmOp::Fork {
                child_pid: row.narrow(1)?,
                child_tid: row.narrow(2)?,
                child_mm: *lookup(&known.spaces, row.int(3)?, "space")?,
                child_sp: Addr(row.word(4)?),
                child_brk: row.maybe(5)?.map(|at| Addr(at as u64)),
                is_thread: row.flag(6)?,
                mappings: self.list(known, (row.maybe(7)?, row.int(8)?))?,
            })
        })
    }

    fn exec(&self, event: i64, known: &Dictionary) -> Result<VmOp, Fault> {
        let sql = "SELECT * FROM exec WHERE event = ?1";
        one_row(self.db, (sql, [event]), &format!("exec {event}"), |row| {
            Ok(VmOp::Exec {
                exe: match row.maybe(1)? {
                    Some(file) => Some(lookup(&known.files, file, "file")?.clone()),
                    None => None,
                },
                start_brk: Addr(row.word(2)?),
                brk: Addr(row.word(3)?),
                start_stack: Addr(row.word(4)?),
                compat: row.flag(5)?,
                mappings: self.list(known, (row.maybe(6)?, row.int(7)?))?,
            })
        })
    }

    fn list(
        &self,
        known: &Dictionary,
        (list, count): (Option<i64>, i64),
    ) -> Result<Option<Vec<Mapping>>, Fault> {
        list.map(|list| snapshot_read::mappings(self.db, &known.backings, (list, count))).transpose()
    }
}

/// A row of `event`: numbers only, each read once.
struct Numbers([Option<i64>; 18]);

impl Numbers {
    fn of(row: &Row<'_>) -> Result<Numbers, Fault> {
        let columns = Columns(row);
        let (mut numbers, mut sum) = ([None; 18], Sum::new());
        for (index, number) in numbers.iter_mut().enumerate() {
            *number = columns.maybe(index)?;
            sum.number(*number);
        }
        if columns.int(18)? == sum.finish() {
            return Ok(Numbers(numbers));
        }
        let id = numbers[0].unwrap_or_default();
        Err(Fault::damaged(format!("event {id} does not add up to its check sum")))
    }

    fn maybe(&self, column: usize) -> Result<Option<i64>, Fault> {
        Ok(self.0[column])
    }

    fn int(&self, column: usize) -> Result<i64, Fault> {
        let missing = || Fault::damaged(format!("a number of event {:?} is missing", self.0[0]));
        self.0[column].ok_or_else(missing)
    }

    fn word(&self, column: usize) -> Result<u64, Fault> {
        Ok(self.int(column)? as u64)
    }

    fn narrow<T: TryFrom<i64>>(&self, column: usize) -> Result<T, Fault> {
        narrow(self.int(column)?, "a number of an event")
    }

    fn flag(&self, column: usize) -> Result<bool, Fault> {
        Ok(self.int(column)? != 0)
    }
}

fn empty() -> VmEvent {
    VmEvent {
        id: EventId(0),
        time_ns: 0,
        task: Task { pid: 0, tid: 0, comm: Vec::new() },
        mm: MmKey(0),
        op: VmOp::Rename,
        ret: 0,
        stack: Err(NoStack::NotTaken),
        total_vm: None,
    }
}

fn dictionary(db: &Connection) -> Result<Dictionary, Fault> {
    Ok(Dictionary {
        tasks: numbered(db, "SELECT * FROM thread ORDER BY id", |row| {
            Ok(Task { pid: row.narrow(2)?, tid: row.narrow(3)?, comm: row.bytes(4)?.to_vec() })
        })?,
        spaces: numbered(db, "SELECT * FROM space ORDER BY id", |row| Ok(MmKey(row.word(1)?)))?,
        files: numbered(db, "SELECT * FROM file ORDER BY id", |row| {
            Ok(FileRef {
                major: row.narrow(1)?,
                minor: row.narrow(2)?,
                inode: row.word(3)?,
                path: row.bytes(4)?.to_vec(),
                deleted: row.flag(5)?,
            })
        })?,
        names: numbered(db, "SELECT * FROM vma_name ORDER BY id", |row| Ok(row.bytes(1)?.to_vec()))?,
        backings: snapshot_read::backings(db)?,
    })
}

fn landmarks(db: &Connection, spaces: &[MmKey]) -> Result<Vec<Landmark>, Fault> {
    let mut found = Vec::new();
    let mut query = db.prepare("SELECT id, after_event, kind, space FROM snapshot")?;
    let mut rows = query.query([])?;
    while let Some(row) = rows.next()? {
        // Its sum is checked when it is read whole.
        let row = Columns(row);
        let what = match row.bytes(2)? {
            b"look" => StepKind::Snapshot,
            b"resync" => StepKind::Resync,
            b"found" => StepKind::Found(*lookup(spaces, row.int(3)?, "space")?),
            _ => return Err(Fault::damaged(format!("the kind of snapshot {}", row.int(0)?))),
        };
        found.push(Landmark { id: row.int(0)?, after_event: row.int(1)?, what });
    }
    let snapshots = found.len() as i64;
    same_count(db, "snapshot_rows", snapshots)?;
    each_row(db, "SELECT * FROM loss", [], |row| {
        found.push(Landmark {
            id: row.int(0)?,
            after_event: row.int(1)?,
            what: StepKind::Lost(row.word(2)?),
        });
        Ok(())
    })?;
    same_count(db, "loss_rows", found.len() as i64 - snapshots)?;
    point::places(db, &mut |place, key| {
        found.push(Landmark { id: place.id, after_event: place.after_event, what: StepKind::Point(key) });
    })?;
    found.sort_unstable_by_key(|landmark| (landmark.after_event, landmark.id));
    Ok(found)
}

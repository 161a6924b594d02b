//! Writes a recording while the target runs.

use super::check::MAX_VALUE;
use super::encode::Encoder;
use super::error::StoreError;
use super::facts::{Facts, Owner, RunMeta};
use super::place;
use super::row::{HeapMoment, Row, SnapshotKind};
use super::symbols::NamedFrames;
use super::writer::{Message, Writer};
use crate::model::{Observations, Pid, SizePoint, StackTable, Step, SymbolizedStacks, VmEvent};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Rows that are handed over at once.
const BATCH: usize = 1024;
/// Bytes of parts of a report that are handed over at once.
const BATCH_BYTES: usize = 1 << 18;
/// Batches that wait at most: a disk that is slower for longer slows down reading the ring.
const WAITING: usize = 64;
/// Rows wait at most this long before they are handed over, ns and as a duration.
const HAND_OVER_NS: u64 = 500_000_000;
const HAND_OVER: Duration = Duration::from_nanos(HAND_OVER_NS);

/// A recording that is being written. Failures stop the recording, never the caller: see
/// [`Recorder::failure`].
pub struct Recorder {
    path: PathBuf,
    /// An older recording was set aside.
    older: bool,
    encoder: Encoder,
    named: NamedFrames,
    batch: Vec<Row>,
    part_bytes: usize,
    sender: Option<SyncSender<Message>>,
    used: Receiver<Vec<Row>>,
    thread: Option<JoinHandle<Result<(), StoreError>>>,
    failed: Option<StoreError>,
    safe_event: Arc<AtomicU64>,
    /// Time of the event that was handed over last.
    handed_ns: u64,
    handed: Instant,
}

impl Recorder {
    /// Creates the file; an older recording there becomes FILE.old.
    ///
    /// # Errors
    /// When anything else is there, or the file cannot be written.
    pub fn create(path: &Path, meta: &RunMeta, owner: Option<Owner>) -> Result<Recorder, StoreError> {
        Recorder::limited(path, meta, owner, MAX_VALUE)
    }

    /// `longest`: bytes of one value.
    fn limited(
        path: &Path,
        meta: &RunMeta,
        owner: Option<Owner>,
        longest: i32,
    ) -> Result<Recorder, StoreError> {
        let prepared = place::prepare(path, owner)?;
        let older = prepared.older;
        let (sender, receiver) = sync_channel(WAITING);
        let (give_back, used) = sync_channel(WAITING);
        let safe_event = Arc::new(AtomicU64::new(0));
        let thread =
            Writer::start(&prepared.path, (meta, longest), (receiver, give_back), Arc::clone(&safe_event))
                .and_then(|thread| place::prove(&prepared).map(|()| thread))
                .inspect_err(|_| place::give_up(&prepared.path, older))?;
        Ok(Recorder {
            path: path.to_owned(),
            older,
            encoder: Encoder::default(),
            named: NamedFrames::default(),
            batch: Vec::with_capacity(BATCH + 64),
            part_bytes: 0,
            sender: Some(sender),
            used,
            thread: Some(thread),
            failed: None,
            safe_event,
            handed_ns: 0,
            handed: Instant::now(),
        })
    }

    /// Records a step, and what `stacks` got since the last one.
    pub fn step(&mut self, step: &Step, stacks: &StackTable) {
        match step {
            Step::Event(event) => self.event(event, stacks),
            Step::Snapshot(seen) => self.snapshot(seen, stacks),
            other => {
                self.encoder.step(other, &mut self.batch);
                self.hand_over();
            }
        }
    }

    /// As [`Recorder::step`], of an event.
    pub fn event(&mut self, event: &VmEvent, stacks: &StackTable) {
        if self.sender.is_none() {
            return;
        }
        self.encoder.stacks(stacks, &mut self.batch);
        self.encoder.event(event, &mut self.batch);
        if self.batch.len() >= BATCH || event.time_ns.saturating_sub(self.handed_ns) > HAND_OVER_NS {
            self.handed_ns = event.time_ns;
            self.hand_over();
        }
    }

    /// As [`Recorder::step`], of a snapshot: the transaction ends with it.
    pub fn snapshot(&mut self, seen: &Observations, stacks: &StackTable) {
        if self.sender.is_none() {
            return;
        }
        self.encoder.stacks(stacks, &mut self.batch);
        self.encoder.snapshot(SnapshotKind::Snapshot, seen, &mut self.batch);
        self.hand_over();
        self.send(Message::Commit);
    }

    /// As [`Recorder::step`], of a point of the timeline.
    pub fn point(&mut self, point: &SizePoint) {
        if self.sender.is_none() {
            return;
        }
        self.encoder.step(&Step::Point(Box::new(point.clone())), &mut self.batch);
        self.hand_over();
        self.send(Message::Commit);
    }

    /// The newest snapshot of a process was of no worth, nor the point that came of it.
    pub fn discard_snapshot(&mut self, pid: Pid) {
        self.batch.push(Row::DiscardSnapshot { pid });
        self.hand_over();
    }

    /// To be called now and then, also while nothing happens: hands over what waits.
    pub fn tick(&mut self) {
        if !self.batch.is_empty() && self.handed.elapsed() >= HAND_OVER {
            self.hand_over();
        }
    }

    /// Names of stacks. A frame that has a name keeps all of its lines, and gets no more.
    pub fn names(&mut self, names: &SymbolizedStacks, stacks: &StackTable) {
        self.encoder.stacks(stacks, &mut self.batch);
        self.frame_names(names, stacks);
    }

    /// As [`Recorder::names`], of stacks in a table of their own whose frames have the same numbers.
    pub fn frame_names(&mut self, names: &SymbolizedStacks, stacks: &StackTable) {
        self.named.rows(names, stacks, &mut self.batch);
        self.hand_over();
    }

    /// A part of the report, as JSON without any formatting; the parts in their order.
    pub fn report_part(&mut self, json: String) {
        self.part_bytes += json.len();
        self.batch.push(Row::Report { json });
        if self.part_bytes >= BATCH_BYTES || self.batch.len() >= BATCH {
            self.hand_over();
        }
    }

    /// A report of a heap, which outlives the death of this process from then on.
    pub fn heap(&mut self, moment: HeapMoment) {
        self.batch.push(Row::HeapReport(Box::new(moment)));
        self.hand_over();
        self.send(Message::Commit);
    }

    /// Marks the recording as complete and closes it.
    ///
    /// # Errors
    /// What stopped the recording, now or earlier, unless [`Recorder::failure`] has returned it.
    pub fn finish(mut self, facts: &Facts) -> Result<(), StoreError> {
        self.batch.push(Row::Facts(Box::new(*facts)));
        self.hand_over();
        self.close();
        self.failed.take().map_or(Ok(()), Err)
    }

    /// There was nothing to record after all: takes the file away, and puts the older recording back.
    pub fn abandon(mut self) {
        self.batch.clear();
        self.close();
        place::give_up(&self.path, self.older);
    }

    /// What stopped the recording; returned once.
    pub fn failure(&mut self) -> Option<StoreError> {
        if self.thread.as_ref().is_some_and(JoinHandle::is_finished) {
            self.close();
        }
        self.failed.take()
    }

    /// The last event that outlives the death of this process.
    pub fn safe_event(&self) -> u64 {
        self.safe_event.load(Ordering::Relaxed)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    fn hand_over(&mut self) {
        let empty = self.used.try_recv().unwrap_or_else(|_| Vec::with_capacity(BATCH + 64));
        let batch = std::mem::replace(&mut self.batch, empty);
        self.part_bytes = 0;
        self.handed = Instant::now();
        self.send(Message::Rows(batch));
    }

    fn send(&mut self, message: Message) {
        if let Some(sender) = &self.sender
            && sender.send(message).is_err()
        {
            self.close();
        }
    }

    /// Waits for the writer and takes its error.
    fn close(&mut self) {
        self.sender = None;
        let Some(thread) = self.thread.take() else { return };
        match thread.join() {
            Ok(Ok(())) => {}
            Ok(Err(error)) => self.failed = Some(error),
            Err(_) => {
                let what = "the thread that writes it ended".to_owned();
                self.failed = Some(StoreError::Damaged { path: self.path.clone(), what });
            }
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if self.sender.is_some() {
            self.hand_over();
        }
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Recording;

    fn meta() -> RunMeta {
        RunMeta {
            version: String::new(),
            backend: "bpf".to_owned(),
            command: Vec::new(),
            main: 1,
            timeline: false,
            touch: false,
            heap: None,
            started_ns: 1,
            started_unix_ns: 1,
        }
    }

    #[test]
    fn what_could_not_be_read_is_not_written() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("rec");
        let written = |bytes: usize| {
            let mut recorder = Recorder::limited(&path, &meta(), None, 4096).expect("a new file");
            for _ in 0..300 {
                recorder.report_part("x".repeat(bytes));
            }
            recorder.finish(&Facts::default()).map_err(|error| error.to_string())
        };
        let error = written(5000).expect_err("too long");
        assert!(error.contains("rec: writing it: a value of it is too long for a recording"), "{error}");
        // Together they may be longer than one.
        assert_eq!(written(4000), Ok(()));
        let recording = Recording::open(&path).expect("a recording");
        let mut bytes = 0;
        let mut each = |json: &[u8]| {
            bytes += json.len();
            Ok(())
        };
        assert!(recording.report(&mut each).expect("readable"));
        assert_eq!(bytes, 300 * 4000);
    }
}

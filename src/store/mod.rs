//! Recordings: the ledger's input, the stacks, their names and the report, in a SQLite file
//! (docs/recording.md). Of a heap: its reports.
//!
//! [`Recorder`] writes while the target runs: rows are numbered by the caller's thread and
//! inserted by a thread of its own, so that a slow disk does not stop the ring from being read.
//! [`Recording`] reads, and believes nothing: the file may be cut, damaged or made up.
//!
//! Crash safety: a rollback journal (no WAL: one file is the recording), and each transaction is written in
//! the order journal, pages, end of journal. The kernel has all of it when vmaudit is killed, so the next one
//! to open the file undoes the transaction that was not complete. Nothing is synced to the disk: after a
//! power cut the file may be damaged, which is an error when it is opened.

mod check;
mod code;
mod detail;
mod encode;
mod error;
mod facts;
mod heap;
mod journal;
mod op;
mod place;
mod point;
mod read;
mod recorder;
mod recording;
mod row;
mod schema;
mod snapshot;
mod snapshot_read;
mod steps;
mod sum;
mod symbols;
mod writer;

pub use error::StoreError;
pub use facts::{Facts, Owner, RunMeta};
pub use heap::HeapPlace;
pub use place::{is_recording, sidecar_names};
pub use recorder::Recorder;
pub use recording::Recording;
pub use row::HeapMoment;
pub use symbols::FrameNames;

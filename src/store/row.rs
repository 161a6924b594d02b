//! What the writer is sent: rows, with what they refer to already numbered.

use super::facts::Facts;
use super::op::Arguments;
use crate::model::{FileRef, Frame, Mapping, ModuleInfo, Observations, Pid, SizePoint, SymbolFrame, Tid};

/// A report of a heap, as JSON.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HeapMoment {
    /// CLOCK_MONOTONIC.
    pub time_ns: u64,
    pub parts: Vec<String>,
    /// Its stacks, in its order.
    pub stacks: Vec<String>,
}

/// A row of `event`.
#[derive(Clone, Copy, Debug)]
pub(super) struct EventRow {
    pub(super) id: i64,
    pub(super) time_ns: i64,
    pub(super) thread: i64,
    pub(super) space: i64,
    pub(super) ret: i64,
    pub(super) stack: i64,
    pub(super) virt: Option<i64>,
    pub(super) arguments: Arguments,
}

/// What changes about a process.
#[derive(Clone, Debug)]
pub(super) enum ProcessStep {
    Seen { pid: Pid, parent: Option<Pid>, began_ns: Option<i64>, name: Vec<u8> },
    Exec { time_ns: i64, exe: Option<i64>, name: Vec<u8> },
    Ended { time_ns: i64, status: i32, name: Vec<u8> },
}

#[derive(Debug)]
pub(super) struct ForkRow {
    pub(super) event: i64,
    pub(super) child: (Pid, Tid),
    pub(super) space: i64,
    pub(super) sp: i64,
    pub(super) brk: Option<i64>,
    pub(super) is_thread: bool,
    pub(super) mappings: Option<Vec<Mapping>>,
}

#[derive(Debug)]
pub(super) struct ExecRow {
    pub(super) event: i64,
    pub(super) exe: Option<i64>,
    pub(super) start_brk: i64,
    pub(super) brk: i64,
    pub(super) start_stack: i64,
    pub(super) compat: bool,
    pub(super) mappings: Option<Vec<Mapping>>,
}

/// The position of a snapshot or a loss among the steps.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepPosition {
    pub(super) id: i64,
    pub(super) after_event: i64,
}

/// Why a process was examined.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SnapshotKind {
    Snapshot,
    /// With the number of its address space.
    Found(i64),
    Resync,
}

#[derive(Debug)]
pub(super) enum Row {
    Event(EventRow),
    Process {
        id: i64,
        step: ProcessStep,
    },
    Thread {
        id: i64,
        process: i64,
        pid: Pid,
        tid: Tid,
        name: Vec<u8>,
    },
    Space {
        id: i64,
        mm: i64,
    },
    File {
        id: i64,
        file: FileRef,
    },
    VmaName {
        id: i64,
        name: Vec<u8>,
    },
    Module {
        id: i64,
        info: ModuleInfo,
    },
    Frame {
        id: i64,
        frame: Frame,
    },
    Stack {
        id: i64,
        completeness: &'static str,
        frames: String,
    },
    Fork(Box<ForkRow>),
    Exec(Box<ExecRow>),
    Loss {
        place: StepPosition,
        time_ns: i64,
    },
    Snapshot {
        place: StepPosition,
        kind: SnapshotKind,
        seen: Box<Observations>,
    },
    Point {
        place: StepPosition,
        point: Box<SizePoint>,
    },
    /// The newest snapshot of this process, and its point, turned out to be worth nothing.
    DiscardSnapshot {
        pid: Pid,
    },
    Symbol {
        frame: i64,
        n: i64,
        named: Box<SymbolFrame>,
    },
    Report {
        json: String,
    },
    HeapReport(Box<HeapMoment>),
    /// The end: nothing comes after it.
    Facts(Box<Facts>),
}

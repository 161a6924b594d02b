//! The identity of a process, for the report of its heap.

use crate::heap::report::HeapProcessFacts;
use crate::model::{Pid, wait_status};
use crate::procfs::{parse_cmdline, parse_comm};

/// A process as it was last seen.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ProcessIdentity {
    pub comm: String,
    pub exe: String,
    pub cmdline: Vec<String>,
    /// Wait status.
    pub ended: Option<i32>,
    /// It ran before it was watched.
    pub attached: bool,
    pub since_ns: u64,
    pub until_ns: Option<u64>,
}

impl ProcessIdentity {
    /// What of it is the same at any moment.
    pub fn facts(&self) -> HeapProcessFacts {
        HeapProcessFacts {
            comm: self.comm.clone(),
            exe: self.exe.clone(),
            cmdline: self.cmdline.clone(),
            exit_code: self.ended.and_then(wait_status::exit_code),
            signal: self.ended.and_then(wait_status::signal),
            attached: self.attached,
            since_ns: self.since_ns,
            ..HeapProcessFacts::default()
        }
    }
}

pub fn read_known(pid: Pid) -> ProcessIdentity {
    let read = |name: &str| std::fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    ProcessIdentity {
        comm: text(&parse_comm(&read("comm"))),
        exe: std::fs::read_link(format!("/proc/{pid}/exe"))
            .map(|path| path.to_string_lossy().into_owned())
            .unwrap_or_default(),
        cmdline: parse_cmdline(&read("cmdline")).iter().map(|word| text(word)).collect(),
        ..ProcessIdentity::default()
    }
}

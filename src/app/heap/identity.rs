//! The identity of a process, for the report of its heap.

use crate::heap::report::HeapProcessFacts;
use crate::model::Pid;

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
        let ended = self.ended.filter(|status| *status >= 0);
        HeapProcessFacts {
            comm: self.comm.clone(),
            exe: self.exe.clone(),
            cmdline: self.cmdline.clone(),
            exit_code: ended.filter(|status| status & 0x7f == 0).map(|status| status >> 8 & 0xff),
            signal: ended.map(|status| status & 0x7f).filter(|signal| *signal != 0),
            attached: self.attached,
            since_ns: self.since_ns,
            ..HeapProcessFacts::default()
        }
    }
}

pub fn read_known(pid: Pid) -> ProcessIdentity {
    let read = |name: &str| std::fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let cmdline = read("cmdline");
    let arguments = cmdline.strip_suffix(b"\0").unwrap_or(&cmdline);
    ProcessIdentity {
        comm: text(read("comm").trim_ascii_end()),
        exe: std::fs::read_link(format!("/proc/{pid}/exe"))
            .map(|path| path.to_string_lossy().into_owned())
            .unwrap_or_default(),
        cmdline: match arguments {
            [] => Vec::new(),
            some => some.split(|&byte| byte == 0).map(text).collect(),
        },
        ..ProcessIdentity::default()
    }
}

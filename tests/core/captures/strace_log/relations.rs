//! Which task is whose thread or child, from the clone, fork and vfork lines.

use super::{args, split_task};
use std::collections::HashMap;
use vmaudit::model::{Pid, Tid};

/// How a task came to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kinship {
    /// CLONE_THREAD.
    Thread,
    /// CLONE_VM or vfork: another process in the same address space.
    SharesMm,
    Copy,
}

/// Parent and kinship of each task whose beginning is in the trace.
#[derive(Default, Debug)]
pub(super) struct Relations {
    kin: HashMap<Tid, (Tid, Kinship)>,
}

impl Relations {
    /// A child's first lines may come before its parent's clone returns: so this reads all first.
    pub(super) fn find(text: &[u8]) -> Relations {
        let mut relations = Relations::default();
        let mut started: HashMap<Tid, Vec<u8>> = HashMap::new();
        for line in text.split(|&b| b == b'\n').filter(|l| !l.starts_with(b" >")) {
            let entry = split_task(line);
            let resumed = entry.rest.starts_with(b"<... ");
            if !resumed && !is_clone(entry.rest) {
                continue;
            }
            let mut call = entry.rest.to_vec();
            if resumed {
                let Some(mut begun) = started.remove(&entry.tid) else { continue };
                begun.append(&mut call);
                call = begun;
            }
            if call.ends_with(b"<unfinished ...>") {
                started.insert(entry.tid, call);
                continue;
            }
            let child = args::split_result(&call).and_then(|(_, result)| args::result(result));
            let Some(child) = child.filter(|&c| c > 0).and_then(|c| Tid::try_from(c).ok()) else { continue };
            relations.kin.insert(child, (entry.tid, kinship(&call)));
        }
        relations
    }

    pub(super) fn of(&self, child: Tid) -> Kinship {
        self.kin.get(&child).map_or(Kinship::Thread, |&(_, kin)| kin)
    }

    /// The process that a task belongs to. A thread whose beginning is not in the trace belongs
    /// to the first process.
    pub(super) fn process_of(&self, tid: Tid, first: Option<Pid>) -> Pid {
        let mut pid = tid;
        // No chain of threads is longer than the number of tasks.
        for _ in 0..=self.kin.len() {
            match self.kin.get(&pid) {
                Some(&(parent, Kinship::Thread)) => pid = parent,
                Some(_) => return pid,
                None => return first.unwrap_or(pid),
            }
        }
        pid
    }
}

fn is_clone(call: &[u8]) -> bool {
    [b"clone(".as_slice(), b"clone3(", b"fork(", b"vfork("].iter().any(|name| call.starts_with(name))
}

fn kinship(call: &[u8]) -> Kinship {
    let has = |flag: &[u8]| call.windows(flag.len()).any(|w| w == flag);
    if has(b"CLONE_THREAD") {
        Kinship::Thread
    } else if has(b"CLONE_VM") || call.starts_with(b"vfork") {
        Kinship::SharesMm
    } else {
        Kinship::Copy
    }
}

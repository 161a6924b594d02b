//! Every call as a line of JSON, for comparing vmaudit with other tracers.

use super::output::Stream;
use crate::model::{FrameKind, StackTable, VmEvent, VmOp};
use crate::render::json::json_line;
use crate::session::sink::{Context, Sink};
use serde_json::json;
use std::io::{self, BufWriter, Write};

pub struct Dump {
    out: BufWriter<Stream>,
    failed: Option<io::Error>,
}

impl Dump {
    pub fn new(to: Stream) -> Dump {
        Dump { out: BufWriter::new(to), failed: None }
    }

    /// # Errors
    /// The first failed write.
    pub fn finish(&mut self) -> io::Result<()> {
        self.out.flush()?;
        self.failed.take().map_or(Ok(()), Err)
    }
}

impl Sink for Dump {
    fn event(&mut self, event: &VmEvent, context: &mut Context<'_>) {
        let stacks = context.stacks;
        let frames: Vec<String> = match event.stack {
            Ok(id) => stacks.stack(id).frames.iter().map(|frame| describe(frame, stacks)).collect(),
            Err(_) => Vec::new(),
        };
        let completeness = event.stack.ok().map(|id| format!("{:?}", stacks.stack(id).completeness));
        let line = json!({
            "id": event.id.0, "time_ns": event.time_ns,
            "pid": event.task.pid, "tid": event.task.tid,
            "op": event.op.name(), "args": arguments(&event.op), "ret": event.ret,
            "frames": frames, "complete": completeness.as_deref() == Some("Complete"),
            "completeness": completeness,
        });
        let line = json_line(&line).map_err(io::Error::from);
        if let Err(error) = line.and_then(|line| writeln!(self.out, "{line}")) {
            self.failed.get_or_insert(error);
        }
    }
}

fn describe(frame: &crate::model::Frame, stacks: &StackTable) -> String {
    let guess = if frame.kind == FrameKind::Guess { "?" } else { "" };
    match frame.module {
        Some(id) => {
            let path = &stacks.module(id).path;
            format!("{}+{:#x}{guess}", String::from_utf8_lossy(path), frame.address)
        }
        None => format!("{:#x}{guess}", frame.address),
    }
}

fn arguments(op: &VmOp) -> Vec<u64> {
    match op {
        VmOp::Mmap { addr, len, prot, flags, fd, offset, .. } => {
            vec![addr.0, *len, *prot, *flags, *fd as u64, *offset]
        }
        VmOp::Munmap { addr, len } => vec![addr.0, *len],
        VmOp::Mremap { old, old_len, new_len, flags, new_addr } => {
            vec![old.0, *old_len, *new_len, *flags, new_addr.0]
        }
        VmOp::Brk { requested, .. } => vec![requested.0],
        VmOp::Mprotect { addr, len, prot, .. } => vec![addr.0, *len, *prot],
        VmOp::Madvise { addr, len, advice } => vec![addr.0, *len, *advice as u64],
        VmOp::Shmat { shmid, addr, flags, mapped } => {
            let mapped = mapped.unwrap_or_default();
            vec![*shmid as u64, addr.0, *flags, mapped.start.0, mapped.end.0]
        }
        VmOp::Shmdt { addr } | VmOp::IoDestroy { ctx: addr } => vec![addr.0],
        _ => Vec::new(),
    }
}

//! The threads of a process: names and stack pointers.

use super::process_dir::ProcessDir;
use super::task_files::{ThreadPlace, parse_comm, parse_syscall};
use crate::model::observation::ThreadObservation;
use crate::sys::stat::Stat;
use ::procfs::process::Task;
use ::procfs::{FromRead, ProcError, ProcResult};
use std::io::Read;

/// A file of a thread as it is: names need not be UTF-8, which the crate's own types require.
struct RawFile(Vec<u8>);

impl FromRead for RawFile {
    fn from_read<R: Read>(mut reader: R) -> ProcResult<RawFile> {
        let mut bytes = Vec::with_capacity(256);
        reader.read_to_end(&mut bytes)?;
        Ok(RawFile(bytes))
    }
}

fn read(task: &Task, file: &str) -> ProcResult<Vec<u8>> {
    task.read::<_, RawFile>(file).map(|raw| raw.0)
}

/// All living threads, in the kernel's order (of creation). A thread that ends meanwhile is
/// left out. That stack pointers may not be read (it takes more rights than maps) is one gap.
pub(super) fn read_threads(dir: &ProcessDir, gaps: &mut Vec<String>) -> Vec<ThreadObservation> {
    let tasks = match dir.process().tasks() {
        Ok(tasks) => tasks,
        Err(error) => {
            gaps.push(format!("threads of {}: {error}", dir.pid()));
            return Vec::new();
        }
    };
    let mut threads = Vec::new();
    let mut forbidden = 0usize;
    for task in tasks.flatten() {
        let Ok(comm) = read(&task, "comm") else { continue };
        let place = match read(&task, "syscall") {
            Ok(bytes) => parse_syscall(&bytes),
            // A zombie has no memory left by which to grant access: that is no refusal.
            Err(error) if is_gone(&error) || is_dead(&task) => continue,
            Err(_) => {
                forbidden += 1;
                None
            }
        };
        let stack_pointer = match place {
            Some(ThreadPlace::Blocked { stack_pointer }) => Some(stack_pointer),
            Some(ThreadPlace::NoStack) if is_dead(&task) => continue,
            _ => None,
        };
        threads.push(ThreadObservation { tid: task.tid, comm: parse_comm(&comm), stack_pointer });
    }
    if forbidden > 0 {
        gaps.push(format!("stack pointers of {forbidden} threads of {}: not readable: which of them uses which stack is not known", dir.pid()));
    }
    threads
}

/// A zombie keeps its entry: the first thread of a process whose other threads live on.
fn is_dead(task: &Task) -> bool {
    read(task, "stat").is_ok_and(|bytes| Stat::parse(&bytes).is_some_and(|stat| stat.has_ended()))
}

fn is_gone(error: &ProcError) -> bool {
    match error {
        ProcError::NotFound(_) => true,
        ProcError::Io(error, _) => error.raw_os_error() == Some(libc::ESRCH),
        _ => false,
    }
}

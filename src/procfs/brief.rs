//! What everybody may read of every process, and cheaply: `/proc/PID/stat` and `statm`. For lists of
//! all processes, where smaps of each would be too dear.

use super::error::ObserveError;
use super::process_dir::ProcessDir;
use crate::model::{Pid, Tid};
use crate::sys::stat::{self, Stat};
use std::io::{self, Read};

/// One process, as stat and statm show it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Brief {
    pub pid: Pid,
    /// Since boot, in clock ticks: with the number, it names a process for as long as the machine runs.
    pub start_ticks: u64,
    /// Any bytes; a newline and a backslash as the kernel escapes them (fs/proc/array.c,
    /// `proc_task_name`).
    pub comm: Vec<u8>,
    /// R, S, D, T, t, Z, X, I.
    pub state: u8,
    pub kernel_thread: bool,
    pub threads: u64,
    /// Where the first stack began: another one after each execve. 0 where it may not be read.
    pub start_stack: u64,
    /// Owner of the directory: the effective user, or root where the process is not dumpable.
    pub owner: u32,
    /// VmSize, bytes.
    pub virt: u64,
    /// VmRSS, bytes.
    pub rss: u64,
}

/// Numbers of all processes, ascending.
///
/// # Errors
/// When /proc cannot be listed.
pub fn process_numbers() -> io::Result<Vec<Pid>> {
    let mut pids: Vec<Pid> = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        pids.extend(entry?.file_name().to_str().and_then(|name| name.parse::<Pid>().ok()));
    }
    pids.sort_unstable();
    Ok(pids)
}

/// Reads one process; all of it is of one process, also if its number is given away meanwhile.
///
/// # Errors
/// When it is gone, hidden (hidepid), or the files make no sense.
pub fn read_brief(pid: Pid) -> Result<Brief, ObserveError> {
    let dir = ProcessDir::open(pid, pid)?;
    let stat = read_small(&dir, "stat", parse_stat)?;
    let mut statm = read_statm(&dir)?;
    // The first thread has exited, others go on: only they show the memory.
    if stat.state == b'Z' && stat.threads > 1 && !stat.kernel_thread {
        statm = living_thread(pid).unwrap_or(statm);
    }
    // SAFETY: a plain query.
    let page = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    Ok(Brief {
        pid,
        owner: dir.process().uid().unwrap_or(u32::MAX),
        virt: statm.0.saturating_mul(page),
        rss: statm.1.saturating_mul(page),
        ..stat
    })
}

fn read_statm(dir: &ProcessDir) -> Result<(u64, u64), ObserveError> {
    read_small(dir, "statm", parse_statm)
}

/// By one read(2): files of /proc that are smaller than the buffer come as a whole (fs/seq_file.c), and
/// `read_to_end` would query their size and read up to their end.
fn read_small<T>(
    dir: &ProcessDir,
    file: &str,
    parse: impl Fn(&[u8]) -> Option<T>,
) -> Result<T, ObserveError> {
    let mut bytes = [0; 2048];
    let mut opened = dir.open_file(file)?;
    let count = opened.read(&mut bytes).map_err(|source| dir.io_error("read", file, source))?;
    let read = bytes.get(..count).unwrap_or_default();
    parse(read).ok_or_else(|| dir.malformed(file, "not its fields"))
}

fn living_thread(pid: Pid) -> Option<(u64, u64)> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let tids = tasks.flatten().filter_map(|task| task.file_name().to_str()?.parse::<Tid>().ok());
    let read = |tid| read_statm(&ProcessDir::open(pid, tid).ok()?).ok();
    tids.filter_map(read).find(|statm| statm.0 > 0)
}

/// Pages: all, and resident (fs/proc/array.c, `proc_pid_statm`).
fn parse_statm(bytes: &[u8]) -> Option<(u64, u64)> {
    let mut words = std::str::from_utf8(bytes).ok()?.split_ascii_whitespace();
    Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
}

fn parse_stat(bytes: &[u8]) -> Option<Brief> {
    let stat = Stat::parse(bytes)?;
    Some(Brief {
        pid: stat.pid,
        start_ticks: stat.field(stat::START_TIME)?,
        comm: stat.comm.to_vec(),
        state: stat.state()?,
        kernel_thread: stat.field::<u64>(stat::FLAGS)? & stat::PF_KTHREAD != 0,
        threads: stat.field(stat::THREADS)?,
        start_stack: stat.field(stat::START_STACK)?,
        owner: 0,
        virt: 0,
        rss: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_own_figures_are_those_of_status() {
        let pid = std::process::id() as Pid;
        let own = read_brief(pid).expect("its own files");
        assert_eq!(own.pid, pid);
        assert!(own.start_ticks > 0 && own.start_stack > 0 && own.threads >= 1 && !own.kernel_thread);
        assert!(own.virt > own.rss && own.rss > 0);
        // SAFETY: a plain query.
        assert_eq!(own.owner, unsafe { libc::geteuid() });
        assert!(process_numbers().expect("a list").contains(&pid));
    }

    #[test]
    fn a_name_may_hold_anything() {
        let rest =
            "S 1 7 7 0 -1 4194560 111 222 3 444 250 5 6 7 20 0 4 0 9900 4096 7 18446744073709551615 1 2 77";
        let line = |name: &[u8]| [b"7 (".as_slice(), name, b") ", rest.as_bytes(), b" 0 0\n"].concat();
        for name in [b"a) Z 1 (b".as_slice(), b"", b"\xff\x1b[2J", b") ("] {
            let stat = parse_stat(&line(name)).expect("sound");
            assert_eq!(stat.comm, name);
            assert_eq!((stat.pid, stat.state, stat.threads, stat.start_ticks), (7, b'S', 4, 9900));
            assert_eq!((stat.start_stack, stat.kernel_thread), (77, false));
        }
    }

    proptest::proptest! {
        #[test]
        fn no_input_panics(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200)) {
            let _ = parse_stat(&bytes);
            let _ = parse_statm(&bytes);
        }
    }
}

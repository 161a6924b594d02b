//! Why a container cannot be found or read.

use std::io;
use std::path::PathBuf;

#[derive(thiserror::Error, Debug)]
pub enum ContainerError {
    #[error("no running container is called {query:?}, and no ID begins so\n{found}")]
    Unknown { query: String, found: String },
    #[error("{query:?} can be several containers; give more of the ID:\n{candidates}")]
    Ambiguous { query: String, candidates: String },
    #[error("the container {query:?} is not running (it is {state}): there is nothing to examine")]
    NotRunning { query: String, state: String },
    #[error(
        "the container {name} runs, but no process is in a cgroup of its own (started with --cgroups=disabled, or \
         in a cgroup that this cgroup namespace does not show): name its processes with -p"
    )]
    NoCgroup { name: String },
    #[error("a container needs a name or an ID")]
    Empty,
    #[error(
        "no cgroup {}: give a directory below a cgroup mount (/sys/fs/cgroup/…), or a path as in \
         /proc/PID/cgroup (/system.slice/redis.service)",
        path.display()
    )]
    NoSuchCgroup { path: PathBuf },
    #[error("{} is no cgroup: it lies on another file system", path.display())]
    NotACgroup { path: PathBuf },
    #[error(
        "{} belongs to a named hierarchy without controllers, by which the kernel's side cannot filter: give the \
         same cgroup in another one (cgroup v2, pids, memory)",
        path.display()
    )]
    Unfilterable { path: PathBuf },
    #[error("{} has no process: there is nothing to examine", path.display())]
    Deserted { path: PathBuf },
    #[error("{} has more than {limit} cgroups below it: give one of them", path.display())]
    TooManyGroups { path: PathBuf, limit: usize },
    #[error("no cgroup hierarchy is mounted (/proc/self/mountinfo): containers cannot be distinguished")]
    NoHierarchy,
    #[error("reading {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
}

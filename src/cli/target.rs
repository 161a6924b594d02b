//! What is examined: processes by number, a container, a cgroup.

use clap::Args;
use std::path::{Path, PathBuf};

#[derive(Args, Debug, Clone)]
#[group(id = "target", multiple = false)]
pub struct TargetArgs {
    /// The processes: several numbers, or several times -p
    #[arg(short, long = "pid", value_name = "PID", num_args = 1.., value_delimiter = ',', value_parser = pid, allow_negative_numbers = true)]
    pub pids: Vec<i32>,

    /// All processes of a container: its name, its ID, or the start of its ID
    ///
    /// Of Docker, Podman, containerd (Kubernetes: POD/CONTAINER) or CRI-O. Those that enter it later
    /// (docker exec) belong to it, too. See docs/containers.md.
    #[arg(long, value_name = "NAME|ID")]
    pub container: Option<String>,

    /// All processes of a cgroup and of those below it: /sys/fs/cgroup/…, or a path as in
    /// /proc/PID/cgroup
    #[arg(long, value_name = "PATH")]
    pub cgroup: Option<PathBuf>,
}

impl TargetArgs {
    /// The container and the cgroup, where one of them was given.
    pub fn named(&self) -> (Option<&str>, Option<&Path>) {
        (self.container.as_deref(), self.cgroup.as_deref())
    }
}

/// A process number: 1 to 2^31 - 1.
pub(super) fn pid(text: &str) -> Result<i32, String> {
    match text.trim().parse::<i64>() {
        Ok(number @ 1..=0x7fff_ffff) => Ok(number as i32),
        Ok(_) => Err("no process has this number: they go from 1 to 4194304".to_owned()),
        Err(_) => Err("not the number of a process (names: -p $(pidof NAME))".to_owned()),
    }
}

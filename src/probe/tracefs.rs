//! The number of a tracepoint, from tracefs.

use super::Failure;
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use std::fs;
use std::io;

const ROOTS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// Where tracefs is, and the id of a tracepoint such as `syscalls/sys_exit_mmap`.
pub fn id(tracepoint: &str) -> Result<(&'static str, u64), Failure> {
    let mut failure = Failure::Absent("no tracefs".to_owned());
    for root in ROOTS {
        match fs::read_to_string(format!("{root}/events/{tracepoint}/id")) {
            Ok(text) => {
                let number = text.trim().parse();
                return number
                    .map(|number| (root, number))
                    .map_err(|_| Failure::Absent(format!("{root} is no tracefs")));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            // Of two, the one that is there but closed tells more.
            Err(error) => failure = error.into(),
        }
    }
    Err(failure)
}

/// In a child: mounts tracefs where nobody else sees it.
pub fn mount_privately() -> Result<(), Errno> {
    const NONE: Option<&str> = None;
    unshare(CloneFlags::CLONE_NEWNS)?;
    mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NONE)?;
    mount(Some("tracefs"), ROOTS[0], Some("tracefs"), MsFlags::empty(), NONE)
}

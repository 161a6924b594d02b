//! The processes of a cgroup and of all that lie below it.

use super::error::ContainerError;
use crate::model::Pid;
use std::io;
use std::path::{Path, PathBuf};

/// A container can make cgroups of its own below its own one; so many are searched.
const MAX_GROUPS: usize = 10_000;

/// Numbers of the processes, sorted. Empty where there is none, or no such cgroup any more.
///
/// # Errors
/// When a cgroup is there and cannot be read.
pub fn processes(directory: &Path) -> Result<Vec<Pid>, ContainerError> {
    let mut found = Vec::new();
    let mut waiting = vec![directory.to_path_buf()];
    let mut seen = 0;
    while let Some(group) = waiting.pop() {
        seen += 1;
        if seen > MAX_GROUPS {
            return Err(ContainerError::TooManyGroups { path: directory.to_path_buf(), limit: MAX_GROUPS });
        }
        let file = group.join("cgroup.procs");
        match std::fs::read(&file) {
            Ok(text) => found.extend(parse(&text)),
            // It was removed meanwhile; or it is threaded (EOPNOTSUPP): then the one above has its processes.
            Err(error) if is_gone(&error) || error.raw_os_error() == Some(libc::EOPNOTSUPP) => {}
            Err(source) => return Err(ContainerError::Read { path: file, source }),
        }
        waiting.extend(groups_below(&group));
    }
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

/// ENODEV: the cgroup was removed while its file was open (fs/kernfs/file.c).
fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV))
}

fn groups_below(group: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(group) else { return Vec::new() };
    let directories = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    directories.map(|entry| entry.path()).collect()
}

/// 0 means a process of another PID namespace, which has no number here.
fn parse(text: &[u8]) -> Vec<Pid> {
    let text = String::from_utf8_lossy(text);
    text.lines().filter_map(|line| line.trim().parse().ok()).filter(|&pid| pid > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_below_count_and_each_process_once() {
        let top = tempfile::tempdir().expect("a folder");
        let below = top.path().join("a/b");
        std::fs::create_dir_all(&below).expect("created");
        std::fs::write(top.path().join("cgroup.procs"), "30\n0\n7\n").expect("written");
        std::fs::write(below.join("cgroup.procs"), "7\n8\n").expect("written");
        assert_eq!(processes(top.path()).expect("readable"), [7, 8, 30]);
        assert_eq!(processes(Path::new("/nowhere")).expect("empty"), Vec::<Pid>::new());
    }
}

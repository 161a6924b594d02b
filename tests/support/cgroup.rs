//! A plain cgroup, without any engine.

use super::container::{Talk, unique};
use std::fs;
use std::path::PathBuf;

/// A cgroup of a test; removed at the end, when nothing is in it any more.
pub struct Group(pub PathBuf);

impl Group {
    /// # Errors
    /// In words, for a SKIP line.
    pub fn new(name: &str) -> Result<Group, String> {
        let mounts = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup", "/sys/fs/cgroup/pids"].map(PathBuf::from);
        let mount = mounts.iter().find(|mount| mount.join("cgroup.procs").exists());
        let directory = mount.ok_or("no cgroup hierarchy is mounted")?.join(unique(name));
        fs::create_dir(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        Ok(Group(directory))
    }

    pub fn put(&self, talk: &Talk) {
        fs::write(self.0.join("cgroup.procs"), talk.client.0.id().to_string()).expect("it may be moved");
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

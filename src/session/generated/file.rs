//! The perf map of a process, found and believed.

use super::perf_map::PerfMap;
use crate::model::Pid;
use crate::procfs::parse_status;
use crate::sys::untrusted_open::Root;
use crate::sys::{clock, file, stat};
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;

/// Read at once, bytes.
const STEP: usize = 256 << 10;
/// No more of a map is read, bytes.
const LARGEST: u64 = 256 << 20;
/// How exactly the start of a process is known on the clock of files: ticks, and steps of that clock.
const SLACK_NS: i128 = 1_000_000_000;

/// An open map.
pub(super) struct MapFile {
    file: File,
    path: PathBuf,
    read: u64,
    pub map: PerfMap,
}

impl MapFile {
    /// The perf map of a process where there is one, in its own root and under the pid in its own namespace.
    /// None where there is none, or where it may be another process': of another user, writable by others, or
    /// older than the process.
    pub fn open(pid: Pid) -> Option<MapFile> {
        let status = parse_status(&file::read(format!("/proc/{pid}/status")).ok()?).ok()?;
        let path = PathBuf::from(format!("/tmp/perf-{}.map", status.own_pid()?));
        let file = Root::of(pid).ok()?.open_file(&path).ok()?;
        let found = file.metadata().ok()?;
        is_its_own(&found, &status.uids, started_at(pid)?).then_some(MapFile {
            file,
            path,
            read: 0,
            map: PerfMap::default(),
        })
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    /// What is not known because the map is too large.
    pub fn note(&self) -> Option<String> {
        let (path, read) = (self.path.display(), self.read >> 20);
        let is_long = self.read >= LARGEST && self.size().is_ok_and(|size| size > LARGEST);
        (self.map.is_full() || is_long).then(|| {
            format!(
                "{path}: functions of generated code are named by its first {read} MiB only: more of the map would take \
                 too much memory and time"
            )
        })
    }

    /// Reads what was added; true where there was something.
    pub fn grow(&mut self, seen: &mut dyn FnMut(u64, u64)) -> bool {
        let Ok(size) = self.size().map(|size| size.min(LARGEST)) else { return false };
        if size < self.read {
            // Written anew, all of it.
            (self.read, self.map) = (0, PerfMap::default());
        }
        let before = self.read;
        let mut bytes = vec![0; STEP.min((size - before) as usize)];
        while self.read < size && !self.map.is_full() {
            match self.file.read_at(&mut bytes, self.read) {
                Ok(0) | Err(_) => break,
                Ok(count) => {
                    self.read += count as u64;
                    self.map.add(&bytes[..count], clock::monotonic_ns(), seen);
                }
            }
        }
        self.read > before
    }
}

fn is_its_own(found: &Metadata, uids: &[u32], began_ns: i128) -> bool {
    const WRITABLE_BY_OTHERS: u32 = 0o022;
    let written = i128::from(found.mtime()) * 1_000_000_000 + i128::from(found.mtime_nsec());
    found.is_file()
        && uids.contains(&found.uid())
        && found.mode() & WRITABLE_BY_OTHERS == 0
        && written + SLACK_NS >= began_ns
}

/// On the clock of files, ns since 1970.
fn started_at(pid: Pid) -> Option<i128> {
    let ticks: u64 = stat::of(pid, |stat| stat.field(stat::START_TIME))?;
    let since_boot = i128::from(ticks) * i128::from(stat::TICK_NS);
    Some(i128::from(clock::realtime_ns()) - i128::from(clock::boottime_ns()) + since_boot)
}

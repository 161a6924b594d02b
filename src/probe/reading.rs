//! What may be read of processes.

use super::child::Quiet;
use super::{Failure, Subject};
use crate::model::{PAGE, Trial, TrialArea};
use crate::sys::memory;
use crate::sys::pagemap_scan::{PAGE_IS_PRESENT, PageRegion, ScanRequest, pagemap_scan};
use nix::errno::Errno;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};

pub fn trials() -> Vec<Trial> {
    let subject = |id, what, without| Subject { area: TrialArea::Reading, id, what, without };
    let nothing = |worked: ()| {
        let () = worked;
        String::new()
    };
    vec![
        subject("smaps-own", "smaps of a child", "no snapshot, no residency")
            .came_out(of_child(|pid| read_some(&format!("/proc/{pid}/smaps"))).map(nothing)),
        subject("process-vm-readv", "memory of a child (process_vm_readv)", "/proc/PID/mem is read instead")
            .came_out(of_child(memory_of).map(nothing)),
        subject("pagemap-scan", "PAGEMAP_SCAN", "pagemap is read page by page (slower)")
            .came_out(of_child(scan).map(nothing)),
        subject("pagemap", "pagemap", "resident pages of a region are estimated from smaps")
            .came_out(of_child(|pid| read_some(&format!("/proc/{pid}/pagemap"))).map(nothing)),
        subject("map-files", "map_files", "no symbols of libraries that were deleted or replaced")
            .came_out(of_child(map_files).map(nothing)),
        subject("smaps-other", "smaps of another user's process", "own processes only")
            .came_out(of_others(|pid| read_some(&format!("/proc/{pid}/smaps")))),
        subject("pagemap-other", "its pagemap", "what is resident there is shared out from smaps")
            .came_out(of_others(|pid| read_some(&format!("/proc/{pid}/pagemap")))),
        subject(
            "memory-other",
            "its memory (process_vm_readv)",
            "no heap headers: arenas are recognised by shape",
        )
        .came_out(of_others(memory_of)),
    ]
}

fn of_child(reading: impl FnOnce(i32) -> Result<(), Failure>) -> Result<(), Failure> {
    let child = Quiet::start()?;
    reading(child.pid())
}

fn read_some(path: &str) -> Result<(), Failure> {
    match File::open(path)?.read(&mut [0; 64])? {
        0 => Err(Failure::Absent("nothing in it".to_owned())),
        _ => Ok(()),
    }
}

/// Reads of processes of other users (for root: of those that are not root's) until one can be read:
/// some, such as init, may be out of reach where the others are not.
fn of_others(reading: impl Fn(i32) -> Result<(), Failure>) -> Result<String, Failure> {
    const ENOUGH: usize = 64;
    let own = nix::unistd::geteuid().as_raw();
    let is_other = |pid: &i32| {
        let owner = fs::metadata(format!("/proc/{pid}")).map(|meta| meta.uid());
        // Threads of the kernel have no memory to read.
        let has_memory = || fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|text| !text.is_empty());
        owner.is_ok_and(|owner| owner != own) && has_memory()
    };
    let pids = fs::read_dir("/proc")?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut failure = Failure::Absent("no process of another user is visible".to_owned());
    for pid in pids.filter(is_other).take(ENOUGH) {
        match reading(pid) {
            Ok(()) => return Ok(format!("pid {pid}")),
            // It may just have ended.
            Err(Failure::Errno(Errno::ENOENT | Errno::ESRCH)) => {}
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

fn first_address(pid: i32) -> Result<u64, Failure> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let start = maps.split('-').next().unwrap_or_default();
    u64::from_str_radix(start, 16).map_err(|_| Failure::Absent("maps is empty".to_owned()))
}

fn memory_of(pid: i32) -> Result<(), Failure> {
    let mut bytes = [0; 4];
    memory::read(pid, first_address(pid)?, &mut bytes)?;
    Ok(())
}

/// Opening an entry requires CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN in the first user namespace
/// (fs/proc/base.c, proc_map_files_get_link).
fn map_files(pid: i32) -> Result<(), Failure> {
    let folder = format!("/proc/{pid}/map_files");
    let entry = fs::read_dir(folder)?.flatten().next();
    let entry = entry.ok_or_else(|| Failure::Absent("nothing is mapped from files".to_owned()))?;
    File::open(entry.path())?.read_at(&mut [0; 4], 0)?;
    Ok(())
}

fn scan(pid: i32) -> Result<(), Failure> {
    let start = first_address(pid)?;
    let pagemap = File::open(format!("/proc/{pid}/pagemap"))?;
    let request = ScanRequest {
        start,
        end: start + PAGE,
        any_of: PAGE_IS_PRESENT,
        none_of: 0,
        returned: PAGE_IS_PRESENT,
    };
    match pagemap_scan(&pagemap, &request, &mut [PageRegion::default()]) {
        Ok(_) => Ok(()),
        Err(Errno::ENOTTY) => Err(Failure::Absent("not in this kernel (6.7 has it)".to_owned())),
        Err(errno) => Err(errno.into()),
    }
}

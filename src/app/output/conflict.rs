//! Reports that would be written over what else the command line names, or over a recording.

use crate::app::error::AppError;
use crate::store;
use crate::sys::untrusted_open::place;
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// A file that a command reads or writes in addition to its report.
#[derive(Clone, Copy, Debug)]
pub struct Other<'a> {
    pub path: &'a Path,
    /// As it goes on after `--report FILE is`: `the recording that is read`.
    pub what: &'static str,
}

/// A file, under whatever name; or a name that no file has yet.
#[derive(PartialEq, Eq)]
enum Identity {
    File { device: u64, inode: u64 },
    Name { device: u64, folder: u64, name: OsString },
}

impl Identity {
    /// None for what is no regular file, or cannot be read.
    fn of(path: &Path) -> Option<Identity> {
        let place = place(path).ok()?;
        let found = place.found.as_ref().unwrap_or(place.folder.as_file()).metadata().ok()?;
        let (device, inode) = (found.dev(), found.ino());
        match place.found {
            Some(_) => found.is_file().then_some(Identity::File { device, inode }),
            None => Some(Identity::Name { device, folder: inode, name: place.name }),
        }
    }
}

/// # Errors
/// When the report would be written over one of the others, or over a recording.
pub(super) fn check(report: &Path, others: &[Other<'_>]) -> Result<(), AppError> {
    let Some(own) = Identity::of(report) else { return Ok(()) };
    let same = others.iter().find(|other| Identity::of(other.path).as_ref() == Some(&own));
    if let Some(Other { what, .. }) = same {
        let report = report.display();
        return Err(AppError::Usage(format!(
            "--report {report} is {what}: name another file for one of them"
        )));
    }
    if store::is_recording(report) {
        return Err(AppError::Usage(format!(
            "--report {}: a recording of vmaudit is there, and no report is written over one: name another file",
            report.display()
        )));
    }
    Ok(())
}

/// # Errors
/// As [`check`], of a recording that `-o` is to make: with the names that it keeps an older one under.
pub fn check_recording(report: Option<&Path>, recording: &Path) -> Result<(), AppError> {
    if recording.as_os_str() == "-" {
        return Err(AppError::Usage(
            "-o -: a recording is a SQLite file and cannot go to standard output: name a file".to_owned(),
        ));
    }
    let Some(report) = report.filter(|report| report.as_os_str() != "-") else { return Ok(()) };
    let sidecars = store::sidecar_names(recording);
    let kept =
        sidecars.iter().map(|path| Other { path, what: "where -o keeps an older recording, or a journal" });
    let others: Vec<Other<'_>> =
        [Other { path: recording, what: "the recording that -o makes" }].into_iter().chain(kept).collect();
    check(report, &others)
}

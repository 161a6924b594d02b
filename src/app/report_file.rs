//! Files that vmaudit makes: reports and lists of events. They hold command lines, paths and addresses.

use crate::target::behind_sudo;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, fchown};
use std::path::Path;

/// Opens a file to be written from its beginning. A new one is for its owner alone, and under sudo that
/// is the invoking user, as with recordings; one that is there (also /dev/stdout, a FIFO) stays as its
/// owner has it.
///
/// # Errors
/// Those of open(2) and fchown(2).
pub fn create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).mode(0o600);
    match options.clone().create_new(true).open(path) {
        Ok(file) => {
            if let Some((uid, gid)) = behind_sudo().map_err(io::Error::other)? {
                fchown(&file, Some(uid), Some(gid))?;
            }
            Ok(file)
        }
        // With O_CREAT, so that fs.protected_regular and fs.protected_fifos hold (proc_sys_fs(5)).
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            options.create(true).truncate(true).open(path)
        }
        Err(error) => Err(error),
    }
}

/// As [`create`], and writes all of it.
///
/// # Errors
/// Also those of write(2).
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    create(path)?.write_all(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("it is there").permissions().mode() & 0o7777
    }

    #[test]
    fn a_new_file_is_for_its_owner_alone_and_an_old_one_stays_as_it_is() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("report");
        write(&path, b"longer").expect("written");
        assert_eq!(mode(&path), 0o600);
        fs::set_permissions(&path, Permissions::from_mode(0o640)).expect("chmod");
        write(&path, b"short").expect("written");
        assert_eq!((mode(&path), fs::read(&path).expect("read")), (0o640, b"short".to_vec()));
        assert!(write(&folder.path().join("no/where"), b"").is_err());
        write(Path::new("/dev/null"), b"gone").expect("written");
    }
}

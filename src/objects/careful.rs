//! Opens files whose names were chosen by other users.
//!
//! A container may put anything where a library was: a device whose opening has effects, a FIFO that
//! blocks, a link that leads out of its root, a file system of its own that never answers. So a file is
//! first only pointed at (O_PATH: nothing of it is opened yet), by a walk that cannot leave the root;
//! then it is known what it is; then a regular file is opened by way of the descriptor.

use super::bytes::ObjectError;
use crate::model::Pid;
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::statfs::{BTRFS_SUPER_MAGIC, FUSE_SUPER_MAGIC, FsType, OVERLAYFS_SUPER_MAGIC};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

/// Files on a file system that a process serves are read into memory at once, up to this size.
const MAX_SERVED: u64 = 256 << 20;

/// How long a file system may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// What a process sees as `/`, held open: it stays when the process has ended.
#[derive(Debug)]
pub struct Root(OwnedFd);

impl Root {
    /// # Errors
    /// When the process is gone, or may not be examined.
    pub fn of(pid: Pid) -> io::Result<Root> {
        // This link is the kernel's own, and leads to the root of the process whatever is there.
        let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
        let opened = OpenOptions::new().read(true).custom_flags(flags).open(format!("/proc/{pid}/root"))?;
        Ok(Root(opened.into()))
    }

    /// Opens a regular file inside for reading, where no other process serves it.
    ///
    /// # Errors
    /// When there is none, or the kernel does not let it be read.
    pub fn open_file(&self, path: &Path) -> Result<File, ObjectError> {
        let pointed = File::from(self.point_at(path)?);
        if file_system(&pointed) == Some(FUSE_SUPER_MAGIC) {
            return Err(ObjectError::NotRegular);
        }
        open(&pointed)
    }

    /// A second handle.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub fn again(&self) -> io::Result<Root> {
        self.0.try_clone().map(Root)
    }

    /// Points at what `path` means inside: links and `..` lead no further than the root, and no link of
    /// /proc is followed (openat2(2), Linux 5.6).
    pub(super) fn point_at(&self, path: &Path) -> io::Result<OwnedFd> {
        /// A rename meanwhile makes the kernel say EAGAIN.
        const ATTEMPTS: u32 = 8;
        let relative = path.strip_prefix("/").unwrap_or(path);
        let how = OpenHow::new()
            .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        let mut last = Errno::EAGAIN;
        for _ in 0..ATTEMPTS {
            match openat2(self.0.as_fd(), relative, how) {
                Ok(fd) => return Ok(fd),
                Err(Errno::EAGAIN | Errno::EINTR) => {}
                Err(errno) => {
                    last = errno;
                    break;
                }
            }
        }
        Err(last.into())
    }
}

/// Points at a file by a path of our own, or by a link of /proc.
pub(super) fn point_at(path: &Path) -> io::Result<OwnedFd> {
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_CLOEXEC).open(path)?;
    Ok(opened.into())
}

/// Opens what is pointed at for reading; only if it is a regular file.
pub(super) fn open(pointed: &File) -> Result<File, ObjectError> {
    if !pointed.metadata()?.is_file() {
        return Err(ObjectError::NotRegular);
    }
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC;
    let link = format!("/proc/self/fd/{}", pointed.as_raw_fd());
    Ok(OpenOptions::new().read(true).custom_flags(flags).open(link)?)
}

/// What kind of file system it is on; 0 where that is not known.
fn file_system(file: &File) -> Option<FsType> {
    nix::sys::statfs::fstatfs(file).ok().map(|found| found.filesystem_type())
}

/// True where stat(2) shows another device than maps does: btrfs has a device a subvolume, and
/// overlayfs before Linux 6.8 shows the device below in maps.
pub(super) fn hides_device(file: &File) -> bool {
    matches!(file_system(file), Some(BTRFS_SUPER_MAGIC | OVERLAYFS_SUPER_MAGIC))
}

/// The bytes of a file that a process serves (FUSE), which could keep every later read waiting; None
/// for a file of the kernel's own file systems.
pub(super) fn read_if_served(file: &File) -> Result<Option<Vec<u8>>, ObjectError> {
    if file_system(file) != Some(FUSE_SUPER_MAGIC) {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    let read = io::Read::read_to_end(&mut io::Read::take(file, MAX_SERVED + 1), &mut bytes)? as u64;
    if read > MAX_SERVED {
        return Err(ObjectError::TooLarge(read));
    }
    Ok(Some(bytes))
}

/// Does `work` in a thread of its own, and gives it up when it takes too long: it then waits for a
/// file system until vmaudit ends.
pub(super) fn with_patience<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ObjectError> + Send + 'static,
) -> Result<T, ObjectError> {
    let (sender, receiver) = sync_channel(1);
    std::thread::Builder::new().name("open".into()).spawn(move || drop(sender.send(work())))?;
    match receiver.recv_timeout(PATIENCE) {
        Ok(result) => result,
        Err(RecvTimeoutError::Timeout) => Err(ObjectError::NoAnswer),
        Err(RecvTimeoutError::Disconnected) => Err(ObjectError::NotElf),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn root(folder: &Path) -> Root {
        Root(point_at(folder).expect("a folder"))
    }

    #[test]
    fn nothing_leads_out_of_the_root() {
        let outer = tempfile::tempdir().expect("a folder");
        let inner = outer.path().join("root");
        std::fs::create_dir_all(inner.join("etc")).expect("created");
        std::fs::write(outer.path().join("secret"), "outside").expect("written");
        std::fs::write(inner.join("etc/passwd"), "inside").expect("written");
        symlink("/etc/passwd", inner.join("absolute")).expect("a link");
        symlink("../secret", inner.join("up")).expect("a link");
        symlink("/proc/self/root/etc/passwd", inner.join("magic")).expect("a link");
        let read = |path: &str| {
            let pointed = File::from(root(&inner).point_at(Path::new(path)).map_err(ObjectError::from)?);
            open(&pointed).and_then(|file| Ok(io::read_to_string(file)?))
        };
        assert_eq!(read("/absolute").expect("inside"), "inside");
        assert_eq!(read("/../../../etc/passwd").expect("inside"), "inside");
        for bad in ["/up", "/magic", "/missing"] {
            assert!(matches!(read(bad), Err(ObjectError::Io(_))), "{bad}");
        }
        assert!(matches!(read("/etc"), Err(ObjectError::NotRegular)));
    }

    #[test]
    fn fifos_and_devices_are_pointed_at_and_never_opened() {
        let folder = tempfile::tempdir().expect("a folder");
        nix::unistd::mkfifo(&folder.path().join("fifo"), nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
        for path in [folder.path().join("fifo"), "/dev/tty".into(), "/dev/zero".into(), "/".into()] {
            let pointed = File::from(point_at(&path).expect("it is there"));
            assert!(matches!(open(&pointed), Err(ObjectError::NotRegular)), "{}", path.display());
        }
    }

    #[test]
    fn who_never_answers_is_not_waited_for() {
        let (blocker, blocked) = sync_channel::<()>(1);
        let result = with_patience(move || {
            let _ = blocked.recv();
            Ok(())
        });
        assert!(matches!(result, Err(ObjectError::NoAnswer)));
        drop(blocker);
        assert_eq!(with_patience(|| Ok(7)).expect("at once"), 7);
    }
}

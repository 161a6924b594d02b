//! The one way to open, make and replace what another user can put something else in place of: a link, a FIFO,
//! a device whose opening has effects, a file of that user's own.
//!
//! A file is first only pointed at (O_PATH: nothing of it is opened yet); then it is known what it is and whose;
//! then it is opened by way of the descriptor. A folder is held open, and names are looked up, made and replaced
//! in it, so that nobody can put another folder in its place meanwhile.
//!
//! Links and files of others are judged as the kernel does with `fs.protected_symlinks`, `fs.protected_fifos` and
//! `fs.protected_regular` = 2 (fs/namei.c, `may_follow_link()`, `may_create_in_sticky()`), whatever these are set
//! to, also where no sticky bit is, and for the links on the way.

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, OpenHow, ResolveFlag, openat, openat2, readlinkat, renameat};
use nix::sys::stat::Mode;
use nix::sys::statfs::{FUSE_SUPER_MAGIC, FsType, PROC_SUPER_MAGIC, fstatfs};
use nix::unistd::{Gid, Group, Uid, UnlinkatFlags, User, linkat, unlinkat};
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Symbolic links that are followed (MAXSYMLINKS, include/linux/namei.h).
const MOST_LINKS: usize = 40;
const GROUP_WRITES: u32 = 0o020;
const ALL_WRITE: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// Users whose files and links are taken as this user's own: root, and whom root acts for (sudo).
#[derive(Clone, Copy, Debug)]
pub struct Believed {
    own: u32,
    behind: Option<u32>,
}

impl Believed {
    /// Root, this user, and the one behind sudo.
    pub fn user() -> Believed {
        let strict = Believed::strictly();
        // That it is a number is checked before anything starts (launch::behind_sudo).
        let behind = std::env::var("SUDO_UID").ok().filter(|_| strict.own == 0);
        Believed { behind: behind.and_then(|uid| uid.parse().ok()), ..strict }
    }

    /// Root and this user.
    pub fn strictly() -> Believed {
        Believed { own: Uid::effective().as_raw(), behind: None }
    }

    pub fn includes(&self, uid: u32) -> bool {
        uid == 0 || uid == self.own || self.behind == Some(uid)
    }
}

/// A folder, held open (O_PATH).
#[derive(Debug)]
pub struct Folder(File);

impl Folder {
    /// # Errors
    /// When there is none, or it may not be entered.
    pub fn open(path: &Path) -> io::Result<Folder> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        point(AT_FDCWD, path, OFlag::O_DIRECTORY).map(Folder)
    }

    pub fn as_file(&self) -> &File {
        &self.0
    }

    /// Returns the path that leads to it now, without links.
    ///
    /// # Errors
    /// Without /proc.
    pub fn path(&self) -> io::Result<PathBuf> {
        std::fs::read_link(own_link(&self.0))
    }

    /// Points at what is there, also at a link; None where nothing is.
    ///
    /// # Errors
    /// When it is not known.
    pub fn find(&self, name: &OsStr) -> io::Result<Option<File>> {
        match point(&self.0, Path::new(name), OFlag::O_NOFOLLOW) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            found => found.map(Some),
        }
    }

    /// Makes a new file under a name that nothing has.
    ///
    /// # Errors
    /// When something is there, and those of open(2).
    pub fn create(&self, name: &OsStr, mode: u32) -> io::Result<File> {
        self.make(Path::new(name), OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW, mode)
    }

    /// Makes a file that has no name, and ends with this process unless it gets one.
    ///
    /// # Errors
    /// When the file system has none (O_TMPFILE).
    pub fn nameless(&self, mode: u32) -> io::Result<File> {
        self.make(Path::new("."), OFlag::O_TMPFILE, mode)
    }

    fn make(&self, path: &Path, how: OFlag, mode: u32) -> io::Result<File> {
        let flags = how | OFlag::O_RDWR | OFlag::O_CLOEXEC;
        Ok(openat(&self.0, path, flags, Mode::from_bits_truncate(mode))?.into())
    }

    /// Gives a nameless file a name.
    ///
    /// # Errors
    /// When something is there, and those of linkat(2).
    pub fn link(&self, file: &File, name: &OsStr) -> io::Result<()> {
        let open = own_link(file);
        Ok(linkat(AT_FDCWD, open.as_str(), &self.0, name, AtFlags::AT_SYMLINK_FOLLOW)?)
    }

    /// # Errors
    /// Those of renameat(2).
    pub fn rename(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        Ok(renameat(&self.0, from, &self.0, to)?)
    }

    /// # Errors
    /// Those of unlinkat(2).
    pub fn remove(&self, name: &OsStr) -> io::Result<()> {
        Ok(unlinkat(&self.0, name, UnlinkatFlags::NoRemoveDir)?)
    }

    /// True where users who are not believed can make names.
    fn is_shared(&self, believed: &Believed) -> io::Result<bool> {
        let found = self.0.metadata()?;
        Ok(!believed.includes(found.uid()) || others_write(&found))
    }

    /// # Errors
    /// When a link that was found here is somebody's who may not be believed.
    fn allow_link(&self, link: &Metadata) -> io::Result<()> {
        let believed = Believed::user();
        if believed.includes(link.uid()) || !self.is_shared(&believed)? {
            return Ok(());
        }
        Err(denied(format!(
            "a symbolic link of another user (uid {}) leads there, and is not followed: name the file itself",
            link.uid()
        )))
    }

    /// Judges a file that was found here and would be written to.
    ///
    /// # Errors
    /// When somebody who may not be believed put it here.
    pub fn allow_writing(&self, found: &Metadata) -> io::Result<()> {
        let believed = Believed::user();
        let kind = found.file_type();
        if !(kind.is_file() || kind.is_fifo()) || !self.is_shared(&believed)? {
            return Ok(());
        }
        let advice = "in a folder that others can write: name another file, or one in a folder of your own";
        if !believed.includes(found.uid()) && found.uid() != self.0.metadata()?.uid() {
            let what = if kind.is_fifo() { "FIFO" } else { "file" };
            return Err(denied(format!("it is another user's {what} (uid {}), {advice}", found.uid())));
        }
        if kind.is_file() && found.nlink() > 1 {
            return Err(denied(format!("it has other names (hard links), {advice}")));
        }
        Ok(())
    }
}

/// The place that a path leads to.
#[derive(Debug)]
pub struct Place {
    pub folder: Folder,
    /// The name in it; no link.
    pub name: OsString,
    /// Points at what is there.
    pub found: Option<File>,
}

/// Walks to what a path means. Each link on the way has to be one of the user's own, of root's, or in a folder
/// that nobody else can write.
///
/// # Errors
/// When a link is another user's, and those of open(2).
pub fn place(path: &Path) -> io::Result<Place> {
    walk(path, true)
}

/// Walks there as [`place`] does, but may end at a link.
///
/// # Errors
/// The same.
pub fn place_itself(path: &Path) -> io::Result<Place> {
    walk(path, false)
}

fn walk(path: &Path, to_the_end: bool) -> io::Result<Place> {
    let mut left = parts(path);
    // Nobody needs to be able to enter the current folder for a path that is absolute.
    let mut folder = Folder::open(Path::new(if path.is_absolute() { "/" } else { "." }))?;
    let mut links = 0;
    while let Some(name) = left.pop() {
        if name == "/" {
            folder = Folder::open(Path::new("/"))?;
            continue;
        }
        let mut found = folder.find(&name)?;
        let seen = found.as_ref().map(File::metadata).transpose()?;
        let is_followed = |seen: &Metadata| seen.is_symlink() && (to_the_end || !left.is_empty());
        if let (Some(link), Some(seen)) = (&found, seen.filter(is_followed)) {
            // What these lead to need not have a name: the kernel follows them itself.
            if file_system(&folder.0) == Some(PROC_SUPER_MAGIC) {
                found = Some(point(&folder.0, Path::new(&name), OFlag::empty())?);
            } else {
                links += 1;
                if links > MOST_LINKS {
                    return Err(Errno::ELOOP.into());
                }
                folder.allow_link(&seen)?;
                left.extend(parts(Path::new(&readlinkat(link, "")?)));
                continue;
            }
        }
        if left.is_empty() {
            return Ok(Place { folder, name, found });
        }
        folder = match found {
            Some(found) if file_system(&folder.0) == Some(PROC_SUPER_MAGIC) => Folder(found),
            // Not by what is pointed at already: this is what mounts a folder that waits for it (autofs).
            Some(_) => Folder(point(&folder.0, Path::new(&name), OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW)?),
            None => return Err(Errno::ENOENT.into()),
        };
    }
    Err(Errno::ENOENT.into())
}

/// The parts of a path, the last one first.
fn parts(path: &Path) -> Vec<OsString> {
    path.components().rev().map(|part| part.as_os_str().to_owned()).collect()
}

/// Proves that nobody but those believed can put something else in the place of this: each folder on the way is
/// theirs, and where others can write it, its sticky bit keeps what is in it. `path` is absolute, without links.
///
/// # Errors
/// When somebody could, with who and where.
pub fn is_out_of_reach(path: &Path, believed: &Believed) -> io::Result<()> {
    let mut upto: Vec<&Path> = path.ancestors().collect();
    // From the root on, so that nobody can change what comes before a part while it is examined.
    upto.reverse();
    for at in upto {
        let found = std::fs::symlink_metadata(at)?;
        if !believed.includes(found.uid()) {
            return Err(denied(format!("{} belongs to another user (uid {})", at.display(), found.uid())));
        }
        if found.is_dir() && others_write(&found) && found.mode() & STICKY == 0 {
            return Err(denied(format!("other users can write {}", at.display())));
        }
    }
    Ok(())
}

/// True where the mode lets others write, also by a group that has other members than the owner.
pub fn others_write(found: &Metadata) -> bool {
    let by_group = || found.mode() & GROUP_WRITES != 0 && !is_private(found.gid(), found.uid());
    found.mode() & ALL_WRITE != 0 || by_group()
}

/// True for a user's own group, which is why distributions have new files writable by it (umask 002).
fn is_private(gid: u32, uid: u32) -> bool {
    let group = Group::from_gid(Gid::from_raw(gid)).ok().flatten();
    let user = User::from_uid(Uid::from_raw(uid)).ok().flatten();
    matches!((group, user), (Some(group), Some(user))
        if group.name == user.name && group.mem.iter().all(|member| *member == user.name))
}

/// A refusal, with its reason.
pub fn denied(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

/// The folder that a process sees as `/`, held open: it stays when the process has ended.
#[derive(Debug)]
pub struct Root(OwnedFd);

impl Root {
    /// # Errors
    /// When the process is gone, or may not be examined.
    pub fn of(pid: i32) -> io::Result<Root> {
        // This link is the kernel's own, and leads to the root of the process whatever is there.
        point(AT_FDCWD, Path::new(&format!("/proc/{pid}/root")), OFlag::O_DIRECTORY)
            .map(|root| Root(root.into()))
    }

    /// A second handle.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub fn again(&self) -> io::Result<Root> {
        self.0.try_clone().map(Root)
    }

    /// Opens a regular file inside for reading, where no other process serves it.
    ///
    /// # Errors
    /// When there is none, or the kernel does not let it be read.
    pub fn open_file(&self, path: &Path) -> io::Result<File> {
        let pointed = self.point_at(path)?;
        if file_system(&pointed) == Some(FUSE_SUPER_MAGIC) {
            return Err(not_regular());
        }
        open_regular(&pointed)
    }

    /// Points at what `path` means inside: links and `..` lead no further than the root, and no link of
    /// /proc is followed (openat2(2), Linux 5.6).
    ///
    /// # Errors
    /// When there is none, and ENOSYS before Linux 5.6.
    pub fn point_at(&self, path: &Path) -> io::Result<File> {
        self.point(path, OFlag::empty(), ResolveFlag::empty())
    }

    /// Opens a folder inside, on the way to which no link may be.
    ///
    /// # Errors
    /// When there is none, a link is on the way, and ENOSYS before Linux 5.6.
    pub fn folder(&self, path: &Path) -> io::Result<Folder> {
        self.point(path, OFlag::O_DIRECTORY, ResolveFlag::RESOLVE_NO_SYMLINKS).map(Folder)
    }

    fn point(&self, path: &Path, flags: OFlag, resolve: ResolveFlag) -> io::Result<File> {
        /// A rename meanwhile makes the kernel say EAGAIN.
        const ATTEMPTS: u32 = 8;
        let relative = path.strip_prefix("/").unwrap_or(path);
        let resolve = resolve | ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS;
        let how = OpenHow::new().flags(flags | OFlag::O_PATH | OFlag::O_CLOEXEC).resolve(resolve);
        let mut last = Errno::EAGAIN;
        for _ in 0..ATTEMPTS {
            match openat2(self.0.as_fd(), relative, how) {
                Ok(fd) => return Ok(fd.into()),
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

fn point(at: impl AsFd, path: &Path, flags: OFlag) -> io::Result<File> {
    Ok(openat(at, path, flags | OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())?.into())
}

/// Points at a file by a path of our own, or by a link of /proc.
///
/// # Errors
/// When there is none.
pub fn point_at(path: &Path) -> io::Result<File> {
    point(AT_FDCWD, path, OFlag::empty())
}

/// Opens what is pointed at for reading; only if it is a regular file.
///
/// # Errors
/// When it is none, and those of open(2).
pub fn open_regular(pointed: &File) -> io::Result<File> {
    if !pointed.metadata()?.is_file() {
        return Err(not_regular());
    }
    reopen(pointed, OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY))
}

/// Opens what is pointed at.
///
/// # Errors
/// Those of open(2).
pub fn reopen(pointed: &File, how: &OpenOptions) -> io::Result<File> {
    how.open(own_link(pointed))
}

/// The link of /proc that leads to what a descriptor is of, whatever its path leads to now.
pub fn own_link(file: &File) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// The bytes of a regular file, at most so many.
///
/// # Errors
/// When it is none, is longer, or cannot be read.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    read_up_to(open_regular(&point_at(path)?)?, most)
}

/// Reads the rest of a file that may be huge, or never end.
///
/// # Errors
/// When it is longer, or cannot be read.
pub fn read_up_to(file: File, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("longer than {most} bytes")));
    }
    Ok(bytes)
}

fn not_regular() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")
}

/// Returns the kind of its file system; None where that is not known.
pub fn file_system(file: &File) -> Option<FsType> {
    fstatfs(file).ok().map(|found| found.filesystem_type())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn is_not_regular(error: &io::Error) -> bool {
        error.to_string() == not_regular().to_string()
    }

    fn root(folder: &Path) -> Root {
        Root(point_at(folder).expect("a folder").into())
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
            let pointed = root(&inner).point_at(Path::new(path))?;
            open_regular(&pointed).and_then(io::read_to_string)
        };
        assert_eq!(read("/absolute").expect("inside"), "inside");
        assert_eq!(read("/../../../etc/passwd").expect("inside"), "inside");
        for bad in ["/up", "/magic", "/missing"] {
            let error = read(bad).expect_err("nothing is there");
            assert!(!is_not_regular(&error), "{bad}: {error}");
        }
        assert!(is_not_regular(&read("/etc").expect_err("a folder")));
    }

    #[test]
    fn fifos_and_devices_are_pointed_at_and_never_opened() {
        let folder = tempfile::tempdir().expect("a folder");
        nix::unistd::mkfifo(&folder.path().join("fifo"), nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
        for path in [folder.path().join("fifo"), "/dev/tty".into(), "/dev/zero".into(), "/".into()] {
            let error = open_regular(&point_at(&path).expect("it is there")).expect_err("no regular file");
            assert!(is_not_regular(&error), "{}: {error}", path.display());
        }
    }
}

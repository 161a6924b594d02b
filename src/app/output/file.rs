//! The file that a report is written to: found and proven to be writable before anything is started,
//! changed when the report is there and not before.
//!
//! | what is at the path | what happens |
//! | --- | --- |
//! | nothing, or a regular file | the report is written next to it and takes its place when it is complete |
//! | a file with several names (hard links), or in a folder where nothing may be created | it is overwritten when the report is complete |
//! | a FIFO, a device, an own descriptor (`/dev/stderr`, `/dev/fd/N`) | opened at once, and written to |
//! | another user's link, or, in a folder that others can write, another user's file or FIFO | it is refused |

use super::conflict::{self, Other};
use super::print_by;
use crate::app::error::AppError;
use crate::launch::behind_sudo;
use crate::sys::untrusted_open::{Folder, Place, place, reopen};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Seek, Write};
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Permissions of a report that was not there before: it holds command lines, paths and addresses.
const MODE: u32 = 0o600;
/// Names that are tried for a file next to the report's.
const ATTEMPTS: u32 = 100;
/// Bytes that are written at once.
const BUFFER: usize = 64 << 10;

/// Where a report goes.
#[derive(Debug)]
pub struct Output {
    /// None: standard output.
    path: Option<PathBuf>,
    place: RefCell<Target>,
}

#[derive(Debug)]
enum Target {
    Stdout,
    Stderr,
    /// No regular file, or one that was open before: written to as it comes.
    Open(File),
    /// A FIFO that no process had open for reading, pointed at: waited for when there is something to write.
    Fifo(File),
    /// A regular file that is replaced as a whole.
    Replaced(Replaced),
    /// One that can only be overwritten.
    Overwritten(File),
}

/// A file, or the place for one, and what will be there.
#[derive(Debug)]
struct Replaced {
    folder: Rc<Folder>,
    name: OsString,
    /// What is there now.
    present: Option<File>,
    /// None where the file system has no files without a name, and after the first report.
    fresh: Option<Fresh>,
}

/// What is to take a file's place. Most file systems can give it no name until then (O_TMPFILE): whatever
/// happens to this process, nothing is left behind.
#[derive(Debug)]
struct Fresh {
    file: File,
    folder: Rc<Folder>,
    /// Where it has one.
    name: Option<OsString>,
}

impl Drop for Fresh {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            let _ = self.folder.remove(name);
        }
    }
}

impl Output {
    /// Standard output for None and `-`.
    ///
    /// # Errors
    /// When the file cannot be written, is a recording, or is one of the `others`.
    pub fn open(path: Option<&Path>, others: &[Other<'_>]) -> Result<Output, AppError> {
        let Some(path) = path.filter(|path| path.as_os_str() != "-") else {
            return Ok(Output { path: None, place: RefCell::new(Target::Stdout) });
        };
        conflict::check(path, others)?;
        let place =
            Target::find(path).map_err(|source| AppError::Report { path: path.to_owned(), source })?;
        Ok(Output { path: Some(path.to_owned()), place: RefCell::new(place) })
    }

    pub fn is_stdout(&self) -> bool {
        self.path.is_none()
    }

    /// Writes a report: in place of the one before where that is a regular file. That a pipe's reader
    /// has gone is no failure.
    ///
    /// # Errors
    /// The write that failed; a regular file then is what it was.
    pub fn put(&self, report: &[u8]) -> Result<(), AppError> {
        self.put_by(|to| to.write_all(report))
    }

    /// As [`Output::put`], of a report that is too large to be in memory as a whole.
    ///
    /// # Errors
    /// The same.
    pub fn put_by(&self, write: impl Fn(&mut dyn Write) -> io::Result<()>) -> Result<(), AppError> {
        let Some(path) = &self.path else { return print_by(write) };
        let mut place = self.place.borrow_mut();
        let written = place.opened().and_then(|()| match &mut *place {
            Target::Open(file) => buffered(file, write).or_else(no_reader),
            Target::Overwritten(file) => {
                file.rewind()?;
                buffered(file, write)?;
                let length = file.stream_position()?;
                file.set_len(length)
            }
            Target::Replaced(replaced) => replaced.put(write),
            Target::Stdout | Target::Stderr | Target::Fifo(_) => Ok(()),
        });
        written.map_err(|source| AppError::Write { path: path.clone(), source })
    }

    /// For what is written bit by bit.
    pub fn stream(self) -> Stream {
        Stream { path: self.path, place: self.place.into_inner(), begun: None }
    }
}

/// Writes bit by bit. A regular file shows its new content from the first `flush` on, and is what it was
/// until then.
#[derive(Debug)]
pub struct Stream {
    path: Option<PathBuf>,
    place: Target,
    /// What is written to, of a regular file.
    begun: Option<Begun>,
}

#[derive(Debug)]
enum Begun {
    Hidden(Fresh),
    Published(File),
}

impl Begun {
    fn file(&mut self) -> &mut File {
        match self {
            Begun::Hidden(Fresh { file, .. }) | Begun::Published(file) => file,
        }
    }
}

impl Stream {
    /// Standard error.
    pub fn stderr() -> Stream {
        Stream { path: None, place: Target::Stderr, begun: None }
    }

    /// Names the file in an error.
    pub fn failed(&self, source: io::Error) -> AppError {
        match &self.path {
            Some(path) => AppError::Write { path: path.clone(), source },
            None => AppError::Output(source),
        }
    }

    fn begin(&mut self) -> io::Result<&mut Begun> {
        if self.begun.is_none() {
            self.begun = Some(match &mut self.place {
                Target::Replaced(replaced) => Begun::Hidden(replaced.fresh()?),
                Target::Overwritten(file) => {
                    file.set_len(0)?;
                    Begun::Published(file.try_clone()?)
                }
                _ => return Err(io::ErrorKind::Unsupported.into()),
            });
        }
        self.begun.as_mut().ok_or_else(|| io::ErrorKind::Unsupported.into())
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.place.opened()?;
        match &mut self.place {
            Target::Stdout => io::stdout().write(bytes),
            Target::Stderr => io::stderr().write(bytes),
            Target::Open(file) => file.write(bytes),
            _ => self.begin()?.file().write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &self.place {
            Target::Stdout => return io::stdout().flush(),
            Target::Stderr | Target::Open(_) | Target::Fifo(_) => return Ok(()),
            Target::Replaced(_) | Target::Overwritten(_) => {}
        }
        self.begin()?;
        self.begun = match (self.begun.take(), &self.place) {
            (Some(Begun::Hidden(fresh)), Target::Replaced(replaced)) => {
                Some(Begun::Published(replaced.publish(fresh)?))
            }
            (begun, _) => begun,
        };
        Ok(())
    }
}

impl Target {
    fn find(path: &Path) -> io::Result<Target> {
        if let Some(fd) = own_descriptor(path) {
            return duplicate(fd).map(Target::Open);
        }
        if path.as_os_str().as_bytes().ends_with(b"/") {
            return Err(Errno::EISDIR.into());
        }
        let Place { folder, name, found } = place(path)?;
        let folder = Rc::new(folder);
        let Some(pointed) = found else {
            let fresh = prove(&folder)?;
            return Ok(Target::Replaced(Replaced { folder, name, present: None, fresh }));
        };
        let found = pointed.metadata()?;
        let kind = found.file_type();
        if kind.is_dir() {
            return Err(Errno::EISDIR.into());
        }
        folder.allow_writing(&found)?;
        if kind.is_fifo() {
            return fifo(pointed);
        }
        if !kind.is_file() {
            return reopen(&pointed, OpenOptions::new().write(true).custom_flags(libc::O_NOCTTY))
                .map(Target::Open);
        }
        // What the shell redirected there goes on into this file, and would be lost with it.
        if let Some(fd) =
            [libc::STDOUT_FILENO, libc::STDERR_FILENO].into_iter().find(|&fd| is_open(fd, &found))
        {
            return duplicate(fd).map(Target::Open);
        }
        let present = reopen(&pointed, OpenOptions::new().write(true))?;
        if found.nlink() > 1 {
            return Ok(Target::Overwritten(present));
        }
        match prove(&folder) {
            Ok(fresh) => Ok(Target::Replaced(Replaced { folder, name, present: Some(present), fresh })),
            Err(_) => Ok(Target::Overwritten(present)),
        }
    }

    /// Waits for the reader of a FIFO.
    fn opened(&mut self) -> io::Result<()> {
        if let Target::Fifo(pointed) = self {
            *self = Target::Open(reopen(pointed, OpenOptions::new().write(true))?);
        }
        Ok(())
    }
}

impl Replaced {
    fn put(&mut self, write: impl Fn(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
        let mut fresh = self.fresh()?;
        buffered(&mut fresh.file, write)?;
        self.publish(fresh).map(drop)
    }

    /// The file that will take the place, empty.
    fn fresh(&mut self) -> io::Result<Fresh> {
        match self.fresh.take() {
            Some(fresh) => Ok(fresh),
            None => nameless(&self.folder).or_else(|_| named(&self.folder, &self.name)),
        }
    }

    /// Gives the file its name; what was there keeps its owner and permissions. Returns the file that has
    /// the name: the one that was there where it may not be replaced (a mount, another user's file in
    /// /tmp), with its content replaced.
    fn publish(&self, mut fresh: Fresh) -> io::Result<File> {
        if let Some(former) = self.present.as_ref().and_then(|present| present.metadata().ok()) {
            // Not everybody may give files away.
            let _ = fchown(&fresh.file, Some(former.uid()), Some(former.gid()));
            let _ = fresh.file.set_permissions(fs::Permissions::from_mode(former.mode() & 0o7777));
        }
        match (self.rename(&mut fresh), &self.present) {
            (Ok(()), _) => fresh.file.try_clone(),
            (Err(_), Some(present)) => {
                let mut present = present.try_clone()?;
                fresh.file.rewind()?;
                present.rewind()?;
                let length = io::copy(&mut fresh.file, &mut present)?;
                present.set_len(length)?;
                Ok(present)
            }
            (Err(error), None) => Err(error),
        }
    }

    fn rename(&self, fresh: &mut Fresh) -> io::Result<()> {
        if fresh.name.is_none() {
            fresh.name = Some(unused(&self.name, |name| self.folder.link(&fresh.file, name))?.1);
        }
        if let Some(name) = &fresh.name {
            self.folder.rename(name, &self.name)?;
        }
        fresh.name = None;
        Ok(())
    }
}

fn buffered(file: &mut File, write: impl Fn(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut to = BufWriter::with_capacity(BUFFER, file);
    write(&mut to)?;
    to.flush()
}

/// What vmaudit makes under sudo is the invoking user's, as with recordings.
fn give(file: &File) -> io::Result<()> {
    match behind_sudo().map_err(io::Error::other)? {
        Some((uid, gid)) => fchown(file, Some(uid), Some(gid)),
        None => Ok(()),
    }
}

/// A file that has no name, and ends with this process unless it gets one.
fn nameless(folder: &Rc<Folder>) -> io::Result<Fresh> {
    let fresh = Fresh { file: folder.nameless(MODE)?, folder: Rc::clone(folder), name: None };
    give(&fresh.file).map(|()| fresh)
}

/// A new file under a hidden name.
fn named(folder: &Rc<Folder>, for_name: &OsStr) -> io::Result<Fresh> {
    let (file, name) = unused(for_name, |name| folder.create(name, MODE))?;
    let fresh = Fresh { file, folder: Rc::clone(folder), name: Some(name) };
    give(&fresh.file).map(|()| fresh)
}

/// Proves that a file can be made there: by one without a name, or, where there are none, by one that is
/// removed at once.
fn prove(folder: &Rc<Folder>) -> io::Result<Option<Fresh>> {
    match nameless(folder) {
        Ok(fresh) => Ok(Some(fresh)),
        Err(_) => named(folder, OsStr::new("vmaudit")).map(|_| None),
    }
}

/// Has `make` create something under an unused hidden name that resembles `for_name`.
fn unused<T>(for_name: &OsStr, make: impl Fn(&OsStr) -> io::Result<T>) -> io::Result<(T, OsString)> {
    let mut taken = io::Error::from(io::ErrorKind::AlreadyExists);
    for number in 0..ATTEMPTS {
        let mut name = OsString::from(".");
        name.push(for_name);
        name.push(format!(".{}.{number}", std::process::id()));
        match make(&name) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => taken = error,
            made => return made.map(|made| (made, name)),
        }
    }
    Err(taken)
}

/// The number in `/dev/fd/N` and the like: to open it anew would begin at the file's start.
fn own_descriptor(path: &Path) -> Option<RawFd> {
    let text = path.to_str()?;
    match text {
        "/dev/stdout" => return Some(libc::STDOUT_FILENO),
        "/dev/stderr" => return Some(libc::STDERR_FILENO),
        _ => {}
    }
    let number = text.strip_prefix("/dev/fd/").or_else(|| text.strip_prefix("/proc/self/fd/"))?;
    number.parse().ok().filter(|fd| *fd >= 0)
}

/// # Errors
/// EBADF where it is not open, or not for writing.
fn duplicate(fd: RawFd) -> io::Result<File> {
    // SAFETY: only numbers are passed on, and the kernel knows which are open.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    let flags = OFlag::from_bits_truncate(fcntl(borrowed, FcntlArg::F_GETFL)?);
    if flags & OFlag::O_ACCMODE == OFlag::O_RDONLY {
        return Err(Errno::EBADF.into());
    }
    let copy = fcntl(borrowed, FcntlArg::F_DUPFD_CLOEXEC(3))?;
    // SAFETY: a new descriptor owned by nothing else.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(copy) }))
}

fn is_open(fd: RawFd, file: &fs::Metadata) -> bool {
    duplicate(fd)
        .and_then(|open| open.metadata())
        .is_ok_and(|open| (open.dev(), open.ino()) == (file.dev(), file.ino()))
}

/// Without waiting for a reader: it may come when the command has printed something.
fn fifo(pointed: File) -> io::Result<Target> {
    match reopen(&pointed, OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK)) {
        Ok(file) => {
            let flags = OFlag::from_bits_truncate(fcntl(&file, FcntlArg::F_GETFL)?);
            fcntl(&file, FcntlArg::F_SETFL(flags & !OFlag::O_NONBLOCK))?;
            Ok(Target::Open(file))
        }
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) => Ok(Target::Fifo(pointed)),
        Err(error) => Err(error),
    }
}

/// A reader that closes its pipe is no failure.
fn no_reader(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::BrokenPipe { Ok(()) } else { Err(error) }
}

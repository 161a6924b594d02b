//! Placing the probes, and finding out which functions the kernel refuses.

use super::{CallCounter, MAX_MULTI, MAX_SINGLE, Way};
use crate::capture::heap::attach::{Attach, Many, ProbeError, Single};
use crate::model::Pid;
use memmap2::{Mmap, MmapOptions};
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// A function that the kernel does not probe.
#[derive(Debug)]
pub struct Refused {
    /// Index in the list that was given.
    pub index: usize,
    pub errno: i32,
}

/// What became of [`CallCounter::place`].
#[derive(Debug, Default)]
pub struct Placed {
    pub refused: Vec<Refused>,
    pub took: Duration,
    /// How many system calls it needed: more than one where a function was refused.
    pub calls: usize,
}

/// Why no function of a file can be probed.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    #[error("placing probes: {0}")]
    Refused(#[source] io::Error),
    #[error(
        "this kernel places probes one by one (before Linux 6.6), and at most {most} that way; {wanted} functions \
         are wanted: narrow --match"
    )]
    TooManySingle { wanted: usize, most: usize },
    #[error("the kernel places at most {most} probes at once; {wanted} functions are wanted: narrow --match")]
    TooMany { wanted: usize, most: usize },
}

/// Errors that say nothing of a single function.
fn is_general(error: &io::Error) -> bool {
    use libc::{EACCES, EBADF, EMFILE, ENFILE, ENOENT, ENOMEM, EPERM};
    matches!(error.raw_os_error(), Some(EPERM | EACCES | ENOMEM | EMFILE | ENFILE | ENOENT | EBADF))
}

impl CallCounter {
    /// Probes functions of a file by their file offsets; the place in the list is the function's index.
    /// With `only`, other processes have no probes, and children neither.
    ///
    /// # Errors
    /// When there are too many, or the kernel refuses for a reason that is none of the functions'.
    pub fn place(
        &mut self,
        file: BorrowedFd<'_>,
        offsets: &[u64],
        only: Option<Pid>,
    ) -> Result<Placed, PlaceError> {
        let (wanted, most) = match self.way {
            Way::Multi => (offsets.len(), MAX_MULTI),
            Way::Single => (offsets.len(), MAX_SINGLE),
        };
        match self.way {
            Way::Multi if wanted > most => return Err(PlaceError::TooMany { wanted, most }),
            Way::Single if wanted > most => return Err(PlaceError::TooManySingle { wanted, most }),
            _ => {}
        }
        // Digits only: no NUL to fail on.
        let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap_or_default();
        let functions: Vec<(u64, u64, bool)> =
            offsets.iter().zip(0..).map(|(&offset, index)| (offset, index, false)).collect();
        let begun = Instant::now();
        let mut placing =
            Placing { counter: self, path: &path, only, placed: Placed::default(), links: Vec::new() };
        let accepted = match (self.way, map(file)) {
            (Way::Multi, Some(_mapped)) => placing.accepted(&functions)?,
            _ => functions,
        };
        placing.place(&accepted)?;
        let Placing { mut placed, links, .. } = placing;
        self.probes.extend(links);
        placed.refused.sort_by_key(|refused| refused.index);
        placed.took = begun.elapsed();
        Ok(placed)
    }

    /// Whether the kernel knows this way: it refuses a folder after everything else was to its liking.
    pub(super) fn try_out(&self) -> io::Result<()> {
        if self.way == Way::Single {
            return Ok(());
        }
        let program = self.program().as_raw_fd();
        let request = Many { program, path: &c"/".into(), pid: None, attach: Attach::Entry };
        match request.link(&[(4096, 0, false)]) {
            Err(error) if error.raw_os_error() == Some(libc::EBADF) => Ok(()),
            Err(error) => Err(error),
            Ok(_) => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// A private mapping, of which nothing is ever read here.
fn map(file: BorrowedFd<'_>) -> Option<Mmap> {
    let file = File::from(file.try_clone_to_owned().ok()?);
    // SAFETY: nobody reads the bytes, so it does not matter that others may change or cut the file.
    unsafe { MmapOptions::new().map_copy_read_only(&file).ok() }
}

struct Placing<'a> {
    counter: &'a CallCounter,
    path: &'a CString,
    only: Option<Pid>,
    placed: Placed,
    links: Vec<OwnedFd>,
}

impl Placing<'_> {
    /// The functions that the kernel does not refuse.
    ///
    /// It looks at an instruction only where the file is mapped: with no process yet, it would refuse in
    /// silence later, and the function would seem never to be called. So the file is mapped here, and
    /// probes are placed in this process alone, which costs no other one anything, and taken away.
    fn accepted(&mut self, functions: &[(u64, u64, bool)]) -> Result<Vec<(u64, u64, bool)>, PlaceError> {
        let own = Some(std::process::id() as Pid);
        let only = std::mem::replace(&mut self.only, own);
        // An index that no table has: vmaudit's own calls meanwhile count nowhere.
        let tried: Vec<_> =
            functions.iter().map(|&(offset, _, returns)| (offset, u64::MAX, returns)).collect();
        let result = self.bisect(functions, &tried);
        self.only = only;
        self.links.clear();
        result?;
        let mut refused = self.placed.refused.iter().map(|refused| refused.index as u64).collect::<Vec<_>>();
        refused.sort_unstable();
        Ok(functions.iter().copied().filter(|(_, index, _)| refused.binary_search(index).is_err()).collect())
    }

    fn place(&mut self, functions: &[(u64, u64, bool)]) -> Result<(), PlaceError> {
        self.bisect(functions, functions)
    }

    /// Places `tried` at once; where one is refused, halves of it, down to the one, which is noted by its
    /// index in `functions`.
    fn bisect(
        &mut self,
        functions: &[(u64, u64, bool)],
        tried: &[(u64, u64, bool)],
    ) -> Result<(), PlaceError> {
        let (Some(first), one) = (functions.first(), functions.len() == 1) else { return Ok(()) };
        if one || self.counter.way == Way::Multi {
            match self.link(tried) {
                Ok(link) => {
                    self.links.extend(link);
                    return Ok(());
                }
                Err(error) if is_general(&error) => return Err(PlaceError::Refused(error)),
                Err(error) if one => {
                    let errno = error.raw_os_error().unwrap_or(libc::EIO);
                    self.placed.refused.push(Refused { index: first.1 as usize, errno });
                    return Ok(());
                }
                Err(_) => {}
            }
        }
        let half = functions.len() / 2;
        let (left, right) = functions.split_at(half);
        let (tried_left, tried_right) = tried.split_at(half);
        self.bisect(left, tried_left)?;
        self.bisect(right, tried_right)
    }

    fn link(&mut self, functions: &[(u64, u64, bool)]) -> io::Result<Option<OwnedFd>> {
        self.placed.calls += 1;
        let program = self.counter.program().as_raw_fd();
        let (path, pid) = (self.path, self.only);
        if self.counter.way == Way::Multi {
            return Many { program, path, pid, attach: Attach::Entry }.link(functions).map(Some);
        }
        let (Some(kind), [(offset, cookie, _)]) = (self.counter.perf, functions) else { return Ok(None) };
        let single = Single { path, offset: *offset, cookie: *cookie, kind, pid };
        single.link(program, false).map(Some).map_err(|error| match error {
            ProbeError::Link(source) | ProbeError::Perf(source) | ProbeError::Table(source) => source,
            ProbeError::TooMany(_) => io::ErrorKind::InvalidInput.into(),
        })
    }
}

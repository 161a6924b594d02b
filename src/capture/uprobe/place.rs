//! Placing the probes, and finding out which functions the kernel refuses.

use super::{CallCounter, MAX_MULTI, MAX_SINGLE, Way};
use crate::capture::uprobe_link::{ProbeError, Site};
use crate::model::Pid;
use memmap2::{Mmap, MmapOptions};
use std::collections::HashSet;
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
pub struct CountersPlaced {
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
        "this kernel places probes one by one (before Linux 6.6), and at most {most} that way; {requested} functions \
         match: narrow --match"
    )]
    TooManySingle { requested: usize, most: usize },
    #[error("the kernel places at most {most} probes at once; {requested} functions match: narrow --match")]
    TooMany { requested: usize, most: usize },
}

/// Errors that say nothing of a single function.
fn is_general(error: &io::Error) -> bool {
    use libc::{EACCES, EBADF, EMFILE, ENFILE, ENOENT, ENOMEM, EPERM};
    matches!(error.raw_os_error(), Some(EPERM | EACCES | ENOMEM | EMFILE | ENFILE | ENOENT | EBADF))
}

impl CallCounter {
    /// Probes functions of a file by their file offsets; the place in the list is the function's index.
    /// Processes have them that have entered ([`CallCounter::members`]), and those that will.
    ///
    /// # Errors
    /// When there are too many, or the kernel refuses for a reason that is none of the functions'.
    pub fn place(&self, file: BorrowedFd<'_>, offsets: &[u64]) -> Result<CountersPlaced, PlaceError> {
        let (requested, most) = match self.way {
            Way::Multi => (offsets.len(), MAX_MULTI),
            Way::Single => (offsets.len(), MAX_SINGLE),
        };
        match self.way {
            Way::Multi if requested > most => return Err(PlaceError::TooMany { requested, most }),
            Way::Single if requested > most => return Err(PlaceError::TooManySingle { requested, most }),
            _ => {}
        }
        // Digits only: no NUL to fail on.
        let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap_or_default();
        let functions: Vec<Site> =
            offsets.iter().zip(0..).map(|(&offset, index)| (offset, index, false)).collect();
        let begun = Instant::now();
        let mut placed = CountersPlaced::default();
        let accepted = match (self.way, map(file)) {
            (Way::Multi, Some(_mapped)) => self.accepted(&path, functions, &mut placed)?,
            _ => functions,
        };
        placed.calls += 1;
        let indices: Vec<usize> = accepted.iter().map(|&(_, index, _)| index as usize).collect();
        for (at, error) in self.members.place(file, accepted).map_err(PlaceError::Refused)? {
            let error = plain(error);
            if is_general(&error) {
                return Err(PlaceError::Refused(error));
            }
            let index = indices.get(at).copied().unwrap_or_default();
            placed.refused.push(Refused { index, errno: error.raw_os_error().unwrap_or(libc::EIO) });
        }
        placed.refused.sort_by_key(|refused| refused.index);
        placed.took = begun.elapsed();
        Ok(placed)
    }
}

fn plain(error: ProbeError) -> io::Error {
    match error {
        ProbeError::Link(source) | ProbeError::Perf(source) | ProbeError::Table(source) => source,
        ProbeError::TooMany(_) => io::ErrorKind::InvalidInput.into(),
    }
}

/// A private mapping, of which nothing is ever read here.
fn map(file: BorrowedFd<'_>) -> Option<Mmap> {
    let file = File::from(file.try_clone_to_owned().ok()?);
    // SAFETY: the bytes are not read, so it does not matter that other processes may change or truncate the
    // file.
    unsafe { MmapOptions::new().map_copy_read_only(&file).ok() }
}

/// A child that sleeps, with the mappings of this process. Dropped, it ends.
struct Sleeper(Pid);

impl Sleeper {
    fn start() -> io::Result<Sleeper> {
        // SAFETY: getpid has no preconditions.
        let parent = unsafe { libc::getpid() };
        // SAFETY: until it ends, the child makes only async-signal-safe calls.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                // SAFETY: plain system calls. Signals of the terminal are not meant for it, and it
                // ends with its parent.
                unsafe {
                    libc::setsid();
                    libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                    while libc::getppid() == parent {
                        libc::pause();
                    }
                    libc::_exit(0)
                }
            }
            pid => Ok(Sleeper(pid)),
        }
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        // SAFETY: a child of ours that nothing else waits for.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}

/// What a try at some functions came to.
enum Tried {
    CountersPlaced(Vec<OwnedFd>),
    /// One of them, or, where it is one, this one.
    Refused(i32),
    /// For a reason that is none of theirs.
    General(io::Error),
}

/// Tries under way at a time. Each that fails, and each probe taken away, waits tens of milliseconds for
/// the kernel's grace periods; those that wait together share them.
const AT_ONCE: usize = 32;

impl CallCounter {
    /// The functions that the kernel does not refuse.
    ///
    /// It checks an instruction only where the file is mapped: with no process yet, it would refuse silently
    /// later, and the function would seem never to be called. So a child of ours maps the file, and probes
    /// are placed in that child alone, which costs no other process anything, and taken away.
    fn accepted(
        &self,
        path: &CString,
        functions: Vec<Site>,
        placed: &mut CountersPlaced,
    ) -> Result<Vec<Site>, PlaceError> {
        let links = {
            let child = Sleeper::start().map_err(PlaceError::Refused)?;
            self.bisect(path, &child, functions.clone(), placed)?
        };
        std::thread::scope(|scope| {
            for link in links {
                scope.spawn(move || drop(link));
            }
        });
        let refused: HashSet<u64> = placed.refused.iter().map(|refused| refused.index as u64).collect();
        Ok(functions.into_iter().filter(|(_, index, _)| !refused.contains(index)).collect())
    }

    /// Places probes a group at once; of a group that is refused, each half, down to the one.
    fn bisect(
        &self,
        path: &CString,
        child: &Sleeper,
        functions: Vec<Site>,
        placed: &mut CountersPlaced,
    ) -> Result<Vec<OwnedFd>, PlaceError> {
        let mut links = Vec::new();
        let mut waiting = vec![functions];
        waiting.retain(|group| !group.is_empty());
        while !waiting.is_empty() {
            let rest = waiting.split_off(waiting.len().min(AT_ONCE));
            let tried: Vec<Tried> = match waiting.as_slice() {
                [only_one] => vec![self.try_group(path, child, only_one)],
                _ => std::thread::scope(|scope| {
                    let tries: Vec<_> = waiting
                        .iter()
                        .map(|group| scope.spawn(|| self.try_group(path, child, group)))
                        .collect();
                    let broken = || Tried::General(io::ErrorKind::Other.into());
                    tries.into_iter().map(|each| each.join().unwrap_or_else(|_| broken())).collect()
                }),
            };
            placed.calls += tried.len();
            let mut next = Vec::new();
            for (group, outcome) in std::mem::replace(&mut waiting, rest).into_iter().zip(tried) {
                match (outcome, group.as_slice()) {
                    (Tried::CountersPlaced(mut now), _) => links.append(&mut now),
                    (Tried::General(error), _) => return Err(PlaceError::Refused(error)),
                    (Tried::Refused(errno), [(_, index, _)]) => {
                        placed.refused.push(Refused { index: *index as usize, errno });
                    }
                    (Tried::Refused(_), many) => {
                        let (left, right) = many.split_at(many.len() / 2);
                        next.extend([left.to_vec(), right.to_vec()]);
                    }
                }
            }
            waiting.extend(next);
        }
        Ok(links)
    }

    fn try_group(&self, path: &CString, child: &Sleeper, group: &[Site]) -> Tried {
        // An index that no table has: vmaudit's own calls meanwhile count nowhere.
        let uncounted: Vec<Site> =
            group.iter().map(|&(offset, _, returns)| (offset, u64::MAX, returns)).collect();
        match self.members.way().link(path, &uncounted, Some(child.0)).map_err(plain) {
            Ok(links) => Tried::CountersPlaced(links),
            Err(error) if is_general(&error) => Tried::General(error),
            Err(error) => Tried::Refused(error.raw_os_error().unwrap_or(libc::EIO)),
        }
    }
}

//! Finding the file behind a mapping, from outside the process's mount namespace, and proving
//! that it is that file.

use super::VDSO_PATH;
use super::bytes::ObjectError;
use super::file::Stamp;
use super::object::Object;
use super::served::{self, with_patience};
use crate::model::{AddrRange, FileRef, Pid};
use crate::sys::untrusted_open::{self, Root};
use crate::{rights, sys};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Which file to open, and where it may be found.
#[derive(Clone, Copy, Debug)]
pub struct OpenRequest<'a> {
    pub file: &'a FileRef,
    /// Where it is mapped (empty when not known): names the entry in `map_files`.
    pub range: AddrRange,
    /// A process that has it mapped.
    pub pid: Option<Pid>,
    /// Accept a file elsewhere if it has this build id.
    pub build_id: Option<&'a str>,
}

/// Opens the file behind a mapping.
pub trait Opener: Send {
    /// # Errors
    /// `NotFound` with what was tried, or why the file found is of no use.
    fn open(&self, request: &OpenRequest<'_>) -> Result<Object, ObjectError>;

    /// One more root to search: of a container with short-lived processes.
    fn add_root(&mut self, _: Root) {}
}

/// Searches `map_files`, `/proc/PID/root`, roots that were given, `/proc/PID/exe`, `/proc/PID/maps` and on
/// the path itself, and takes nothing whose device and inode differ.
#[derive(Debug, Default)]
pub struct SystemOpener {
    roots: Vec<Root>,
    /// Mount namespaces in which a file system did not answer.
    given_up: Mutex<HashSet<PathBuf>>,
}

/// How much a way of opening proves by itself.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Proof {
    /// A path may lead to another file by now: device and inode have to be the same.
    Path,
    /// `map_files` leads to the mapped file itself.
    Mapping,
}

/// A place to search.
enum Candidate {
    /// A path of our own mount namespace, or a link of /proc.
    At(PathBuf, Proof),
    /// A path inside another root.
    Inside(Root, PathBuf),
    /// Inside the root of a process.
    InsideOf(Pid, PathBuf),
    /// There, too, by the path that the kernel prints for the inode: the path given may lack a mount point.
    AsMaps(Pid),
}

impl Candidate {
    /// Points at what is there; with its name, and what that proves. None: there is no such place.
    fn point_at(&self, requested: &FileRef) -> Option<(io::Result<File>, String, Proof)> {
        let inside = |path: &Path| format!("{} inside", path.display());
        Some(match self {
            Candidate::At(path, proof) => {
                (untrusted_open::point_at(path), path.display().to_string(), *proof)
            }
            Candidate::Inside(root, path) => (root.point_at(path), inside(path), Proof::Path),
            Candidate::InsideOf(pid, path) => {
                (Root::of(*pid).ok()?.point_at(path), inside(path), Proof::Path)
            }
            Candidate::AsMaps(pid) => {
                let path = path_from_maps(*pid, requested)?;
                (Root::of(*pid).ok()?.point_at(&path), inside(&path), Proof::Path)
            }
        })
    }
}

/// The file to open, for a thread of its own.
struct FileIdentity {
    file: FileRef,
    build_id: Option<String>,
}

impl Opener for SystemOpener {
    fn open(&self, request: &OpenRequest<'_>) -> Result<Object, ObjectError> {
        if request.file.path == VDSO_PATH {
            return vdso(request);
        }
        let places = self.places(request);
        let requested =
            FileIdentity { file: request.file.clone(), build_id: request.build_id.map(str::to_owned) };
        let Some(namespace) = request.pid.and_then(other_namespace) else {
            return first_of(places, &requested);
        };
        // A file system that is mounted there may be served by the examined processes.
        let mut given_up = self.given_up.lock().unwrap_or_else(PoisonError::into_inner);
        if given_up.contains(&namespace) {
            return Err(ObjectError::NoAnswer);
        }
        let result = with_patience(move || first_of(places, &requested));
        if matches!(result, Err(ObjectError::NoAnswer)) {
            given_up.insert(namespace);
        }
        result.map(Object::marked_elsewhere)
    }

    fn add_root(&mut self, root: Root) {
        self.roots.push(root);
    }
}

/// Its files may belong to others: whatever serves them might not answer.
pub fn is_elsewhere(pid: Pid) -> bool {
    other_namespace(pid).is_some()
}

/// The stamp of the file that is mapped there, without opening it; not to be called for what
/// [`is_elsewhere`].
pub fn stamp_of_mapped(pid: Pid, range: AddrRange) -> Option<Stamp> {
    let found = std::fs::metadata(map_file(pid, range)).ok()?;
    found.is_file().then(|| Stamp::of(&found))
}

fn map_file(pid: Pid, range: AddrRange) -> PathBuf {
    format!("/proc/{pid}/map_files/{:x}-{:x}", range.start.0, range.end.0).into()
}

/// The mount namespace of a process, where it is not our own. A process that is gone has none.
fn other_namespace(pid: Pid) -> Option<PathBuf> {
    let theirs = std::fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
    let own = std::fs::read_link("/proc/self/ns/mnt").ok();
    theirs.filter(|theirs| own.as_ref() != Some(theirs))
}

impl SystemOpener {
    fn places(&self, request: &OpenRequest<'_>) -> Vec<Candidate> {
        let path = Path::new(OsStr::from_bytes(&request.file.path));
        let mut places = Vec::with_capacity(4);
        if let Some(pid) = request.pid {
            let range = request.range;
            if !range.is_empty() {
                places.push(Candidate::At(map_file(pid, range), Proof::Mapping));
            }
            if path.is_absolute() {
                places.push(Candidate::InsideOf(pid, path.to_path_buf()));
            }
            places.push(Candidate::At(format!("/proc/{pid}/exe").into(), Proof::Path));
            places.push(Candidate::AsMaps(pid));
        }
        if path.is_absolute() {
            let others = self.roots.iter().filter_map(|root| root.again().ok());
            places.extend(others.map(|root| Candidate::Inside(root, path.to_path_buf())));
            places.push(Candidate::At(path.to_path_buf(), Proof::Path));
        }
        places
    }
}

fn first_of(places: Vec<Candidate>, requested: &FileIdentity) -> Result<Object, ObjectError> {
    let mut tried = Vec::new();
    for place in places {
        let Some((pointed, name, proof)) = place.point_at(&requested.file) else { continue };
        let opened =
            pointed.map_err(ObjectError::from).and_then(|file| open_checked(&file, proof, requested));
        match opened {
            Ok(object) => return Ok(object),
            // the file itself: there is no other one to be found
            Err(error @ ObjectError::NoMagic) => return Err(error),
            Err(error) if error.is_for_want_of_descriptors() => return Err(error),
            Err(error) => tried.push(format!("{name}: {error}")),
        }
    }
    Err(ObjectError::NotFound(tried.join("; ")))
}

fn open_checked(pointed: &File, proof: Proof, requested: &FileIdentity) -> Result<Object, ObjectError> {
    let found = pointed.metadata()?;
    let (major, minor) = (libc::major(found.dev()), libc::minor(found.dev()));
    let file = &requested.file;
    let same_inode = found.ino() == file.inode;
    let same_device =
        (major, minor) == (file.major, file.minor) || major == 0 && served::hides_device(pointed);
    let same_file = same_inode && (same_device || proof == Proof::Mapping);
    let other = || Err(ObjectError::NotFound(format!("is {major}:{minor} inode {}", found.ino())));
    if requested.build_id.is_none() && !same_file {
        return other();
    }
    let opened = untrusted_open::open_regular(pointed)?;
    let object = match served::read_if_served(&opened)? {
        Some(bytes) => Object::from_whole_file(bytes)?,
        None => Object::from_file(opened)?,
    };
    // With a build id, only that can prove it: a recording that is read again later.
    if requested.build_id.is_none() || object.build_id() == requested.build_id.as_deref() {
        Ok(object)
    } else {
        other()
    }
}

/// Opens without blocking on FIFOs, without taking a terminal, and takes regular files only.
///
/// # Errors
/// When it is none, or that of open(2).
pub fn open_regular(path: &Path) -> Result<File, ObjectError> {
    Ok(untrusted_open::open_regular(&untrusted_open::point_at(path)?)?)
}

fn path_from_maps(pid: Pid, file: &FileRef) -> Option<PathBuf> {
    let maps = sys::file::read(format!("/proc/{pid}/maps")).ok()?;
    let identity = format!(" {:02x}:{:02x} {} ", file.major, file.minor, file.inode);
    let line = maps.split(|&b| b == b'\n').find(|line| contains(line, identity.as_bytes()))?;
    let at = line.iter().position(|&b| b == b'/')?;
    let path = line.get(at..)?;
    if path == file.path {
        return None;
    }
    Some(PathBuf::from(OsStr::from_bytes(path)))
}

fn contains(line: &[u8], part: &[u8]) -> bool {
    line.windows(part.len()).any(|window| window == part)
}

/// The vdso's image: our own when it has the same size (one kernel, one image for a word size),
/// else the target's memory.
fn vdso(request: &OpenRequest<'_>) -> Result<Object, ObjectError> {
    let own = std::fs::read("/proc/self/maps")?;
    let own_range = own.split(|&b| b == b'\n').find(|line| line.ends_with(VDSO_PATH)).and_then(map_range);
    let range = request.range;
    let (pid, range) = match (own_range, request.pid) {
        (Some(own), _) if range.is_empty() || own.len() == range.len() => (std::process::id() as Pid, own),
        (_, Some(pid)) if !range.is_empty() => (pid, range),
        _ => return Err(ObjectError::NotFound("no process to read the vdso from".into())),
    };
    let object = Object::from_bytes(read_memory(pid, range)?)?;
    if request.build_id.is_some() && request.build_id != object.build_id() {
        return Err(ObjectError::NotFound("the vdso of another kernel".into()));
    }
    Ok(object)
}

fn map_range(line: &[u8]) -> Option<AddrRange> {
    let text = std::str::from_utf8(line.split(|&b| b == b' ').next()?).ok()?;
    let (start, end) = text.split_once('-')?;
    Some(AddrRange::new(u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
}

/// The bytes of a small range.
fn read_memory(pid: Pid, range: AddrRange) -> Result<Vec<u8>, ObjectError> {
    const MAX_VDSO: u64 = 1 << 20;
    if range.len() > MAX_VDSO {
        return Err(ObjectError::TooLarge(range.len()));
    }
    let mut bytes = vec![0u8; range.len() as usize];
    let got = rights::read_memory(pid, range.start.0, &mut bytes)?;
    bytes.truncate(got);
    Ok(bytes)
}

//! Finding the file behind a mapping, from outside the process's mount namespace, and proving
//! that it is that file.

use super::VDSO_PATH;
use super::object::{Object, ObjectError};
use crate::model::{AddrRange, FileRef, Pid};
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Which file is wanted, and where it may be found.
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
}

/// Looks in `/proc/PID/root`, `map_files`, `/proc/PID/exe`, `/proc/PID/maps` and on the path
/// itself, and takes nothing whose device and inode differ.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemOpener;

/// How much a way of opening proves by itself.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Proof {
    /// A path may lead to another file by now: device and inode have to be the same. btrfs
    /// shows another device in maps than stat(2) gives, which has major number 0 (an anonymous
    /// device, fs/super.c `get_anon_bdev`): there the inode alone has to be the same.
    Path,
    /// `map_files` leads to the mapped file itself; overlayfs before Linux 6.8 shows the device
    /// below in maps.
    Mapping,
}

impl Opener for SystemOpener {
    fn open(&self, request: &OpenRequest<'_>) -> Result<Object, ObjectError> {
        if request.file.path == VDSO_PATH {
            return vdso(request);
        }
        let mut tried = Vec::new();
        for (path, proof) in candidates(request) {
            match open_checked(&path, proof, request) {
                Ok(object) => return Ok(object),
                Err(error) => tried.push(format!("{}: {error}", path.display())),
            }
        }
        if let Some(path) = path_from_maps(request) {
            match open_checked(&path, Proof::Path, request) {
                Ok(object) => return Ok(object),
                Err(error) => tried.push(format!("{}: {error}", path.display())),
            }
        }
        Err(ObjectError::NotFound(tried.join("; ")))
    }
}

fn candidates(request: &OpenRequest<'_>) -> Vec<(PathBuf, Proof)> {
    let path = Path::new(OsStr::from_bytes(&request.file.path));
    let mut out = Vec::with_capacity(4);
    if let Some(pid) = request.pid {
        if let Ok(relative) = path.strip_prefix("/") {
            out.push((PathBuf::from(format!("/proc/{pid}/root")).join(relative), Proof::Path));
        }
        if !request.range.is_empty() {
            let (start, end) = (request.range.start.0, request.range.end.0);
            out.push((PathBuf::from(format!("/proc/{pid}/map_files/{start:x}-{end:x}")), Proof::Mapping));
        }
        out.push((PathBuf::from(format!("/proc/{pid}/exe")), Proof::Path));
    }
    if path.is_absolute() {
        out.push((path.to_path_buf(), Proof::Path));
    }
    out
}

fn open_checked(path: &Path, proof: Proof, request: &OpenRequest<'_>) -> Result<Object, ObjectError> {
    let file = open_regular(path)?;
    let found = file.metadata()?;
    let (major, minor) = (libc::major(found.dev()), libc::minor(found.dev()));
    let wanted = request.file;
    let same_inode = found.ino() == wanted.inode;
    let same_device = (major, minor) == (wanted.major, wanted.minor) || major == 0;
    if same_inode && (same_device || proof == Proof::Mapping) && request.build_id.is_none() {
        return Object::from_file(file);
    }
    let object = Object::from_file(file)?;
    // From here on only the build id can prove it: a recording that is read again later.
    let same_build = request.build_id.is_some() && object.build_id() == request.build_id;
    if same_build {
        return Ok(object);
    }
    Err(ObjectError::NotFound(format!("is {major}:{minor} inode {}", found.ino())))
}

/// Opens without blocking on FIFOs, without taking a terminal, and takes regular files only.
///
/// # Errors
/// `NotRegular`, or the error of open(2).
pub fn open_regular(path: &Path) -> Result<File, ObjectError> {
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(ObjectError::NotRegular) }
}

/// The path that the kernel prints for this inode: the path given may lack a mount point.
fn path_from_maps(request: &OpenRequest<'_>) -> Option<PathBuf> {
    let pid = request.pid?;
    let maps = std::fs::read(format!("/proc/{pid}/maps")).ok()?;
    let file = request.file;
    let identity = format!(" {:02x}:{:02x} {} ", file.major, file.minor, file.inode);
    let line = maps.split(|&b| b == b'\n').find(|line| contains(line, identity.as_bytes()))?;
    let at = line.iter().position(|&b| b == b'/')?;
    let path = line.get(at..)?;
    if path == file.path {
        return None;
    }
    let relative = Path::new(OsStr::from_bytes(path.strip_prefix(b"/")?));
    Some(PathBuf::from(format!("/proc/{pid}/root")).join(relative))
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

/// process_vm_readv(2) of a small range.
fn read_memory(pid: Pid, range: AddrRange) -> Result<Vec<u8>, ObjectError> {
    const MAX_VDSO: u64 = 1 << 20;
    if range.len() > MAX_VDSO {
        return Err(ObjectError::TooLarge(range.len()));
    }
    let mut bytes = vec![0u8; range.len() as usize];
    let remote = nix::sys::uio::RemoteIoVec { base: range.start.0 as usize, len: bytes.len() };
    let local = std::io::IoSliceMut::new(&mut bytes);
    let got = nix::sys::uio::process_vm_readv(nix::unistd::Pid::from_raw(pid), &mut [local], &[remote])
        .map_err(std::io::Error::from)?;
    bytes.truncate(got);
    Ok(bytes)
}

//! From what the user says to the cgroups of a container.

use super::docker;
use super::error::ContainerError;
use super::hierarchy::{Membership, Mounts, parse_memberships};
use super::known::{Known, choose, joined, listed, without_scheme};
use super::names::{engine_of, ids_in, path_of_id, path_of_name};
use super::shims;
use super::{Container, Place};
use crate::model::{CgroupHierarchy, Pid};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// uapi/linux/magic.h
const CGROUP_SUPER_MAGIC: i64 = 0x27_e0eb;
const CGROUP2_SUPER_MAGIC: i64 = 0x6367_7270;

/// The running container that `query` means: a name, an ID, or the begin of an ID.
///
/// Asked are the processes' cgroups, the engines' monitors, and the engines' sockets, as far as they
/// answer; no engine is needed where an ID is given.
///
/// # Errors
/// When none or several fit; both say what runs.
pub fn by_name(query: &str) -> Result<Container, ContainerError> {
    let query = without_scheme(query.trim());
    if query.is_empty() {
        return Err(ContainerError::Empty);
    }
    let mounts = read_mounts()?;
    let processes = memberships();
    let known = containers(&processes);
    if let Some(found) = choose(query, &known)? {
        let of = |path: &[u8]| {
            path_of_id(path, &found.id).or_else(|| path_of_name(path, &found.id)).map(<[u8]>::to_vec)
        };
        let places = places(&processes, &mounts, &of);
        if places.is_empty() {
            return Err(ContainerError::NoCgroup { name: found.display_name() });
        }
        let (name, id) = (found.display_name(), Some(found.id.clone()));
        return Ok(Container { name, id, engine: Some(found.engine.to_owned()), places });
    }
    let places = places(&processes, &mounts, &|path| path_of_name(path, query).map(<[u8]>::to_vec));
    if places.is_empty() {
        return Err(unknown(query, &known));
    }
    let engine = places.first().and_then(|place| engine_of(&place.path)).map(str::to_owned);
    Ok(Container { name: query.to_owned(), id: None, engine, places })
}

fn unknown(query: &str, known: &[Known]) -> ContainerError {
    let running = listed(known.iter());
    let found = match running.is_empty() {
        true => {
            "no container runs here as far as sockets, monitors and cgroups tell; a cgroup can be given with \
                 --cgroup PATH"
                .to_owned()
        }
        false => format!("running containers:\n{running}"),
    };
    ContainerError::Unknown { query: query.to_owned(), found }
}

/// The container that a process is in: the innermost one whose ID is in its cgroup. None where there
/// is none. Engines are asked for its name only then.
pub fn of_process(pid: Pid) -> Option<Container> {
    by_name(&id_of_process(pid)?).ok()
}

/// The ID of the container that a process is in, by its cgroup alone.
pub fn id_of_process(pid: Pid) -> Option<String> {
    let id = innermost_id(pid)?;
    // One that vmaudit is in itself is all that it can see: no news.
    let own = innermost_id(std::process::id() as Pid);
    if own.as_deref() == Some(&id) { None } else { Some(id) }
}

/// What engines and monitors call the containers that run here, by ID.
pub fn names_by_id() -> Vec<(String, String)> {
    let known = containers(&BTreeMap::new());
    known.into_iter().map(|known| (known.id.clone(), known.display_name())).collect()
}

fn innermost_id(pid: Pid) -> Option<String> {
    memberships_of(pid)?.iter().find_map(|m| ids_in(&m.path).last().map(|id| (*id).to_owned()))
}

/// The cgroup with this directory, or with this path in a hierarchy.
///
/// # Errors
/// When there is no such cgroup, or it cannot be filtered by.
pub fn by_cgroup(given: &Path) -> Result<Container, ContainerError> {
    let mounts = read_mounts()?;
    let no_such = || match given.is_dir() {
        true => ContainerError::NotACgroup { path: given.to_path_buf() },
        false => ContainerError::NoSuchCgroup { path: given.to_path_buf() },
    };
    let real = given.canonicalize().ok().filter(|real| given.is_absolute() && real.is_dir());
    let directory = match real.filter(|real| is_cgroup(real)) {
        Some(directory) => directory,
        None => {
            let bytes = given.as_os_str().as_bytes();
            let relative = bytes.get(bytes.iter().take_while(|&&b| b == b'/').count()..).unwrap_or_default();
            let inside = [b"/", relative].concat();
            let mut all = hierarchies().filter_map(|hierarchy| mounts.directory(hierarchy, &inside));
            all.find(|directory| directory.is_dir()).ok_or_else(no_such)?
        }
    };
    let (mount, path) = mounts.locate(&directory).ok_or_else(no_such)?;
    if mount.hierarchies.is_empty() {
        return Err(ContainerError::Unfilterable { path: directory });
    }
    // The same path in the other hierarchies, where there is one: for the memory controller's figures.
    let mut places: Vec<Place> = Vec::new();
    let first = mount.hierarchies.first().copied();
    for hierarchy in first.into_iter().chain(hierarchies()) {
        let own = mount.hierarchies.contains(&hierarchy).then(|| directory.clone());
        let found = own.or_else(|| mounts.directory(hierarchy, &path)).filter(|directory| directory.is_dir());
        if let Some(directory) = found
            && places.iter().all(|place| place.hierarchy != hierarchy)
        {
            places.push(Place { hierarchy, path: path.clone(), directory });
        }
    }
    let name = String::from_utf8_lossy(&path).into_owned();
    Ok(Container { name, id: None, engine: None, places })
}

/// The best to filter by first: in cgroup v2 and in the pids controller every container has its own.
fn hierarchies() -> impl Iterator<Item = CgroupHierarchy> {
    [CgroupHierarchy::Unified].into_iter().chain(CgroupHierarchy::V1)
}

fn read_mounts() -> Result<Mounts, ContainerError> {
    let path = Path::new("/proc/self/mountinfo");
    let mounts =
        Mounts::read().map_err(|source| ContainerError::Read { path: path.to_path_buf(), source })?;
    if mounts.0.is_empty() { Err(ContainerError::NoHierarchy) } else { Ok(mounts) }
}

fn is_cgroup(directory: &Path) -> bool {
    nix::sys::statfs::statfs(directory).is_ok_and(|found| {
        let kind = found.filesystem_type().0;
        kind == CGROUP_SUPER_MAGIC || kind == CGROUP2_SUPER_MAGIC
    })
}

/// The cgroups of every process.
fn memberships() -> BTreeMap<Pid, Vec<Membership>> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<Pid>().ok());
    numbers.filter_map(|pid| Some((pid, memberships_of(pid)?))).collect()
}

pub(super) fn memberships_of(pid: Pid) -> Option<Vec<Membership>> {
    fs::read(format!("/proc/{pid}/cgroup")).ok().map(|text| parse_memberships(&text))
}

/// All that can be told of running containers, and of others as far as engines tell.
fn containers(processes: &BTreeMap<Pid, Vec<Membership>>) -> Vec<Known> {
    let mut engines: Vec<Known> = Vec::new();
    for socket in docker::sockets() {
        // Nobody listens there, or we may not ask: IDs still work.
        engines.extend(docker::list(&socket).unwrap_or_default());
    }
    joined(engines.into_iter().chain(shims::list()).chain(in_cgroups(processes)))
}

fn in_cgroups(processes: &BTreeMap<Pid, Vec<Membership>>) -> Vec<Known> {
    let mut all: BTreeMap<&str, &'static str> = BTreeMap::new();
    for membership in processes.values().flatten() {
        for id in ids_in(&membership.path) {
            all.entry(id).or_insert_with(|| engine_of(&membership.path).unwrap_or("cgroup"));
        }
    }
    let known = all.into_iter().map(|(id, engine)| Known {
        engine,
        id: id.to_owned(),
        names: Vec::new(),
        state: String::new(),
    });
    known.collect()
}

/// The container's cgroup in each hierarchy where it has one: `of` cuts a process's path to it.
fn places(
    processes: &BTreeMap<Pid, Vec<Membership>>,
    mounts: &Mounts,
    of: &dyn Fn(&[u8]) -> Option<Vec<u8>>,
) -> Vec<Place> {
    let mut places = Vec::new();
    for hierarchy in hierarchies() {
        let all = processes.values().flatten().filter(|m| m.hierarchies.contains(&hierarchy));
        let found = all.filter_map(|m| of(&m.path)).find_map(|path| {
            let directory = mounts.directory(hierarchy, &path)?;
            Some(Place { hierarchy, path, directory })
        });
        places.extend(found);
    }
    places
}

/// The inode of a cgroup's directory is its id.
pub(super) fn id_of(directory: &Path) -> std::io::Result<u64> {
    fs::metadata(directory).map(|found| found.ino())
}

/// For messages and the report.
pub(super) fn text(path: &[u8]) -> String {
    OsStr::from_bytes(path).to_string_lossy().into_owned()
}

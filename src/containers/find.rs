//! From what the user says to the cgroups of a container.

use super::docker;
use super::error::ContainerError;
use super::hierarchy::{Membership, Mounts, parse_memberships};
use super::known::{EngineContainer, choose, joined, listed, without_scheme};
use super::names::{engine_of, ids_in, path_of_id, path_of_name};
use super::shims;
use super::whose::{Cut, Processes};
use super::{CgroupLocation, Container};
use crate::model::{CgroupHierarchy, Pid};
use crate::sys;
use nix::sys::statfs::{CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The running container that `query` means: a name, an ID, or the beginning of an ID.
///
/// The sources are the processes' cgroups, the engines' monitors, and the engines' sockets, as far as they
/// answer; no engine is needed where an ID is given.
///
/// # Errors
/// When none or several fit; both say what runs.
pub fn by_name(query: &str) -> Result<Container, ContainerError> {
    let query = without_scheme(query.trim());
    if query.is_empty() {
        return Err(ContainerError::Empty);
    }
    let processes = Processes::read(read_mounts()?);
    let known = containers(&processes);
    if let Some(found) = choose(query, &known)? {
        let of = cut_for(&found.id);
        let places = found.owner.map(|owner| places(&processes, &of, owner)).unwrap_or_default();
        if places.is_empty() {
            return Err(ContainerError::NoCgroup { name: found.display_name() });
        }
        let (name, id) = (found.display_name(), Some(found.id.clone()));
        return Ok(Container { name, id, engine: Some(found.engine.to_owned()), places });
    }
    let of = |path: &[u8]| path_of_name(path, query).map(<[u8]>::to_vec);
    let owners = processes.owners(&of);
    let Some(&owner) = owners.first() else { return Err(unknown(query, &known)) };
    if owners.len() > 1 {
        let mut candidates: Vec<String> =
            processes.inside(&of).map(|(_, path)| format!("  --cgroup {}", text(&path))).collect();
        candidates.sort_unstable();
        candidates.dedup();
        let candidates = candidates.join("\n");
        return Err(ContainerError::Ambiguous { query: query.to_owned(), candidates });
    }
    let places = places(&processes, &of, owner);
    if places.is_empty() {
        return Err(unknown(query, &known));
    }
    let engine = places.first().and_then(|place| engine_of(&place.path)).map(str::to_owned);
    Ok(Container { name: query.to_owned(), id: None, engine, places })
}

fn unknown(query: &str, known: &[EngineContainer]) -> ContainerError {
    let running = listed(known.iter());
    let found = match running.is_empty() {
        true => {
            "no container runs here as far as sockets, monitors and cgroups show; a cgroup can be given with \
                 --cgroup PATH"
                .to_owned()
        }
        false => format!("running containers:\n{running}"),
    };
    ContainerError::Unknown { query: query.to_owned(), found }
}

/// The container that a process is in: the innermost one whose ID is in its cgroup. None where there is none.
/// Engines are queried for its name only then.
pub fn of_process(pid: Pid) -> Option<Container> {
    // A cgroup that is only called after a container is not it.
    by_name(&id_of_process(pid)?.0).ok().filter(|container| container.has(pid))
}

/// The ID of the container that a process is in, by its cgroup alone, and the cgroup's path up to there.
pub fn id_of_process(pid: Pid) -> Option<(String, Vec<u8>)> {
    let (id, path) = innermost_id(pid)?;
    // One that vmaudit runs in itself contains all that it can see, and is not worth naming.
    let own = innermost_id(std::process::id() as Pid);
    if own.is_some_and(|(own, _)| own == id) { None } else { Some((id, path)) }
}

/// What engines and monitors call the containers that run here, by the paths of their cgroups.
pub fn names_by_cgroup() -> Vec<(Vec<u8>, String)> {
    let Ok(mounts) = read_mounts() else { return Vec::new() };
    let processes = Processes::read(mounts);
    let mut names = BTreeMap::new();
    for known in containers(&processes) {
        let of = cut_for(&known.id);
        for (group, path) in processes.inside(&of) {
            if Some(processes.owner(group, &path)) == known.owner {
                names.entry(path).or_insert_with(|| known.display_name());
            }
        }
    }
    names.into_iter().collect()
}

fn innermost_id(pid: Pid) -> Option<(String, Vec<u8>)> {
    memberships_of(pid)?.iter().find_map(|m| {
        let id = ids_in(&m.path).last().map(|id| (*id).to_owned())?;
        let path = path_of_id(&m.path, &id)?.to_vec();
        Some((id, path))
    })
}

/// Up to the cgroup of the container with this ID.
fn cut_for(id: &str) -> impl Fn(&[u8]) -> Option<Vec<u8>> {
    move |path| path_of_id(path, id).or_else(|| path_of_name(path, id)).map(<[u8]>::to_vec)
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
    let mut places: Vec<CgroupLocation> = Vec::new();
    let first = mount.hierarchies.first().copied();
    for hierarchy in first.into_iter().chain(hierarchies()) {
        let own = mount.hierarchies.contains(&hierarchy).then(|| directory.clone());
        let found = own.or_else(|| mounts.directory(hierarchy, &path)).filter(|directory| directory.is_dir());
        if let Some(directory) = found
            && places.iter().all(|place| place.hierarchy != hierarchy)
        {
            places.push(CgroupLocation { hierarchy, path: path.clone(), directory });
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
    nix::sys::statfs::statfs(directory)
        .is_ok_and(|found| matches!(found.filesystem_type(), CGROUP_SUPER_MAGIC | CGROUP2_SUPER_MAGIC))
}

pub(super) fn memberships_of(pid: Pid) -> Option<Vec<Membership>> {
    sys::file::read(format!("/proc/{pid}/cgroup")).ok().map(|text| parse_memberships(&text))
}

/// All that is known of running containers, and of others as far as engines list them.
fn containers(processes: &Processes) -> Vec<EngineContainer> {
    let mut engines: Vec<EngineContainer> = Vec::new();
    for socket in docker::sockets() {
        // No engine listens there, or this user may not query it: IDs still work.
        engines.extend(docker::list(&socket).unwrap_or_default());
    }
    for known in &mut engines {
        known.owner = processes.owners(&cut_for(&known.id)).first().copied();
    }
    joined(engines.into_iter().chain(shims::list(processes)).chain(in_cgroups(processes)))
}

fn in_cgroups(processes: &Processes) -> Vec<EngineContainer> {
    let mut all: BTreeMap<&str, &'static str> = BTreeMap::new();
    for path in processes.groups().iter().map(|group| &group.membership.path) {
        for id in ids_in(path) {
            all.entry(id).or_insert_with(|| engine_of(path).unwrap_or("cgroup"));
        }
    }
    let known = all.into_iter().flat_map(|(id, engine)| {
        processes.owners(&cut_for(id)).into_iter().map(move |owner| EngineContainer {
            engine,
            id: id.to_owned(),
            names: Vec::new(),
            state: String::new(),
            owner: Some(owner),
        })
    });
    known.collect()
}

/// The container's cgroup in each hierarchy where it has one: `of` cuts a process's path to it.
fn places(processes: &Processes, of: Cut<'_>, owner: u32) -> Vec<CgroupLocation> {
    let mut places = Vec::new();
    for hierarchy in hierarchies() {
        let all = processes.inside(of).filter(|(group, _)| group.membership.hierarchies.contains(&hierarchy));
        let own = all.filter(|(group, path)| processes.owner(group, path) == owner);
        let found = own.map(|(_, path)| path).find_map(|path| {
            let directory = processes.mounts().directory(hierarchy, &path)?;
            Some(CgroupLocation { hierarchy, path, directory })
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

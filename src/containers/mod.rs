//! Containers seen from the host: which cgroups a name means, which processes are in them, and what
//! the kernel says of their memory. Docker, Podman, containerd and CRI-O, or none of them: a cgroup is
//! all that is needed in the end.
//!
//! `hierarchy`, `names`, `known` and the parsers turn bytes into values; `find`, `docker`, `shims`,
//! `whose`, `members` and `figures` read.

mod client;
mod docker;
mod error;
mod figures;
mod find;
mod hierarchy;
mod known;
mod limits;
mod members;
mod names;
mod shims;
mod whose;
mod wrapped;

pub use client::{Client, recognise};
pub use error::ContainerError;
pub use find::{by_cgroup, by_name, id_of_process, names_by_cgroup, of_process};
pub use known::short;
pub use limits::{CgroupLimits, limits_of};

use crate::model::cgroup::CgroupMemory;
use crate::model::{CgroupHierarchy, CgroupKey, Pid};
use std::path::PathBuf;

/// A container's cgroup in one hierarchy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CgroupLocation {
    pub hierarchy: CgroupHierarchy,
    /// From the root of the cgroup namespace.
    pub path: Vec<u8>,
    pub directory: PathBuf,
}

/// A running container, or a plain cgroup.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Container {
    /// For people: the engine's name for it, the beginning of its ID, or its path.
    pub name: String,
    pub id: Option<String>,
    pub engine: Option<String>,
    /// At least one; the best to filter by first.
    pub places: Vec<CgroupLocation>,
}

impl Container {
    /// How the BPF programs recognise its tasks.
    ///
    /// # Errors
    /// When the cgroup is gone.
    pub fn key(&self) -> Result<CgroupKey, ContainerError> {
        let place = self.place()?;
        let id = find::id_of(&place.directory)
            .map_err(|source| ContainerError::Read { path: place.directory.clone(), source })?;
        Ok(CgroupKey { hierarchy: place.hierarchy, id })
    }

    /// Numbers of its processes now, sorted; empty when it has ended.
    ///
    /// # Errors
    /// When its cgroups cannot be read.
    pub fn processes(&self) -> Result<Vec<Pid>, ContainerError> {
        members::processes(&self.place()?.directory)
    }

    /// What the memory controller says; None where it has no cgroup there.
    pub fn memory(&self) -> Option<CgroupMemory> {
        let hierarchies = [CgroupHierarchy::Memory, CgroupHierarchy::Unified];
        let places = hierarchies
            .iter()
            .filter_map(|hierarchies| self.places.iter().find(|p| p.hierarchy == *hierarchies));
        let figures = places.map(|place| figures::read_memory(place.hierarchy, &place.directory));
        figures.into_iter().find(|memory| memory.current.is_some())
    }

    /// Path of its cgroup, as in /proc/PID/cgroup.
    pub fn cgroup(&self) -> String {
        self.places.first().map(|place| find::text(&place.path)).unwrap_or_default()
    }

    /// Whether a process is in it; false for one that has ended.
    pub fn has(&self, pid: Pid) -> bool {
        let Some(place) = self.places.first() else { return false };
        let below = |path: &[u8]| {
            let whole = place.path.strip_suffix(b"/").unwrap_or(&place.path);
            path.strip_prefix(whole).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
        };
        let memberships = find::memberships_of(pid).unwrap_or_default();
        memberships.iter().any(|m| m.hierarchies.contains(&place.hierarchy) && below(&m.path))
    }

    fn place(&self) -> Result<&CgroupLocation, ContainerError> {
        self.places.first().ok_or(ContainerError::NoHierarchy)
    }
}

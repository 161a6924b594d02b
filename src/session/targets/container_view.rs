//! What is known of the containers that the processes are in: which process is in which, how it sees
//! itself, and the container's own figures.

use crate::containers::{self, Container};
use crate::model::cgroup::CgroupMemory;
use crate::model::observation::ThreadObservation;
use crate::model::{Observations, Pid, Tid};
use crate::procfs::{read_shares, read_status};
use crate::report::{Inside, model};
use std::collections::{BTreeMap, HashMap};

/// One process.
#[derive(Default)]
struct Seen {
    /// Number of its container in `ContainerView::known`.
    container: Option<usize>,
    pid: Option<Pid>,
    pss: Option<u64>,
    /// Living threads of the last snapshot, by number: their number inside.
    threads: BTreeMap<Tid, Option<Tid>>,
    names: HashMap<Tid, Vec<u8>>,
}

/// Containers and the processes in them.
#[derive(Default)]
pub struct ContainerView {
    /// The one given by the user first, if one was.
    known: Vec<Container>,
    requested: bool,
    /// The command that puts processes into the container.
    client: Option<Pid>,
    memory: Option<CgroupMemory>,
    seen: HashMap<Pid, Seen>,
}

impl ContainerView {
    /// For the processes of `container`.
    pub fn of(container: Container) -> ContainerView {
        ContainerView { known: vec![container], requested: true, ..ContainerView::default() }
    }

    /// For a command that puts processes into `container`: others that are in it are not known.
    pub fn entered(container: Container, client: Pid) -> ContainerView {
        ContainerView { known: vec![container], client: Some(client), ..ContainerView::default() }
    }

    /// Whether a snapshot has found the process in the container that is entered, and not just in its pod, as
    /// the engine's monitors are.
    pub fn is_inside(&self, pid: Pid) -> bool {
        self.seen.get(&pid).is_some_and(|seen| seen.container == Some(0))
    }

    /// Notes the containers of a running process, from a snapshot of it.
    pub fn note(&mut self, snapshot: &Observations) {
        let container = self.container_of(snapshot.pid);
        let seen = self.seen.entry(snapshot.pid).or_default();
        // One that has left its container, or ended by now, is remembered as it was.
        seen.container = container.or(seen.container);
        if seen.container.is_none() {
            return;
        }
        if seen.pid.is_none() {
            seen.pid = inside(snapshot.pid, snapshot.pid);
        }
        let known = std::mem::take(&mut seen.threads);
        for ThreadObservation { tid, comm, .. } in &snapshot.threads {
            // Each lookup reads a file: only new threads.
            let own = known.get(tid).copied().unwrap_or_else(|| inside(snapshot.pid, *tid));
            seen.threads.insert(*tid, own);
            seen.names.insert(*tid, comm.clone());
        }
        let threads = &seen.threads;
        seen.names.retain(|tid, _| threads.contains_key(tid));
    }

    fn container_of(&mut self, pid: Pid) -> Option<usize> {
        if let Some(known) = self.known.iter().position(|container| container.has(pid)) {
            return Some(known);
        }
        if self.seen.contains_key(&pid) {
            return None;
        }
        let found = containers::of_process(pid)?;
        self.known.push(found);
        Some(self.known.len() - 1)
    }

    /// Reads the container's own figures, if it is still there.
    pub fn read_memory(&mut self) {
        if let Some(container) = self.known.first().filter(|_| self.requested) {
            self.memory = container.memory().or(self.memory);
        }
    }

    /// Reads the shares of all processes that are in a container and live.
    pub fn read_shares(&mut self) {
        self.read_memory();
        for (&pid, seen) in self.seen.iter_mut().filter(|(_, seen)| seen.container.is_some()) {
            seen.pss = read_shares(pid).ok().map(|shares| shares.pss).or(seen.pss);
        }
    }

    /// The container given by the user, for the report.
    pub fn facts(&self) -> Vec<model::Container> {
        let requested = self.known.first().filter(|_| self.requested);
        let facts = requested.map(|container| model::Container {
            name: container.name.clone(),
            id: container.id.clone(),
            engine: container.engine.clone(),
            cgroup: container.cgroup(),
            memory: self.memory,
            ..model::Container::default()
        });
        facts.into_iter().collect()
    }

    /// A process as its container sees it. One that was never examined is where its parent is.
    pub fn inside(&self, pid: Pid, parent: impl Fn(Pid) -> Option<Pid>) -> Inside {
        let Some(seen) = self.seen.get(&pid) else {
            let container = self.nearest(pid, parent).map(|container| container.name.clone());
            return Inside { container, ..Inside::default() };
        };
        let Some(container) = seen.container.and_then(|number| self.known.get(number)) else {
            return Inside::default();
        };
        let name = |tid: &Tid| seen.names.get(tid).map(|comm| String::from_utf8_lossy(comm).into_owned());
        let threads = seen.threads.iter().map(|(tid, own)| model::NamedThread {
            tid: *tid,
            container_tid: *own,
            comm: name(tid).unwrap_or_default(),
        });
        Inside {
            container: Some(container.name.clone()),
            pid: seen.pid,
            pss: seen.pss,
            threads: threads.collect(),
        }
    }

    /// The container of the nearest ancestor that was examined.
    fn nearest(&self, pid: Pid, parent: impl Fn(Pid) -> Option<Pid>) -> Option<&Container> {
        const GENERATIONS: usize = 64;
        let mut first = pid;
        for pid in std::iter::successors(Some(pid), |&pid| parent(pid)).take(GENERATIONS) {
            if let Some(seen) = self.seen.get(&pid) {
                return seen.container.and_then(|number| self.known.get(number));
            }
            first = pid;
        }
        // Not a child of a target, and traced: because of its cgroup.
        let put_there = self.client.is_some_and(|client| client != first);
        self.known.first().filter(|_| self.requested || put_there)
    }
}

/// A task's number in its own PID namespace, where that is another than the host's.
fn inside(pid: Pid, tid: Tid) -> Option<Tid> {
    let status = read_status(pid, tid).ok()?;
    status.ns_tids.last().copied().filter(|_| status.ns_tids.len() > 1)
}

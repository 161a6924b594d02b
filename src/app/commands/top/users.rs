//! Names of users, and of containers, each resolved once.

use crate::containers;
use crate::model::Pid;
use std::collections::HashMap;

/// How many frames pass before engines are queried again for a container that they did not know.
const PATIENCE: u64 = 16;

#[derive(Default)]
pub struct Names {
    users: HashMap<u32, String>,
    /// By the path of the cgroup.
    containers: HashMap<Vec<u8>, String>,
    requested_at: Option<u64>,
}

impl Names {
    /// `root`, `1000`.
    pub fn user(&mut self, uid: u32) -> String {
        let read = || match nix::unistd::User::from_uid(uid.into()) {
            Ok(Some(user)) => user.name,
            _ => uid.to_string(),
        };
        self.users.entry(uid).or_insert_with(read).clone()
    }

    /// The name of the container that a process is in; `frame` counts up.
    pub fn container(&mut self, pid: Pid, frame: u64) -> Option<String> {
        let (id, cgroup) = containers::id_of_process(pid)?;
        if let Some(name) = self.containers.get(&cgroup) {
            return Some(name.clone());
        }
        if self.requested_at.is_none_or(|at| frame >= at + PATIENCE) {
            self.requested_at = Some(frame);
            self.containers.extend(containers::names_by_cgroup());
        }
        // What no engine knows is called by its ID.
        Some(self.containers.get(&cgroup).cloned().unwrap_or_else(|| containers::short(&id).to_owned()))
    }
}

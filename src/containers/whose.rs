//! The owner of a cgroup. Any user can name a cgroup below his own ones as engines name a container's
//! (systemd delegates some to every user), and any process can have an engine's command line. What no other
//! user can do is to create a cgroup in a directory that is not his, or to have another's processes as
//! children.

use super::hierarchy::{Membership, Mounts};
use crate::model::Pid;
use crate::sys::stat;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// A cgroup that processes are in, and which.
pub struct Group {
    pub membership: Membership,
    pub pids: Vec<Pid>,
}

/// Every process with its cgroups.
pub struct Processes {
    groups: Vec<Group>,
    pids: BTreeSet<Pid>,
    mounts: Mounts,
    owners: RefCell<HashMap<PathBuf, u32>>,
    parents: RefCell<Option<HashMap<Pid, Pid>>>,
}

/// Cuts a process' path to the container's cgroup; None for those outside of it.
pub type Cut<'a> = &'a dyn Fn(&[u8]) -> Option<Vec<u8>>;

impl Processes {
    pub fn read(mounts: Mounts) -> Processes {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<Pid>().ok());
        let memberships = numbers.filter_map(|pid| Some((pid, super::find::memberships_of(pid)?)));
        Processes::of(memberships, mounts)
    }

    /// Most processes of a container are in the same cgroups.
    fn of(memberships: impl IntoIterator<Item = (Pid, Vec<Membership>)>, mounts: Mounts) -> Processes {
        let mut by_path: BTreeMap<Vec<u8>, Vec<Group>> = BTreeMap::new();
        let mut pids = BTreeSet::new();
        for (pid, list) in memberships {
            pids.insert(pid);
            for membership in list {
                let groups = by_path.entry(membership.path.clone()).or_default();
                match groups.iter_mut().find(|group| group.membership == membership) {
                    Some(group) => group.pids.push(pid),
                    None => groups.push(Group { membership, pids: vec![pid] }),
                }
            }
        }
        let groups = by_path.into_values().flatten().collect();
        Processes { groups, pids, mounts, owners: RefCell::default(), parents: RefCell::default() }
    }

    pub fn pids(&self) -> &BTreeSet<Pid> {
        &self.pids
    }

    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    pub fn mounts(&self) -> &Mounts {
        &self.mounts
    }

    /// The cgroups that `cut` knows, with the path up to there.
    pub fn inside<'a>(&'a self, cut: Cut<'a>) -> impl Iterator<Item = (&'a Group, Vec<u8>)> {
        self.groups.iter().filter_map(|group| Some((group, cut(&group.membership.path)?)))
    }

    /// The user who could create the cgroup with this path: the uid that owns the directory above it. What
    /// cannot be seen from this cgroup namespace counts as root's: nothing can be done with it, either.
    pub fn owner(&self, group: &Group, path: &[u8]) -> u32 {
        let end = path.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
        let above = path.get(..end.max(1)).unwrap_or_default();
        let hierarchies = &group.membership.hierarchies;
        let directory = hierarchies.iter().find_map(|&hierarchy| self.mounts.directory(hierarchy, above));
        let Some(directory) = directory else { return 0 };
        let uid = || fs::metadata(&directory).map_or(0, |found| found.uid());
        *self.owners.borrow_mut().entry(directory.clone()).or_insert_with(uid)
    }

    /// The owners of the cgroups that `cut` selects: root alone where some are root's, because then others
    /// have such names only to be mistaken for them.
    pub fn owners(&self, cut: Cut<'_>) -> BTreeSet<u32> {
        let owners: BTreeSet<u32> = self.inside(cut).map(|(group, path)| self.owner(group, &path)).collect();
        if owners.contains(&0) { BTreeSet::from([0]) } else { owners }
    }

    /// True where a process that has an engine's command line is one: outside of the container and the parent
    /// of a process in it, and run by root or by the owner of the container's cgroup.
    pub fn is_monitor(&self, pid: Pid, cut: Cut<'_>, owner: u32) -> bool {
        let own = self.inside(cut).filter(|(group, path)| self.owner(group, path) == owner);
        let members: BTreeSet<Pid> = own.flat_map(|(group, _)| group.pids.iter().copied()).collect();
        !members.contains(&pid)
            && members.iter().any(|&child| self.parent(child) == Some(pid))
            && is_run_by(pid, owner)
    }

    fn parent(&self, pid: Pid) -> Option<Pid> {
        let mut parents = self.parents.borrow_mut();
        let parents = parents.get_or_insert_with(|| {
            self.pids.iter().filter_map(|&pid| Some((pid, read_parent(pid)?))).collect()
        });
        parents.get(&pid).copied()
    }
}

fn read_parent(pid: Pid) -> Option<Pid> {
    stat::of(pid, |stat| stat.field(stat::PARENT))
}

/// True for a process of this user's, or of root's: real, effective, saved and file system uid. A setuid
/// program started by another user does not have all four.
pub fn is_run_by(pid: Pid, owner: u32) -> bool {
    let status = fs::read(format!("/proc/{pid}/status")).unwrap_or_default();
    let uids = parse_uids(&status);
    uids.len() == 4 && (uids.iter().all(|&uid| uid == 0) || uids.iter().all(|&uid| uid == owner))
}

fn parse_uids(status: &[u8]) -> Vec<u32> {
    let line = status.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(b"Uid:"));
    let text = line.and_then(|line| std::str::from_utf8(line).ok()).unwrap_or_default();
    text.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::containers::hierarchy::parse_memberships;
    use crate::containers::names::path_of_id;

    const ID: &str = "4f6b9f0e2a1c4f6b9f0e2a1c4f6b9f0e2a1c4f6b9f0e2a1c4f6b9f0e2a1c4f6b";

    #[test]
    fn uids() {
        assert_eq!(parse_uids(b"Name:\tx\nUid:\t0\t1\t2\t3\nGid:\t9\n"), [0, 1, 2, 3]);
        assert!(parse_uids(b"").is_empty());
    }

    /// Two cgroups are called alike: one in a directory of root's, one in a directory of a user's.
    #[test]
    fn roots_cgroup_goes_before_one_that_a_user_has_called_so() {
        if !nix::unistd::geteuid().is_root() {
            crate::skip::skip_this("needs root for chown");
            return;
        }
        let top = tempfile::tempdir().expect("a folder");
        for (name, owner) in [("machine.slice", 0), ("user.slice", 1000)] {
            let above = top.path().join(name);
            fs::create_dir_all(above.join(format!("libpod-{ID}.scope"))).expect("created");
            std::os::unix::fs::chown(&above, Some(owner), None).expect("chown");
        }
        let line = format!("1 0 0:1 / {} rw - cgroup2 cgroup2 rw\n", top.path().display());
        let mounts = Mounts::parse(line.as_bytes());
        let member = |slice: &str| parse_memberships(format!("0::/{slice}/libpod-{ID}.scope/x\n").as_bytes());
        let cut = |path: &[u8]| path_of_id(path, ID).map(<[u8]>::to_vec);
        let users = (7, member("user.slice"));
        let processes = Processes::of([users.clone()], mounts.clone());
        assert_eq!(processes.owners(&cut), BTreeSet::from([1000]));
        let processes =
            Processes::of([users, (8, member("machine.slice")), (9, member("machine.slice"))], mounts);
        assert_eq!(processes.owners(&cut), BTreeSet::from([0]));
        let own = |(group, at): (&Group, Vec<u8>)| (group.pids.clone(), processes.owner(group, &at));
        let found: Vec<_> = processes.inside(&cut).map(own).collect();
        assert_eq!(found, [(vec![8, 9], 0), (vec![7], 1000)]);
    }
}

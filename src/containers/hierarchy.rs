//! Where cgroups are: `/proc/PID/cgroup` says the path in each hierarchy, `/proc/self/mountinfo`
//! where each is mounted. cgroup v1, v2, and both side by side (hybrid). Bytes in, values out; only
//! [`Mounts::read`] opens a file.

use crate::model::CgroupHierarchy;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A line of `/proc/PID/cgroup`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Membership {
    /// Empty for cgroup v2 and for named hierarchies.
    pub hierarchies: Vec<CgroupHierarchy>,
    /// From the root of the reader's cgroup namespace: `/docker/4f…`.
    pub path: Vec<u8>,
}

/// Parses `/proc/PID/cgroup` (kernel/cgroup/cgroup.c, `proc_cgroup_show`). Named hierarchies, and controllers
/// that do not distinguish containers, are left out.
pub fn parse_memberships(text: &[u8]) -> Vec<Membership> {
    let lines = text.split(|&b| b == b'\n');
    let parsed = lines.filter_map(|line| {
        let mut fields = line.splitn(3, |&b| b == b':');
        let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let hierarchies = match (number, controllers) {
            (b"0", b"") => vec![CgroupHierarchy::Unified],
            _ => hierarchies_of(controllers),
        };
        // A cgroup that was removed under its last, dying tasks.
        let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
        Some(Membership { hierarchies, path: path.to_vec() })
    });
    parsed
        .filter(|membership| !membership.hierarchies.is_empty() && membership.path.starts_with(b"/"))
        .collect()
}

/// `cpu,cpuacct` → those that are known.
fn hierarchies_of(controllers: &[u8]) -> Vec<CgroupHierarchy> {
    let names = controllers.split(|&b| b == b',');
    names
        .filter_map(|name| CgroupHierarchy::V1.into_iter().find(|h| h.controller().as_bytes() == name))
        .collect()
}

/// A mounted hierarchy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mount {
    /// Empty for a named hierarchy of cgroup v1.
    pub hierarchies: Vec<CgroupHierarchy>,
    pub at: PathBuf,
    /// The cgroup that is visible there, from the namespace's root.
    pub root: Vec<u8>,
}

/// All mounted hierarchies.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Mounts(pub Vec<Mount>);

impl Mounts {
    /// # Errors
    /// When /proc is not there.
    pub fn read() -> io::Result<Mounts> {
        std::fs::read("/proc/self/mountinfo").map(|text| Mounts::parse(&text))
    }

    /// Parses mountinfo (Documentation/filesystems/proc.rst, 3.5).
    pub fn parse(text: &[u8]) -> Mounts {
        Mounts(text.split(|&b| b == b'\n').filter_map(parse_mount).collect())
    }

    /// The directory of a cgroup; None where its hierarchy is not mounted, or only a part without it.
    pub fn directory(&self, hierarchy: CgroupHierarchy, path: &[u8]) -> Option<PathBuf> {
        self.0.iter().filter(|mount| mount.hierarchies.contains(&hierarchy)).find_map(|mount| {
            let below = below(path, &mount.root)?;
            // Outside of what the cgroup namespace shows: it must not lead out of the mount, either.
            let plain = below.split(|&b| b == b'/').all(|name| name != b"..");
            plain.then(|| mount.at.join(OsStr::from_bytes(below)))
        })
    }

    /// The mount that a directory lies in, and its path in that hierarchy.
    pub fn locate(&self, directory: &Path) -> Option<(&Mount, Vec<u8>)> {
        let mounts = self.0.iter().filter(|mount| directory.starts_with(&mount.at));
        let mount = mounts.max_by_key(|mount| mount.at.as_os_str().len())?;
        let below = directory.strip_prefix(&mount.at).ok()?.as_os_str().as_bytes();
        let root = mount.root.strip_suffix(b"/").unwrap_or(&mount.root);
        let path = [root, b"/".as_slice(), below].concat();
        Some((mount, path))
    }
}

/// `path` without `root` and the slash after it.
fn below<'a>(path: &'a [u8], root: &[u8]) -> Option<&'a [u8]> {
    let root = root.strip_suffix(b"/").unwrap_or(root);
    let rest = path.strip_prefix(root)?;
    if rest.is_empty() { Some(rest) } else { rest.strip_prefix(b"/") }
}

/// `36 35 0:31 / /sys/fs/cgroup/pids rw,… shared:9 - cgroup cgroup rw,pids`
fn parse_mount(line: &[u8]) -> Option<Mount> {
    let words: Vec<&[u8]> = line.split(|&b| b == b' ').collect();
    let dash = words.iter().position(|word| *word == b"-")?;
    let (kind, options) = (words.get(dash + 1)?, words.get(dash + 3)?);
    let hierarchies = match *kind {
        b"cgroup2" => vec![CgroupHierarchy::Unified],
        b"cgroup" => hierarchies_of(options),
        _ => return None,
    };
    let at = PathBuf::from(OsStr::from_bytes(&unescaped(words.get(4)?)));
    Some(Mount { hierarchies, at, root: unescaped(words.get(3)?) })
}

/// Spaces and the like are written as `\040`.
fn unescaped(word: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((&first, tail)) = rest.split_first() {
        let code = tail.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if first == b'\\' => {
                out.push(byte);
                rest = &tail[3..];
            }
            _ => {
                out.push(first);
                rest = tail;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use CgroupHierarchy::{Cpu, Cpuacct, Memory, Pids, Unified};

    #[test]
    fn memberships_of_all_three_kinds() {
        let text =
            b"12:pids:/docker/a\n4:cpu,cpuacct:/docker/a\n1:name=systemd:/x\n3:net_cls:/\n0::/docker/a\n";
        let found = parse_memberships(text);
        let of = |h: &[CgroupHierarchy]| Membership { hierarchies: h.to_vec(), path: b"/docker/a".to_vec() };
        assert_eq!(found, [of(&[Pids]), of(&[Cpu, Cpuacct]), of(&[Unified])]);
        assert_eq!(parse_memberships(b"0::/a:b c (deleted)\n")[0].path, b"/a:b c");
        assert!(parse_memberships(b"").is_empty());
        assert!(parse_memberships(b"0:\n::\nrubbish\n0::relative\n").is_empty());
    }

    const HYBRID: &[u8] = b"30 24 0:26 / /sys/fs/cgroup ro - tmpfs tmpfs ro\n\
        31 30 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n\
        32 30 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
        33 30 0:29 / /sys/fs/cgroup/systemd rw shared:1 - cgroup cgroup rw,xattr,name=systemd\n\
        34 30 0:30 /docker/a /part\\040of\\134it rw - cgroup cgroup rw,memory\n";

    #[test]
    fn directories_of_cgroups() {
        let mounts = Mounts::parse(HYBRID);
        assert_eq!(mounts.0.len(), 4);
        let dir = |h, path: &str| mounts.directory(h, path.as_bytes()).map(|d| d.display().to_string());
        assert_eq!(dir(Unified, "/docker/a").as_deref(), Some("/sys/fs/cgroup/unified/docker/a"));
        assert_eq!(dir(Cpuacct, "/x").as_deref(), Some("/sys/fs/cgroup/cpu,cpuacct/x"));
        assert_eq!(dir(Memory, "/docker/a/b").as_deref(), Some("/part of\\it/b"));
        assert_eq!(dir(Memory, "/docker/ab"), None);
        assert_eq!(dir(Pids, "/docker/a"), None);
        assert_eq!(dir(Unified, "/../../etc"), None);
    }

    #[test]
    fn a_directory_is_located_in_the_innermost_mount() {
        let mounts = Mounts::parse(HYBRID);
        let (mount, path) = mounts.locate(Path::new("/sys/fs/cgroup/unified/a/b")).expect("a mount");
        assert_eq!(
            (mount.hierarchies.as_slice(), path.as_slice()),
            ([Unified].as_slice(), b"/a/b".as_slice())
        );
        let (_, path) = mounts.locate(Path::new("/part of\\it/c")).expect("a mount");
        assert_eq!(path, b"/docker/a/c");
        assert!(mounts.locate(Path::new("/etc")).is_none());
    }
}

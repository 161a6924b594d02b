//! Sockets of container engines: they resolve names of containers.

use super::{Failure, Subject};
use crate::model::{Trial, TrialArea};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

/// (id, what, path); Podman's own for a user lies below XDG_RUNTIME_DIR.
const SOCKETS: [(&str, &str, &str); 4] = [
    ("docker-socket", "Docker", "/var/run/docker.sock"),
    ("podman-socket", "Podman", "/run/podman/podman.sock"),
    ("containerd-socket", "containerd", "/run/containerd/containerd.sock"),
    ("crio-socket", "CRI-O", "/run/crio/crio.sock"),
];

pub fn trials() -> Vec<Trial> {
    let without = "--container by cgroup path, without names";
    SOCKETS
        .iter()
        .map(|&(id, what, path)| {
            Subject { area: TrialArea::Engines, id, what, without }.came_out(connect(paths(id, path)))
        })
        .collect()
}

fn paths(id: &str, system: &str) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    if id == "docker-socket" {
        let host = std::env::var("DOCKER_HOST").unwrap_or_default();
        paths.extend(host.strip_prefix("unix://").map(PathBuf::from));
    }
    if id == "podman-socket" {
        let runtime = std::env::var_os("XDG_RUNTIME_DIR");
        paths.extend(runtime.map(|folder| PathBuf::from(folder).join("podman/podman.sock")));
    }
    paths.push(PathBuf::from(system));
    paths
}

/// The first that answers; else why the last that is there does not.
fn connect(paths: Vec<PathBuf>) -> Result<String, Failure> {
    let mut failure = Failure::Absent("no socket".to_owned());
    for path in paths {
        match UnixStream::connect(&path) {
            Ok(_) => return Ok(path.display().to_string()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => failure = error.into(),
        }
    }
    Err(failure)
}

//! Engines' monitors among the running processes: each container of Podman and CRI-O has a conmon,
//! each of containerd (Docker's and Kubernetes', too) a shim, whose command lines say which one.
//! That needs no engine, no socket and no knowledge of where an engine keeps its state. Anybody can have
//! such a command line: it counts where the process is the parent of one in that container (`whose`).

use super::known::EngineContainer;
use super::names::{path_of_id, path_of_name};
use super::whose::{Processes, is_run_by};
use crate::model::Pid;
use crate::sys::untrusted_open;
use serde::Deserialize;
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Of a command line, as much is read.
const MAX_LINE: usize = 64 << 10;
/// A container's configuration has some 10 KiB.
const MAX_CONFIG: u64 = 4 << 20;

/// What the command line of a monitor says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Monitor {
    /// Of Podman or CRI-O.
    Conmon {
        id: String,
        name: Option<String>,
    },
    Shim {
        id: String,
        namespace: String,
    },
}

/// conmon(8): `-c ID … -n NAME …`; `containerd-shim-runc-v2 -namespace NS -id ID -address …`.
pub fn parse_monitor(words: &[&str]) -> Option<Monitor> {
    let program = words.first()?.rsplit('/').next()?;
    let after = |names: &[&str]| {
        let at = words.iter().position(|word| names.contains(word))?;
        words.get(at + 1).map(|word| (*word).to_owned())
    };
    if program == "conmon" {
        let id = after(&["-c", "--cid"])?;
        // With --exec-attach it is the monitor of one `podman exec`, and -n is still the container's.
        return Some(Monitor::Conmon { id, name: after(&["-n", "--name"]) });
    }
    if program.starts_with("containerd-shim") {
        let namespace = after(&["-namespace", "--namespace"])?;
        return Some(Monitor::Shim { id: after(&["-id", "--id"])?, namespace });
    }
    None
}

/// The containers whose monitors run.
pub fn list(processes: &Processes) -> Vec<EngineContainer> {
    let mut found: HashMap<(String, Option<u32>), EngineContainer> = HashMap::new();
    for &pid in processes.pids() {
        let Some(line) = command_line(pid) else { continue };
        let words: Vec<&str> = line.split('\0').collect();
        let Some(monitor) = parse_monitor(&words) else { continue };
        let (Monitor::Conmon { id, .. } | Monitor::Shim { id, .. }) = &monitor;
        let cut = |path: &[u8]| path_of_id(path, id).or_else(|| path_of_name(path, id)).map(<[u8]>::to_vec);
        let owners = processes.owners(&cut);
        let owner = owners.iter().copied().find(|&owner| processes.is_monitor(pid, &cut, owner));
        // Where there is a cgroup that it is not the monitor of, it claims what is not its own. Where there
        // is none, nothing can be examined, but the error message can say why.
        let own = nix::unistd::geteuid().as_raw();
        if owner.is_some() || owners.is_empty() && is_run_by(pid, own) {
            let known = EngineContainer { owner, ..known(monitor) };
            found.entry((known.id.clone(), owner)).or_insert(known);
        }
    }
    found.into_values().collect()
}

fn known(monitor: Monitor) -> EngineContainer {
    let (state, owner) = (String::new(), None);
    match monitor {
        Monitor::Conmon { id, name } => {
            let engine =
                if name.as_deref().is_some_and(|n| n.starts_with("k8s_")) { "cri-o" } else { "podman" };
            EngineContainer { engine, names: name.into_iter().collect(), state, id, owner }
        }
        Monitor::Shim { id, namespace } => {
            let engine = if namespace == "moby" { "docker" } else { "containerd" };
            let names = if namespace == "moby" { Vec::new() } else { names_in_config(&namespace, &id) };
            EngineContainer { engine, names, state, id, owner }
        }
    }
}

fn command_line(pid: Pid) -> Option<String> {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let part = bytes.get(..bytes.len().min(MAX_LINE))?;
    Some(String::from_utf8_lossy(part).into_owned())
}

#[derive(Deserialize, Default)]
struct Config {
    #[serde(default)]
    annotations: HashMap<String, String>,
}

/// The names that Kubernetes and nerdctl gave a container of containerd: in its OCI configuration.
fn names_in_config(namespace: &str, id: &str) -> Vec<String> {
    let plain = |word: &str| !word.is_empty() && !word.contains('/') && word != ".." && word != ".";
    if !plain(namespace) || !plain(id) {
        return Vec::new();
    }
    let roots = ["/run/containerd", "/run/k3s/containerd", "/run/k0s/containerd"];
    let below = PathBuf::from("io.containerd.runtime.v2.task").join(namespace).join(id).join("config.json");
    let found = roots.iter().find_map(|root| read_config(&Path::new(root).join(&below)));
    found.map(|config| names_of(&config)).unwrap_or_default()
}

fn read_config(path: &Path) -> Option<Config> {
    serde_json::from_slice(&untrusted_open::read(path, MAX_CONFIG).ok()?).ok()
}

/// `container`, `pod/container`, `namespace/pod/container`: whatever the user likes to say.
fn names_of(config: &Config) -> Vec<String> {
    let get = |key: &str| config.annotations.get(key).filter(|value| !value.is_empty());
    let mut names: Vec<String> = get("nerdctl/name").into_iter().cloned().collect();
    if get("io.kubernetes.cri.container-type").is_some_and(|kind| kind == "sandbox") {
        return names;
    }
    if let Some(container) = get("io.kubernetes.cri.container-name") {
        names.push(container.clone());
        if let Some(pod) = get("io.kubernetes.cri.sandbox-name") {
            names.push(format!("{pod}/{container}"));
            let space = get("io.kubernetes.cri.sandbox-namespace");
            names.extend(space.map(|space| format!("{space}/{pod}/{container}")));
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_of_monitors() {
        let conmon =
            ["/usr/bin/conmon", "--api-version", "1", "-c", "71ea", "-u", "71ea", "-n", "web", "-r", "runc"];
        let (id, name) = ("71ea".to_owned(), Some("web".to_owned()));
        assert_eq!(parse_monitor(&conmon), Some(Monitor::Conmon { id, name }));
        let shim = ["/usr/bin/containerd-shim-runc-v2", "-namespace", "moby", "-id", "af15", "-address", "x"];
        let (id, namespace) = ("af15".to_owned(), "moby".to_owned());
        assert_eq!(parse_monitor(&shim), Some(Monitor::Shim { id, namespace }));
        for other in [&["conmon"][..], &["conmon", "-c"], &["vim", "-c", "x"], &[""], &[]] {
            assert_eq!(parse_monitor(other), None, "{other:?}");
        }
    }

    #[test]
    fn kubernetes_names() {
        let config = |kind: &str| {
            let text = format!(
                r#"{{"annotations":{{"io.kubernetes.cri.container-type":"{kind}","io.kubernetes.cri.container-name":"app",
                "io.kubernetes.cri.sandbox-name":"web-0","io.kubernetes.cri.sandbox-namespace":"prod"}},"x":1}}"#
            );
            serde_json::from_str::<Config>(&text).expect("sound")
        };
        assert_eq!(names_of(&config("container")), ["app", "web-0/app", "prod/web-0/app"]);
        assert!(names_of(&config("sandbox")).is_empty());
        assert!(names_in_config("..", "x").is_empty());
    }
}

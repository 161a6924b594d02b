//! Command lines of engines' clients: `docker exec web CMD`. What they start is no descendant of
//! theirs: the engine puts it into the container. Pure.

use super::wrapped::unwrapped;
use std::ffi::OsString;

/// What a command line is, as far as the processes that it starts are not its own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Client {
    /// Executes a program in a running container; None where the command line does not name it.
    Exec { program: &'static str, container: Option<String> },
    /// Makes or starts containers.
    Starts { program: &'static str, verb: String },
}

/// Programs that take `exec [OPTIONS] CONTAINER CMD…`.
const CLIENTS: [&str; 4] = ["docker", "podman", "nerdctl", "crictl"];

/// Options that take their value as a word of its own; all others are switches, or have `=`.
const WITH_VALUE: [&str; 49] = [
    // docker
    "-c",
    "--context",
    "-H",
    "--host",
    "-l",
    "--log-level",
    "--config",
    "--tlscacert",
    "--tlscert",
    "--tlskey",
    // podman
    "--root",
    "--runroot",
    "--tmpdir",
    "--runtime",
    "--storage-driver",
    "--storage-opt",
    "--connection",
    "--url",
    "--identity",
    "--cgroup-manager",
    "--conmon",
    "--events-backend",
    "--hooks-dir",
    "--namespace",
    "--network-cmd-path",
    "--network-config-dir",
    "--registries-conf",
    "--runtime-flag",
    "--volumepath",
    "--module",
    "--imagestore",
    "--out",
    "--db-backend",
    // nerdctl, crictl
    "-n",
    "-a",
    "--address",
    "-r",
    "--runtime-endpoint",
    "--snapshotter",
    "--cni-path",
    "--timeout",
    // exec
    "-e",
    "--env",
    "--env-file",
    "-u",
    "--user",
    "-w",
    "--workdir",
    "--detach-keys",
];

/// Subcommands by which containers come into being.
const STARTING: [&str; 5] = ["run", "start", "restart", "create", "compose"];

/// The first client in a command line, also behind `sudo`, `env` and the like, or in a shell's script.
/// None for what is no client, and for subcommands that start nothing.
pub fn recognise(command: &[OsString]) -> Option<Client> {
    let words: Vec<String> = command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    unwrapped(&words).iter().find_map(|words| client_of(words))
}

fn client_of(words: &[String]) -> Option<Client> {
    let name = words.first()?.rsplit('/').next()?;
    let program = CLIENTS.into_iter().find(|client| *client == name)?;
    let mut rest = operands(words.get(1..)?, false);
    let mut verb = rest.first()?.clone();
    if verb == "container" {
        rest = operands(rest.get(1..)?, false);
        verb.clone_from(rest.first()?);
    }
    if STARTING.contains(&verb.as_str()) {
        return Some(Client::Starts { program, verb });
    }
    if verb != "exec" {
        return None;
    }
    // podman exec --latest names none; there -l is no option with a value.
    let options = rest.get(1..)?;
    let latest = options
        .iter()
        .take_while(|word| word.starts_with('-'))
        .any(|word| word == "-l" || word == "--latest");
    let container = if latest { None } else { operands(options, true).first().cloned() };
    Some(Client::Exec { program, container })
}

/// What is left from the first word that is no option and no option's value.
fn operands(words: &[String], of_exec: bool) -> Vec<String> {
    let mut at = 0;
    while let Some(word) = words.get(at) {
        if word == "--" {
            return words.get(at + 1..).unwrap_or_default().to_vec();
        }
        if !word.starts_with('-') || word == "-" {
            break;
        }
        // `-it` are two switches, `-eA=1` has its value in it; `-ie A=1` ends with one that takes a value.
        let last = word.chars().last().map(|letter| format!("-{letter}")).unwrap_or_default();
        let cluster = !word.starts_with("--") && word.len() > 2 && of_exec && is_cluster(word);
        let takes = WITH_VALUE.contains(&word.as_str()) || cluster && WITH_VALUE.contains(&last.as_str());
        at += if takes { 2 } else { 1 };
    }
    words.get(at..).unwrap_or_default().to_vec()
}

/// Switches of exec in one word, the last of which may take a value.
fn is_cluster(word: &str) -> bool {
    let letters = word.trim_start_matches('-');
    letters.chars().rev().skip(1).all(|letter| matches!(letter, 'd' | 'i' | 't'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Option<Client> {
        recognise(&line.split_whitespace().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn the_container_of_an_exec() {
        for line in [
            "docker exec web ls",
            "/usr/bin/docker exec -it web sh -c x",
            "docker -H unix:///x.sock --debug exec -e A=1 --user=root -w / web ls -l",
            "docker container exec web ls",
            "docker exec -itu root web ls",
            "docker exec -ti -eA=1 -- web ls",
            "podman --root /r --runroot /s --runtime runc exec -i web /bin/x -l",
            "nerdctl -n k8s.io exec web ls",
        ] {
            let Some(Client::Exec { container, .. }) = of(line) else { panic!("{line}") };
            assert_eq!(container.as_deref(), Some("web"), "{line}");
        }
        let unnamed = Client::Exec { program: "podman", container: None };
        assert_eq!(of("podman exec -l ls"), Some(unnamed));
        assert_eq!(of("docker exec"), Some(Client::Exec { program: "docker", container: None }));
    }

    #[test]
    fn clients_behind_other_programs() {
        for line in [
            "sudo docker exec web ls",
            "sudo -n -u root A=1 /usr/bin/docker exec -it web sh",
            "env -i DOCKER_HOST=unix:///x docker exec web ls",
            "nice -n 5 timeout -k 1 30 podman exec web ls",
        ] {
            let Some(Client::Exec { container, .. }) = of(line) else { panic!("{line}") };
            assert_eq!(container.as_deref(), Some("web"), "{line}");
        }
        for script in [
            "docker exec web ls",
            "cd /; A=1 exec docker exec \"web\" ls | cat",
            "true && sudo docker exec web x",
        ] {
            let words = ["/bin/sh", "-ec", script].map(OsString::from);
            let Some(Client::Exec { container, .. }) = recognise(&words) else { panic!("{script}") };
            assert_eq!(container.as_deref(), Some("web"), "{script}");
        }
        for line in ["sudo", "env A=1", "sh -c", "sh script.sh docker exec web", "timeout 5"] {
            assert_eq!(of(line), None, "{line}");
        }
    }

    #[test]
    fn others() {
        let starts = Client::Starts { program: "docker", verb: "run".to_owned() };
        assert_eq!(of("docker run --rm img exec web"), Some(starts));
        for line in ["docker ps", "docker", "docker -H", "exec web", "sh -c docker", "dockerd exec web", ""] {
            assert_eq!(of(line), None, "{line}");
        }
    }
}

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

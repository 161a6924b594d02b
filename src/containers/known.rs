//! Which container a name or the beginning of an ID means. Pure.

use super::error::ContainerError;
use super::names::is_hex;

/// A container that an engine, or its monitor's command line, names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EngineContainer {
    pub engine: &'static str,
    /// Usually 64 hexadecimal digits; ctr lets users choose.
    pub id: String,
    pub names: Vec<String>,
    /// `running`, `exited` …; empty where only running ones are known.
    pub state: String,
    /// The uid that its cgroup belongs to; None where no cgroup is called after it.
    pub owner: Option<u32>,
}

impl EngineContainer {
    /// The name to show, else the beginning of the ID.
    pub fn display_name(&self) -> String {
        self.names.first().cloned().unwrap_or_else(|| short(&self.id).to_owned())
    }

    fn runs(&self) -> bool {
        matches!(self.state.as_str(), "" | "running" | "paused" | "restarting")
    }
}

/// As engines print IDs.
pub fn short(id: &str) -> &str {
    if super::names::is_id(id) { id.get(..12).unwrap_or(id) } else { id }
}

/// The same container is often listed twice: by its engine, which knows names, and by its cgroup.
pub fn joined(lists: impl IntoIterator<Item = EngineContainer>) -> Vec<EngineContainer> {
    let mut all: Vec<EngineContainer> = Vec::new();
    for known in lists {
        match all.iter_mut().find(|other| other.id == known.id && other.owner == known.owner) {
            None => all.push(known),
            Some(other) => {
                for name in known.names {
                    if !other.names.contains(&name) {
                        other.names.push(name);
                    }
                }
                // What was found among the processes is running, whatever the state that its engine reports.
                if known.state.is_empty() {
                    other.state = String::new();
                }
            }
        }
    }
    all
}

/// `docker://4f6b…`, as Kubernetes and others write IDs.
pub fn without_scheme(query: &str) -> &str {
    let schemes = ["docker://", "podman://", "containerd://", "cri-o://", "crio://"];
    schemes.iter().find_map(|scheme| query.strip_prefix(scheme)).unwrap_or(query)
}

/// The container that is meant: by its name, by its whole ID, or by the beginning of the ID. None where
/// nothing fits.
///
/// # Errors
/// When several fit equally well, or the one does not run.
pub fn choose<'a>(
    query: &str,
    known: &'a [EngineContainer],
) -> Result<Option<&'a EngineContainer>, ContainerError> {
    let by_name: Vec<&EngineContainer> =
        known.iter().filter(|k| k.id == query || k.names.iter().any(|n| n == query)).collect();
    let fitting = match by_name.is_empty() {
        false => by_name,
        true => known.iter().filter(|k| is_hex(query) && k.id.starts_with(query)).collect(),
    };
    let mut running: Vec<&EngineContainer> = fitting.iter().copied().filter(|k| k.runs()).collect();
    // What has no cgroup cannot be examined, and its claim to a name cannot be verified.
    if running.iter().any(|k| k.owner.is_some()) {
        running.retain(|k| k.owner.is_some());
    }
    match (running.as_slice(), fitting.first()) {
        ([one], _) => Ok(Some(one)),
        ([], None) => Ok(None),
        ([], Some(first)) => {
            Err(ContainerError::NotRunning { query: query.to_owned(), state: first.state.clone() })
        }
        (several, _) => {
            let candidates = listed(several.iter().copied());
            Err(ContainerError::Ambiguous { query: query.to_owned(), candidates })
        }
    }
}

/// At most so many lines of candidates.
const MAX_LISTED: usize = 20;

/// What could be meant, for the user.
pub fn listed<'a>(known: impl Iterator<Item = &'a EngineContainer>) -> String {
    let mut rows: Vec<&EngineContainer> = known.filter(|k| k.runs()).collect();
    rows.sort_by_key(|k| (k.names.is_empty(), k.display_name()));
    let more = rows.len().saturating_sub(MAX_LISTED);
    let line = |k: &&EngineContainer| {
        let owner = k.owner.filter(|&uid| uid != 0).map_or_else(String::new, |uid| format!(", uid {uid}"));
        match k.names.is_empty() {
            true => format!("  {} ({}{owner})", short(&k.id), k.engine),
            false => format!("  {} ({}, {}{owner})", printable(&k.names.join(", ")), short(&k.id), k.engine),
        }
    };
    let mut lines: Vec<String> = rows.iter().take(MAX_LISTED).map(line).collect();
    if more > 0 {
        lines.push(format!("  and {more} more"));
    }
    lines.join("\n")
}

/// Names are foreign input: they must not control the terminal.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(engine: &'static str, id: &str, name: &str, state: &str) -> EngineContainer {
        let names = if name.is_empty() { vec![] } else { vec![name.to_owned()] };
        EngineContainer { engine, id: id.to_owned(), names, state: state.to_owned(), owner: Some(0) }
    }

    fn some() -> Vec<EngineContainer> {
        vec![
            known("docker", "4f6baa", "web", "running"),
            known("docker", "4f6bbb", "old", "exited"),
            known("podman", "71ea01", "web2", ""),
            known("podman", "71ea02", "4f", ""),
            known("podman", "71ea03", "twice", ""),
            known("docker", "9e", "twice", "running"),
        ]
    }

    #[test]
    fn by_name_by_id_and_by_the_begin_of_it() {
        let all = some();
        let id =
            |query| choose(query, &all).map(|found| found.map(|k| k.id.clone())).map_err(|e| e.to_string());
        assert_eq!(id("web"), Ok(Some("4f6baa".into())));
        assert_eq!(id("4f6baa"), Ok(Some("4f6baa".into())));
        // One of the two that begin so does not run.
        assert_eq!(id("4f6b"), Ok(Some("4f6baa".into())));
        // A name goes before the beginning of an ID.
        assert_eq!(id("4f"), Ok(Some("71ea02".into())));
        assert_eq!(id("we"), Ok(None));
        assert_eq!(id("nothing"), Ok(None));
        assert_eq!(id(""), Ok(None));
    }

    #[test]
    fn what_is_not_clear_is_an_error_that_lists_what_could_be_meant() {
        let all = some();
        for (query, parts) in [("71ea", ["71ea01", "71ea03"]), ("twice", ["docker", "podman"])] {
            let error = choose(query, &all).expect_err("several").to_string();
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        }
        let error = choose("old", &all).expect_err("it does not run").to_string();
        assert!(error.contains("exited"), "{error}");
    }

    #[test]
    fn of_two_that_are_called_alike_each_has_its_owner_and_a_claim_without_a_cgroup_is_none() {
        let of = |owner, known: EngineContainer| EngineContainer { owner, ..known };
        let mut all = vec![known("podman", "71", "web", ""), of(None, known("podman", "99", "web", ""))];
        assert_eq!(
            choose("web", &all).map(|found| found.map(|k| k.id.clone())).ok(),
            Some(Some("71".into()))
        );
        all.push(of(Some(1000), known("podman", "72", "web", "")));
        let error = choose("web", &all).expect_err("two").to_string();
        assert!(
            error.contains("web (71, podman)") && error.contains("web (72, podman, uid 1000)"),
            "{error}"
        );
        let apart = joined([known("podman", "71", "", ""), of(Some(1000), known("podman", "71", "x", ""))]);
        assert_eq!(apart.len(), 2);
        assert!(apart[0].names.is_empty());
    }

    #[test]
    fn listed_twice_is_one() {
        let all = joined([known("docker", "4f", "", ""), known("docker", "4f", "web", "running")]);
        assert_eq!(all, [known("docker", "4f", "web", "")]);
        let all = joined([known("docker", "4f", "web", "created"), known("docker", "4f", "", "")]);
        assert!(all.iter().all(EngineContainer::runs));
        assert_eq!(without_scheme("containerd://4f"), "4f");
        assert!(listed([known("x", "y", "a\x1b[31mb", "")].iter()).contains("a?[31mb"));
    }
}

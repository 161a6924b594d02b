//! Docker's (and Podman's compatible) API over its unix socket: `GET /containers/json`, the list of
//! containers (docs.docker.com/reference/api/engine, ContainerList). Nothing is changed there.
//!
//! The socket is the engine's, but nothing is trusted to end: time and size are limited.

use super::known::EngineContainer;
use serde::Deserialize;
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// For the whole answer.
const PATIENCE: Duration = Duration::from_secs(3);
/// A container takes some 2 KiB.
const MAX_ANSWER: u64 = 32 << 20;

/// HTTP/1.0: the answer ends with the connection, and is not sent in chunks.
const REQUEST: &[u8] =
    b"GET /containers/json?all=1 HTTP/1.0\r\nHost: localhost\r\nAccept: application/json\r\n\r\n";

/// Where engines listen, that of the environment first: the usual places, and the sockets of such names that
/// the kernel lists. Only those that belong to root or to this user.
pub fn sockets() -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = ["DOCKER_HOST", "CONTAINER_HOST"]
        .iter()
        .filter_map(|name| std::env::var(name).ok())
        .filter_map(|value| value.strip_prefix("unix://").map(PathBuf::from))
        .collect();
    all.extend(["/run/docker.sock", "/var/run/docker.sock", "/run/podman/podman.sock"].map(PathBuf::from));
    all.extend(listening(&std::fs::read("/proc/net/unix").unwrap_or_default()));
    all.retain(|path| is_trusted(path));
    let mut unique: Vec<PathBuf> = Vec::new();
    for path in all {
        // /var/run is a link to /run.
        let real = path.canonicalize().unwrap_or(path);
        if !unique.contains(&real) {
            unique.push(real);
        }
    }
    unique
}

/// /proc/net/unix (net/unix/af_unix.c, `unix_seq_show`): the flag 00010000 marks those that listen; a
/// path comes last.
fn listening(table: &[u8]) -> Vec<PathBuf> {
    let text = String::from_utf8_lossy(table);
    let sockets = text.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let path = words.get(7).filter(|_| words.get(3) == Some(&"00010000"))?;
        let named = path.ends_with("/docker.sock") || path.ends_with("/podman.sock");
        (named && path.starts_with('/')).then(|| PathBuf::from(path))
    });
    sockets.collect()
}

/// Any user can listen on a socket with such a name, and give false answers.
fn is_trusted(path: &Path) -> bool {
    let sudo = std::env::var("SUDO_UID").ok().and_then(|uid| uid.parse().ok());
    let own = nix::unistd::geteuid().as_raw();
    std::fs::metadata(path).is_ok_and(|found| {
        let owner = found.uid();
        found.file_type().is_socket() && (owner == 0 || owner == own || Some(owner) == sudo)
    })
}

/// The engine's containers, also those that do not run.
///
/// # Errors
/// When no process listens, or the answer cannot be parsed.
pub fn list(socket: &Path) -> io::Result<Vec<EngineContainer>> {
    let until = Instant::now() + PATIENCE;
    let mut stream = UnixStream::connect(socket)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(REQUEST)?;
    let engine = if socket.to_string_lossy().contains("podman") { "podman" } else { "docker" };
    parse(&answer(&mut stream, until)?, engine)
        .ok_or_else(|| io::Error::other("the answer is no list of containers"))
}

fn answer(stream: &mut UnixStream, until: Instant) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut piece = vec![0; 64 << 10];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut piece) {
            Ok(0) => return Ok(bytes),
            Ok(n) => bytes.extend_from_slice(&piece[..n]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(io::ErrorKind::TimedOut.into());
            }
            Err(error) => return Err(error),
        }
        if bytes.len() as u64 > MAX_ANSWER {
            return Err(io::Error::other("the answer is too large"));
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ContainerSummary {
    id: String,
    #[serde(default)]
    names: Vec<String>,
    #[serde(default)]
    state: String,
}

/// Head and body of the answer.
fn parse(answer: &[u8], engine: &'static str) -> Option<Vec<EngineContainer>> {
    let end = answer.windows(4).position(|w| w == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(answer.get(..end)?).to_ascii_lowercase();
    if !head.starts_with("http/1.") || head.split_ascii_whitespace().nth(1) != Some("200") {
        return None;
    }
    let body = answer.get(end + 4..)?;
    let body = match head.contains("transfer-encoding: chunked") {
        true => unchunked(body)?,
        false => body.to_vec(),
    };
    let rows: Vec<ContainerSummary> = serde_json::from_slice(&body).ok()?;
    let known = rows.into_iter().map(|row| EngineContainer {
        engine,
        id: row.id,
        names: row.names.iter().map(|name| name.trim_start_matches('/').to_owned()).collect(),
        state: row.state,
        owner: None,
    });
    Some(known.collect())
}

/// RFC 9112, 7.1: a size in hexadecimal digits before each piece, 0 at the end.
fn unchunked(mut body: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    loop {
        let end = body.windows(2).position(|w| w == b"\r\n")?;
        let line = std::str::from_utf8(body.get(..end)?).ok()?;
        let size = usize::from_str_radix(line.split(';').next()?.trim(), 16).ok()?;
        if size == 0 {
            return Some(out);
        }
        let piece = body.get(end + 2..)?.get(..size)?;
        out.extend_from_slice(piece);
        body = body.get(end.checked_add(2)?.checked_add(size)?.checked_add(2)?..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str =
        r#"[{"Id":"af15","Names":["/dweb","/x/alias"],"State":"running","Ports":[]},{"Id":"b0"}]"#;

    #[test]
    fn plain_and_chunked_answers() {
        let plain = format!("HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n{LIST}");
        let (first, rest) = LIST.split_at(20);
        let chunked = format!(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n14\r\n{first}\r\n{:x};x\r\n{rest}\r\n0\r\n\r\n",
            rest.len()
        );
        for answer in [plain, chunked] {
            let known = parse(answer.as_bytes(), "docker").expect("a list");
            assert_eq!(known[0].names, ["dweb", "x/alias"]);
            assert_eq!((known[0].id.as_str(), known[1].state.as_str()), ("af15", ""));
        }
    }

    #[test]
    fn sockets_that_listen() {
        let table = b"Num RefCount Protocol Flags Type St Inode Path\n\
            ffff: 00000002 00000000 00010000 0001 01 10 /x/docker.sock\n\
            ffff: 00000003 00000000 00000000 0001 03 11 /x/podman.sock\n\
            ffff: 00000002 00000000 00010000 0001 01 12 @/docker.sock\n\
            ffff: 00000002 00000000 00010000 0001 01 13\n";
        assert_eq!(listening(table), [PathBuf::from("/x/docker.sock")]);
        assert!(!is_trusted(Path::new("/etc/passwd")));
    }

    #[test]
    fn a_strangers_socket_is_not_queried() {
        if !nix::unistd::geteuid().is_root() {
            crate::skip::skip_this("needs root for chown");
            return;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("docker.sock");
        let _socket = std::os::unix::net::UnixListener::bind(&path).expect("bound");
        assert!(is_trusted(&path));
        std::os::unix::fs::chown(&path, Some(65534), None).expect("chown");
        assert!(!is_trusted(&path));
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for bad in ["", "HTTP/1.0 404 Not Found\r\n\r\n[]", "HTTP/1.0 200 OK\r\n\r\n{}", "x\r\n\r\n[]"] {
            assert!(parse(bad.as_bytes(), "docker").is_none(), "{bad}");
        }
        for bad in ["zz\r\n", "5\r\nab", "ffffffffffffffff\r\nab\r\n", "5"] {
            assert!(unchunked(bad.as_bytes()).is_none(), "{bad}");
        }
    }
}

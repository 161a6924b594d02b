//! A PostgreSQL server of one's own: in a temporary folder, on a Unix socket only, as its own user.

use super::Guard;
use super::heap::Obedient;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

pub struct Postgres {
    server: Guard,
    folder: TempDir,
    user: (u32, u32),
}

/// The newest that Debian has put there.
fn programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let mut found: Vec<PathBuf> = versions.flatten().map(|version| version.path().join("bin")).collect();
    found.retain(|path| path.join("postgres").exists());
    found.sort();
    found.pop()
}

/// The user and group of Debian's package: the server refuses to run as root.
fn user() -> Option<(u32, u32)> {
    let known = std::fs::read_to_string("/etc/passwd").ok()?;
    let line = known.lines().find(|line| line.starts_with("postgres:"))?;
    let mut fields = line.split(':').skip(2);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

impl Postgres {
    /// # Errors
    /// Why there can be none here.
    pub fn start() -> Result<Postgres, &'static str> {
        let programs = programs().ok_or("no PostgreSQL (apt-get install postgresql)")?;
        let user = user().ok_or("no user postgres")?;
        let folder = tempfile::tempdir_in("/tmp").expect("a temporary folder");
        std::os::unix::fs::chown(folder.path(), Some(user.0), Some(user.1)).expect("root may");
        let data = folder.path().join("data");
        let as_user = |program: &Path| {
            let mut command = Command::new(program);
            command.uid(user.0).gid(user.1).current_dir(folder.path()).env("LC_ALL", "C");
            command
        };
        let made = as_user(&programs.join("initdb"))
            .args(["--auth=trust", "--no-sync", "--no-instructions", "-U", "postgres", "-D"])
            .arg(&data)
            .output()
            .expect("initdb");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let mut command = as_user(&programs.join("postgres"));
        command.arg("-D").arg(&data).arg("-k").arg(folder.path());
        command.args(["-c", "listen_addresses=", "-c", "fsync=off", "-c", "jit=off"]);
        let mut server = Guard(command.stderr(Stdio::piped()).spawn().expect("postgres"));
        let mut log = BufReader::new(server.0.stderr.take().expect("piped")).lines();
        let ready = log.by_ref().map_while(Result::ok).any(|line| line.contains("ready to accept"));
        assert!(ready, "the server ended early");
        // It goes on writing: read, or it stops when the pipe is full.
        std::thread::spawn(move || log.for_each(drop));
        Ok(Postgres { server, folder, user })
    }

    /// A session of its own: a backend.
    pub fn session(&self) -> Session {
        let mut command = Command::new("psql");
        command.args(["-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", "-U", "postgres", "-h"]);
        command.arg(self.folder.path()).uid(self.user.0).gid(self.user.1).current_dir(self.folder.path());
        let mut session = Session { psql: Obedient::spawn(&mut command), pid: 0 };
        session.pid = session.query("select pg_backend_pid();")[0].parse().expect("a pid");
        session
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // Immediate shutdown: the backends end with it.
        self.server.signal(libc::SIGQUIT);
        let _ = self.server.0.wait();
    }
}

pub struct Session {
    psql: Obedient,
    pub pid: u32,
}

impl Session {
    /// The lines that come back.
    pub fn query(&mut self, text: &str) -> Vec<String> {
        const END: &str = "-- end --";
        let mut line = self.psql.order(&format!("{text}\nselect '{END}';"));
        let mut lines = Vec::new();
        while line != END {
            lines.push(line);
            line = self.psql.answer();
        }
        lines
    }
}

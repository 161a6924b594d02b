//! A Docker daemon of its own without any network, whose socket is in no usual place. It is ended, and
//! everything is removed, with the test.

use super::Guard;
use super::container::Image;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const DOCKERD: &str = "/usr/sbin/dockerd";

pub struct Docker {
    daemon: Guard,
    pub work: tempfile::TempDir,
    pub names: Vec<String>,
}

impl Docker {
    /// Starts a daemon, and waits until it listens.
    ///
    /// # Errors
    /// In words, for a SKIP line.
    pub fn start() -> Result<Docker, String> {
        Docker::start_by(Command::new(DOCKERD))
    }

    /// One whose containers have no randomised addresses: they inherit that (personality(2)).
    ///
    /// # Errors
    /// In words, for a SKIP line.
    pub fn start_with_fixed_addresses() -> Result<Docker, String> {
        let mut command = Command::new("setarch");
        command.args(["-R", DOCKERD]);
        Docker::start_by(command)
    }

    fn start_by(mut command: Command) -> Result<Docker, String> {
        for needed in [DOCKERD, "/usr/bin/docker"] {
            if !Path::new(needed).exists() {
                return Err(format!("no {needed} (apt-get install docker.io)"));
            }
        }
        let work = tempfile::Builder::new().prefix("vmaudit-docker-").tempdir().map_err(|e| e.to_string())?;
        let at = |name: &str| work.path().join(name);
        command.arg("--data-root").arg(at("data")).arg("--exec-root").arg(at("exec"));
        command
            .arg("--pidfile")
            .arg(at("pid"))
            .arg("--host")
            .arg(format!("unix://{}", at("docker.sock").display()));
        command.args(["--iptables=false", "--ip6tables=false", "--bridge=none"]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
        let mut daemon = Guard(child.map_err(|error| error.to_string())?);
        let mut log = BufReader::new(daemon.0.stderr.take().expect("a pipe"));
        let mut said = String::new();
        while !said.contains("API listen on") {
            if log.read_line(&mut said).unwrap_or(0) == 0 {
                return Err(format!("dockerd: {}", said.lines().last().unwrap_or_default()));
            }
        }
        // Its log must not fill the pipe.
        std::thread::spawn(move || log.lines().count());
        Ok(Docker { daemon, work, names: Vec::new() })
    }

    pub fn command(&self) -> Command {
        let mut docker = Command::new("/usr/bin/docker");
        docker.arg("-H").arg(format!("unix://{}", self.work.path().join("docker.sock").display()));
        docker
    }

    /// # Errors
    /// What docker says, for a SKIP line.
    pub fn import(&self, image: &Image) -> Result<(), String> {
        let tar: PathBuf = self.work.path().join("image.tar");
        let packed = Command::new("tar").arg("-C").arg(&image.root).arg("-cf").arg(&tar).arg(".").status();
        assert!(packed.is_ok_and(|status| status.success()), "tar");
        let imported = self.command().arg("import").arg(&tar).arg("img").output().expect("docker");
        match imported.status.success() {
            true => Ok(()),
            false => Err(format!("docker import: {}", String::from_utf8_lossy(&imported.stderr))),
        }
    }
}

impl Drop for Docker {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = self.command().args(["rm", "-f", name]).output();
        }
        self.daemon.signal(libc::SIGTERM);
        let _ = self.daemon.0.wait();
    }
}

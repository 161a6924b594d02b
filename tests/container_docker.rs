//! Docker itself: a daemon of its own, whose socket is in no usual place.

mod support;

use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use support::container::{APP, Image, Talk, assert_chain, attach, stack_of, unique};
use support::report::{list, number};
use support::{Guard, program, skip, skip_without_bpf};

struct Docker {
    daemon: Guard,
    work: tempfile::TempDir,
    names: Vec<String>,
}

impl Docker {
    /// Starts a daemon without any network, and waits until it listens.
    fn start() -> Result<Docker, String> {
        for needed in ["/usr/sbin/dockerd", "/usr/bin/docker"] {
            if !Path::new(needed).exists() {
                return Err(format!("no {needed} (apt-get install docker.io)"));
            }
        }
        let work = tempfile::Builder::new().prefix("vmaudit-docker-").tempdir().map_err(|e| e.to_string())?;
        let at = |name: &str| work.path().join(name);
        let mut command = Command::new("/usr/sbin/dockerd");
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

    fn command(&self) -> Command {
        let mut docker = Command::new("/usr/bin/docker");
        docker.arg("-H").arg(format!("unix://{}", self.work.path().join("docker.sock").display()));
        docker
    }

    fn import(&self, image: &Image) -> Result<(), String> {
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

#[test]
fn attach_by_name_follows_what_docker_exec_starts() {
    let test = "attach_by_name_follows_what_docker_exec_starts";
    if skip_without_bpf(test) {
        return;
    }
    let name = unique("docker");
    let started = Docker::start().and_then(|mut docker| {
        let image = Image::empty(docker.work.path());
        let app = program("container_app");
        image.add(&app, APP);
        image.add_libraries_of(&app);
        docker.import(&image)?;
        docker.names.push(name.clone());
        let run = ["run", "-i", "--name", &name, "--network", "none", "-m", "256m", "img", APP];
        let talk = Talk::start(docker.command().args(run))?;
        Ok((docker, talk))
    });
    let (docker, mut talk) = match started {
        Ok(started) => started,
        Err(why) => return skip(test, &why),
    };
    let mut entered = None;
    let audit = attach(&["--container", &name], || {
        talk.tell("m");
        let exec = Talk::start(docker.command().args(["exec", "-i", &name, APP]));
        let mut exec = exec.expect("docker exec");
        exec.tell("t");
        entered = Some(exec);
    });
    let report = audit.report();
    let main = report.first();
    assert_chain(&stack_of(&audit, main, 3));
    let other = report.processes().iter().find(|p| p["pid"] != main["pid"]).expect("what was put there");
    assert_chain(&stack_of(&audit, other, 7));
    for process in [main, other] {
        let coverage = &process["coverage"];
        assert_eq!((number(coverage, "ledger_drift"), number(coverage, "unknown")), (0, 0), "{coverage}");
        assert_eq!(process["container"], name.as_str());
    }
    let container = &list(&report.json, "containers")[0];
    assert_eq!((&container["engine"], &container["processes"]), (&Value::from("docker"), &Value::from(2)));
    assert_eq!(number(&container["memory"], "max"), 256 << 20);
}

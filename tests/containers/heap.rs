//! `heap --container`: the container's own libc, children, what enters it, and programs that were armed.

use crate::support::container::{APP, Image, Podman, Talk, unique};
use crate::support::docker::Docker;
use crate::support::heap::{Watching, frames};
use crate::support::report::{list, number};
use crate::support::{program, skip, skip_without_bpf, vmaudit, watchdog};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Reports until one is as it has to be: each takes as long as its interval.
const MOST_REPORTS: usize = 300;

fn image(folder: &Path) -> Image {
    let image = Image::empty(folder);
    let app = program("container_app");
    image.add(&app, APP);
    image.add_libraries_of(&app);
    image
}

/// Bytes and blocks that a process keeps by `keep_outer`.
fn kept(report: &Value, process: &Value) -> (u64, u64) {
    let is_kept = |row: &&Value| {
        let symbols: Vec<_> = frames(report, row).iter().map(|frame| frame["symbol"].clone()).collect();
        let at = |name: &str| symbols.iter().position(|symbol| symbol == name);
        at("keep_inner").is_some() && at("keep_inner") < at("keep_outer")
    };
    let rows = list(process, "rows").iter().filter(is_kept);
    rows.fold((0, 0), |(bytes, blocks), row| (bytes + number(row, "bytes"), blocks + number(row, "blocks")))
}

fn all_kept(report: &Value) -> Vec<(u64, u64)> {
    let mut all: Vec<_> = list(report, "processes").iter().map(|process| kept(report, process)).collect();
    all.retain(|kept| *kept != (0, 0));
    all.sort_unstable();
    all
}

#[test]
fn children_and_what_docker_exec_starts_are_counted() {
    let test = "children_and_what_docker_exec_starts_are_counted";
    if skip_without_bpf(test) {
        return;
    }
    let name = unique("heap");
    let started = Docker::start().and_then(|mut docker| {
        docker.import(&image(docker.work.path()))?;
        docker.names.push(name.clone());
        let run = ["run", "-i", "--name", &name, "--network", "none", "img", APP];
        let talk = Talk::start(docker.command().args(run))?;
        Ok((docker, talk))
    });
    let (docker, mut talk) = match started {
        Ok(started) => started,
        Err(why) => return skip(test, &why),
    };
    // Before: in no figure.
    talk.send("h");
    let watching =
        Watching::target(Command::new(vmaudit()).args(["heap", "--all-processes", "--container", &name]));
    talk.send("h");
    talk.send("c");
    let mut entered = Talk::start(docker.command().args(["exec", "-i", &name, APP])).expect("docker exec");
    entered.send("h");
    let report = watching.stop();
    assert_eq!(report["backend"], "bpf");
    let processes = list(&report, "processes");
    // The child has what its parent had allocated while it was watched, too.
    assert_eq!(all_kept(&report), [(100_000, 100), (100_000, 100), (125_000, 150)], "{report:#}");
    assert!(processes.iter().all(|process| process["container"] == name.as_str()), "{report:#}");
    assert_eq!(
        number(&processes[0]["totals"], "outstanding_bytes"),
        100_000,
        "the first process comes first"
    );
}

/// The image has the library, and programs are started with it: those that run are woken, and those that enter.
fn armed_programs(name: &str, start: impl FnOnce(&Path, &str) -> Result<Armed, String>) {
    let folder = tempfile::tempdir().expect("a folder");
    let arm = watchdog::output(
        Command::new(vmaudit()).arg("heap").arg(format!("--arm={}", folder.path().display())),
    );
    let printed = String::from_utf8(arm.stdout).expect("text");
    let library = printed.trim().strip_prefix("LD_PRELOAD=").expect("a variable").to_owned();
    let inside = format!("/opt/{}", Path::new(&library).file_name().expect("a name").to_string_lossy());
    let mut armed = match start(Path::new(&library), &inside) {
        Ok(armed) => armed,
        Err(why) => return skip(name, &why),
    };
    let heap = ["heap", "--method", "preload", "--interval", "0.05", "--container", &armed.name];
    let mut watching = Watching::target(Command::new(vmaudit()).args(heap));
    armed.talk.send("h");
    armed.talk.send("c");
    // What enters is woken once it has loaded the library: a moment later.
    let mut entered = Talk::start(&mut armed.exec).expect("exec");
    let mut reports = 0;
    let report = loop {
        entered.send("h");
        let report = watching.next();
        if all_kept(&report).len() >= 3 {
            break watching.stop();
        }
        reports += 1;
        assert!(reports < MOST_REPORTS, "{report:#}");
    };
    assert_eq!(report["backend"], "preload");
    let all = all_kept(&report);
    assert_eq!((all[0], all.len()), ((25_000, 50), 3), "{report:#}");
    let main = list(&report, "processes").first().expect("a process");
    assert_eq!(main["container"], armed.name.as_str());
    assert_eq!(kept(&report, main).1 % 100, 0, "{report:#}");
    assert!(all.iter().skip(1).all(|(bytes, blocks)| *bytes == blocks * 1000), "{all:?}");
}

struct Armed {
    name: String,
    talk: Talk,
    exec: Command,
    _engine: Box<dyn std::any::Any>,
}

#[test]
fn armed_programs_of_docker_are_woken() {
    let test = "armed_programs_of_docker_are_woken";
    if skip_without_bpf(test) {
        return;
    }
    armed_programs(test, |library, inside| {
        let name = unique("armed-docker");
        let mut docker = Docker::start()?;
        let image = image(docker.work.path());
        image.add(library, inside);
        docker.import(&image)?;
        docker.names.push(name.clone());
        let preload = format!("LD_PRELOAD={inside}");
        let run = ["run", "-i", "-e", &preload, "--name", &name, "--network", "none", "img", APP];
        let talk = Talk::start(docker.command().args(run))?;
        let mut exec = docker.command();
        exec.args(["exec", "-i", &name, APP]);
        Ok(Armed { name, talk, exec, _engine: Box::new(docker) })
    });
}

#[test]
fn armed_programs_of_podman_are_woken() {
    let test = "armed_programs_of_podman_are_woken";
    if skip_without_bpf(test) {
        return;
    }
    armed_programs(test, |library, inside| {
        let name = unique("armed-podman");
        let mut podman = Podman::with(|folder| {
            let image = image(folder);
            image.add(library, inside);
            image
        })?;
        let talk = podman.run(&name, &["-e", &format!("LD_PRELOAD={inside}")], &[APP])?;
        let mut exec = podman.command();
        exec.args(["exec", "-i", &name, APP]);
        Ok(Armed { name, talk, exec, _engine: Box::new(podman) })
    });
}

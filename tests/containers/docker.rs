//! Docker itself: a daemon of its own, whose socket is in no usual place.

use crate::support::container::{APP, Image, Talk, assert_chain, attach, stack_of, unique};
use crate::support::docker::Docker;
use crate::support::report::{list, number};
use crate::support::{program, skip, skip_without_bpf};
use serde_json::Value;

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
        talk.send("m");
        let exec = Talk::start(docker.command().args(["exec", "-i", &name, APP]));
        let mut exec = exec.expect("docker exec");
        exec.send("t");
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

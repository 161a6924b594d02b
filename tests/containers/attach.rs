//! Containers seen from the host, with a real engine: `attach --container`, `snapshot --container`,
//! `--cgroup`.

use crate::support::container::{APP, Image, Talk, assert_chain, attach, stack_of, start, unique};
use crate::support::report::{list, number};
use crate::support::{Audit, AuditReport, program, skip, vmaudit};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// An image with the program and its libraries, and no tool.
fn bare(folder: &Path) -> Image {
    let image = Image::empty(folder);
    let app = program("container_app");
    image.add(&app, APP);
    image.add_libraries_of(&app);
    image
}

fn snapshot(target: &[&str]) -> (i32, AuditReport) {
    let output = Command::new(vmaudit()).args(["snapshot", "-f", "json"]).args(target).output();
    let output = output.expect("vmaudit starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    (output.status.code().unwrap_or(-1), AuditReport::parse(&output.stdout))
}

fn by_name<'a>(audit: &'a Audit, comm: &str) -> Vec<&'a Value> {
    audit.report().processes().iter().filter(|p| p["comm"] == comm).collect()
}

#[test]
fn all_processes_of_a_container_with_its_own_symbols_and_numbers() {
    let name = unique("all");
    let Some((engine, mut talk)) = start("all_processes_of_a_container", &name, bare) else { return };
    let mut second = None;
    let audit = attach(&["--container", &name], || {
        talk.send("m");
        talk.send("f");
        talk.send("t");
        // Not a child of anything traced: the engine's monitor starts it.
        let entered = Talk::start(engine.command().args(["exec", "-i", &name, APP]));
        let mut entered = entered.expect("podman exec");
        entered.send("m");
        second = Some(entered);
    });
    assert_eq!(audit.code(), Some(0), "{}", audit.stderr);
    let report = audit.report();
    assert_eq!(report.event("lost"), 0);
    let main = report.first();
    assert_eq!((&main["container"], &main["container_pid"]), (&Value::from(name.as_str()), &Value::from(1)));
    assert_eq!(main["pid"].to_string(), engine.inspect(&name, "{{.State.Pid}}"));
    assert_chain(&stack_of(&audit, main, 3));
    assert_chain(&stack_of(&audit, main, 7));
    let names: Vec<&str> = list(main, "threads").iter().filter_map(|t| t["comm"].as_str()).collect();
    assert_eq!(names, ["worker", "helper"]);
    assert!(list(main, "threads").iter().all(|t| t["container_tid"].as_i64().is_some_and(|tid| tid < 10)));

    // The main process, its child, and the one that was put there.
    let workers = by_name(&audit, "worker");
    assert_eq!(workers.len(), 3, "{}", audit.stderr);
    let child = workers.iter().find(|p| list(p, "regions").iter().any(|r| number(r, "virt") == 5 << 20));
    assert_chain(&stack_of(&audit, child.expect("the child"), 5));
    let entered =
        workers.iter().find(|p| p["attached"] == false && number(&p["coverage"], "preexisting") == 0);
    let entered = entered.expect("the one that was put there was traced from its execve on");
    assert_chain(&stack_of(&audit, entered, 3));
    for process in &workers {
        let coverage = &process["coverage"];
        assert_eq!((number(coverage, "ledger_drift"), number(coverage, "unknown")), (0, 0), "{coverage}");
        assert_eq!(process["container"], name.as_str());
    }
    assert_totals(report, &name);
}

/// The sums are those of the processes, and shared pages count once.
fn assert_totals(report: &AuditReport, name: &str) {
    let found = list(&report.json, "containers");
    let [container] = found else { panic!("{} containers", found.len()) };
    assert_eq!((&container["name"], &container["engine"]), (&Value::from(name), &Value::from("podman")));
    let sum = |of: &dyn Fn(&Value) -> u64| report.processes().iter().map(of).sum::<u64>();
    assert_eq!(number(container, "rss"), sum(&|p| number(&p["totals"], "rss")));
    assert_eq!(number(container, "virt"), sum(&|p| number(&p["totals"], "virt")));
    assert_eq!(number(container, "pss"), sum(&|p| number(p, "pss")));
    assert!(number(container, "pss") < number(container, "rss"), "three processes share a C library");
    let memory = &container["memory"];
    assert!(number(memory, "current") >= number(memory, "anon"), "{memory}");
    assert!(number(memory, "anon") > 0, "{memory}");
}

#[test]
fn a_snapshot_by_name_by_id_and_by_cgroup_is_the_same() {
    let test = "a_snapshot_by_name_by_id_and_by_cgroup_is_the_same";
    let name = unique("snap");
    let Some((engine, mut talk)) = start(test, &name, bare) else { return };
    talk.send("f");
    let id = engine.inspect(&name, "{{.Id}}");
    let processes = |target: &[&str]| {
        let (_, report) = snapshot(target);
        let pids = report.processes().iter().map(|p| (p["pid"].to_string(), p["container_pid"].to_string()));
        (pids.collect::<Vec<_>>(), list(&report.json, "containers")[0]["cgroup"].to_string())
    };
    let by_name = processes(&["--container", &name]);
    assert_eq!(by_name.0.len(), 2);
    assert_eq!(by_name, processes(&["--container", &id]));
    assert_eq!(by_name, processes(&["--container", &format!("podman://{}", &id[..20])]));
    let cgroup = by_name.1.trim_matches('"');
    assert_eq!(by_name, processes(&["--cgroup", cgroup]));
    // By number: the container is reported, too.
    let (_, report) = snapshot(&["-p", &by_name.0[0].0]);
    assert_eq!(report.first()["container"], name.as_str());
}

/// The BPF programs recognise tasks by a controller of cgroup v1, too.
#[test]
fn a_cgroup_of_version_one() {
    let test = "a_cgroup_of_version_one";
    let name = unique("v1");
    let Some((engine, mut talk)) = start(test, &name, bare) else { return };
    let pid = engine.inspect(&name, "{{.State.Pid}}");
    let memberships = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("it lives");
    let path = |controller: &str| {
        let line = memberships.lines().find(|line| line.split(':').nth(1) == Some(controller));
        line.and_then(|line| line.splitn(3, ':').nth(2))
            .map(|path| format!("/sys/fs/cgroup/{controller}{path}"))
    };
    let directories: Vec<String> =
        ["pids", "memory"].iter().filter_map(|controller| path(controller)).collect();
    if directories.is_empty() {
        return skip(test, "no hierarchy of cgroup v1");
    }
    for directory in directories {
        let mut entered = None;
        let audit = attach(&["--cgroup", &directory], || {
            talk.send("m");
            let exec = Talk::start(engine.command().args(["exec", "-i", &name, APP]));
            let mut exec = exec.expect("podman exec");
            exec.send("m");
            entered = Some(exec);
        });
        assert_chain(&stack_of(&audit, audit.report().first(), 3));
        let other = audit.report().processes().iter().find(|p| p["attached"] == false);
        assert_chain(&stack_of(&audit, other.expect("what was put there"), 3));
    }
}

#[test]
fn what_is_no_container_is_refused_and_says_what_runs() {
    let test = "what_is_no_container_is_refused_and_says_what_runs";
    let name = unique("refused");
    let Some((_engine, _talk)) = start(test, &name, bare) else { return };
    for (target, said) in [
        (["--container", "vmaudit-no-such"], name.as_str()),
        (["--container", ""], "needs a name"),
        (["--cgroup", "/no/such"], "no cgroup /no/such"),
        (["--cgroup", "/etc"], "is no cgroup"),
    ] {
        for command in ["attach", "snapshot"] {
            let output = Command::new(vmaudit()).arg(command).args(target).output().expect("vmaudit starts");
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(125), "{stderr}");
            assert!(stderr.contains(said), "{stderr}");
        }
    }
}

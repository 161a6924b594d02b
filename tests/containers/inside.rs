//! vmaudit in containers, with what the engine gives every container: its seccomp profile, its
//! capabilities, nothing else. What it sees there is held against what the host sees.

use crate::support::container::{APP, Image, Talk, app_built_by, assert_chain, stack_names_of, unique};
use crate::support::docker::Docker;
use crate::support::report::{list, number};
use crate::support::stacks::{Comparison, calls_of};
use crate::support::{AuditReport, demo_program, program, skip, skip_without_bpf, vmaudit};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

const TOOL: &str = "/opt/vmaudit/vmaudit";
const DEMO: &str = "/opt/demo/two_allocators";

/// The demonstration program, vmaudit, and what both need.
fn image(folder: &Path, demo: &Path) -> Image {
    let image = Image::empty(folder);
    let app = program("container_app");
    for (file, inside) in [(demo, DEMO), (&vmaudit(), TOOL), (&app, APP)] {
        image.add(file, inside);
        image.add_libraries_of(file);
    }
    fs::write(image.root.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n").expect("written");
    image
}

/// A daemon with that image, and a folder that containers see as /out.
fn engine() -> Result<(Docker, tempfile::TempDir), String> {
    let demo = demo_program()?;
    // What an allocator maps depends on where things lie: on both sides it is the same.
    let docker = Docker::start_with_fixed_addresses()?;
    docker.import(&image(docker.work.path(), &demo))?;
    Ok((docker, tempfile::tempdir().expect("a temporary folder")))
}

/// `docker run OPTIONS img TOOL ARGUMENTS`: exit code and standard error.
fn run_inside(docker: &Docker, out: &Path, options: &[&str], command: &[&str]) -> (Option<i32>, String) {
    let mut run = docker.command();
    run.args(["run", "--rm", "--network", "none", "-v"]).arg(format!("{}:/out", out.display()));
    let output = run.args(options).arg("img").args(command).stdin(Stdio::null()).output().expect("docker");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn report(file: &Path) -> AuditReport {
    AuditReport::parse(&fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", file.display())))
}

/// Bytes of address space by category.
fn by_category(process: &Value) -> BTreeMap<String, u64> {
    let each = |c: &Value| (c["id"].as_str().unwrap_or_default().to_owned(), number(c, "virt"));
    list(process, "categories").iter().map(each).collect()
}

#[test]
fn a_default_container_sees_what_the_host_sees() {
    let test = "a_default_container_sees_what_the_host_sees";
    if skip_without_bpf(test) {
        return;
    }
    let name = unique("inside");
    let started = engine().and_then(|(mut docker, out)| {
        docker.names.push(name.clone());
        let run = ["run", "-i", "--name", &name, "--network", "none", "img", APP];
        let talk = Talk::start(docker.command().args(run))?;
        Ok((docker, out, talk))
    });
    let (docker, out, talk) = match started {
        Ok(started) => started,
        Err(why) => return skip(test, &why),
    };
    let client: Vec<_> = {
        let mut exec = docker.command();
        exec.args(["exec", &name, DEMO]);
        std::iter::once(exec.get_program().to_owned()).chain(exec.get_args().map(ToOwned::to_owned)).collect()
    };
    // Inside, with nothing: `auto` takes notify, and says so.
    let inside = |verb: &str, file: &str| {
        let file = format!("/out/{file}");
        let (code, said) =
            run_inside(&docker, out.path(), &[], &[TOOL, verb, "-f", "json", "--report", &file, "--", DEMO]);
        assert_eq!(code, Some(0), "{said}");
        assert!(said.contains("backend notify, because "), "{said}");
    };
    // From the host, by BPF: the same image, the program put there by the engine.
    let from_host = |verb: &str, file: &str| {
        let mut run = Command::new(vmaudit());
        run.args([verb, "--as-root", "--backend", "bpf", "-f", "json", "--report"])
            .arg(out.path().join(file));
        let output = run.arg("--").args(&client).stdin(Stdio::null()).output().expect("vmaudit starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    inside("run", "inside.json");
    from_host("run", "host.json");
    let (ours, theirs) = (report(&out.path().join("inside.json")), report(&out.path().join("host.json")));
    assert_eq!(ours.json["backend"], "notify");
    let (ours, theirs) = (ours.first(), theirs.first());
    assert_eq!((&ours["comm"], &theirs["comm"]), (&theirs["comm"], &Value::from("two_allocators")));
    for key in ["ledger_drift", "unknown"] {
        assert_eq!(number(&ours["coverage"], key), 0, "{}", ours["coverage"]);
    }
    assert_eq!(by_category(ours), by_category(theirs));
    inside("events", "inside.events");
    from_host("events", "host.events");
    drop(talk);
    let read = |file: &str| fs::read_to_string(out.path().join(file)).expect("events");
    let mut found = Comparison::default();
    let host_events = read("host.events");
    let main = host_events
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .find(|event| event["op"] == "execve" && event["args"]["exe"] == DEMO)
        .map(|event| event["pid"].clone());
    let main = main.expect("the program was executed");
    found.add(
        &calls_of(&host_events, |event| event["pid"] == main),
        &calls_of(&read("inside.events"), |_| true),
    );
    let Comparison { equal, marked, wrong } = found;
    assert!(wrong.is_empty(), "{} differ unmarked:\n{}", wrong.len(), wrong.join("\n"));
    eprintln!("{equal} stacks equal, {marked} marked");
    assert!(equal + marked > 40 && equal * 10 >= (equal + marked) * 6, "{equal} equal, {marked} marked");
}

/// Each step of privileges gives what docs/privileges.md says, and doctor knows.
#[test]
fn the_ladder_of_privileges() {
    let test = "the_ladder_of_privileges";
    if skip_without_bpf(test) {
        return;
    }
    let (docker, out) = match engine() {
        Ok(started) => started,
        Err(why) => return skip(test, &why),
    };
    let version = docker.command().args(["version", "-f", "{{.Server.Version}}"]).output().expect("docker");
    let version = String::from_utf8_lossy(&version.stdout).trim().to_owned();
    let major: u32 = version.split('.').next().and_then(|word| word.parse().ok()).unwrap_or(0);
    // Docker knows CAP_BPF since 23.
    let bpf: &[&str] = match major {
        0..23 => &["--cap-drop", "ALL", "--cap-add", "SYS_ADMIN"],
        _ => &["--cap-drop", "ALL", "--cap-add", "BPF", "--cap-add", "PERFMON"],
    };
    let nothing =
        ["--user", "1000", "--cap-drop", "ALL", "--read-only", "--security-opt", "no-new-privileges"];
    let unconfined = ["--security-opt", "seccomp=unconfined", "--cap-drop", "ALL"];
    let writable = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    fs::set_permissions(out.path(), writable).expect("chmod");
    let steps: [(&[&str], &[&str]); 4] = [
        (&[], &["notify"]),
        (&nothing, &["notify"]),
        // Where another tracer's BPF program keeps the events from everybody else, notify is left.
        (&unconfined, &["perf", "notify"]),
        (bpf, &["bpf"]),
    ];
    for (options, takes) in steps {
        let mut run = docker.command();
        run.args(["run", "--rm", "--network", "none"])
            .args(options)
            .args(["img", TOOL, "doctor", "-f", "json"]);
        let output = run.output().expect("docker");
        assert_eq!(output.status.code(), Some(0), "{options:?}: {}", String::from_utf8_lossy(&output.stderr));
        let diagnosis: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let auto = diagnosis["auto"].as_str().unwrap_or_default().to_owned();
        assert!(takes.contains(&auto.as_str()), "{options:?}: doctor says {auto}");
        let audited = [TOOL, "run", "-f", "json", "--report", "/out/ladder.json", "--", DEMO];
        let (code, said) = run_inside(&docker, out.path(), options, &audited);
        assert_eq!(code, Some(0), "{options:?}: {said}");
        let report = self::report(&out.path().join("ladder.json"));
        let taken = report.json["backend"].as_str().unwrap_or_default().to_owned();
        assert!(takes.contains(&taken.as_str()), "{options:?}: run takes {taken}: {said}");
        assert_eq!(said.contains(&format!("backend {taken}, because ")), taken != "bpf", "{said}");
        assert_eq!(number(&report.first()["coverage"], "ledger_drift"), 0, "{options:?} {taken}");
        // What is missing for the next step is said, and how to get it.
        let advice = list(&diagnosis, "advice");
        assert!(auto == "bpf" || !list(&advice[0], "commands").is_empty(), "{options:?}: {advice:?}");
        eprintln!("Docker {version} {options:?}: {taken}");
        let _ = fs::remove_file(out.path().join("ladder.json"));
    }
}

/// A program by musl in an image with nothing else: vmaudit is brought along with a loader of its own.
#[test]
fn a_musl_container_with_vmaudit_brought_along() {
    let test = "a_musl_container_with_vmaudit_brought_along";
    let folder = tempfile::tempdir().expect("a temporary folder");
    let app = folder.path().join("worker");
    if let Err(why) = app_built_by("musl-gcc", &["-static"], &app) {
        return skip(test, &why);
    }
    let started = Docker::start().and_then(|docker| {
        let image = Image::empty(docker.work.path());
        image.add(&app, APP);
        docker.import(&image)?;
        Ok(docker)
    });
    let docker = match started {
        Ok(docker) => docker,
        Err(why) => return skip(test, &why),
    };
    // All in one folder, as one would mount it into any container.
    let kit = Image { root: folder.path().join("kit") };
    kit.add(&vmaudit(), "vmaudit");
    let list = Command::new("ldd").arg(vmaudit()).output().expect("ldd");
    for library in
        String::from_utf8_lossy(&list.stdout).split_ascii_whitespace().filter(|w| w.starts_with('/'))
    {
        let file = fs::canonicalize(library).expect("a library");
        kit.add(&file, library.rsplit('/').next().unwrap_or_default());
    }
    let out = tempfile::tempdir().expect("a temporary folder");
    let mounted = format!("{}:/kit:ro", kit.root.display());
    let loader = ["/kit/ld-linux-x86-64.so.2", "--library-path", "/kit", "/kit/vmaudit"];
    let mut run = docker.command();
    run.args(["run", "--rm", "-i", "--network", "none", "-v"]).arg(format!("{}:/out", out.path().display()));
    run.args(["-v", &mounted, "img"]).args(loader);
    run.args(["run", "-f", "json", "--report", "/out/musl.json", "--", APP]);
    run.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = run.spawn().expect("docker");
    std::io::Write::write_all(&mut child.stdin.take().expect("a pipe"), b"m\nt\nq\n").expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{said}");
    let report = self::report(&out.path().join("musl.json"));
    let process = report.first();
    assert_eq!((&report.json["backend"], &process["comm"]), (&Value::from("notify"), &Value::from("worker")));
    assert_eq!(number(&process["coverage"], "ledger_drift"), 0, "{}", process["coverage"]);
    assert_eq!(number(&process["coverage"], "unknown"), 0, "{}", process["coverage"]);
    assert_chain(&stack_names_of(&report, process, 3));
}

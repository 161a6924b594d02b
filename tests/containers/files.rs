//! Files of containers: symbols and unwind tables come from what is mapped, whatever has become of its
//! path; other C libraries; images without any tool; what a container can put in the way.

use crate::support::container::{APP, Image, app_built_by, assert_chain, attach, stack_of, start, unique};
use crate::support::report::{list, number};
use crate::support::{finished, program, run_command, skip};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};

/// The program with its libraries, and a shell next to it.
fn with_shell(folder: &Path) -> Image {
    let image = Image::empty(folder);
    let app = program("container_app");
    image.add(&app, APP);
    image.add_libraries_of(&app);
    image.add_busybox();
    image
}

/// Attaches after `before` was sent, and checks the stack of a mapping.
fn chain_after(test: &str, before: &str) {
    let name = unique(before);
    let Some((_engine, mut talk)) = start(test, &name, with_shell) else { return };
    talk.send(before);
    let audit = attach(&["--container", &name], || talk.send("m"));
    assert_chain(&stack_of(&audit, audit.report().first(), 3));
}

#[test]
fn a_binary_that_was_deleted() {
    chain_after("a_binary_that_was_deleted", "u");
}

#[test]
fn a_binary_that_was_replaced_lends_no_wrong_names() {
    chain_after("a_binary_that_was_replaced_lends_no_wrong_names", "r");
}

/// A program by musl in an image with nothing else in it: statically, or with musl's loader.
fn musl(test: &str, is_static: bool) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let app = folder.path().join("worker");
    let options: &[&str] = if is_static { &["-static"] } else { &[] };
    if let Err(why) = app_built_by("musl-gcc", options, &app) {
        return skip(test, &why);
    }
    let make = |folder: &Path| {
        let image = Image::empty(folder);
        image.add(&app, APP);
        if !is_static {
            image.add(Path::new("/lib/ld-musl-x86_64.so.1"), "/lib/ld-musl-x86_64.so.1");
        }
        image
    };
    let name = unique(if is_static { "musl-static" } else { "musl" });
    let Some((_engine, mut talk)) = start(test, &name, make) else { return };
    let audit = attach(&["--container", &name], || {
        talk.send("m");
        talk.send("t");
    });
    let main = audit.report().first();
    assert_eq!(number(&main["coverage"], "ledger_drift"), 0);
    assert_chain(&stack_of(&audit, main, 3));
    assert_chain(&stack_of(&audit, main, 7));
}

#[test]
fn musl_static() {
    musl("musl_static", true);
}

#[test]
fn musl_dynamic() {
    musl("musl_dynamic", false);
}

/// The program's path becomes a FIFO, its library's a link to a device, and a link leads out of the
/// root: none of that is opened, and the names are right.
#[test]
fn what_a_container_puts_in_the_way() {
    let test = "what_a_container_puts_in_the_way";
    let name = unique("hostile");
    let Some((engine, mut talk)) = start(test, &name, with_shell) else { return };
    let script = "cd /opt/app && mv worker gone && mkfifo worker && rm gone && \
        for lib in $(ls /lib/x86_64-linux-gnu); do mv /lib/x86_64-linux-gnu/$lib /tmp/$lib; done; \
        ln -s /dev/zero /lib/x86_64-linux-gnu/libc.so.6; ln -s /proc/1/root/../../etc/shadow /lib/x86_64-linux-gnu/x";
    let busybox = ["exec", &name, "/bin/busybox", "sh", "-c", script];
    let done = engine.command().args(busybox).output().expect("podman");
    if !done.status.success() {
        return skip(
            test,
            &format!("no static busybox (busybox-static): {}", String::from_utf8_lossy(&done.stderr)),
        );
    }
    let audit = attach(&["--container", &name], || talk.send("m"));
    // The kernel knows the program by the name that it was given last.
    let names = stack_of(&audit, audit.report().first(), 3);
    let expected = ["gone!reserve_inner", "gone!reserve_outer", "gone!main"];
    assert!(names.windows(expected.len()).any(|window| window == expected), "{names:?}");
}

/// What `podman exec` starts is no child of podman's; all of it is seen all the same, and nothing else
/// of the container.
#[test]
fn run_of_a_client_that_enters_a_container() {
    let test = "run_of_a_client_that_enters_a_container";
    let name = unique("enter");
    let Some((engine, mut talk)) = start(test, &name, with_shell) else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("report.json");
    let client = engine.command();
    let mut command = vec![client.get_program().to_owned()];
    command.extend(client.get_args().map(ToOwned::to_owned));
    command.extend(["exec", "-i", &name, APP].map(Into::into));
    let mut run: Command = run_command(&file, &[], &command);
    run.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = run.spawn().expect("vmaudit starts");
    let mut input = child.stdin.take().expect("a pipe");
    // Meanwhile the container's own process works, too, and starts another: neither was requested.
    std::io::Write::write_all(&mut input, b"m\nf\nq\n").expect("it reads");
    talk.send("f");
    drop(input);
    let audit = finished(child.wait_with_output().expect("it ends"), &file);
    assert_eq!(audit.code(), Some(0), "{}", audit.stderr);
    assert!(audit.stderr.contains(&format!("put into the container {name}")), "{}", audit.stderr);
    let main = audit.report().first();
    assert_eq!((&main["comm"], &main["container"]), (&Value::from("worker"), &Value::from(name.as_str())));
    assert_eq!(main["exit_code"], 0);
    let inside = audit.report().processes().iter().filter(|p| p["container"] == name.as_str());
    assert_eq!(inside.count(), 2, "the program and its child");
    assert!(audit.report().processes().iter().any(|p| p["comm"] == "podman" && p["container"].is_null()));
    assert!(list(&audit.report().json, "processes").len() >= 3);
    assert_chain(&stack_of(&audit, main, 3));
}

//! What becomes of a target when vmaudit is killed.

use super::{Guard, program, run_command};
use std::ffi::OsString;
use std::fs;
use std::io::{Read, Write};
use std::process::Stdio;

/// `tests/programs/ends.c orphan` under `vmaudit run OPTIONS`, which is killed once the program is
/// ready: it goes on, maps, writes its file and ends as it would have.
pub fn assert_survives_death_of_vmaudit(options: &[&str]) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (report, proof) = (folder.path().join("report.json"), folder.path().join("proof"));
    let command: [OsString; 3] = [program("ends").into(), "orphan".into(), proof.clone().into()];
    let mut run = run_command(&report, options, &command);
    run.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut tracer = Guard(run.spawn().expect("vmaudit starts"));
    let mut output = tracer.0.stdout.take().expect("a pipe");
    let mut ready = [0; 6];
    output.read_exact(&mut ready).expect("the target is ready");
    let mut input = tracer.0.stdin.take().expect("a pipe");
    tracer.signal(libc::SIGKILL);
    tracer.0.wait().expect("waited");
    input.write_all(b"x").expect("the target reads");
    // Its end of the pipe closes.
    output.read_to_end(&mut Vec::new()).expect("the target ends");
    assert_eq!(fs::read_to_string(proof).expect("the target's file"), "done\n");
}

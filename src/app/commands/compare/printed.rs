//! Reads what a command prints while it runs, and keeps only what distinguishes it from another run's.

use crate::compare::output::{Output, Printed};
use std::io::{self, PipeReader, Read};
use std::process::Stdio;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// Bytes read at a time.
const CHUNK: usize = 64 << 10;

/// The reader of one run's standard output.
pub struct Reader(Receiver<Output>);

/// The pipe that the command prints to, and its reader.
///
/// # Errors
/// When there is no descriptor or no thread to be had.
pub fn reader() -> io::Result<(Stdio, Reader)> {
    let (from, to) = io::pipe()?;
    let (done, result) = channel();
    std::thread::Builder::new().name("printed".to_owned()).spawn(move || {
        // the trial is over: the result is not needed
        let _ = done.send(read(from));
    })?;
    Ok((Stdio::from(to), Reader(result)))
}

impl Reader {
    /// None where a process that cannot be ended may still print.
    pub fn output(self, patience: Duration) -> Option<Output> {
        self.0.recv_timeout(patience).ok()
    }
}

fn read(mut from: PipeReader) -> Output {
    let mut printed = Printed::default();
    let mut buffer = vec![0; CHUNK];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return printed.end(),
            Ok(len) => printed.add(buffer.get(..len).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return printed.end(),
        }
    }
}

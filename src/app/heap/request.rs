//! Queries what a runtime reports of its memory, through its own protocol.

use crate::model::heap::runtime::Door;
use crate::procfs::read_status;
use crate::session::snapshots::living::Living;
use crate::sys::clock;
use nix::sys::signal::Signal;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::Uid;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, fchown};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long the door may take to open.
const OPENS_WITHIN_NS: u64 = 5_000_000_000;
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How long the answer may take.
const PATIENCE: Duration = Duration::from_secs(10);
const LONGEST_ANSWER: u64 = 16 << 20;

/// The file that makes the runtime open its socket; removed when it is not needed any more.
struct Trigger(PathBuf);

impl Drop for Trigger {
    fn drop(&mut self) {
        drop(fs::remove_file(&self.0));
    }
}

/// The answer; an error is a sentence. The signal is sent only where the process catches it: others would end by it.
pub fn request(living: &Living, door: &Door) -> Result<String, String> {
    let pid = living.pid;
    let status = read_status(pid, pid).map_err(|error| format!("it cannot be examined: {error}"))?;
    let own = status.own_pid().ok_or("its number in its own namespace is not known")?;
    let [_, uid, ..] = status.uids;
    let tmp = PathBuf::from(format!("/proc/{pid}/root/tmp"));
    let socket = tmp.join(format!("{}{own}", door.socket));
    if !is_socket_of(&socket, uid) {
        if !door.signals || status.caught_signals & 1 << (Signal::SIGQUIT as u32 - 1) == 0 {
            return Err(
                "it does not catch SIGQUIT, which the query needs, and would be killed by it".to_owned()
            );
        }
        open_door(
            living,
            (&tmp.join(format!("{}{own}", door.trigger)), &socket),
            (uid, status.effective_gid),
        )?;
    }
    let mut stream =
        UnixStream::connect(&socket).map_err(|error| format!("{}: {error}", socket.display()))?;
    let peer = getsockopt(&stream, PeerCredentials).map_err(|errno| errno.to_string())?;
    if peer.pid() != pid {
        return Err(format!("another process ({}) listens at {}", peer.pid(), socket.display()));
    }
    exchange(&mut stream, door.request).map_err(|error| format!("it did not answer: {error}"))
}

fn is_socket_of(path: &Path, uid: u32) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket() && found.uid() == uid)
}

fn open_door(
    living: &Living,
    (trigger, socket): (&Path, &Path),
    (uid, gid): (u32, u32),
) -> Result<(), String> {
    let created = OpenOptions::new().write(true).create_new(true).mode(0o600).open(trigger);
    let created: File =
        created.map_err(|error| format!("cannot ask for its attention: {}: {error}", trigger.display()))?;
    let _away_later = Trigger(trigger.to_owned());
    if Uid::effective().as_raw() != uid {
        fchown(&created, Some(uid), Some(gid)).map_err(|error| format!("{}: {error}", trigger.display()))?;
    }
    living.signal(Signal::SIGQUIT).map_err(|errno| format!("it cannot be sent SIGQUIT: {errno}"))?;
    let end = clock::monotonic_ns() + OPENS_WITHIN_NS;
    while !is_socket_of(socket, uid) {
        if living.has_ended() {
            return Err("it has ended meanwhile".to_owned());
        }
        if clock::monotonic_ns() > end {
            return Err("it did not answer SIGQUIT: it is stopped, or hangs".to_owned());
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

/// A number, which is 0 where the command was carried out, a newline, and the answer.
fn exchange(stream: &mut UnixStream, request: &[u8]) -> io::Result<String> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(request)?;
    let mut answer = Vec::new();
    stream.take(LONGEST_ANSWER).read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    match answer.split_once('\n') {
        Some(("0", text)) => Ok(text.to_owned()),
        Some((code, text)) => Err(io::Error::other(format!("error {code}: {}", text.trim()))),
        None => Err(io::Error::other("nothing came")),
    }
}

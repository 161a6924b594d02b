//! Queries what a runtime reports of its memory, through its own protocol.

use crate::model::Pid;
use crate::model::heap::runtime::Door;
use crate::procfs::read_status;
use crate::session::snapshots::living::Living;
use crate::sys::clock;
use crate::sys::untrusted_open::{Folder, Root, own_link};
use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::Uid;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, fchown};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// How long the door may take to open.
const OPENS_WITHIN_NS: u64 = 5_000_000_000;
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How long the answer may take.
const PATIENCE: Duration = Duration::from_secs(10);
const LONGEST_ANSWER: u64 = 16 << 20;

/// The folder in which a runtime and its visitors meet, and who the runtime is.
struct Meeting {
    folder: Folder,
    uid: u32,
    gid: u32,
}

/// The file that makes the runtime open its socket; removed when it is not needed any more.
struct Trigger<'a> {
    folder: &'a Folder,
    name: &'a OsStr,
}

impl Drop for Trigger<'_> {
    fn drop(&mut self) {
        drop(self.folder.remove(self.name));
    }
}

/// The answer; an error is a sentence. The signal is sent only where the process catches it: others would end by it.
pub fn request(living: &Living, door: &Door) -> Result<String, String> {
    let pid = living.pid;
    let status = read_status(pid, pid).map_err(|error| format!("it cannot be examined: {error}"))?;
    let own = status.own_pid().ok_or("its number in its own namespace is not known")?;
    let [_, uid, ..] = status.uids;
    let meeting = Meeting { folder: tmp_of(pid)?, uid, gid: status.effective_gid };
    let socket = OsString::from(format!("{}{own}", door.socket));
    let open = match meeting.socket(&socket) {
        Some(open) => open,
        None if door.signals && status.caught_signals & 1 << (Signal::SIGQUIT as u32 - 1) != 0 => {
            let trigger = OsString::from(format!("{}{own}", door.trigger));
            meeting.open_door(living, &trigger, &socket)?
        }
        None => {
            return Err(
                "it does not catch SIGQUIT, which the query needs, and would be killed by it".to_owned()
            );
        }
    };
    let named = socket.display();
    // By what was examined: the name may lead to another socket by now.
    let mut stream = UnixStream::connect(own_link(&open)).map_err(|error| format!("{named}: {error}"))?;
    let peer = getsockopt(&stream, PeerCredentials).map_err(|errno| errno.to_string())?;
    if peer.pid() != pid {
        return Err(format!("another process ({}) listens at {named}", peer.pid()));
    }
    exchange(&mut stream, door.request).map_err(|error| format!("it did not answer: {error}"))
}

/// Its /tmp, which may not be a link: it would lead out of its root.
fn tmp_of(pid: Pid) -> Result<Folder, String> {
    let opened = Root::of(pid).and_then(|root| root.folder(Path::new("/tmp")));
    opened.map_err(|error| match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ELOOP) => "its /tmp is a symbolic link, which is not followed".to_owned(),
        Some(Errno::ENOSYS) => "its /tmp cannot be opened safely: openat2(2) is of Linux 5.6".to_owned(),
        _ => format!("its /tmp: {error}"),
    })
}

impl Meeting {
    /// Points at the socket, where the runtime has made it.
    fn socket(&self, name: &OsStr) -> Option<File> {
        let pointed = self.folder.find(name).ok().flatten()?;
        let found = pointed.metadata().ok()?;
        (found.file_type().is_socket() && found.uid() == self.uid).then_some(pointed)
    }

    /// True where the runtime could make the file itself: it may have mounted any folder that it sees at its /tmp.
    fn is_its_own_to_write(&self) -> bool {
        self.folder.as_file().metadata().is_ok_and(|found| {
            let mode = found.mode();
            self.uid == 0
                || mode & 0o002 != 0
                || found.uid() == self.uid && mode & 0o200 != 0
                || found.gid() == self.gid && mode & 0o020 != 0
        })
    }

    fn open_door(&self, living: &Living, trigger: &OsStr, socket: &OsStr) -> Result<File, String> {
        let refused = |error: &dyn std::fmt::Display| {
            format!("cannot ask for its attention: {} in its /tmp: {error}", trigger.display())
        };
        if !self.is_its_own_to_write() {
            return Err(refused(&"it may not write there itself"));
        }
        let created = self.folder.create(trigger, 0o600).map_err(|error| refused(&error))?;
        let _away_later = Trigger { folder: &self.folder, name: trigger };
        if Uid::effective().as_raw() != self.uid {
            fchown(&created, Some(self.uid), Some(self.gid)).map_err(|error| refused(&error))?;
        }
        living.signal(Signal::SIGQUIT).map_err(|errno| format!("it cannot be sent SIGQUIT: {errno}"))?;
        let end = clock::monotonic_ns() + OPENS_WITHIN_NS;
        loop {
            if let Some(open) = self.socket(socket) {
                return Ok(open);
            }
            if living.has_ended() {
                return Err("it has ended meanwhile".to_owned());
            }
            if clock::monotonic_ns() > end {
                return Err("it did not answer SIGQUIT: it is stopped, or hangs".to_owned());
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
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

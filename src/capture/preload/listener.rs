//! Where processes say that they have the library.

use super::area::{Area, Bell, Settings};
use super::layout::{Hello, MAGIC};
use crate::capture::plain::value_of;
use crate::model::Pid;
use crate::sys::pidfd;
use nix::sched::{CloneFlags, setns};
use nix::sys::socket::sockopt::{PeerCredentials, ReceiveTimeout};
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, accept4, bind,
    getsockopt, listen, recv, sendmsg, setsockopt, socket,
};
use nix::sys::time::{TimeVal, TimeValLike};
use nix::unistd::Uid;
use std::fs::{self, File};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

/// A process that begins to count.
pub struct Arrival {
    pub pid: Pid,
    pub pidfd: OwnedFd,
    /// It has a copy of what another one had allocated.
    pub forked: bool,
    pub area: Area,
}

/// A socket without a file: only processes in the same network namespace find it.
pub struct Listener {
    socket: OwnedFd,
    name: String,
}

impl Listener {
    /// # Errors
    /// When there can be no socket.
    pub fn new() -> io::Result<Listener> {
        let socket = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)?;
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let name = format!("vmaudit-heap-{}-{:x}", std::process::id(), time.as_nanos());
        bind(socket.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes())?)?;
        listen(&socket, Backlog::MAXCONN)?;
        Ok(Listener { socket, name })
    }

    /// In the network namespace of a process, which may be a container's.
    ///
    /// # Errors
    /// When there can be no socket: another namespace takes CAP_SYS_ADMIN (setns(2)).
    pub fn near(pid: Pid) -> io::Result<Listener> {
        if share_network(pid, std::process::id() as Pid) {
            return Listener::new();
        }
        let namespace = File::open(format!("/proc/{pid}/ns/net"))?;
        // A namespace is a thread's: that of this one stays as it is.
        let made = thread::spawn(move || {
            setns(namespace, CloneFlags::CLONE_NEWNET)?;
            Listener::new()
        });
        made.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
    }

    /// For the environment of the command.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Accepts a waiting process; None where it has no permission, or is not selected.
    ///
    /// # Errors
    /// When the kernel refuses an area.
    pub fn accept(
        &self,
        settings: Settings,
        bell: &Bell,
        is_selected: impl Fn(Pid) -> bool,
    ) -> io::Result<Option<Arrival>> {
        let raw = accept4(self.socket.as_raw_fd(), SockFlag::SOCK_CLOEXEC)?;
        // SAFETY: accept4 has just made it.
        let peer = unsafe { OwnedFd::from_raw_fd(raw) };
        // A silent process does not keep others waiting for long.
        setsockopt(&peer, ReceiveTimeout, &TimeVal::milliseconds(200))?;
        let who = getsockopt(&peer, PeerCredentials)?;
        let mut hello = [0; size_of::<Hello>()];
        if recv(peer.as_raw_fd(), &mut hello, MsgFlags::empty())? != hello.len() {
            return Ok(None);
        }
        let Some(Hello { magic: MAGIC, forked, .. }) = value_of(&hello) else { return Ok(None) };
        if !may(who.uid()) || !is_selected(who.pid()) {
            return Ok(None);
        }
        let Ok(pidfd) = pidfd::open(who.pid()) else { return Ok(None) };
        let area = Area::new(settings)?;
        let files = [area.raw_fd(), bell.raw_fd()];
        let control = [ControlMessage::ScmRights(&files)];
        let answer = [IoSlice::new(b"welcome\0")];
        sendmsg::<UnixAddr>(peer.as_raw_fd(), &answer, &control, MsgFlags::MSG_NOSIGNAL, None)?;
        Ok(Some(Arrival { pid: who.pid(), pidfd, forked: forked == 1, area }))
    }
}

/// Where that is not known, true.
pub fn share_network(a: Pid, b: Pid) -> bool {
    let namespace = |pid: Pid| {
        let found = fs::metadata(format!("/proc/{pid}/ns/net")).ok()?;
        Some((found.dev(), found.ino()))
    };
    match (namespace(a), namespace(b)) {
        (Some(a), Some(b)) => a == b,
        _ => true,
    }
}

/// Root's vmaudit profiles everybody's programs, an ordinary user's its own.
fn may(uid: u32) -> bool {
    let own = Uid::effective();
    own.is_root() || own.as_raw() == uid
}

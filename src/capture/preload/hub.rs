//! Processes that have the library and begin to count.
//!
//! Who speaks is what the kernel says (SO_PEERCRED, a pidfd), and a process gets an area for itself alone. What a silent or
//! talkative one does, others do not wait for.

use super::area::{Area, Settings};
use super::endpoint::Endpoint;
use super::layout::{Hello, MAGIC};
use crate::capture::plain::value_of;
use crate::model::Pid;
use crate::sys::pidfd;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{ControlMessage, MsgFlags, SockFlag, UnixAddr, accept4, getsockopt, recv, sendmsg};
use nix::unistd::Uid;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A process that begins to count.
pub struct Arrival {
    pub pid: Pid,
    pub pidfd: OwnedFd,
    /// It has a copy of what another one had allocated.
    pub forked: bool,
    /// Where it says that its library's control is.
    pub control: u64,
    pub area: Arc<Area>,
}

/// Connections that have said nothing so far: so many, for so long.
const MOST_SILENT: usize = 256;
const PATIENCE: Duration = Duration::from_secs(1);

/// The number of the listening socket among those that are waited for.
const DOOR: u64 = 0;

/// The listening socket, and who has come and not said anything yet.
pub struct Hub {
    epoll: Epoll,
    endpoint: Option<Endpoint>,
    silent: BTreeMap<u64, (OwnedFd, Instant)>,
    last: u64,
    settings: Settings,
    selection: Selection,
}

/// Which processes are let in.
pub struct Selection {
    /// The only ones; None: every process that comes.
    pub only: Option<BTreeSet<Pid>>,
    /// Why one of them is not counted.
    pub refuses: fn(Pid) -> Option<String>,
}

impl Hub {
    /// Lets in whom the endpoint leads here, of the selection.
    ///
    /// # Errors
    /// As epoll_create1(2).
    pub fn new(endpoint: Option<Endpoint>, settings: Settings, selection: Selection) -> io::Result<Hub> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        if let Some(endpoint) = &endpoint {
            epoll.add(endpoint.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, DOOR))?;
        }
        Ok(Hub { epoll, endpoint, silent: BTreeMap::new(), last: DOOR, settings, selection })
    }

    /// Who has begun, or why a process could not, once the time is over or somebody has come.
    pub fn wait(&mut self, time: Duration) -> Vec<Result<Arrival, (Pid, io::Error)>> {
        let mut events = [EpollEvent::empty(); 64];
        let time = EpollTimeout::try_from(time).unwrap_or(EpollTimeout::ZERO);
        let count = self.epoll.wait(&mut events, time).unwrap_or(0);
        let mut begun = Vec::new();
        for event in events.iter().take(count) {
            match event.data() {
                DOOR => self.open(),
                number => begun.extend(self.hear(number)),
            }
        }
        self.silent.retain(|_, (_, since)| since.elapsed() < PATIENCE);
        begun
    }

    /// Somebody is at the door; what it says comes with another event.
    fn open(&mut self) {
        let Some(endpoint) = &self.endpoint else { return };
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let Ok(raw) = accept4(endpoint.as_fd().as_raw_fd(), flags) else { return };
        // SAFETY: accept4 has just made it.
        let socket = unsafe { OwnedFd::from_raw_fd(raw) };
        if self.silent.len() >= MOST_SILENT {
            self.silent.pop_first();
        }
        self.last += 1;
        if self.epoll.add(&socket, EpollEvent::new(EpollFlags::EPOLLIN, self.last)).is_ok() {
            self.silent.insert(self.last, (socket, Instant::now()));
        }
    }

    /// The first message of a connection is the only one.
    fn hear(&mut self, number: u64) -> Option<Result<Arrival, (Pid, io::Error)>> {
        let (socket, since) = self.silent.remove(&number)?;
        let mut bytes = [0; size_of::<Hello>()];
        let got = recv(socket.as_raw_fd(), &mut bytes, MsgFlags::MSG_DONTWAIT);
        if matches!(got, Err(Errno::EAGAIN | Errno::EINTR)) {
            self.silent.insert(number, (socket, since));
            return None;
        }
        let hello =
            value_of::<Hello>(&bytes).filter(|hello| got == Ok(bytes.len()) && hello.magic == MAGIC)?;
        let who = getsockopt(&socket, PeerCredentials).ok()?;
        let pid = who.pid();
        let is_known = self.endpoint.as_ref().is_some_and(|endpoint| endpoint.knows(&hello.token));
        let is_welcome = is_known && pid > 0 && may(who.uid()) && self.is_selected(pid);
        is_welcome.then(|| {
            if let Some(why) = (self.selection.refuses)(pid) {
                return Err((pid, io::Error::other(why)));
            }
            let arrival = self.begin(socket, pid, hello.forked == 1);
            arrival.map(|arrival| Arrival { control: hello.control, ..arrival }).map_err(|error| (pid, error))
        })
    }

    /// Whether a process is one of those that are counted.
    pub fn is_selected(&self, pid: Pid) -> bool {
        self.selection.only.as_ref().is_none_or(|only| only.contains(&pid))
    }

    /// A process gets an area over a connection to it.
    ///
    /// # Errors
    /// When there can be no area, or the process does not take it.
    pub fn begin(&self, socket: OwnedFd, pid: Pid, forked: bool) -> io::Result<Arrival> {
        let pidfd = pidfd::open(pid)?;
        let area = Arc::new(Area::new(self.settings)?);
        let files = area.raw_fds();
        let control = [ControlMessage::ScmRights(&files)];
        let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
        sendmsg::<UnixAddr>(socket.as_raw_fd(), &[IoSlice::new(b"welcome\0")], &control, flags, None)?;
        Ok(Arrival { pid, pidfd, forked, control: 0, area })
    }
}

/// Root's vmaudit profiles everybody's programs, an ordinary user's its own.
fn may(uid: u32) -> bool {
    let own = Uid::effective();
    own.is_root() || own.as_raw() == uid
}

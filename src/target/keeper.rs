//! The keeper: a tiny process that receives the notifications and outlives vmaudit.
//!
//! Were vmaudit the only one to hold the listener, its death would make every later exit_group
//! fail with ENOSYS, and libc then crashes the program. The keeper forwards final exits while
//! vmaudit lives; when vmaudit's end of the socket closes, it lets everything go on, until no
//! task has the filter any more.

use super::app_socket::{AppSocket, Heard};
use super::exit_server::{ExitServer, Served};
use super::protocol::{HeldNotice, Message};
use super::seccomp::Listener;
use super::{fork, handover};
use crate::model::Pid;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal, signal, sigprocmask};
use std::ffi::c_void;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

/// The keeper's `comm`.
/// Not "vmaudit…": `pkill -9 vmaudit` must leave it alive, or held processes could not end.
pub(super) const NAME: &std::ffi::CStr = c"exit-keeper";

/// Where the keeper has its two descriptors; above them nothing is open.
const APP_FD: i32 = 3;
const SOURCE_FD: i32 = 4;

/// Where the keeper's listener comes from.
pub enum Source {
    /// The child sends it over this socket. End of file: there is none, nothing to keep.
    Child(OwnedFd),
    /// A replacement gets the copy, and what its predecessor left unanswered.
    Copy { listener: Listener, held: Vec<HeldNotice>, stands_by: bool },
}

/// Room for notifications, shared with the keeper: the kernel writes a notification there, and its
/// id is known to the other side even if the receiver is killed before its next instruction. A
/// copy is the same room.
#[derive(Clone)]
pub struct SharedSlots(Arc<Room>);

struct Room(NonNull<c_void>);

// SAFETY: the pointer is to a mapping of its own, which no thread is tied to.
unsafe impl Send for Room {}
// SAFETY: shared references give out nothing; `SharedSlots::slot` says who may use it.
unsafe impl Sync for Room {}

/// Notifications that vmaudit may have received and not answered: 80 bytes each.
pub const SLOTS: usize = 1024;

const ROOM_BYTES: NonZeroUsize = match NonZeroUsize::new(SLOTS * size_of::<libc::seccomp_notif>()) {
    Some(size) => size,
    None => NonZeroUsize::MIN,
};

impl SharedSlots {
    pub fn new() -> Result<SharedSlots, Errno> {
        let prot = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new anonymous mapping; the kernel chooses a free address.
        let room = unsafe { mmap_anonymous(None, ROOM_BYTES, prot, MapFlags::MAP_SHARED) }?;
        Ok(SharedSlots(Arc::new(Room(room))))
    }

    /// Slot `index`, or the last. The one process that receives calls this: the keeper, or the
    /// server in vmaudit, and the keeper only after that one's end.
    pub(super) fn slot(&mut self, index: usize) -> &mut libc::seccomp_notif {
        let first = self.0.0.cast::<libc::seccomp_notif>();
        // SAFETY: the mapping is page-aligned, holds SLOTS of them, zeroed at first (a valid
        // value), lives as long as self, and nobody else writes meanwhile.
        unsafe { first.add(index.min(SLOTS - 1)).as_mut() }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `SharedSlots::new`, and no reference outlives self.
        let _ = unsafe { munmap(self.0, ROOM_BYTES.get()) };
    }
}

/// Forks the keeper. `app` is its end of the socket to vmaudit.
pub fn spawn(app: OwnedFd, source: Source, slots: &SharedSlots) -> Result<Pid, Errno> {
    let mut slots = slots.clone();
    fork::fork_into(move || {
        stand_apart();
        let mut stands_by = false;
        let (server, app) = match source {
            Source::Child(socket) => {
                let (app, socket) = keep_only(app, socket)?;
                let Some(listener) = handover::receive_fd(socket.as_fd())? else { return Ok(()) };
                drop(socket);
                (ExitServer::new(Listener::new(listener)), app)
            }
            Source::Copy { listener, held, stands_by: as_before } => {
                stands_by = as_before;
                let (app, listener) = keep_only(app, listener.into())?;
                let mut server = ExitServer::new(Listener::new(listener));
                server.inherit(held);
                (server, app)
            }
        };
        Keeper { server, app: AppSocket::new(app), stands_by }.run(&mut slots)
    })
}

/// Out of the terminal's and the shell's reach, and of the way of unmounts.
fn stand_apart() {
    let _ = nix::unistd::setsid();
    let _ = nix::unistd::chdir("/");
    let _ = nix::sys::prctl::set_name(NAME);
    for each in [
        Signal::SIGINT,
        Signal::SIGTERM,
        Signal::SIGHUP,
        Signal::SIGQUIT,
        Signal::SIGPIPE,
        Signal::SIGTSTP,
        Signal::SIGTTIN,
        Signal::SIGTTOU,
        Signal::SIGUSR1,
        Signal::SIGUSR2,
        Signal::SIGALRM,
    ] {
        // SAFETY: ignoring a signal installs no handler.
        let _ = unsafe { signal(each, SigHandler::SigIgn) };
    }
    let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), None);
    // A signal handler without SA_RESTART that runs before a held exit_group was received makes
    // it fail with EINTR: let that be short. Root only, as the next one.
    // SAFETY: the call takes numbers only.
    let _ = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) };
    // The target depends on this process: when memory is short, let it not be the first to go.
    let _ = std::fs::write("/proc/self/oom_score_adj", "-1000");
}

/// Closes all descriptors but these two, and gives the standard ones to /dev/null, so that a
/// pipeline's reader sees the end when vmaudit and the target have closed theirs.
fn keep_only(app: OwnedFd, source: OwnedFd) -> Result<(OwnedFd, OwnedFd), Errno> {
    let null = nix::fcntl::open("/dev/null", OFlag::O_RDWR, nix::sys::stat::Mode::empty());
    // First out of the way of the numbers that they are to have.
    let spare = |fd: &OwnedFd| nix::fcntl::fcntl(fd, nix::fcntl::FcntlArg::F_DUPFD(SOURCE_FD + 1));
    let (high_app, high_source) = (spare(&app)?, spare(&source)?);
    if let Ok(null) = null {
        for standard in 0..3 {
            // SAFETY: dup2 only takes descriptor numbers; this process owns all of its own.
            let _ = unsafe { libc::dup2(null.as_raw_fd(), standard) };
        }
        // Its number may be one that is given away now; close_range takes it otherwise.
        let _ = null.into_raw_fd();
    }
    // Their numbers too are given away or closed below.
    let _ = (app.into_raw_fd(), source.into_raw_fd());
    for (from, to) in [(high_app, APP_FD), (high_source, SOURCE_FD)] {
        // SAFETY: as above.
        Errno::result(unsafe { libc::dup2(from, to) })?;
    }
    // SAFETY: no Rust value owns a descriptor above SOURCE_FD that is used from here on: this
    // process never returns to the code that has them.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, SOURCE_FD + 1, u32::MAX, 0) };
    if closed != 0 {
        // close_range is of 5.9.
        for fd in SOURCE_FD + 1..4096 {
            // SAFETY: as above.
            let _ = unsafe { libc::close(fd) };
        }
    }
    // SAFETY: dup2 has just made both, and nobody else in this process owns them.
    Ok(unsafe { (OwnedFd::from_raw_fd(APP_FD), OwnedFd::from_raw_fd(SOURCE_FD)) })
}

struct Keeper {
    server: ExitServer,
    app: AppSocket,
    /// vmaudit receives the notifications itself.
    stands_by: bool,
}

impl Keeper {
    fn run(mut self, slots: &mut SharedSlots) -> Result<(), Errno> {
        // That it is only to stand by was said before there was a listener. Then vmaudit receives, and
        // what is in a slot by now is not left behind: it is being looked at.
        self.hear_app(slots);
        let first = *slots.slot(0);
        if !self.stands_by && first.id != 0 && self.server.is_unknown_and_held(first.id) {
            // The predecessor was killed between receiving this one and acting on it.
            let served = self.server.judge(&first);
            self.act(served);
        }
        loop {
            let (from_listener, from_app) = self.wait()?;
            if from_app.intersects(PollFlags::POLLIN | PollFlags::POLLHUP | PollFlags::POLLERR) {
                self.hear_app(slots);
            }
            if from_app.contains(PollFlags::POLLOUT) {
                self.send_waiting();
            }
            if from_listener.contains(PollFlags::POLLIN) && !self.stands_by {
                let served = self.server.serve(slots.slot(0));
                self.act(served);
            } else if from_listener.contains(PollFlags::POLLHUP) {
                // No task has the filter any more.
                return Ok(());
            }
        }
    }

    fn wait(&self) -> Result<(PollFlags, PollFlags), Errno> {
        let output = if self.app.has_unsent() { PollFlags::POLLOUT } else { PollFlags::empty() };
        let input = if self.stands_by { PollFlags::empty() } else { PollFlags::POLLIN };
        let listener = PollFd::new(self.server.listener().as_fd(), input);
        let app = self.app.fd().map(|app| PollFd::new(app, PollFlags::POLLIN | output));
        let mut fds: Vec<PollFd<'_>> = std::iter::once(listener).chain(app).collect();
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
        let got = |index: usize| fds.get(index).and_then(PollFd::revents).unwrap_or(PollFlags::empty());
        Ok((got(0), got(1)))
    }

    fn act(&mut self, served: Result<Served, Errno>) {
        match served {
            Ok(Served::Final(notice)) if self.app.is_open() => {
                self.app.push(notice);
                self.send_waiting();
            }
            Ok(Served::AlsoEnding(_)) if self.app.is_open() => {}
            Ok(Served::Final(notice) | Served::AlsoEnding(notice)) => self.let_go(notice.id),
            // Nothing that waiting could mend; the next notification may fare better.
            Ok(Served::Done) | Err(_) => {}
        }
    }

    fn hear_app(&mut self, slots: &mut SharedSlots) {
        let stood_by = self.stands_by;
        self.hear();
        if stood_by && !self.stands_by || !self.app.is_open() {
            self.take_over(slots);
        }
    }

    /// What vmaudit had received goes on. Processes at their end, too: nobody is there to look.
    fn take_over(&mut self, slots: &mut SharedSlots) {
        for index in 0..SLOTS {
            let id = std::mem::take(&mut slots.slot(index).id);
            if id != 0 {
                self.let_go(id);
            }
        }
    }

    fn let_go(&mut self, id: u64) {
        let _ = self.server.listener().let_continue(id);
        self.server.answered(id);
    }

    fn send_waiting(&mut self) {
        if !self.app.send_waiting() {
            self.app_is_gone();
        }
    }

    fn hear(&mut self) {
        loop {
            match self.app.hear() {
                Heard::Message(Message::Answered { id }) => self.server.answered(id),
                Heard::Message(Message::StandBy) => self.stands_by = true,
                Heard::Message(Message::Serve) => self.stands_by = false,
                Heard::Message(Message::Held(_)) => {}
                Heard::Silence => return,
                Heard::Gone => return self.app_is_gone(),
            }
        }
    }

    fn app_is_gone(&mut self) {
        self.stands_by = false;
        for id in self.server.ending() {
            self.let_go(id);
        }
    }
}

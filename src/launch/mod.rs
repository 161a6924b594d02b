//! Starting the command and holding it at its end.
//!
//! [`Launch::prepare`] forks a process that waits; tracing is attached by its pid; [`Prepared::go`] lets it
//! become the command. [`Running::poll`] then reports when one of the target's processes is held at its exit,
//! address space and all, and when the command has ended. The state of a held process is read elsewhere.
//!
//! ```text
//!   target ──exit_group──▶ kernel ──notification──▶ keeper ──HeldExit──▶ vmaudit
//!      ▲                                               │                    │
//!      └────────────────── CONTINUE ◀──────────────────┴────────────────────┘
//! ```
//!
//! A limit of the mechanism: until the keeper has received it, a notified call is interruptible.
//! If just then (some microseconds) a handler without SA_RESTART runs, exit_group fails with
//! EINTR, as it never does untraced, and libc goes on with `exit` of the one thread.
//!
//! The keeper answers for threads that exit from a living process, and for everything when
//! vmaudit is gone; the guard takes its place when both are. ptrace is not used; nothing is ever stopped but at its own exit.
//!
//! Where calls are watched ([`Prepared::watch_calls`]), vmaudit receives the notifications itself
//! ([`CallServer`]), and the keeper is only the fallback.
//!
//! Processes that ran already ([`Process::find`], [`Attached`]) are only watched, and never held.

mod arch;
mod attached;
mod child;
mod command;
mod error;
mod exit_code;
mod find;
mod fork;
mod hold;
mod job_control;
mod running;
pub mod secure;
mod signals;
mod start;
mod supervisor;
mod user;

pub use attached::{Attached, AttachedEvent};
pub use error::{LaunchError, LaunchNote, NoHold, TargetError};
pub use exit_code::ExitStatus;
pub use find::{FindError, Process};
pub use hold::calls::CallServer;
pub use hold::filter::CallSet;
pub use hold::trial::{HoldStep, NotHeld, NotificationTrial};
pub use hold::{ExitKind, HeldExit};
pub use running::{Running, TargetEvent};
pub use signals::{Signals, survive_file_limit};
pub use start::{Launch, LaunchConfig, Prepared, program_file};
pub use supervisor::{Left, Supervisor, Waited};
pub use user::{SudoError, behind_sudo};

use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use std::os::fd::BorrowedFd;

/// Has `epoll` say when the descriptor is readable.
fn watch(epoll: &Epoll, fd: BorrowedFd<'_>, which: u64) -> Result<(), TargetError> {
    let event = EpollEvent::new(EpollFlags::EPOLLIN, which);
    epoll.add(fd, event).map_err(TargetError::at("epoll_ctl"))
}

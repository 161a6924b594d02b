//! Starting the command and holding it at its end.
//!
//! [`Launch::prepare`] forks a process that waits; whoever wants to trace it arranges that by
//! its pid; [`Prepared::go`] lets it become the command. [`Running::poll`] then tells when one of
//! the target's processes is held at its exit, address space and all, and when the command has
//! ended. What a held process looks like is read elsewhere.
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
//! ([`CallServer`]), and the keeper only stands by.
//!
//! Processes that ran already ([`Process::find`], [`Attached`]) are only watched, and never held.

mod app_socket;
mod arch;
mod arrange;
mod attached;
mod calls;
mod child;
mod command;
mod error;
mod exit_code;
mod exit_server;
mod filter;
mod find;
mod fork;
mod guard;
mod handover;
mod helper;
mod hold;
mod job_control;
mod keeper;
mod last_thread;
mod launch;
mod protocol;
mod running;
mod seccomp;
pub mod secure;
mod signals;
mod slots;
mod supervisor;
mod task_names;
mod trial;
mod user;

pub use attached::{Attached, AttachedEvent};
pub use calls::CallServer;
pub use error::{LaunchError, LaunchNote, NoHold, TargetError};
pub use exit_code::ExitStatus;
pub use filter::CallSet;
pub use find::{FindError, Process};
pub use hold::{ExitKind, HeldExit};
pub use launch::{Launch, LaunchConfig, Prepared};
pub use running::{Running, TargetEvent};
pub use signals::{Requests, survive_file_limit};
pub use supervisor::{Supervisor, Waited};
pub use trial::NotificationTrial;
pub use user::{SudoError, behind_sudo};

//! System calls that wait for leave to go on: what hands them out and what watches them agree on
//! this.

use super::event::{Pid, Tid};
use std::io;
use std::time::Duration;

/// A notified call: its thread waits in it until [`HeldCalls::go_on`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeldCall {
    /// Never the same for two calls.
    pub id: u64,
    pub tid: Tid,
    /// The number of the system call on this architecture.
    pub nr: i64,
    /// The number that it was made by, which differs where a 32-bit program makes it.
    pub entry: i64,
    pub is_32_bit: bool,
    pub args: [u64; 6],
    /// The instruction after the system call.
    pub ip: u64,
}

/// What was waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrival {
    Call(HeldCall),
    /// The other descriptor can be read.
    Other,
    Nothing,
    /// No task is left whose calls are notified.
    NoTaskLeft,
}

/// What a call to exit or exit_group came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// A thread of a process that goes on; it was continued.
    Thread,
    /// The process is held at its end until another process answers.
    Process(Pid),
}

/// A source of held calls.
pub trait HeldCalls: Send {
    /// The next call. Waits at most `timeout`, or until the descriptor `other` can be read.
    ///
    /// # Errors
    /// When the source itself fails.
    fn next(&mut self, other: i32, timeout: Duration) -> io::Result<Arrival>;

    /// Lets the call go on. False: its task is gone.
    fn go_on(&mut self, id: u64) -> bool;

    /// The task waits in the call: what was read by its number was its own.
    fn is_held(&self, id: u64) -> bool;

    /// The task of a call that was continued has woken up: it is in the call, or past it, or gone.
    fn has_begun(&self, id: u64) -> bool;

    /// Deals with exit and exit_group.
    fn end(&mut self, call: &HeldCall) -> Ended;
}

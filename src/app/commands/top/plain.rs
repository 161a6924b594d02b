//! Without a trace: everything is read from /proc.

use super::front::{Front, Source, Traced, Woken};
use super::inside;
use super::screen::{self, TerminalState};
use crate::app::error::AppError;
use crate::launch::{Attached, AttachedEvent};
use crate::report::Report;
use crate::sys::poll;
use crate::top::ProcessId;
use std::os::fd::AsFd;
use std::time::Instant;

pub fn run(front: Front) -> Result<u8, AppError> {
    // Without targets: it receives the signals that stop vmaudit.
    front.run(&mut Snapshots { signals: Attached::new(Vec::new())? })
}

struct Snapshots {
    signals: Attached,
}

impl Source for Snapshots {
    fn wait(&mut self, until: Instant, keys: bool) -> Result<Woken, AppError> {
        let left = until.saturating_duration_since(Instant::now());
        let (signals, terminal) = (self.signals.as_fd(), std::io::stdin());
        let both = [signals, terminal.as_fd()];
        poll::wait(if keys { &both } else { &both[..1] }, Some(left));
        if let Some(AttachedEvent::Interrupt(_)) = self.signals.poll()? {
            return Ok(Woken::Stop);
        }
        // A signal may have ended the wait: that of a new size.
        Ok(match if keys { screen::state_of_terminal() } else { TerminalState::Nothing } {
            TerminalState::Keys => Woken::Keys,
            TerminalState::Gone => Woken::Stop,
            TerminalState::Nothing => Woken::Time,
        })
    }

    fn snapshot(&mut self, id: ProcessId) -> Result<Report, String> {
        inside::snapshot(id)
    }

    fn newest(&mut self) -> Option<Traced> {
        None
    }
}

//! Without a trace: everything is read from /proc.

use super::front::{Front, Source, Traced, Woken};
use super::inside;
use super::screen::{self, Heard};
use crate::app::error::AppError;
use crate::report::Report;
use crate::target::{Attached, AttachedEvent};
use crate::top::ProcessId;
use std::os::fd::AsRawFd;
use std::time::Instant;

pub fn run(front: Front) -> Result<u8, AppError> {
    // Of nobody: it hears the signals that ask vmaudit to stop.
    front.run(&mut Snapshots { signals: Attached::new(Vec::new())? })
}

struct Snapshots {
    signals: Attached,
}

impl Source for Snapshots {
    fn wait(&mut self, until: Instant, keys: bool) -> Result<Woken, AppError> {
        let left = until.saturating_duration_since(Instant::now());
        // rounded up: a rest of less than a millisecond must not become a busy loop
        let millis = i32::try_from(left.as_micros().div_ceil(1000)).unwrap_or(i32::MAX);
        let ready = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut ready =
            [ready(self.signals.as_fd().as_raw_fd()), ready(if keys { libc::STDIN_FILENO } else { -1 })];
        // SAFETY: an array of valid pollfds with its length; a negative descriptor is skipped.
        unsafe { libc::poll(ready.as_mut_ptr(), ready.len() as libc::nfds_t, millis) };
        if let Some(AttachedEvent::Interrupt(_)) = self.signals.poll()? {
            return Ok(Woken::Stop);
        }
        // A signal may have ended the wait: that of a new size.
        Ok(match if keys { screen::heard() } else { Heard::Nothing } {
            Heard::Keys => Woken::Keys,
            Heard::Gone => Woken::Stop,
            Heard::Nothing => Woken::Time,
        })
    }

    fn look(&mut self, id: ProcessId) -> Result<Report, String> {
        inside::look(id)
    }

    fn newest(&mut self) -> Option<Traced> {
        None
    }
}

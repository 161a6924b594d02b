//! What this user may do on this machine: each thing is tried, none is guessed from version numbers.
//!
//! Whatever could change this process is tried in a forked child; what a trial opens is closed
//! again before it returns. To be called while vmaudit has one thread.

mod bpf;
mod child;
mod engines;
mod perf;
mod privileges;
mod reading;
mod starting;
mod tracefs;

pub use child::Quiet;
pub use privileges::privileges;

use crate::model::{Outcome, Trial, TrialArea};
use crate::rights::{Use, with_lent};
use nix::errno::Errno;
use std::io;

/// Every trial of this module, in the order in which they are printed.
pub fn all() -> Vec<Trial> {
    let mut trials = with_lent(Use::Tracing, bpf::trials);
    trials.extend(perf::trials());
    trials.extend(reading::trials());
    trials.extend(starting::trials());
    trials.extend(engines::trials());
    trials
}

/// A trial's name and purpose; [`Subject::came_out`] completes it.
struct Subject {
    area: TrialArea,
    id: &'static str,
    what: &'static str,
    without: &'static str,
}

/// Why something did not work.
enum Failure {
    Errno(Errno),
    Absent(String),
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Failure {
        Failure::Errno(errno)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        match error.raw_os_error() {
            Some(errno) => Failure::Errno(Errno::from_raw(errno)),
            None => Failure::Absent(error.to_string()),
        }
    }
}

impl Subject {
    /// `result`: what was found, or the reason for the failure.
    fn came_out(self, result: Result<String, Failure>) -> Trial {
        let Subject { area, id, what, without } = self;
        let (outcome, detail) = match result {
            Ok(detail) => (Outcome::Works, detail),
            Err(Failure::Absent(why)) => (Outcome::Absent(why), String::new()),
            Err(Failure::Errno(errno)) => {
                (Outcome::Refused { errno: errno as i32, name: format!("{errno:?}") }, String::new())
            }
        };
        Trial { area, id, what, outcome, detail, without }
    }

    /// A setting.
    fn reads(self, value: Result<String, Failure>) -> Trial {
        match value {
            Ok(value) => Trial { outcome: Outcome::Value(value), ..self.came_out(Ok(String::new())) },
            Err(failure) => self.came_out(Err(failure)),
        }
    }
}

//! While a report is made: a request to stop does not end vmaudit and lose what was gathered. A second one
//! does.

use super::say::say;
use crate::launch::Signals;

/// From here to the end of vmaudit.
pub fn begin(requests: Signals) {
    let serve = move || {
        let Ok(signal) = requests.wait() else { return };
        say(format_args!("{signal}: the report is being made (again: end without it)"));
        let Ok(signal) = requests.wait() else { return };
        say(format_args!("{signal}: ended without a report"));
        // Nothing is to be put in order: a report's file has its name when it is complete.
        // SAFETY: _exit has no preconditions.
        unsafe { libc::_exit(128 + signal as i32) }
    };
    // Without a thread requests are as before: the first one ends vmaudit.
    let _ = std::thread::Builder::new().name("requests".to_owned()).spawn(serve);
}

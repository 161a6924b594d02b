//! `--load`: a script that drives the command while it is audited. It is not traced.

use super::error::SessionError;
use super::say::say;
use crate::launch::Running;
use std::ffi::OsStr;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Stdio};

/// The running script. Dropped before its end, it is killed: there is nothing to drive any more.
pub struct Load {
    child: Child,
    ended: bool,
}

impl Load {
    pub fn start(running: &Running, script: &OsStr, as_root: bool) -> Result<Load, SessionError> {
        let child = running.shell(script, as_root)?.stdin(Stdio::null()).spawn();
        let child =
            child.map_err(|source| SessionError::System { operation: "starting the load", source })?;
        Ok(Load { child, ended: false })
    }

    /// Its exit code, once it has ended (128 + n after signal n); a failure is said.
    pub fn ended(&mut self) -> Result<Option<u8>, SessionError> {
        let status = self.child.try_wait();
        let status =
            status.map_err(|source| SessionError::System { operation: "waiting for the load", source })?;
        let Some(status) = status else { return Ok(None) };
        self.ended = true;
        if !status.success() {
            say(format_args!("the load failed: {status}"));
        }
        let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
        Ok(Some(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)))
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        if !self.ended {
            say("the command ended before its load: the load is killed");
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

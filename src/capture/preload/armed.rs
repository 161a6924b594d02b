//! Processes that were started with the library and sleep: nothing is counted until they are woken.

use super::layout::{ARMED, CONTROL_NAME, Control, EXAMINES, Head, MODE_OFF, SOCKET_NAME};
use super::library::{BYTES, PREFIX, file_name};
use crate::model::path::base_name_bytes;
use crate::model::{Mapping, Pid};
use crate::sys::memory;
use goblin::elf::Elf;
use nix::errno::Errno;
use std::mem::offset_of;

/// A process with the library in it.
pub struct Armed {
    pub pid: Pid,
    /// Where its [`Control`] is.
    control: u64,
}

/// What a process has of it.
pub enum Found {
    Armed(Armed),
    /// That of another version.
    Other,
    Nothing,
}

impl Armed {
    /// By what the process has mapped.
    ///
    /// # Errors
    /// When its memory may not be read.
    pub fn find(pid: Pid, maps: &[Mapping]) -> Result<Found, Errno> {
        let own = file_name();
        let first = maps.iter().find(|map| map.offset == 0 && base_name_bytes(&map.name) == own.as_bytes());
        let Some(base) = first.map(|map| map.range.start.0) else {
            let other = maps.iter().any(|map| base_name_bytes(&map.name).starts_with(PREFIX.as_bytes()));
            return Ok(if other { Found::Other } else { Found::Nothing });
        };
        let Some(offset) = control_offset() else { return Ok(Found::Nothing) };
        let control = word(pid, base + offset)?;
        Ok(match word(pid, control)? == ARMED {
            true => Found::Armed(Armed { pid, control }),
            false => Found::Other,
        })
    }

    /// One that counts for a vmaudit that was killed does so no more.
    ///
    /// # Errors
    /// As [`Armed::wake`].
    pub fn stop(&self) -> Result<(), Errno> {
        match word(self.pid, self.control + offset_of!(Control, area) as u64)? {
            0 => Ok(()),
            area => memory::write(self.pid, area + offset_of!(Head, mode) as u64, &MODE_OFF.to_ne_bytes()),
        }
    }

    /// Its next call goes to the listener. To be called again until it is there: one that was stopped falls asleep
    /// at the end of a call of its own.
    ///
    /// # Errors
    /// EPERM, ESRCH: process_vm_writev(2).
    pub fn wake(&self, listener: &str) -> Result<(), Errno> {
        let mut name = [0; SOCKET_NAME];
        let text = listener.as_bytes();
        let to = name.get_mut(..text.len()).filter(|_| text.len() < SOCKET_NAME);
        to.ok_or(Errno::ENAMETOOLONG)?.copy_from_slice(text);
        memory::write(self.pid, self.control + offset_of!(Control, socket) as u64, &name)?;
        memory::write(self.pid, self.control + offset_of!(Control, awake) as u64, &[EXAMINES])
    }

    /// vmaudit does not listen any more, and it has not connected: it goes on sleeping.
    pub fn leave(&self) {
        let socket = self.control + offset_of!(Control, socket) as u64;
        // It may have ended.
        let _ = memory::write(self.pid, socket, &[0; SOCKET_NAME]);
    }
}

fn word(pid: Pid, at: u64) -> Result<u64, Errno> {
    let mut word = [0; 8];
    memory::read(pid, at, &mut word)?;
    Ok(u64::from_ne_bytes(word))
}

/// From where the library is loaded.
fn control_offset() -> Option<u64> {
    let elf = Elf::parse(BYTES).ok()?;
    let found = elf.dynsyms.iter().find(|symbol| elf.dynstrtab.get_at(symbol.st_name) == Some(CONTROL_NAME));
    found.map(|symbol| symbol.st_value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_control_is_found_by_its_name() {
        if BYTES.is_empty() {
            return;
        }
        assert!(control_offset().is_some_and(|at| at > 0 && at % 8 == 0));
    }

    #[test]
    fn who_has_no_library_has_none() {
        let own = Armed::find(std::process::id() as i32, &[]).expect("nothing to read");
        assert!(matches!(own, Found::Nothing));
    }
}

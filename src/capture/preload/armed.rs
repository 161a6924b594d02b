//! Processes that were started with the library and sleep: nothing is counted until they are woken.

use super::layout::{ARMED, CONTROL_NAME, Control, EXAMINES, Head, MODE_OFF, waker};
use super::library::{BYTES, PREFIX, file_name};
use crate::model::path::base_name_bytes;
use crate::model::{Mapping, Pid};
use crate::sys::{memory, pidfd, stat};
use goblin::elf::Elf;
use nix::errno::Errno;
use std::mem::offset_of;
use std::os::fd::{AsFd, OwnedFd, RawFd};

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
    /// A process whose library is where its parent's was.
    pub fn forked(pid: Pid, control: u64) -> Armed {
        Armed { pid, control }
    }

    /// Where the library's [`Control`] is in the process.
    pub fn control(&self) -> u64 {
        self.control
    }

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
    /// The number of the vmaudit's process that counts there; process_vm_readv(2) or process_vm_writev(2).
    pub fn stop(&self) -> Result<(), Unwilling> {
        let area = self.word(offset_of!(Control, area))?;
        let whom = self.word(offset_of!(Control, counts_for))?;
        if area == 0 || whom == 0 {
            return Ok(());
        }
        if is_alive(whom) {
            return Err(Unwilling::CountsFor((whom >> 32) as Pid));
        }
        let mode = area.wrapping_add(offset_of!(Head, mode) as u64);
        Ok(memory::write(self.pid, mode, &MODE_OFF.to_ne_bytes())?)
    }

    /// Its next call begins to count for this vmaudit. To be called again until it does: one that was stopped falls asleep
    /// at the end of a call of its own. The connection that it offers; None: none so far.
    ///
    /// # Errors
    /// The number of the vmaudit's process that it counts for instead; EPERM, ESRCH: process_vm_writev(2), pidfd_getfd(2).
    pub fn wake(&self) -> Result<Option<OwnedFd>, Unwilling> {
        let own = own_number();
        match self.word(offset_of!(Control, offered))? {
            0 => {}
            whom if whom == own => {
                let taken = self.take(own)?;
                self.leave();
                return Ok(taken);
            }
            whom => return Err(Unwilling::CountsFor((whom >> 32) as Pid)),
        }
        match self.word(offset_of!(Control, request))? {
            whom if whom == own => {}
            whom if whom != 0 && is_alive(whom) => return Err(Unwilling::CountsFor((whom >> 32) as Pid)),
            _ => self.write(offset_of!(Control, request), &own.to_ne_bytes())?,
        }
        self.write(offset_of!(Control, awake), &[EXAMINES])?;
        Ok(None)
    }

    /// The connection that is offered under a number; None where it is another one.
    ///
    /// # Errors
    /// As [`Armed::wake`].
    pub fn take(&self, number: u64) -> Result<Option<OwnedFd>, Errno> {
        let pidfd = pidfd::open(self.pid)?;
        if self.word(offset_of!(Control, offered))? != number {
            return Ok(None);
        }
        let descriptor = self.word(offset_of!(Control, descriptor))? as u32 as RawFd;
        pidfd::take(pidfd.as_fd(), descriptor).map(Some)
    }

    /// What is requested of it is so no more: it begins, or goes on sleeping.
    pub fn leave(&self) {
        if self.word(offset_of!(Control, request)) == Ok(own_number()) {
            // It may have ended.
            let _ = self.write(offset_of!(Control, request), &[0; 8]);
        }
    }

    fn word(&self, field: usize) -> Result<u64, Errno> {
        word(self.pid, self.control + field as u64)
    }

    fn write(&self, field: usize, bytes: &[u8]) -> Result<(), Errno> {
        memory::write(self.pid, self.control + field as u64, bytes)
    }
}

/// Why a process does not begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unwilling {
    /// It counts for another vmaudit, which is this process.
    CountsFor(Pid),
    Refused(Errno),
}

impl From<Errno> for Unwilling {
    fn from(errno: Errno) -> Unwilling {
        Unwilling::Refused(errno)
    }
}

fn number_of(pid: Pid) -> Option<u64> {
    const START_TIME: usize = 22;
    let began: u64 = stat::of(pid, |stat| stat.field(START_TIME))?;
    Some(waker(pid as u32, began))
}

fn own_number() -> u64 {
    let pid = std::process::id();
    number_of(pid as Pid).unwrap_or_else(|| waker(pid, 0))
}

fn is_alive(whom: u64) -> bool {
    number_of((whom >> 32) as Pid) == Some(whom)
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

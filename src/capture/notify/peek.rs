//! Inspects a thread that waits in a call, and its address space: through /proc, without ptrace and without
//! stopping anything.

use super::shadow::ShadowVma;
use crate::model::{AddrRange, Mapping, MappingFile, Pid, Sharing, Tid};
use crate::sys::procmap_query::{self, COVERING_OR_NEXT_VMA, VMA_SHARED, procmap_query};
use crate::sys::stat::{self, Stat};
use crate::sys::{file, memory, task};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

/// More mappings than these are read at once.
const FEW: usize = 64;

/// Turns the bytes of a maps file into mappings.
pub type ParseMaps = fn(&[u8]) -> Vec<Mapping>;

/// A VMA as the kernel shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Vma {
    pub area: ShadowVma,
    pub offset: u64,
    pub file: Option<MappingFile>,
    pub is_shared: bool,
    /// As in maps.
    pub name: Vec<u8>,
}

impl Vma {
    /// The page at `address` is as in `other`: the same of the same file, with the same rights.
    pub fn shows_the_same(&self, other: &Vma, address: u64) -> bool {
        let page = |vma: &Vma| {
            let offset = vma.file.map(|_| vma.offset.wrapping_add(address.wrapping_sub(vma.area.start)));
            (vma.area.access, vma.is_shared, vma.file, offset)
        };
        page(self) == page(other)
    }
}

impl From<Mapping> for Vma {
    fn from(mapping: Mapping) -> Vma {
        Vma {
            area: ShadowVma::of(&mapping),
            offset: mapping.offset,
            file: mapping.file,
            is_shared: mapping.sharing == Sharing::Shared,
            name: mapping.name,
        }
    }
}

/// The address space is gone: its last user has ended or executed another program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gone;

/// An open maps file. It stays with the address space that it was opened on, whatever the process
/// executes later (proc_maps_open, fs/proc/task_mmu.c).
pub struct Maps {
    file: File,
    parse: ParseMaps,
    /// False before 6.11.
    has_query: bool,
}

impl Maps {
    /// # Errors
    /// When the task is gone or must not be examined.
    pub fn open(tid: Tid, parse: ParseMaps) -> io::Result<Maps> {
        Ok(Maps { file: file::open_to_keep(format!("/proc/{tid}/maps"))?, parse, has_query: true })
    }

    /// As [`Maps::open`], for a moment, or in place of one that is about to be closed.
    ///
    /// # Errors
    /// The same.
    pub fn open_briefly(tid: Tid, parse: ParseMaps) -> io::Result<Maps> {
        Ok(Maps { file: file::open(format!("/proc/{tid}/maps"))?, parse, has_query: true })
    }

    /// All of it but what is not the program's doing (`is_probes`).
    pub fn read(&self) -> Result<Vec<Mapping>, Gone> {
        let mut bytes = Vec::new();
        let mut at = 0;
        loop {
            let len = bytes.len();
            bytes.resize(len + (64 << 10), 0);
            match self.file.read_at(&mut bytes[len..], at) {
                Ok(0) | Err(_) => {
                    bytes.truncate(len);
                    break;
                }
                Ok(n) => {
                    bytes.truncate(len + n);
                    at += n as u64;
                }
            }
        }
        let mut mappings = (self.parse)(&bytes);
        if mappings.is_empty() {
            return Err(Gone);
        }
        mappings.retain(|mapping| !is_probes(&mapping.name));
        Ok(mappings)
    }

    /// The VMA that holds `address`, or the next one above it.
    pub fn from(&mut self, address: u64) -> Result<Option<Vma>, Gone> {
        if self.has_query {
            let mut name = [0u8; 4096];
            match procmap_query(&self.file, address, COVERING_OR_NEXT_VMA, &mut name) {
                Ok(found) => return Ok(Some(described(&found, &name))),
                Err(nix::errno::Errno::ENOENT) => return Ok(None),
                Err(nix::errno::Errno::ESRCH) => return Err(Gone),
                Err(nix::errno::Errno::ENOTTY | nix::errno::Errno::EINVAL) => self.has_query = false,
                // A name too long for the buffer: maps has it whole.
                Err(_) => {}
            }
        }
        let found = self.read()?.into_iter().find(|mapping| mapping.range.end.0 > address);
        Ok(found.map(Vma::from))
    }

    /// What is mapped in the range, cut to it.
    pub fn areas(&mut self, range: AddrRange) -> Result<Vec<ShadowVma>, Gone> {
        let cut = |vma: Vma| ShadowVma {
            start: vma.area.start.max(range.start.0),
            end: vma.area.end.min(range.end.0),
            ..vma.area
        };
        Ok(self.vmas(range)?.into_iter().map(cut).collect())
    }

    /// The VMAs of which something is in the range, not cut.
    pub fn vmas(&mut self, range: AddrRange) -> Result<Vec<Vma>, Gone> {
        let mut vmas = Vec::new();
        let mut at = range.start.0;
        while self.has_query && vmas.len() < FEW {
            match self.from(at)? {
                Some(vma) if vma.area.start < range.end.0 => {
                    at = vma.area.end;
                    vmas.push(vma);
                }
                _ => return Ok(vmas),
            }
        }
        let inside = |m: &Mapping| m.range.start.0 < range.end.0 && m.range.end.0 > range.start.0;
        Ok(self.read()?.into_iter().filter(inside).map(Vma::from).collect())
    }

    /// The VMA that holds `address`.
    pub fn at(&mut self, address: u64) -> Result<Option<Vma>, Gone> {
        Ok(self.from(address)?.filter(|vma| vma.area.start <= address))
    }
}

/// Where others probe the program, a page comes into being at the first hit, in the middle of any call or of
/// none, and no child inherits it (xol_add_vma, kernel/events/uprobes.c; `[uprobes-trampoline]` is of the
/// architecture's). The report gets it from the snapshot.
fn is_probes(name: &[u8]) -> bool {
    name.starts_with(b"[uprobes")
}

fn described(found: &procmap_query::Vma, name: &[u8]) -> Vma {
    let (major, minor) = (found.dev_major, found.dev_minor);
    let file = MappingFile { major, minor, inode: found.inode };
    let has_file = found.inode != 0 || major != 0 || minor != 0;
    Vma {
        area: ShadowVma { start: found.start, end: found.end, access: found.flags & super::shadow::ACCESS },
        offset: found.offset,
        file: has_file.then_some(file),
        is_shared: found.flags & VMA_SHARED != 0,
        name: name[..found.name_len].to_vec(),
    }
}

/// Where a thread is, from /proc/TID/syscall (proc_pid_syscall, fs/proc/base.c).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    Running,
    Blocked { nr: i64, first_args: [u64; 2], sp: u64 },
    Gone,
}

/// The files that are read of one thread again and again.
pub struct Thread {
    tid: Tid,
    /// None where too many files are open to keep it.
    syscall: Option<File>,
    comm: Option<File>,
}

impl Thread {
    pub fn open(tid: Tid) -> Thread {
        let kept = |name| {
            file::open(format!("/proc/{tid}/{name}")).ok().filter(|file| file::may_be_kept(file.as_raw_fd()))
        };
        Thread { tid, syscall: kept("syscall"), comm: kept("comm") }
    }

    /// Reads the beginning of a file that is kept open, or else is opened now.
    fn read(&self, kept: Option<&File>, name: &str, into: &mut [u8]) -> io::Result<usize> {
        match kept {
            Some(file) => file.read_at(into, 0),
            None => file::open(format!("/proc/{}/{name}", self.tid))?.read_at(into, 0),
        }
    }

    pub fn place(&self) -> Place {
        let mut line = [0; 256];
        let read = self.read(self.syscall.as_ref(), "syscall", &mut line);
        let Ok(len) = read else { return Place::Gone };
        parse_place(&line[..len]).unwrap_or(Place::Gone)
    }

    /// At most 15 bytes.
    pub fn comm(&self) -> Option<Vec<u8>> {
        let mut name = [0; 64];
        let len = self.read(self.comm.as_ref(), "comm", &mut name).ok()?;
        let name = &name[..len];
        Some(name.strip_suffix(b"\n").unwrap_or(name).to_vec())
    }
}

/// `running`, `-1 SP PC`, or `NR ARG0 … ARG5 SP PC`.
fn parse_place(line: &[u8]) -> Option<Place> {
    let text = std::str::from_utf8(line).ok()?.trim_ascii();
    if text == "running" {
        return Some(Place::Running);
    }
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    let hex = |index: usize| {
        let word: &&str = words.get(index)?;
        u64::from_str_radix(word.strip_prefix("0x")?, 16).ok()
    };
    let nr = words.first()?.parse().ok()?;
    let first_args = [hex(1).unwrap_or(0), hex(2).unwrap_or(0)];
    Some(Place::Blocked { nr, first_args, sp: hex(words.len().checked_sub(2)?)? })
}

/// Reads the target's memory; how many bytes were there.
pub fn read_memory(tid: Tid, address: u64, into: &mut [u8]) -> usize {
    match memory::read(tid, address, into) {
        Ok(count) if count > 0 => count,
        _ => memory::read_through_file(tid, address, into).unwrap_or(0),
    }
}

/// So much below its stack pointer a thread does not write before it has returned.
const BELOW: u64 = 256;

/// What lies below a thread's stack pointer: it changes when the thread goes on, and calls functions. Empty where
/// nothing is mapped.
pub fn below_stack(tid: Tid, sp: u64) -> Vec<u8> {
    let mut bytes = vec![0; BELOW as usize];
    let read = memory::read(tid, sp.wrapping_sub(BELOW), &mut bytes).unwrap_or(0);
    if read == bytes.len() { bytes } else { Vec::new() }
}

/// How many pages are mapped, by the kernel's own count, in the address space of a thread.
pub fn total_vm(tid: Tid) -> Option<u64> {
    let text = text(format!("/proc/{tid}/statm")).ok()?;
    text.split_ascii_whitespace().next()?.parse().ok()
}

/// The inode of what a descriptor of a thread refers to.
pub fn inode_of(tid: Tid, descriptor: i32) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    Some(std::fs::metadata(format!("/proc/{tid}/fd/{descriptor}")).ok()?.ino())
}

fn text(path: String) -> io::Result<String> {
    String::from_utf8(file::read(path)?).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// `Tgid` and `PPid` of a thread.
pub fn family(tid: Tid) -> Option<(Pid, Pid)> {
    let status = file::read(format!("/proc/{tid}/status")).ok()?;
    let field = |name: &[u8]| -> Option<Pid> {
        let line = status.split(|&b| b == b'\n').find_map(|line| line.strip_prefix(name))?;
        std::str::from_utf8(line).ok()?.trim().parse().ok()
    };
    Some((field(b"Tgid:")?, field(b"PPid:")?))
}

/// The processes that a thread started and that it has not waited for. None where the kernel does not list
/// them (CONFIG_PROC_CHILDREN).
pub fn children(pid: Pid, tid: Tid) -> Option<Vec<Pid>> {
    let text = text(format!("/proc/{pid}/task/{tid}/children")).ok()?;
    Some(text.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect())
}

/// The start of the heap and of the stack.
pub fn layout(pid: Pid) -> Option<(u64, u64)> {
    stat::of(pid, |stat| Some((stat.field(stat::START_BRK)?, stat.field(stat::START_STACK)?)))
}

/// How often the thread has left a processor of its own accord, if it sleeps: in state S or D of
/// /proc/TID/status, not stopped and not about to run.
pub fn sleeping(tid: Tid) -> Option<u64> {
    let status = text(format!("/proc/{tid}/status")).ok()?;
    sleeps(&status)
}

fn sleeps(status: &str) -> Option<u64> {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    if !matches!(field("State:")?.bytes().next(), Some(b'S' | b'D')) {
        return None;
    }
    field("voluntary_ctxt_switches:")?.parse().ok()
}

/// It has ended and was not waited for.
pub fn is_zombie(pid: Pid) -> bool {
    stat::of(pid, |stat| Some(stat.has_ended())) == Some(true)
}

/// All of its threads have ended; whether it was waited for does not matter. To be asked where there is no pidfd.
pub fn has_ended(pid: Pid) -> bool {
    let is_last = |stat: Stat<'_>| Some(stat.has_ended() && stat.field::<u64>(stat::THREADS)? <= 1);
    !task::belongs(pid, pid) || stat::of(pid, is_last) == Some(true)
}

/// Nanoseconds that a thread has run: /proc/TID/schedstat, or, where the kernel keeps none, the ticks of
/// /proc/TID/stat (of 10 ms).
pub fn processor_time(tid: Tid) -> Option<u64> {
    const TICK: u64 = 10_000_000;
    if let Ok(text) = text(format!("/proc/{tid}/schedstat")) {
        return text.split_ascii_whitespace().next()?.parse().ok();
    }
    let ticks =
        |stat: Stat<'_>| Some(stat.field::<u64>(stat::USER_TIME)? + stat.field::<u64>(stat::SYSTEM_TIME)?);
    Some(stat::of(tid, ticks)? * TICK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_its_own_memory_and_maps() {
        let value = 0x1234_5678_9abc_def0_u64;
        let mut bytes = [0; 8];
        let own = std::process::id() as Tid;
        assert_eq!(read_memory(own, (&raw const value) as u64, &mut bytes), 8);
        assert_eq!(u64::from_ne_bytes(bytes), value);
        assert_eq!(read_memory(own, 8, &mut bytes), 0);
        assert!(layout(own).is_some_and(|(brk, stack)| brk != 0 && stack > (&raw const value) as u64 >> 20));
        assert_eq!(family(own).map(|(pid, _)| pid), Some(own));
    }

    #[test]
    fn pages_of_probes_are_left_out() {
        assert!(is_probes(b"[uprobes]") && is_probes(b"[uprobes-trampoline]"));
        assert!(!is_probes(b"[stack]") && !is_probes(b""));
    }

    #[test]
    fn a_sleeping_thread_is_distinguished_from_one_that_is_not_scheduled() {
        let status = |state: &str| {
            format!(
                "Name:\tx\nState:\t{state}\nTgid:\t7\nvoluntary_ctxt_switches:\t12\nnonvoluntary_ctxt_switches:\t9\n"
            )
        };
        assert_eq!(sleeps(&status("S (sleeping)")), Some(12));
        assert_eq!(sleeps(&status("D (disk sleep)")), Some(12));
        assert_eq!(sleeps(&status("R (running)")), None);
        assert_eq!(sleeps(&status("T (stopped)")), None);
        assert_eq!(sleeps(""), None);
    }

    #[test]
    fn places() {
        let line = b"9 0x0 0x2000 0x3 0x22 0xffffffff 0x0 0x7ffc0000 0x7f0000000000\n";
        assert_eq!(
            parse_place(line),
            Some(Place::Blocked { nr: 9, first_args: [0, 0x2000], sp: 0x7ffc_0000 })
        );
        assert_eq!(parse_place(b"running\n"), Some(Place::Running));
        assert_eq!(
            parse_place(b"-1 0x7ffc0000 0x7f0000000000"),
            Some(Place::Blocked { nr: -1, first_args: [0x7ffc_0000, 0x7f00_0000_0000], sp: 0x7ffc_0000 })
        );
        assert_eq!(parse_place(b""), None);
    }
}

//! One address space, in which one call at a time may change something.

use super::calls::NewTask;
use super::effect::Expected;
use super::emit::StackEnd;
use super::peek::Maps;
use super::shadow::Shadow;
use crate::capture::record::{Record, op};
use crate::model::{AddrRange, HeldCall, Mapping, PAGE, Pid, Tid};
use crate::sys::abi::MADV_DONTFORK;
use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

/// A call that was continued and whose result is not known yet.
pub struct InCall {
    pub call: HeldCall,
    pub since: Instant,
    /// What the thread had run by then, ns.
    pub processor_time: Option<u64>,
    /// What the last snapshot of its sleep has shown.
    pub sleeps: Option<Sleeps>,
    /// What lay below its stack pointer; empty where that was not examined.
    pub below_stack: Vec<u8>,
    pub sp: u64,
    pub what: QueuedCall,
}

/// For how long a thread has been seen asleep.
#[derive(Clone, Copy, Debug)]
pub struct Sleeps {
    pub seen_at: Instant,
    pub slept: Duration,
    /// How often it has gone to sleep; None when it was awake, or stopped.
    pub switches: Option<u64>,
}

/// A call that may still be under way.
#[derive(Clone, Debug)]
pub struct Unproven {
    pub tid: Tid,
    /// Where it may change something, in addition to what it may map anew.
    pub ranges: Vec<AddrRange>,
}

pub enum QueuedCall {
    Effect {
        expected: Box<Expected>,
        record: Box<Record>,
        stack: Vec<u8>,
    },
    /// A copy of the address space is being made.
    Fork,
}

/// A task that was requested and has not been seen yet.
#[derive(Clone, Copy, Debug)]
pub struct Begun {
    pub parent: Pid,
    pub parent_tid: Tid,
    pub space: u64,
    pub new: NewTask,
}

pub struct Space {
    pub maps: Maps,
    pub shadow: Shadow,
    pub running: Option<InCall>,
    /// Calls that were taken for over without proof, as others waited for them.
    pub unproven: Vec<Unproven>,
    /// Some of those are over, and their effects are not reported yet.
    pub to_compare: Vec<Unproven>,
    /// Calls that wait for that one's end.
    pub waiting: VecDeque<HeldCall>,
    /// Processes that live in it.
    pub users: usize,
    pub start_brk: u64,
    pub brk: u64,
    /// Where the first thread's stack begins: arguments and environment lie above.
    pub arguments: u64,
    /// Of a 32-bit program: not all of its calls are notified.
    pub is_32_bit: bool,
    /// MADV_DONTFORK was called. That it was refused cannot be seen.
    pub keeps_from_forks: bool,
    /// Its process is held at its end: nothing may change any more.
    pub closed: bool,
}

impl Space {
    /// As the kernel shows it through a thread that waits in a call, or that has just begun.
    ///
    /// # Errors
    /// When it must not be examined, or is gone.
    pub fn open(maps: Maps) -> io::Result<(Space, Vec<Mapping>)> {
        let mappings = maps.read().map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
        let shadow = Shadow::of(&mappings);
        let space = Space {
            maps,
            shadow,
            running: None,
            unproven: Vec::new(),
            to_compare: Vec::new(),
            waiting: VecDeque::new(),
            users: 1,
            start_brk: 0,
            brk: 0,
            arguments: 0,
            is_32_bit: false,
            keeps_from_forks: false,
            closed: false,
        };
        Ok((space, mappings))
    }

    /// Where the stack that `sp` points into ends.
    pub fn stack_end(&mut self, sp: u64, control_block: u64) -> StackEnd {
        // A stack that has grown since reaches lower than the shadow knows, not higher.
        let known = self.shadow.at(sp).map(|area| area.end);
        let mapping = known.or_else(|| Some(self.maps.at(sp).ok()??.area.end)).unwrap_or(0);
        StackEnd { mapping, arguments: self.arguments, control_block }
    }

    /// What a call that is about to begin will do.
    pub fn expect(&mut self, op: u16, call: &HeldCall, name: Option<&[u8]>) -> Expected {
        let args = call.args;
        match op {
            op::MMAP => Expected::mmap(call.tid, args, &self.shadow, &mut self.maps),
            op::MUNMAP => Expected::munmap(args, &self.shadow),
            op::MREMAP => Expected::mremap(args, &self.shadow, &mut self.maps),
            op::BRK => Expected::brk(args, self.brk, self.start_brk),
            op::MPROTECT | op::PKEY_MPROTECT => Expected::mprotect(args, &self.shadow),
            op::MADVISE => {
                self.keeps_from_forks |= args[2] == MADV_DONTFORK as u64;
                Expected::madvise(args, &self.shadow)
            }
            op::SHMAT if args[1] != 0 => {
                // SHM_RND: rounded down to SHMLBA, a page.
                let place = args[1] & !(PAGE - 1);
                Expected::Appears { name: b"/SYSV", place: Some(place), inode: Some(args[0] & 0xffff_ffff) }
            }
            op::SHMAT => anywhere(b"/SYSV"),
            op::SHMDT => Expected::shmdt(args, &self.maps),
            op::IO_DESTROY => Expected::io_destroy(args, &self.maps),
            op::IO_SETUP if args[0] as u32 == 0 => Expected::Known(i64::from(-libc::EINVAL)),
            op::IO_SETUP => anywhere(b"/[aio]"),
            op::MAP_SHADOW_STACK => anywhere(b""),
            op::PRCTL => Expected::Name { at: args[2], name: name.map(<[u8]>::to_vec) },
            // remap_file_pages: the same range of the same file in another order.
            _ => match super::shadow::pages(args[0] & !(PAGE - 1), args[1] & !(PAGE - 1)) {
                Some(range) if !range.is_empty() => {
                    Expected::Reorder { range, offset: args[3].wrapping_mul(PAGE) }
                }
                _ => Expected::Known(i64::from(-libc::EINVAL)),
            },
        }
    }
}

fn anywhere(name: &'static [u8]) -> Expected {
    Expected::Appears { name, place: None, inode: None }
}

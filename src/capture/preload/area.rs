//! vmaudit's side of the shared memory.
//!
//! A process may write there what it likes. What it says is used as figures, or checked before it is used as an index, and what
//! vmaudit spends on it is bounded by the memory that the process has written itself ([`Area::claims`]).

use super::layout::{self, *};
use super::pages::*;
use super::view::View;
use crate::model::heap::own::AREA;
use crate::model::{PAGE, UnwindRow};
use memmap2::{MmapOptions, MmapRaw};
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::{Whence, lseek};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// How is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Settings {
    /// Bytes between two marks on average; None: each allocation.
    pub sample: Option<u64>,
}

/// What one process counts in.
pub struct Area {
    pub(super) file: File,
    bell: (File, MmapRaw),
    /// The first [`SERVED`] bytes. The file cannot become shorter: it is sealed.
    map: MmapRaw,
    pub(super) stacks: Mutex<super::stacks::Views>,
    claims: AtomicU64,
}

/// A memory file that nobody can make longer or shorter.
fn sealed(bytes: u64) -> io::Result<File> {
    let file = File::from(memfd_create(AREA, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?);
    file.set_len(bytes)?;
    let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
    Ok(file)
}

/// A thread needs rules to walk its stack, and waits.
pub struct RuleRequest {
    number: usize,
    /// [`Head::code`], as the thread knows it.
    pub code: u32,
    pub ip: u64,
    pub sp: u64,
    pub bp: u64,
    /// From `sp` on.
    pub bytes: Vec<u8>,
    /// They reach the stack's end.
    pub is_full: bool,
    /// No rules are requested: the thread has met a module.
    pub is_module: bool,
}

macro_rules! part {
    ($name:ident, $part:expr, $of:ty, $count:expr) => {
        pub(super) fn $name(&self) -> &[$of] {
            const { assert!(PARTS[$part].at + $count * size_of::<$of>() <= SERVED) };
            // SAFETY: so much is mapped, and only atomics are in it.
            unsafe {
                std::slice::from_raw_parts(self.map.as_ptr().add(PARTS[$part].at).cast::<$of>(), $count)
            }
        }
    };
}

impl Area {
    /// Makes the file. It takes no memory but for what is written.
    ///
    /// # Errors
    /// When there can be no such file, or it cannot be mapped.
    pub fn new(settings: Settings) -> io::Result<Area> {
        let area = Area::of(sealed(BYTES as u64)?)?;
        let head = area.head();
        let mode = if settings.sample.is_some() { MODE_SAMPLE } else { MODE_EXACT };
        head.mode.store(mode, Relaxed);
        head.peaks.number.store(1, Relaxed);
        head.peaks.pending.store(LEAST_PENDING, Relaxed);
        head.mean.store(settings.sample.unwrap_or(1), Relaxed);
        head.rule_tables.store(1, Relaxed);
        head.magic.store(MAGIC, Release);
        Ok(area)
    }

    /// The area in a file, whatever is written there; nobody makes it shorter.
    ///
    /// # Errors
    /// When it cannot be mapped.
    pub fn of(file: File) -> io::Result<Area> {
        let map = MmapOptions::new().len(SERVED).map_raw(&file)?;
        let bell = sealed(PAGE)?;
        let page = MmapOptions::new().len(PAGE as usize).map_raw(&bell)?;
        Ok(Area { file, bell: (bell, page), map, stacks: Mutex::default(), claims: AtomicU64::new(0) })
    }

    /// What a process maps: the area, and its doorbell.
    pub fn raw_fds(&self) -> [RawFd; 2] {
        [self.file.as_raw_fd(), self.bell.0.as_raw_fd()]
    }

    /// The doorbell, which children of the process may ring as well.
    pub fn bell(&self) -> &Bell {
        // SAFETY: as long as a page, and only atomics are in it.
        unsafe { &*self.bell.1.as_ptr().cast::<Bell>() }
    }

    /// Nothing is counted any more.
    pub fn release(&self) {
        self.head().mode.store(MODE_OFF, Relaxed);
    }

    /// Blocks are dated with this: milliseconds since vmaudit began.
    pub fn publish_time(&self, milliseconds: u32) {
        self.bell().tick.store(milliseconds, Relaxed);
        self.bell().tick16.store(tick16(milliseconds) as u32, Relaxed);
    }

    /// Gives the memory back, though a process has it mapped still: to it nothing is there, and nothing is to be counted.
    pub fn empty(&self) {
        let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        // Where that is refused, the memory goes with the process.
        let _ = fallocate(&self.file, flags, 0, BYTES as i64);
    }

    pub fn head(&self) -> &Head {
        // SAFETY: as `part`.
        unsafe { &*self.map.as_ptr().cast::<Head>() }
    }

    part!(rules, RULE_PART, Rule, RULES);
    part!(slots, REQUEST_PART, Request, REQUESTS);

    pub(super) fn given(&self) -> &[AtomicU32] {
        const { assert!(AT_GIVEN + GIVEN * 4 <= SERVED) };
        // SAFETY: as `part`.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().add(AT_GIVEN).cast(), GIVEN) }
    }

    /// The beginning of a part, up to `bytes`, but no more than was written.
    ///
    /// # Errors
    /// When the file cannot be searched for that, or mapped.
    pub(super) fn view(&self, part: usize, bytes: usize) -> io::Result<View> {
        let Part { at, bytes: most } = PARTS[part];
        let written = self.written(at..at + bytes.min(most))?;
        View::of(&self.file, at, &written)
    }

    /// What the process says cannot be: it is left out.
    pub(super) fn is_claim(&self) {
        self.claims.fetch_add(1, Relaxed);
    }

    /// How many figures were left out because they cannot be true.
    pub fn claims(&self) -> u64 {
        self.claims.load(Relaxed)
    }

    /// The requests that are not answered yet.
    pub fn requests(&self) -> Vec<RuleRequest> {
        let waiting =
            self.slots().iter().enumerate().filter(|(_, slot)| slot.state.load(Acquire) == REQUEST_WAITS);
        let request = |(number, slot): (usize, &Request)| {
            let len = (slot.len.load(Relaxed) as usize).min(REQUEST_BYTES);
            let words = slot.bytes.iter().take(len / 8);
            RuleRequest {
                number,
                code: slot.code.load(Relaxed),
                ip: slot.ip.load(Relaxed),
                sp: slot.sp.load(Relaxed),
                bp: slot.bp.load(Relaxed),
                bytes: words.flat_map(|word| word.load(Relaxed).to_ne_bytes()).collect(),
                is_full: slot.flags.load(Relaxed) & REQUEST_TO_END != 0,
                is_module: slot.flags.load(Relaxed) & REQUEST_MODULE != 0,
            }
        };
        waiting.map(request).collect()
    }

    /// Releases the requesting thread. True where it has to be woken.
    pub fn answer(&self, request: &RuleRequest) -> Option<&AtomicU32> {
        let state = &self.slots().get(request.number)?.state;
        state.compare_exchange(REQUEST_WAITS, REQUEST_ANSWERED, AcqRel, Relaxed).ok()?;
        Some(state)
    }

    /// How to find the caller of the frame at a return address; None: no rule applies. False where there is
    /// no space for it.
    pub fn publish(&self, address: u64, code: u32, row: Option<UnwindRow>) -> bool {
        let body = match row {
            None => rule_body(STOP, 0, 0),
            Some(UnwindRow::Root) => rule_body(ROOT, 0, 0),
            Some(UnwindRow::Offsets { from_bp, cfa, bp }) => {
                rule_body(if from_bp { BY_BP } else { BY_SP }, cfa, bp.unwrap_or(0))
            }
        };
        let key = rule_key(address, false, code);
        let mut free = None;
        for at in layout::probes(&RULE_TABLES, key, RULE_PROBES) {
            let Some(rule) = self.rules().get(at) else { return false };
            match rule.key.load(Acquire) {
                known if known == key => {
                    rule.body.store(body, Relaxed);
                    return true;
                }
                GONE => free = free.or(Some((at, rule))),
                0 => {
                    free = free.or(Some((at, rule)));
                    break;
                }
                _ => {}
            }
        }
        let Some((at, rule)) = free else { return false };
        let tables = (1..RULE_TABLES.len()).take_while(|&tables| layout::in_all(&RULE_TABLES, tables) <= at);
        self.head().rule_tables.fetch_max(1 + tables.count() as u32, Release);
        rule.body.store(body, Relaxed);
        rule.key.store(key, Release);
        true
    }

    /// Code was unmapped: rules of another state of it are not used any more.
    pub fn forget_rules(&self, code: u32) {
        let own = rule_key(0, false, code) >> 48;
        let Ok(rules) = self.written_of(self.rules(), PARTS[RULE_PART].at) else { return };
        for rule in rules {
            let key = rule.key.load(Relaxed);
            if key > GONE && key >> 48 != own {
                rule.key.store(GONE, Release);
            }
        }
    }

    /// Where no rule will ever be: code that no file has.
    pub fn set_generated(&self, ranges: impl Iterator<Item = Range<u64>>) {
        let head = self.head();
        let mut len = 0;
        for (to, range) in head.generated.iter().zip(ranges) {
            to.start.store(range.start, Relaxed);
            to.end.store(range.end, Relaxed);
            len += 1;
        }
        head.generated_len.store(len, Release);
    }

    /// Numbers of stacks begin with 1. There are no more than what was written has space for.
    ///
    /// # Errors
    /// When the file cannot be searched for what was written.
    pub fn last_stack(&self) -> io::Result<u32> {
        let Part { at, bytes } = PARTS[STACK_PART];
        let written: usize = self.written(at..at + bytes)?.into_iter().map(|part| part.len()).sum();
        let most = (written / size_of::<layout::Stack>()).min(STACKS - 1);
        Ok(self.head().last_stack.load(Acquire).min(most as u32))
    }

    /// Those that may be other than zero: to read a hole takes memory, too.
    pub(super) fn written_of<'a, T>(
        &self,
        all: &'a [T],
        at: usize,
    ) -> io::Result<impl Iterator<Item = &'a T> + use<'a, T>> {
        let written = self.written(at..at + size_of_val(all))?;
        let index = move |byte: usize| (byte - at) / size_of::<T>();
        Ok(written
            .into_iter()
            .flat_map(move |part| all.get(index(part.start)..index(part.end)).unwrap_or_default()))
    }

    /// Which parts of a range of the file are not holes.
    pub(super) fn written(&self, range: Range<usize>) -> io::Result<Vec<Range<usize>>> {
        let mut out = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let start = match lseek(&self.file, at as i64, Whence::SeekData) {
                Ok(start) => start as usize,
                // Nothing is written behind it.
                Err(Errno::ENXIO) => break,
                Err(error) => return Err(error.into()),
            };
            if start >= range.end {
                break;
            }
            let end = lseek(&self.file, start as i64, Whence::SeekHole)? as usize;
            at = end.min(range.end);
            out.push(start.max(range.start)..at);
        }
        Ok(out)
    }

    /// The most that was outstanding, and when (milliseconds): of several threads at once to 64 KiB each.
    pub fn peak(&self) -> (u64, u32) {
        let head = self.head();
        let total = &head.total;
        let outstanding = total.outstanding.load(Relaxed);
        let pending = |shard: &Shard| (shard.high.load(Relaxed), shard.high_tick.load(Relaxed));
        let highs = head.shards.iter().map(pending).max_by_key(|(high, _)| *high);
        let known = (total.peak.load(Relaxed), total.peak_tick.load(Relaxed));
        let last = highs.map_or(known, |(high, tick)| (outstanding.saturating_add(high), tick));
        let (bytes, tick) = if last.0 > known.0 { last } else { known };
        (u64::try_from(bytes).unwrap_or(0), tick)
    }

    /// Bytes of address space that it takes in the process, as that says.
    pub fn mapped(&self) -> u64 {
        self.head().mapped.load(Relaxed).min(BYTES as u64) + self.private()
    }

    /// The process' own tables: all of their pages are written to, because hashes lead there.
    fn private(&self) -> u64 {
        self.head().private.load(Relaxed).min(BYTES as u64)
    }

    /// Bytes of memory that it takes: the kernel charges them to the process' control group.
    ///
    /// # Errors
    /// As fstat(2).
    pub fn memory(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.blocks() * 512 + self.private())
    }
}

#[cfg(test)]
mod tests {
    use super::super::math;
    use super::*;

    #[test]
    fn rules_come_back_as_they_were_published() {
        let area = Area::new(Settings::default()).expect("memory");
        let found = |address, code| {
            let key = rule_key(address, false, code);
            let near = probes(&RULE_TABLES, key, RULE_PROBES).filter_map(|at| area.rules().get(at));
            near.take_while(|rule| rule.key.load(Relaxed) != 0)
                .find(|rule| rule.key.load(Relaxed) == key)
                .map(|rule| rule.body.load(Relaxed))
        };
        let row = UnwindRow::Offsets { from_bp: true, cfa: -72, bp: Some(-2) };
        for address in 0..5000u64 {
            assert!(area.publish(0x7f00_0000_0000 + address * 13, 1, Some(row)));
        }
        let body = found(0x7f00_0000_0000, 1).expect("a rule");
        assert_eq!((kind_of(body), cfa_of(body), bp_of(body)), (BY_BP, -72, -2));
        assert!(area.publish(0x7f00_0000_0000, 1, None));
        assert_eq!(found(0x7f00_0000_0000, 1).map(kind_of), Some(STOP));
        assert_eq!(found(0x7f00_0000_0000, 2), None, "of other code");
        area.forget_rules(2);
        assert_eq!(found(0x7f00_0000_0000, 1), None);
        // Their space is used again.
        assert!(area.publish(0x7f00_0000_0000, 2, Some(UnwindRow::Root)));
        assert_eq!(found(0x7f00_0000_0000, 2).map(kind_of), Some(ROOT));
    }

    #[test]
    fn the_librarys_arithmetic_is_as_good_as_libms() {
        for step in 1..=100_000u32 {
            let x = f64::from(step) / 100_000.0;
            assert!((math::ln(x) - x.ln()).abs() < 1e-11, "ln {x}");
            for y in [x, x * 1e-6, x * 30.0] {
                let exact = -(-y).exp_m1();
                assert!((math::one_less_exp(y) / exact - 1.0).abs() < 1e-11, "{y}");
            }
        }
    }
}

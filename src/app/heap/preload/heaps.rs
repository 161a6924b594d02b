//! The processes that have the library, and what they have counted.

use super::interpreted::{Interpreted, Interpreters};
use crate::app::heap::identity::{ProcessIdentity, read_known};
use crate::capture::preload::{Area, Armed, Arrival, Found, RuleRequest};
use crate::heap::ledger::{SiteId, Sites};
use crate::heap::report::HeapProcessFacts;
use crate::heap::report::model::SizeClass;
use crate::heap::report::model::{Function, Own};
use crate::heap::{Description, Filter, HeapLedger, LedgerOptions, Picture};
use crate::model::arenas::KnownBlock;
use crate::model::{Addr, FileRef, Frame, FrameKind, Mapping, MmKey, Pid, StackSample, StackTable};
use crate::objects::FileKey;
use crate::procfs::parse_maps;
use crate::session::pipeline::unwinder;
use crate::sys::clock::monotonic_ns;
use crate::sys::pidfd;
use crate::unwind::{ExecMapping, Modules, SpaceState, Unwinder};
use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

/// A process that counts.
pub struct Counting {
    pub pid: Pid,
    pub pidfd: OwnedFd,
    pub mm: MmKey,
    pub area: Arc<Area>,
    pub forked: bool,
    pub known: ProcessIdentity,
    pub ledger: HeapLedger,
    /// As it was read last.
    pub maps: Vec<Mapping>,
    pub generation: u64,
    /// Which state of its code the rules are about.
    pub code: u32,
    /// The modules of each state of the code that was examined, in their order.
    modules: Vec<(u32, Modules)>,
    /// The frames of all nodes that were met, in a state of the code.
    pub frames: (u32, Vec<NodeFrame>),
    /// By the number of the stack.
    pub sites: Vec<Option<SiteId>>,
    pub interpreted: Interpreted,
    /// Numbers of [`Preloaded::functions`] by those of the library.
    pub functions: HashMap<usize, u32>,
}

/// Says what a node of the stacks' tree is in a report.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum NodeFrame {
    #[default]
    Unknown,
    /// An interpreter's own, which is no function of the program.
    NotShown,
    /// A number of [`StackTable::frames`].
    Number(u32),
}

/// How often a new process is checked for the library: some seconds.
const MAX_CHECKS: u32 = 150;

struct Fresh {
    pid: Pid,
    checks: u32,
}

/// A process and its heap at one moment.
pub struct Portrait {
    pub facts: HeapProcessFacts,
    pub picture: Picture,
    pub sizes: Vec<SizeClass>,
    pub own: Own,
    pub forked: bool,
    /// Allocations whose stack ends where no rule leads on, and whose stack is too deep.
    pub incomplete: u64,
    pub truncated: u64,
}

/// All of them.
pub struct Preloaded {
    pub options: LedgerOptions,
    pub filter: Filter,
    pub descriptions: Vec<Description>,
    /// Of each file that was examined: a function of an allocator under other names than those that are
    /// counted.
    pub uncounted: HashMap<FileKey, Option<String>>,
    /// Why processes could not begin, or are not counted.
    pub refused: BTreeMap<Pid, String>,
    /// Processes that begin are woken, too.
    pub wakes_new: bool,
    /// They were running before: what they had allocated then is in no figure.
    pub attached: bool,
    /// They are all in it.
    pub container: Option<String>,
    /// Forked or executed since: perhaps they have the library, asleep.
    fresh: Vec<Fresh>,
    pub unwinder: Unwinder,
    pub stacks: StackTable,
    pub sites: Sites,
    pub functions: Vec<Function>,
    counting: Vec<Counting>,
    ended: Vec<Portrait>,
    last_mm: u64,
    pub interpreters: Interpreters,
    pub published: PublishedRules,
}

/// The cost of publishing unwind rules, for `-v`.
#[derive(Clone, Copy, Default, Debug)]
pub struct PublishedRules {
    pub requests: u64,
    pub rules: u64,
    pub without_space: u64,
    pub maps_read: u64,
}

impl Preloaded {
    pub fn new(options: LedgerOptions, filter: Filter, descriptions: Vec<Description>) -> Preloaded {
        Preloaded {
            options,
            filter,
            descriptions,
            uncounted: HashMap::new(),
            refused: BTreeMap::new(),
            wakes_new: false,
            attached: false,
            container: None,
            fresh: Vec::new(),
            unwinder: unwinder(),
            stacks: StackTable::default(),
            sites: Sites::default(),
            functions: Vec::new(),
            counting: Vec::new(),
            ended: Vec::new(),
            last_mm: 0,
            interpreters: Interpreters::default(),
            published: PublishedRules::default(),
        }
    }

    /// A process begins to count: after execve in place of what it was before.
    pub fn add(&mut self, arrival: Arrival) {
        let Arrival { pid, pidfd, forked, area, .. } = arrival;
        if let Some(at) = self.counting.iter().position(|each| each.pid == pid) {
            let former = self.counting.swap_remove(at);
            if pidfd::has_ended(&former.pidfd) {
                self.finish(former);
            } else {
                self.unwinder.forget(former.mm);
            }
        }
        self.last_mm += 1;
        let mm = MmKey(self.last_mm);
        let attached = self.attached && !forked;
        let known = ProcessIdentity { since_ns: monotonic_ns(), attached, ..read_known(pid) };
        self.counting.push(Counting {
            pid,
            pidfd,
            mm,
            area,
            forked,
            known,
            ledger: HeapLedger::new(mm, pid, self.options),
            maps: Vec::new(),
            generation: 0,
            code: 0,
            modules: Vec::new(),
            frames: (0, Vec::new()),
            sites: Vec::new(),
            interpreted: Interpreted::default(),
            functions: HashMap::new(),
        });
    }

    /// What a process has mapped: of one that has requested nothing so far, nothing is known.
    pub fn examined(&mut self, pid: Pid, mappings: &[Mapping]) {
        if let Some(process) = self.counting.iter_mut().find(|each| each.pid == pid && each.maps.is_empty()) {
            process.maps = mappings.iter().filter(|mapping| mapping.prot.exec).cloned().collect();
        }
    }

    /// What a process had before it executed another program is gone; that may be one without the library.
    pub fn executed(&mut self, pid: Pid, time_ns: u64) {
        let before = |known_ns: u64| known_ns < time_ns;
        if let Some(at) = self.counting.iter().position(|each| each.pid == pid && before(each.known.since_ns))
        {
            let former = self.counting.swap_remove(at);
            self.unwinder.forget(former.mm);
        }
        self.ended.retain(|each| {
            let (from, until) = (each.facts.since_ns, each.picture.at_ns);
            each.picture.pid != pid || !(from..until).contains(&time_ns)
        });
    }

    /// A process that has just begun, or runs another program: it is woken when it has the library.
    pub fn begun(&mut self, pid: Pid) {
        if self.wakes_new {
            self.fresh.retain(|fresh| fresh.pid != pid);
            self.fresh.push(Fresh { pid, checks: MAX_CHECKS });
        }
    }

    /// Those of them that have the library by now and do not count.
    pub fn take_asleep(&mut self) -> Vec<Armed> {
        let counts = |pid: Pid| self.counting.iter().any(|each| each.pid == pid);
        self.fresh.retain(|fresh| !counts(fresh.pid));
        let mut asleep = Vec::new();
        self.fresh.retain_mut(|fresh| {
            fresh.checks -= 1;
            let maps = std::fs::read(format!("/proc/{}/maps", fresh.pid)).unwrap_or_default();
            match Armed::find(fresh.pid, &parse_maps(&maps).mappings) {
                Ok(Found::Armed(process)) => {
                    asleep.push(process);
                    false
                }
                // The dynamic loader has not come to it yet.
                Ok(Found::Nothing) => fresh.checks > 0 && !maps.is_empty(),
                Ok(Found::Other) | Err(_) => fresh.checks > 0,
            }
        });
        asleep
    }

    /// Keeps of those that have ended what is reported.
    pub fn finish_ended(&mut self) {
        while let Some(at) = self.counting.iter().position(|each| pidfd::has_ended(&each.pidfd)) {
            let ended = self.counting.swap_remove(at);
            self.finish(ended);
        }
    }

    fn finish(&mut self, mut ended: Counting) {
        ended.known.until_ns = Some(monotonic_ns());
        ended.known.ended = pidfd::exit_status(ended.pid, Some(ended.pidfd.as_fd()));
        if let Ok(portrait) = self.portrait(&mut ended) {
            self.ended.push(portrait);
        }
        self.unwinder.forget(ended.mm);
    }

    /// Answers pending requests. Returns false where there were none.
    pub fn answer(&mut self, wake: impl Fn(&AtomicU32)) -> bool {
        let mut counting = std::mem::take(&mut self.counting);
        let mut some = false;
        for process in &mut counting {
            for request in process.area.requests() {
                some = true;
                self.published.requests += 1;
                self.publish(process, &request);
                if let Some(state) = process.area.answer(&request) {
                    wake(state);
                }
            }
        }
        self.counting = counting;
        some
    }

    fn publish(&mut self, process: &mut Counting, request: &RuleRequest) {
        if process.generation == 0 || process.code != request.code {
            if process.code != request.code {
                process.area.forget_rules(request.code);
                process.code = request.code;
            }
            self.read_maps(process);
        } else if process.mapping_of(request.ip).is_none() {
            self.read_maps(process);
        }
        if request.is_module {
            return;
        }
        let RuleRequest { code, ip, sp, bp, .. } = *request;
        let sample = StackSample {
            ip,
            sp,
            bp,
            bytes: &request.bytes,
            full: request.is_full,
            returned: true,
            ..StackSample::default()
        };
        let mut steps = self.unwinder.plain_rules(process.mm, &sample);
        let is_unknown = |at: u64, process: &Counting| process.mapping_of(at).is_none();
        if let Some(last) = steps.last().filter(|last| last.rule.is_none())
            && is_unknown(last.address, process)
        {
            // Mapped since.
            self.read_maps(process);
            steps = self.unwinder.plain_rules(process.mm, &sample);
        }
        for step in &steps {
            match process.area.publish(step.address, code, step.rule) {
                true => self.published.rules += 1,
                false => self.published.without_space += 1,
            }
        }
    }

    pub fn read_maps(&mut self, process: &mut Counting) {
        let Ok(text) = std::fs::read(format!("/proc/{}/maps", process.pid)) else { return };
        self.published.maps_read += 1;
        process.maps = parse_maps(&text).mappings;
        process.maps.retain(|mapping| mapping.prot.exec);
        process.generation += 1;
        let files: Vec<Option<FileRef>> = process.maps.iter().map(file_of).collect();
        let modules = process.maps.iter().zip(&files).map(|(mapping, file)| ExecMapping {
            range: mapping.range,
            offset: mapping.offset,
            file: file.as_ref(),
        });
        let state = SpaceState { mm: process.mm, generation: process.generation, pid: process.pid };
        self.unwinder.set_modules(state, modules, &mut self.stacks);
        if let Some(modules) = self.unwinder.modules(process.mm) {
            process.modules.retain(|(code, _)| *code != process.code);
            process.modules.push((process.code, modules));
        }
        let generated = process.maps.iter().zip(&files).filter(|(_, file)| file.is_none());
        process.area.set_generated(generated.map(|(mapping, _)| mapping.range.start.0..mapping.range.end.0));
        self.interpreters.publish(process, &self.unwinder);
    }

    /// Ends an interval of each.
    pub fn mark(&mut self) {
        let mut counting = std::mem::take(&mut self.counting);
        for process in &mut counting {
            if self.take_counts(process).is_ok() {
                process.ledger.mark(monotonic_ns());
            }
        }
        self.counting = counting;
    }

    /// All as they are now, and those that have ended as they were then.
    pub fn portraits(&mut self) -> (Vec<&Portrait>, Vec<Portrait>) {
        let mut counting = std::mem::take(&mut self.counting);
        let living = counting.iter_mut().filter_map(|process| self.portrait(process).ok()).collect();
        self.counting = counting;
        (self.ended.iter().collect(), living)
    }

    /// Those that still run count no more, and what that took is free again.
    pub fn release(&self, wake: impl Fn(&AtomicU32)) {
        for process in &self.counting {
            process.area.release();
            process.area.requests().iter().filter_map(|request| process.area.answer(request)).for_each(&wake);
            process.area.empty();
        }
    }

    /// Blocks of a process, with the sites that hold them.
    pub fn known_blocks(&self, pid: Pid) -> Vec<KnownBlock> {
        let mut out = Vec::new();
        let Some(process) = self.counting.iter().find(|each| each.pid == pid) else { return out };
        let holder = |stack: u32| process.sites.get(stack as usize).copied().flatten();
        // What cannot be searched gives no blocks.
        let _ = process.area.blocks(|block| {
            let holder = holder(block.stack).map_or(u32::MAX, |site| site.0);
            out.push(KnownBlock { at: Addr(block.address), requested: block.size, holder });
        });
        out
    }

    pub fn has_any(&self) -> bool {
        !self.counting.is_empty() || !self.ended.is_empty()
    }
}

impl Counting {
    /// Finds the frame of a return address, in the state of the code in which its stack was walked.
    pub fn returns_to(&self, code: u32, address: u64) -> Frame {
        let modules = self.modules.iter().rev().find(|(of, _)| *of <= code);
        let unknown = Frame { module: None, address, kind: FrameKind::ReturnAddress };
        modules.and_then(|(_, modules)| modules.returns_to(address)).unwrap_or(unknown)
    }

    /// The executable mapping that an address is in.
    pub fn mapping_of(&self, address: u64) -> Option<&Mapping> {
        let at = self.maps.partition_point(|mapping| mapping.range.end.0 <= address);
        self.maps.get(at).filter(|mapping| mapping.range.contains(Addr(address)))
    }
}

/// The vdso is as good as a file.
fn file_of(mapping: &Mapping) -> Option<FileRef> {
    if mapping.is_special("[vdso]") {
        let path = mapping.name.clone();
        return Some(FileRef { major: 0, minor: 0, inode: 0, path, deleted: false });
    }
    mapping.file_ref()
}

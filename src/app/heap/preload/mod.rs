//! Counting by a library that is preloaded into programs: it counts in the program itself, and needs no rights.

mod executed;
mod heaps;
mod interpreted;
mod portrait;
mod serve;
mod sizes;
mod suits;

pub use executed::Executed;
pub use heaps::{Portrait, Preloaded};
pub use suits::{other_functions, unsuited};

use super::mappings::compare;
use super::{RowsBySite, symbolizer};
use crate::attribution::translators;
use crate::capture::preload::{Armed, Endpoint, Hub, Library, Selection, Settings, VARIABLE, is_library};
use crate::heap::report::{HeapFacts, HeapProcessFacts, HeapReport, build};
use crate::heap::{Description, Filter, LedgerOptions, Picture, Sampling, silence};
use crate::launch::behind_sudo;
use crate::model::Pid;
use crate::report::Report;
use crate::report::model::Events;
use crate::rights::viewer;
use crate::session::SessionError;
use crate::session::say::say;
use crate::symbolize::Symbolizer;
use crate::sys::clock::monotonic_ns;
use crate::sys::file::raise_descriptor_limit;
use portrait::OTHER_ALLOCATOR;
use serve::{Service, wake};
use std::cell::RefCell;
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What is counted, and of which processes.
pub struct CountingOptions {
    /// One allocation every so many bytes; None: each.
    pub sample: Option<u64>,
    pub filter: Filter,
    pub descriptions: Vec<Description>,
    /// The only processes that are counted; None: every process that connects.
    pub only: Option<Vec<Pid>>,
    /// They were running before.
    pub attached: bool,
    /// They are all in it.
    pub container: Option<String>,
}

/// Where processes with the library report, before there are any.
pub struct Entrance {
    /// What the command is started with; it is open as long as this.
    command: Option<(Library, Endpoint)>,
    environment: Vec<(OsString, Option<OsString>)>,
    start_ns: u64,
}

impl Entrance {
    /// For running processes that have the library: each is taken by its descriptor.
    pub fn for_running() -> Entrance {
        Entrance { command: None, environment: Vec::new(), start_ns: monotonic_ns() }
    }

    /// For a command that gets it; `as_root`: also behind sudo it is root's.
    ///
    /// # Errors
    /// When there is no memory for the library, or no socket can be opened.
    pub fn for_command(as_root: bool) -> Result<Entrance, SessionError> {
        let library = Library::new().map_err(failed("writing the library to memory"))?;
        let endpoint = Endpoint::new().map_err(failed("opening a socket"))?;
        // ptrace(2), access mode checks: neither another user may inspect the process, nor one with fewer
        // rights.
        let is_equal = viewer().is_none() && (as_root || behind_sudo().ok().flatten().is_none());
        let path = library.path(is_equal).map_err(failed("handing over the library"))?;
        let way = endpoint.variable(is_equal).map_err(failed("handing over the socket"))?;
        let environment =
            vec![("LD_PRELOAD".into(), Some(before_others(&path))), (VARIABLE.into(), Some(way))];
        Ok(Entrance { command: Some((library, endpoint)), environment, start_ns: monotonic_ns() })
    }

    /// What the command's environment gets.
    pub fn environment(&self) -> Vec<(OsString, Option<OsString>)> {
        self.environment.clone()
    }

    /// To be called when the command has been forked: its limit on descriptors stays as it was.
    ///
    /// # Errors
    /// When no thread can be made.
    pub fn open(
        self,
        options: CountingOptions,
        armed: Vec<Armed>,
        main: Pid,
    ) -> Result<Counting, SessionError> {
        // Three for each process that counts.
        raise_descriptor_limit();
        let Entrance { command, start_ns, .. } = self;
        let (library, endpoint) = command.unzip();
        let sampling = Sampling::every(options.sample.unwrap_or(0));
        let allocators = options.descriptions.iter().map(|each| each.name.clone()).collect();
        let ledger = LedgerOptions { sampling, start_ns };
        let mut heaps = Preloaded::new(ledger, options.filter, options.descriptions);
        heaps.wakes_new = options.attached && options.only.is_none();
        heaps.attached = options.attached;
        heaps.container = options.container;
        let heaps = Arc::new(Mutex::new(heaps));
        let settings = Settings { sample: options.sample };
        let only = options.only.map(|only| only.into_iter().collect());
        let service = Hub::new(endpoint, settings, Selection { only, refuses })
            .and_then(|hub| Service::start(&heaps, hub, armed, start_ns))
            .map_err(failed("starting a thread"))?;
        let executed = Rc::new(RefCell::new(Executed::new(Arc::clone(&heaps))));
        Ok(Counting { heaps, executed, _service: service, _library: library, main, start_ns, allocators })
    }
}

/// A translator's own code is what the library would count in, and its memory what it would walk.
fn refuses(pid: Pid) -> Option<String> {
    let exe = std::fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    let what = translators::of_program(&exe.file_name()?.to_string_lossy())?;
    Some(format!("{what} translates the program's code: it is not counted (without it, it is)"))
}

fn failed(operation: &'static str) -> impl Fn(std::io::Error) -> SessionError {
    move |source| SessionError::System { operation, source }
}

/// The user may preload something, too: an allocator, which ours has to precede. Another library of the kind would count the same
/// calls once more.
fn before_others(path: &str) -> OsString {
    let mut all = OsString::from(path);
    let others = std::env::var_os("LD_PRELOAD").unwrap_or_default();
    for other in others.as_bytes().split(|byte| matches!(byte, b':' | b' ')) {
        if !other.is_empty() && !is_library(other) {
            all.push(":");
            all.push(OsStr::from_bytes(other));
        }
    }
    all
}

/// Processes that count, until it is dropped.
pub struct Counting {
    heaps: Arc<Mutex<Preloaded>>,
    /// To be called for programs that are executed.
    pub executed: Rc<RefCell<Executed>>,
    _service: Service,
    _library: Option<Library>,
    pub main: Pid,
    start_ns: u64,
    allocators: Vec<String>,
}

impl Drop for Counting {
    fn drop(&mut self) {
        self.heaps().release(wake);
    }
}

impl Counting {
    pub fn heaps(&self) -> MutexGuard<'_, Preloaded> {
        self.heaps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// At the end of a run: with what is mapped, for the processes in `seen`, whose last snapshot is current.
    pub fn conclude(&self, mappings: &Report, seen: &HashSet<Pid>) -> HeapReport {
        self.heaps().finish_ended();
        let mut symbols = symbolizer();
        let (mut report, _) = self.report(&mut symbols);
        compare(&mut report, mappings, seen);
        self.executed.borrow().say_uncounted(&report);
        self.explain_silence(&mut report);
        symbols.take_notes().iter().for_each(say);
        report
    }

    /// Why there is nothing of the command; None: there is.
    pub fn why_nothing(&self) -> Option<String> {
        let not_loaded = "the library was not loaded: the dynamic loader ignores it, or could not open it (it says so \
                          then). With root's rights, --method uprobes needs no library";
        let heaps = self.heaps();
        let is_missing = !heaps.has_any() && self.executed.borrow().has(self.main);
        is_missing.then(|| heaps.refused.get(&self.main).map_or(not_loaded, String::as_str).to_owned())
    }

    /// Of a sample, what is not in it was not examined.
    pub fn explain_silence(&self, report: &mut HeapReport) {
        let silent = report.processes.iter_mut().filter(|process| silence::is_silent(process));
        for process in silent.filter(|_| report.sampling_bytes.is_none()) {
            let gaps = process.gaps.iter().map(String::as_str);
            let other = gaps.into_iter().find(|gap| gap.contains(OTHER_ALLOCATOR)).map(str::to_owned);
            process.gaps.retain(|gap| Some(gap) != other.as_ref());
            process.nothing_seen = Some(silence::why_by_library(process, &self.allocators, other.as_deref()));
            process.gaps.retain(|gap| gap != silence::NOT_COUNTED);
        }
    }

    /// As of now.
    pub fn report(&self, symbols: &mut Symbolizer) -> (HeapReport, RowsBySite) {
        let mut heaps = self.heaps();
        let (ended, living) = heaps.portraits();
        let mut all: Vec<&Portrait> = ended.into_iter().chain(&living).collect();
        all.sort_by_key(|portrait| (portrait.picture.pid != self.main, portrait.picture.pid));
        let processes: Vec<(HeapProcessFacts, Picture)> =
            all.iter().map(|portrait| (portrait.facts.clone(), portrait.picture.clone())).collect();
        let own: Vec<_> =
            all.iter().map(|portrait| (portrait.own, portrait.forked, portrait.sizes.clone())).collect();
        let calls = |picture: &Picture| picture.totals.allocated.blocks + picture.totals.freed.blocks;
        let seen = processes.iter().map(|(_, picture)| crate::heap::sampling::blocks(calls(picture))).sum();
        let incomplete = all.iter().map(|portrait| portrait.incomplete).sum();
        let truncated = all.iter().map(|portrait| portrait.truncated).sum();
        let owners: Vec<_> = processes.iter().flat_map(|(_, picture)| picture.stacks()).collect();
        let Preloaded { unwinder, stacks, functions, .. } = &mut *heaps;
        let facts = HeapFacts {
            backend: "preload".to_owned(),
            allocators: self.allocators.clone(),
            functions: functions.clone(),
            combined: false,
            events: Events {
                seen,
                unwind_incomplete: incomplete,
                truncated_stacks: truncated,
                ..Events::default()
            },
            without_stack: 0,
            start_ns: self.start_ns,
        };
        let names = symbols.symbolize(stacks, owners, unwinder.files_mut());
        let pictures: Vec<_> = processes.iter().map(|(facts, picture)| (facts, picture)).collect();
        let mut report = build(&facts, &pictures, stacks, &names);
        for (process, (own, forked, sizes)) in report.processes.iter_mut().zip(own) {
            process.own = Some(own);
            process.forked = forked;
            process.sizes = sizes;
        }
        let rows = processes.iter().map(|(_, picture)| (picture.pid, picture.rows_by_site())).collect();
        (report, rows)
    }
}

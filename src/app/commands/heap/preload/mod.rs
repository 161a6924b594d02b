//! `vmaudit heap -- CMD` by a library that is preloaded into the command: it counts in the program itself,
//! and needs no rights.

mod executed;
mod heaps;
mod portrait;
mod serve;
mod sizes;
mod suits;

use super::arenas::{self, RowsBySite};
use super::mappings::add_mappings;
use super::report::symbolizer;
use crate::app::error::AppError;
use crate::app::heap_record::HeapRecord;
use crate::app::output::Output;
use crate::capture::CaptureConfig;
use crate::capture::preload::{Armed, Found, Library, Listener, Settings, VARIABLE, install, is_available};
use crate::cli::{Aslr, HeapArgs, Method};
use crate::heap::report::{HeapFacts, HeapProcessFacts, HeapReport, build};
use crate::heap::{Description, LedgerOptions, Picture, Sampling, silence};
use crate::launch::{LaunchConfig, behind_sudo};
use crate::model::Pid;
use crate::procfs::parse_maps;
use crate::report::model::Events;
use crate::rights::viewer;
use crate::session::SessionError;
use crate::session::audits::Audits;
use crate::session::engine::{AT_THE_END, End, Schedule, Session};
use crate::session::pipeline::Pipeline;
use crate::session::say::say;
use crate::session::start::{Start, Traced};
use crate::session::tracer::{TracerOptions, WATCHED_CALLS};
use crate::symbolize::Symbolizer;
use crate::sys::clock::monotonic_ns;
use crate::sys::file::raise_descriptor_limit;
use executed::Executed;
use heaps::{Portrait, Preloaded};
use nix::errno::Errno;
use nix::unistd::Uid;
use portrait::OTHER_ALLOCATOR;
use serve::{Service, wake};
use std::cell::RefCell;
use std::ffi::OsString;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use suits::{other_functions, unsuited};

/// Seconds between snapshots for what keeps growing.
const LEAK_INTERVAL: f64 = 1.0;

/// Why what is asked for is not for a preloaded library; None: it is.
pub fn unable(args: &HeapArgs, descriptions: &[Description]) -> Option<String> {
    unable_in_general(args, descriptions).or_else(|| unsuited(&args.command, descriptions))
}

/// Whatever the program.
fn unable_in_general(args: &HeapArgs, descriptions: &[Description]) -> Option<String> {
    if !is_available() {
        return Some("there is no library for this processor".to_owned());
    }
    if args.combined {
        return Some("--combined counts in the kernel".to_owned());
    }
    if args.allocators.is_empty() { None } else { other_functions(descriptions) }
}

/// Says how a program is started so that it can be counted later.
pub fn arm(folder: Option<&Path>) -> Result<u8, AppError> {
    if !is_available() {
        return Err(AppError::Usage("--arm: there is no library for this processor".to_owned()));
    }
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let folder = match folder {
        Some(folder) => folder.to_owned(),
        None if Uid::effective().is_root() => PathBuf::from("/var/cache/vmaudit"),
        None => variable("XDG_CACHE_HOME")
            .or_else(|| variable("HOME").map(|home| home.join(".cache")))
            .map(|cache| cache.join("vmaudit"))
            .ok_or_else(|| AppError::Usage("--arm: there is no HOME: --arm=FOLDER".to_owned()))?,
    };
    let path = install(&folder).map_err(|error| {
        AppError::Usage(format!("--arm: the library cannot be put into {}: {error}", folder.display()))
    })?;
    let path = path.to_str().filter(|path| !path.contains([' ', ':'])).ok_or_else(|| {
        AppError::Usage(format!(
            "--arm: LD_PRELOAD cannot name a file in {}: neither spaces nor colons (ld.so(8))",
            folder.display()
        ))
    })?;
    println!("LD_PRELOAD={path}");
    Ok(0)
}

/// The processes that the user names, where all of them sleep with the library in them; None: by uprobes.
pub fn armed(args: &HeapArgs, descriptions: &[Description]) -> Result<Option<Vec<Armed>>, AppError> {
    let is_wanted = args.method == Method::Preload;
    let why = match unable_in_general(args, descriptions) {
        _ if args.method == Method::Uprobes => return Ok(None),
        Some(why) => why,
        None => {
            let mut armed = Vec::new();
            let mut other = None;
            for &pid in &args.pids {
                let maps = std::fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
                match Armed::find(pid, &parse_maps(&maps).mappings) {
                    Ok(Found::Armed(process)) => armed.push(process),
                    Ok(Found::Other) => {
                        other = Some(format!("process {pid} has the library of another version of vmaudit"));
                    }
                    // Who cannot be looked into is reported by what comes next.
                    Ok(Found::Nothing) | Err(_) => {
                        let why = "was not started with the library (vmaudit heap --arm)";
                        other = other.or_else(|| Some(format!("process {pid} {why}")));
                    }
                }
            }
            match other {
                None => return Ok(Some(armed)),
                // Nobody expects it of a process that has nothing of it.
                Some(_) if armed.is_empty() && !is_wanted => return Ok(None),
                Some(why) => why,
            }
        }
    };
    if is_wanted {
        return Err(AppError::Usage(format!("--method preload: {why}")));
    }
    Ok(None)
}

/// Wakes the library in running processes; returns vmaudit's exit code.
pub fn attach(
    (args, to): (&HeapArgs, Output),
    descriptions: &[Description],
    armed: Vec<Armed>,
) -> Result<u8, AppError> {
    let start_ns = monotonic_ns();
    let settings = Settings { sample: args.sample };
    let system = |operation| move |source| SessionError::System { operation, source };
    let listener = Listener::new().map_err(system("opening a socket"))?;
    let start = Start::running(&args.pids, tracing(args))?;
    raise_descriptor_limit();
    let options = LedgerOptions { sampling: Sampling::every(args.sample.unwrap_or(0)), start_ns };
    let mut heaps = Preloaded::new(options, super::filter(args), descriptions.to_vec());
    heaps.only = args.no_follow_forks.then(|| args.pids.clone());
    heaps.attached = true;
    for process in &armed {
        process.stop().and_then(|()| process.wake(listener.name())).map_err(|errno| {
            let pid = process.pid;
            AppError::Usage(match errno {
                Errno::EPERM => format!(
                    "process {pid} cannot be woken: writing to its memory is not allowed (process_vm_writev: EPERM): as \
                     root, or with kernel.yama.ptrace_scope = 0"
                ),
                errno => format!("process {pid} cannot be woken: {errno}"),
            })
        })?;
    }
    let heaps = Arc::new(Mutex::new(heaps));
    let service =
        Service::start(&heaps, listener, armed, (settings, start_ns)).map_err(system("starting a thread"))?;
    let record = HeapRecord::begin(args, ("preload", start.main()))?;
    let watcher = Watcher {
        args,
        to,
        executed: Rc::new(RefCell::new(Executed::new(Arc::clone(&heaps)))),
        heaps,
        main: start.main(),
        start_ns,
        allocators: descriptions.iter().map(|each| each.name.clone()).collect(),
        record,
    };
    let traced = watcher.run(start);
    watcher.heaps().release(wake);
    drop(service);
    Ok(exit_code(traced?))
}

fn exit_code(traced: Traced<End>) -> u8 {
    match traced.detach_in_background() {
        End::Exited(status) => status.exit_code(),
        End::LoadEnded(code) => code,
        End::NoneLeft | End::LeftRunning => 0,
    }
}

/// The mappings are looked at beside.
fn tracing(args: &HeapArgs) -> TracerOptions {
    let capture = CaptureConfig {
        stack_bytes: args.stacks.stack_bytes,
        follow_forks: !args.no_follow_forks,
        ..CaptureConfig::default()
    };
    TracerOptions { only: None, capture, verbose: args.verbose, is_optional: true }
}

/// Starts the command with the library; returns vmaudit's exit code.
pub fn start((args, to): (&HeapArgs, Output), descriptions: &[Description]) -> Result<u8, AppError> {
    let start_ns = monotonic_ns();
    let settings = Settings { sample: args.sample };
    let system = |operation| move |source| SessionError::System { operation, source };
    let library = Library::new().map_err(system("writing the library to memory"))?;
    let listener = Listener::new().map_err(system("opening a socket"))?;
    // ptrace(2), access mode checks: neither another user may look in, nor who has fewer rights.
    let is_equal = viewer().is_none() && (args.as_root || behind_sudo().ok().flatten().is_none());
    let path = library.path(is_equal).map_err(system("handing over the library"))?;
    let config = LaunchConfig {
        argv: args.command.clone(),
        env: vec![
            ("LD_PRELOAD".into(), Some(before_others(&path))),
            (VARIABLE.into(), Some(listener.name().into())),
        ],
        as_root: args.as_root,
        hold_exits: true,
        aslr_off: args.aslr == Aslr::Off,
        calls: WATCHED_CALLS,
        ..LaunchConfig::default()
    };
    let without_filter = "start it by itself, and attach (vmaudit heap -p PID)";
    let start = Start::command(config, tracing(args), (None, without_filter, without_filter))?;
    // Two for each process that counts. The command has been forked: its limit stays as it was.
    raise_descriptor_limit();
    let options = LedgerOptions { sampling: Sampling::every(args.sample.unwrap_or(0)), start_ns };
    let mut heaps = Preloaded::new(options, super::filter(args), descriptions.to_vec());
    heaps.only = args.no_follow_forks.then(|| vec![start.main()]);
    let heaps = Arc::new(Mutex::new(heaps));
    let service = Service::start(&heaps, listener, Vec::new(), (settings, start_ns))
        .map_err(system("starting a thread"))?;
    let record = HeapRecord::begin(args, ("preload", start.main()))?;
    let watcher = Watcher {
        args,
        to,
        executed: Rc::new(RefCell::new(Executed::new(Arc::clone(&heaps)))),
        heaps,
        main: start.main(),
        start_ns,
        allocators: descriptions.iter().map(|each| each.name.clone()).collect(),
        record,
    };
    let traced = watcher.run(start)?;
    watcher.heaps().release(wake);
    drop(service);
    Ok(exit_code(traced))
}

/// The user may preload something, too: an allocator, which ours stands before.
fn before_others(path: &str) -> OsString {
    let mut all = OsString::from(path);
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        all.push(":");
        all.push(others);
    }
    all
}

struct Watcher<'a> {
    args: &'a HeapArgs,
    to: Output,
    heaps: Arc<Mutex<Preloaded>>,
    main: Pid,
    start_ns: u64,
    allocators: Vec<String>,
    executed: Rc<RefCell<Executed>>,
    record: Option<HeapRecord>,
}

impl Watcher<'_> {
    /// Until the end; prints the reports.
    fn run(&self, start: Start<'_>) -> Result<Traced<End>, AppError> {
        let schedule = Schedule {
            duration: self.args.duration.map(Duration::from_secs_f64),
            first_snapshot: AT_THE_END,
            interval: AT_THE_END,
            timeline: false,
            verbose: self.args.verbose,
        };
        let mut symbols = symbolizer();
        let mut pipeline = start.pipeline();
        pipeline.add_sink(self.executed.clone());
        let traced = start.run(pipeline, schedule, |session| {
            // What is mapped is put beside each process' heap.
            session.audits.keeps_all = true;
            if self.heaps().attached {
                say("Ctrl-C ends watching and reports; the target goes on");
            }
            self.watch(session, &mut symbols)
        });
        let mut traced = traced.inspect_err(|_| self.record.iter().for_each(HeapRecord::abandon))?;
        let audits = std::mem::take(&mut traced.audits);
        self.heaps().finish_ended();
        if self.heaps().attached && !self.heaps().has_any() {
            self.record.iter().for_each(HeapRecord::abandon);
            return Err(AppError::NothingSeen {
                why: "nothing was allocated in this time (a longer --duration)".to_owned(),
            });
        }
        self.print(&mut symbols, Some((audits, &mut traced.pipeline, &traced.outcome)))?;
        if self.args.verbose {
            let taught = self.heaps().taught;
            say(format_args!(
                "{} questions for unwind rules, {} rules published, {} without room; mappings read {} times",
                taught.questions, taught.rules, taught.without_room, taught.maps_read
            ));
        }
        match self.heaps().has_any() || !self.executed.borrow().has(self.main) {
            true => Ok(traced),
            false => Err(AppError::NothingSeen {
                why: "the library was not loaded: the dynamic loader ignores it, or could not open it (it \
                      says so then). With root's rights, --method uprobes needs no library"
                    .to_owned(),
            }),
        }
    }

    fn heaps(&self) -> std::sync::MutexGuard<'_, Preloaded> {
        self.heaps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watch(&self, session: &mut Session<'_>, symbols: &mut Symbolizer) -> Result<End, AppError> {
        let printed =
            self.args.interval.is_some() && (!self.args.format.is_document() || self.record.is_some());
        // Growth is told from one snapshot to the next.
        let interval = self.args.interval.or(self.args.leaks_only.then_some(LEAK_INTERVAL));
        let interval = interval.map(Duration::from_secs_f64);
        let mut due = interval.map(|interval| Instant::now() + interval);
        let mut failed = Ok(());
        let end = session.run_while(|| {
            if let (Some(interval), Some(at)) = (interval, due)
                && Instant::now() >= at
            {
                due = Some(at + interval);
                if printed {
                    failed = self.print(symbols, None);
                }
                self.heaps().mark();
            }
            if failed.is_err() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        failed.map(|()| end)
    }

    /// With the mappings beside, where they were looked at: at the end.
    fn print(
        &self,
        symbols: &mut Symbolizer,
        at_the_end: Option<(Audits, &mut Pipeline, &End)>,
    ) -> Result<(), AppError> {
        let (mut report, rows) = self.report(symbols);
        let end = at_the_end.as_ref().map(|(_, _, end)| *end);
        if let Some((audits, pipeline, _)) = at_the_end {
            add_mappings(&mut report, self.main, audits, pipeline);
            self.executed.borrow().say_uncounted(&report);
            arenas::add(&mut report, &rows, |pid| self.heaps().known_blocks(pid));
        }
        self.explain_silence(&mut report);
        symbols.take_notes().iter().for_each(say);
        super::put((self.args, &self.to, self.record.as_ref()), &report, end)
    }

    /// Of a sample, what is not in it was not looked at.
    fn explain_silence(&self, report: &mut HeapReport) {
        let silent = report.processes.iter_mut().filter(|process| silence::is_silent(process));
        for process in silent.filter(|_| report.sampling_bytes.is_none()) {
            let gaps = process.gaps.iter().map(String::as_str);
            let other = gaps.into_iter().find(|gap| gap.contains(OTHER_ALLOCATOR)).map(str::to_owned);
            process.gaps.retain(|gap| Some(gap) != other.as_ref());
            process.nothing_seen = Some(silence::why_by_library(process, &self.allocators, other.as_deref()));
        }
    }

    fn report(&self, symbols: &mut Symbolizer) -> (HeapReport, RowsBySite) {
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
        let wanted: Vec<_> = processes.iter().flat_map(|(_, picture)| picture.stacks()).collect();
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
        let names = symbols.symbolize(stacks, wanted, unwinder.files_mut());
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

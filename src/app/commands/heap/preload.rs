//! `vmaudit heap -- CMD` by a library that is preloaded into the command: it counts in the program itself,
//! and needs no rights.

use super::arenas;
use super::traced::{command, trace, watch};
use super::whose::Whose;
use crate::app::error::AppError;
use crate::app::heap::mappings::add_mappings;
use crate::app::heap::preload::{Counting, CountingOptions, Entrance, Preloaded, other_functions, unsuited};
use crate::app::heap::symbolizer;
use crate::app::heap_record::HeapRecord;
use crate::app::output::Output;
use crate::capture::CaptureConfig;
use crate::capture::preload::{Armed, Found, Unwilling, install, is_available};
use crate::cli::{HeapArgs, Method};
use crate::heap::Description;
use crate::launch::LaunchConfig;
use crate::model::Pid;
use crate::procfs::parse_maps;
use crate::session::audits::Audits;
use crate::session::engine::End;
use crate::session::pipeline::Pipeline;
use crate::session::say::say;
use crate::session::start::{Start, Traced};
use crate::session::tracer::{TracerOptions, WATCHED_CALLS};
use crate::symbolize::Symbolizer;
use nix::errno::Errno;
use nix::unistd::Uid;
use std::path::{Path, PathBuf};
use std::sync::MutexGuard;

/// Why the request does not suit a preloaded library; None: it does.
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
pub fn armed(
    args: &HeapArgs,
    descriptions: &[Description],
    pids: &[Pid],
) -> Result<Option<Vec<Armed>>, AppError> {
    let is_requested = args.method == Method::Preload;
    let why = match unable_in_general(args, descriptions) {
        _ if args.method == Method::Uprobes => return Ok(None),
        Some(why) => why,
        None => {
            let mut armed: Vec<Armed> = Vec::new();
            let mut other = None;
            for &pid in pids {
                let maps = std::fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
                match Armed::find(pid, &parse_maps(&maps).mappings) {
                    Ok(Found::Armed(process)) => armed.push(process),
                    Ok(Found::Other) => {
                        other = Some(format!("process {pid} has the library of another version of vmaudit"));
                    }
                    // A process that cannot be inspected is reported by the next step.
                    Ok(Found::Nothing) | Err(_) => {
                        let why = "was not started with the library (vmaudit heap --arm)";
                        other = other.or_else(|| Some(format!("process {pid} {why}")));
                    }
                }
            }
            match other {
                None => return Ok(Some(armed)),
                // Not expected of a process without any part of it.
                Some(_) if armed.is_empty() && !is_requested => return Ok(None),
                Some(why) => why,
            }
        }
    };
    if is_requested {
        return Err(AppError::Usage(format!("--method preload: {why}")));
    }
    Ok(None)
}

/// Wakes the library in running processes; returns vmaudit's exit code.
pub fn attach(
    (args, to): (&HeapArgs, Output),
    descriptions: &[Description],
    (whose, armed): (&Whose, Vec<Armed>),
) -> Result<u8, AppError> {
    let entrance = Entrance::for_running();
    let start = whose.start(args, tracing(args))?;
    for process in &armed {
        process.stop().and_then(|()| process.wake()).map_err(|unwilling| {
            let pid = process.pid;
            AppError::Usage(match unwilling {
                Unwilling::CountsFor(other) => format!(
                    "process {pid} counts for vmaudit {other} already: end that one (kill -INT {other}), or wait for it"
                ),
                Unwilling::Refused(Errno::EPERM) => format!(
                    "process {pid} cannot be woken: writing to its memory is not allowed (process_vm_writev: EPERM): as \
                     root, or with kernel.yama.ptrace_scope = 0"
                ),
                Unwilling::Refused(errno) => format!("process {pid} cannot be woken: {errno}"),
            })
        })?;
    }
    let only = args.no_follow_forks.then(|| whose.pids.clone());
    let main = start.main();
    let record = HeapRecord::begin(args, ("preload", main))?;
    let counting = entrance.open(
        CountingOptions { container: whose.name(), ..counting(args, descriptions, (only, true)) },
        armed,
        main,
    )?;
    let watcher = Watcher { args, to, counting, record };
    let traced = watcher.run(start);
    drop(watcher);
    Ok(traced?.detach_in_background().exit_code())
}

fn counting(
    args: &HeapArgs,
    descriptions: &[Description],
    (only, attached): (Option<Vec<Pid>>, bool),
) -> CountingOptions {
    CountingOptions {
        sample: args.sample,
        filter: super::filter(args),
        descriptions: descriptions.to_vec(),
        only,
        attached,
        container: None,
    }
}

/// The mappings are audited as well.
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
    let entrance = Entrance::for_command(args.as_root)?;
    let config =
        LaunchConfig { env: entrance.environment(), calls: WATCHED_CALLS, ..LaunchConfig::default() };
    let start = command(args, config, tracing(args))?;
    let main = start.main();
    let record = HeapRecord::begin(args, ("preload", main))?;
    let only = args.no_follow_forks.then(|| vec![main]);
    let counting = entrance.open(counting(args, descriptions, (only, false)), Vec::new(), main)?;
    let watcher = Watcher { args, to, counting, record };
    let traced = watcher.run(start);
    drop(watcher);
    Ok(traced?.detach_in_background().exit_code())
}

struct Watcher<'a> {
    args: &'a HeapArgs,
    to: Output,
    counting: Counting,
    record: Option<HeapRecord>,
}

impl Watcher<'_> {
    /// Until the end; prints the reports.
    fn run(&self, start: Start<'_>) -> Result<Traced<End>, AppError> {
        let mut symbols = symbolizer();
        let to = (self.args, self.record.as_ref());
        let mut traced = trace(to, start, self.counting.executed.clone(), |session| {
            if self.heaps().attached {
                say("Ctrl-C ends watching and reports; the target goes on");
            }
            watch(to, session, |due| {
                let printed = if due == Some(true) { self.print(&mut symbols, None) } else { Ok(()) };
                if due.is_some() {
                    self.heaps().mark();
                }
                printed
            })
        })?;
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
            let published = self.heaps().published;
            say(format_args!(
                "{} requests for unwind rules, {} rules published, {} without space; mappings read {} times",
                published.requests, published.rules, published.without_space, published.maps_read
            ));
        }
        match self.counting.why_nothing() {
            None => Ok(traced),
            Some(why) => Err(AppError::NothingSeen { why }),
        }
    }

    fn heaps(&self) -> MutexGuard<'_, Preloaded> {
        self.counting.heaps()
    }

    /// With the mappings, where they were examined: at the end.
    fn print(
        &self,
        symbols: &mut Symbolizer,
        at_the_end: Option<(Audits, &mut Pipeline, &End)>,
    ) -> Result<(), AppError> {
        let (mut report, rows) = self.counting.report(symbols);
        let end = at_the_end.as_ref().map(|(_, _, end)| *end);
        if let Some((audits, pipeline, _)) = at_the_end {
            add_mappings(&mut report, self.counting.main, audits, pipeline);
            self.counting.executed.borrow().say_uncounted(&report);
            arenas::add(&mut report, &rows, |pid| self.heaps().known_blocks(pid));
        }
        self.counting.explain_silence(&mut report);
        symbols.take_notes().iter().for_each(say);
        super::put((self.args, &self.to, self.record.as_ref()), &report, end)
    }
}

//! Go's own memory profile, read from outside: what `runtime/pprof` writes, without a line of code run in the program.
//!
//! ```text
//! moduledata ──► version, tables of functions, variables
//! mbuckets ──► buckets: stack, size, counts     MemProfileRate: how they were sampled     mProfCycle: of when they are
//! ```

mod buckets;
mod functions;
mod module;
mod rate;

use crate::attribution::rules::peek::Peek;
use crate::attribution::units::exact_size;
use crate::model::Addr;
use crate::model::arenas::ReadMemory;
use crate::model::heap::runtime::{OwnFrame, OwnHeap, OwnSite, RuntimeSurroundings, Unreadable};
use crate::model::path::base_name_lossy;
use buckets::{Broken, Counts, Layout, Moment, counted, first_without_symbols, list};
use functions::Functions;
use module::{Found, Module, find};

/// How often a list that is added to meanwhile is read.
const ATTEMPTS: u32 = 8;
/// Bytes between samples: no program means more.
const MAX_RATE: u64 = 1 << 40;
/// What is called where the runtime left itself out of the stack.
const ALLOCATE: &str = "runtime.mallocgc";

/// See [`crate::model::heap::runtime`].
pub fn read(
    around: &RuntimeSurroundings<'_>,
    memory: &mut ReadMemory<'_>,
) -> Option<Result<OwnHeap, Unreadable>> {
    let mut peek = Peek::new(memory);
    Some(match find(around.process, &mut peek)? {
        Found::Unknown { version, why } => Err(Unreadable { runtime: format!("Go {version}"), why }),
        Found::Module(module) => {
            let runtime = module.version.text.clone();
            profile(&module, around, &mut peek).map_err(|why| Unreadable { runtime, why })
        }
    })
}

/// Addresses of the runtime's variables.
struct Variables {
    first: Option<u64>,
    rate: Option<u64>,
    cycle: Option<u64>,
}

impl Variables {
    fn find(module: &Module, around: &RuntimeSurroundings<'_>, peek: &mut Peek<'_, '_>) -> Variables {
        let named = |name: &str| {
            let at = (around.variable)(name)?.0;
            module.variables.contains(Addr(at)).then_some(at)
        };
        let rate = named("runtime.MemProfileRate").or_else(|| rate::address(module, peek));
        Variables { first: named("runtime.mbuckets"), rate, cycle: named("runtime.mProfCycle") }
    }

    fn first(&self, module: &Module, peek: &mut Peek<'_, '_>) -> Option<u64> {
        match self.first {
            Some(at) => peek.u64(at),
            None => first_without_symbols(module.variables, peek),
        }
    }

    fn cycle(&self, peek: &mut Peek<'_, '_>) -> Option<u32> {
        self.cycle.and_then(|at| peek.u32(at))
    }
}

const OFF: &str = "it keeps no memory profile: runtime.MemProfileRate is 0, as in a program in which nothing calls \
                   runtime.MemProfile (the linker turns it off then); one that imports runtime/pprof or \
                   net/http/pprof and uses it has one";

fn profile(
    module: &Module,
    around: &RuntimeSurroundings<'_>,
    peek: &mut Peek<'_, '_>,
) -> Result<OwnHeap, String> {
    let variables = Variables::find(module, around, peek);
    let layout = if module.version.minor >= 27 { Layout::Two } else { Layout::Four };
    let mut broken = Broken::NoBucket;
    for _ in 0..ATTEMPTS {
        peek.forget();
        let rate = variables.rate.and_then(|at| peek.u64(at)).filter(|&rate| rate <= MAX_RATE);
        let Some(first) = variables.first(module, peek).filter(|&first| first != 0) else {
            return Err(match rate {
                Some(0) => OFF.to_owned(),
                _ => "nothing was sampled yet: no bucket is there".to_owned(),
            });
        };
        let cycle = variables.cycle(peek);
        match list(first, layout, peek) {
            Ok(found) => {
                // What was read before a collection ended, and after, is not of one moment.
                if variables.cycle.and_then(|at| peek.u32_now(at)) != cycle {
                    broken = Broken::Counts;
                    continue;
                }
                let (counts, moment) = counted(&found, cycle);
                let sites = sites(module, &found, &counts, peek);
                return Ok(heap(module, around, (sites, rate, moment)));
            }
            Err(why) => broken = why,
        }
    }
    Err(match broken {
        Broken::Unreadable => {
            "its memory profile could not be read: a part of it is in swap, or gone".to_owned()
        }
        Broken::NoBucket => {
            "its memory profile does not have the form that is known of this version".to_owned()
        }
        Broken::Counts => "its memory profile changed each time while it was read".to_owned(),
    })
}

fn sites(
    module: &Module,
    found: &[buckets::Bucket],
    counts: &[Counts],
    peek: &mut Peek<'_, '_>,
) -> Vec<OwnSite> {
    let mut functions = Functions::of(module);
    let known = found.iter().zip(counts).filter(|(_, counts)| **counts != Counts::default());
    known
        .map(|(bucket, counts)| {
            let all: Vec<OwnFrame> = bucket.stack.iter().map(|&at| functions.frame(at, peek)).collect();
            let (function, frames) = without_runtime(all);
            let Counts { allocations, frees } = *counts;
            OwnSite { size: bucket.size, allocations, frees, function, frames }
        })
        .collect()
}

/// As Go's own profiles have it, a stack begins with the program's function; the runtime's that it called is
/// separate. A stack of the runtime alone stays as it is.
fn without_runtime(mut frames: Vec<OwnFrame>) -> (String, Vec<OwnFrame>) {
    let name = |frame: &OwnFrame| frame.function.as_ref().map(|function| function.name.clone());
    let is_runtime = |frame: &OwnFrame| {
        name(frame).is_some_and(|name| name.starts_with("runtime.") || name.starts_with("internal/runtime/"))
    };
    match frames.iter().position(|frame| !is_runtime(frame)) {
        None | Some(0) => (ALLOCATE.to_owned(), frames),
        Some(first) => {
            let called = frames.get(first - 1).and_then(name);
            frames.drain(..first);
            (called.unwrap_or_else(|| ALLOCATE.to_owned()), frames)
        }
    }
}

fn heap(
    module: &Module,
    around: &RuntimeSurroundings<'_>,
    (sites, rate, moment): (Vec<OwnSite>, Option<u64>, Moment),
) -> OwnHeap {
    let sampled = match rate {
        Some(1) => "every allocation".to_owned(),
        Some(rate) => format!("one allocation every {} on average", exact_size(rate)),
        None => "some allocations".to_owned(),
    };
    let when = match moment {
        Moment::Collected => "as of the latest garbage collection",
        Moment::PerhapsBefore => "as of the latest garbage collection, or the one before it",
        Moment::Never => "until now: no garbage collection is in it yet",
    };
    let mut notes = Vec::new();
    if rate.is_none() {
        notes.push(
            "the program is stripped, and where its runtime.MemProfileRate is could not be proven: bytes and blocks \
             are those of the samples alone, not scaled"
                .to_owned(),
        );
    }
    OwnHeap {
        runtime: module.version.text.clone(),
        what: format!("Go's own memory profile: {sampled}, since the program began, {when}"),
        sampled_every: rate,
        module: base_name_lossy(around.process.exe),
        sites,
        notes,
    }
}

//! Every program of every command, loaded as the commands load it, and released again: what `vmaudit doctor`
//! says of this kernel. The programs are found in the objects, not listed here.

use super::bpf::{self, Entering, TouchConfig, tracepoints};
use super::heap::{self, HeapConfig, Kind};
use super::members::Reach;
use super::refusal::{listen, refused};
use super::uprobe::{self, CallCounter, CounterConfig, Way};
use super::{CaptureConfig, CaptureError};
use crate::model::sample::STACK_BYTES;
use crate::model::{CgroupHierarchy, CgroupKey, LoadTrial, Part, ProgramTrial, Refusal};
use libbpf_rs::skel::OpenSkel;

/// The size of rings that are never read.
const SMALL: u32 = 4096;

/// Loads all of it. To be called where a program of two instructions can be loaded.
pub fn load_everything() -> Vec<LoadTrial> {
    let mut trials = mappings();
    trials.extend(heaps());
    trials.extend(probes());
    trials
}

/// What the audits of mappings load: with all options, and, where that is refused, without.
fn mappings() -> Vec<LoadTrial> {
    let small = CaptureConfig { stack_bytes: STACK_BYTES, ring_bytes: SMALL, ..CaptureConfig::default() };
    let plain = CaptureConfig { spill_bytes: SMALL, running_targets: true, ..small };
    let touch = Some(TouchConfig { budget: 1000, ring_bytes: SMALL });
    let cgroup = CgroupKey { hierarchy: CgroupHierarchy::Unified, id: 0 };
    let entering = Some(Entering { cgroup, from_outside: false });
    let all = load_mappings("--touch, --container", &CaptureConfig { touch, entering, ..plain });
    let attach = if all.works() { all.clone() } else { load_mappings("", &plain) };
    vec![LoadTrial { command: "run, attach", ..attach }, all]
}

fn load_mappings(command: &'static str, config: &CaptureConfig) -> LoadTrial {
    let trial = LoadTrial { command, object: bpf::OBJECT, ..LoadTrial::default() };
    load_each(
        trial,
        || bpf::prepare(config),
        |_| match config.touch {
            Some(_) if tracepoints::page_fault_ids().is_empty() => Err(CaptureError::NoPageFaults),
            _ => Ok(()),
        },
    )
}

/// Each way of probing for exact counts; for the others the first of these that works for them, too.
fn heaps() -> Vec<LoadTrial> {
    let exact = HeapConfig { stack_bytes: STACK_BYTES, newcomers: true, ..HeapConfig::default() };
    let load = |command, config: &HeapConfig, kind: Kind| {
        let trial = LoadTrial { command, object: heap::OBJECT, way: kind.name(), ..LoadTrial::default() };
        load_each(
            trial,
            || heap::prepare(None, config, kind),
            |skel| heap::prober(&skel, Reach::Members, kind).map(drop),
        )
    };
    let mut trials: Vec<LoadTrial> = Kind::ALL.into_iter().map(|kind| load("heap", &exact, kind)).collect();
    let ways = works_for(Kind::ALL, &trials);
    for (command, config) in [
        ("heap --sample", HeapConfig { sample: Some(1 << 20), ..exact }),
        ("heap --combined", HeapConfig { combined: true, ..exact }),
    ] {
        until_works(&ways, |kind| load(command, &config, kind), &mut trials);
    }
    trials
}

fn probes() -> Vec<LoadTrial> {
    let config = CounterConfig {
        functions: 1,
        only_marked: true,
        follow_forks: true,
        reach: Reach::Members,
        stacks: None,
        way: None,
    };
    let load = |command, with_stacks, way: Way| {
        let trial = LoadTrial { command, object: uprobe::OBJECT, way: way.name(), ..LoadTrial::default() };
        let try_out = |skel| CallCounter::of(skel, &config, way).map(drop);
        load_each(trial, || uprobe::prepare(&config, (way, with_stacks)), try_out)
    };
    let mut trials: Vec<LoadTrial> = Way::ALL.into_iter().map(|way| load("probe", false, way)).collect();
    let ways = works_for(Way::ALL, &trials);
    until_works(&ways, |way| load("probe --stacks", true, way), &mut trials);
    trials
}

/// Those of the ways that were tried, in this order, that work; or the last, to name what is refused.
fn works_for<W: Copy, const N: usize>(ways: [W; N], tried: &[LoadTrial]) -> Vec<W> {
    let works = ways.iter().zip(tried).filter(|(_, trial)| trial.works()).map(|(&way, _)| way);
    let works: Vec<W> = works.collect();
    if works.is_empty() { ways.last().copied().into_iter().collect() } else { works }
}

fn until_works<W: Copy>(ways: &[W], load: impl Fn(W) -> LoadTrial, trials: &mut Vec<LoadTrial>) {
    for &way in ways {
        let trial = load(way);
        let works = trial.works();
        trials.push(trial);
        if works {
            return;
        }
    }
}

/// Loads the programs that `open` leaves to be loaded. libbpf stops at the first that is refused: then the
/// others are loaded without it, so that each that is refused is named. `then`: what else the command
/// needs of the loaded object.
fn load_each<S: OpenSkel<'static>>(
    trial: LoadTrial,
    open: impl Fn() -> Result<S, CaptureError>,
    then: impl FnOnce(S::Output) -> Result<(), CaptureError>,
) -> LoadTrial {
    let mut trial = trial;
    let mut refusals: Vec<(String, Refusal)> = Vec::new();
    let failure = loop {
        let mut skel = match open() {
            Ok(skel) => skel,
            Err(error) => break Some(error),
        };
        trial.programs.clear();
        for mut program in skel.open_object_mut().progs_mut().filter(|program| program.autoload()) {
            let name = program.name().to_string_lossy().into_owned();
            let refusal = refusals.iter().find(|(refused, _)| *refused == name).map(|(_, why)| why.clone());
            program.set_autoload(refusal.is_none());
            trial.programs.push(ProgramTrial { name, refusal });
        }
        if trial.programs.iter().all(|program| program.refusal.is_some()) {
            break None;
        }
        shrink(&mut skel);
        listen();
        let error = match skel.load() {
            Ok(_) if !refusals.is_empty() => break None,
            Ok(loaded) => break then(loaded).err(),
            Err(error) => refused(trial.object, &error),
        };
        match error.refusal() {
            Some(refusal @ Refusal { part: Part::Program(name), .. })
                if refusals.iter().all(|(known, _)| known != name) =>
            {
                refusals.push((name.clone(), refusal.clone()));
            }
            _ => break Some(error),
        }
    };
    trial.failure = failure.map(|error| (error.to_string(), error.refusal().cloned().map(Box::new)));
    trial
}

/// Tables that are not filled need no space.
fn shrink<S: OpenSkel<'static>>(skel: &mut S) {
    for mut map in skel.open_object_mut().maps_mut() {
        if map.max_entries() > SMALL {
            // What cannot be made smaller is made as it is.
            let _ = map.set_max_entries(SMALL);
        }
    }
}

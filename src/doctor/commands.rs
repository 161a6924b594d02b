//! Which commands work here: by the backends that were tried as a whole, and by the programs that were
//! loaded.

use super::{Rung, RungFailure, TriedRung, advice_for};
use crate::model::{LoadTrial, Privileges, ProgramTrial};

/// What one command comes to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CommandVerdict {
    /// `heap --combined`
    pub name: &'static str,
    /// By which means it works, or why it does not.
    pub outcome: Result<String, String>,
}

/// `auto`: what `run` takes.
pub(super) fn commands(
    privileges: &Privileges,
    (rungs, auto): (&[TriedRung], Option<Rung>),
    loads: &[LoadTrial],
) -> Vec<CommandVerdict> {
    let why = |failure: &RungFailure| advice_for(Rung::Bpf, failure, privileges).why;
    let tried = rungs.iter().find(|tried| tried.rung == Rung::Bpf);
    let bpf: Result<String, String> = match tried.map(|tried| &tried.failure) {
        Some(None) => Ok("backend bpf".to_owned()),
        Some(Some(failure)) => Err(why(failure)),
        None => Err("the backend bpf was not tried".to_owned()),
    };
    let run = match auto {
        Some(rung) => Ok(format!("backend {}", rung.name())),
        None => Err("no backend works".to_owned()),
    };
    let of = |command: &'static str| loads.iter().filter(move |load| load.command == command);
    let refused = |load: &LoadTrial| {
        let (text, refusal) = load.refused().unwrap_or_default();
        let errno = refusal.and_then(|refusal| refusal.errno);
        match refusal {
            Some(_) => why(&RungFailure { text, errno, refusal: refusal.cloned(), ..RungFailure::default() }),
            None => text,
        }
    };
    let (plain, all) = (of("run, attach").next(), of("--touch, --container").next());
    // A program that attach is taken with, too.
    let is_plain = |name: &str| {
        let known = plain.and_then(|plain| plain.programs.iter().find(|program| program.name == name));
        known.map(|program| program.refusal.is_none())
    };
    let container = all
        .and_then(|all| all.programs.iter().find(|p| p.refusal.is_some() && is_plain(&p.name) == Some(true)));
    let touched = all.and_then(|all| {
        all.programs.iter().find(|p| p.refusal.is_some() && is_plain(&p.name) != Some(false))
    });
    let with_backend = |why_not: Option<String>| match (&bpf, why_not) {
        (Ok(_), Some(why_not)) => Err(why_not),
        _ => bpf.clone(),
    };
    let of_program = |program: &ProgramTrial| {
        let only = LoadTrial { programs: vec![program.clone()], ..LoadTrial::default() };
        refused(&only)
    };
    let touch = touched.map(of_program).or_else(|| all.filter(|all| all.failure.is_some()).map(refused));
    let by_probes = |command: &'static str| match of(command).find(|load| load.works()) {
        Some(load) => Ok(load.way.to_owned()),
        None => match of(command).next_back() {
            Some(load) => Err(refused(load)),
            None => bpf.clone().and(Err("it was not tried".to_owned())),
        },
    };
    let both = |command| bpf.clone().and_then(|_| by_probes(command));
    let verdict = |name, outcome| CommandVerdict { name, outcome };
    vec![
        verdict("run, events -- CMD, compare", run.clone()),
        verdict("attach, events -p, top -t", bpf.clone()),
        verdict("--touch", with_backend(touch)),
        verdict("--container", with_backend(container.map(of_program))),
        // The library that is preloaded needs nothing but a command; its mappings are audited as well.
        verdict("heap -- CMD", run.map(|how| format!("preloaded library, {how}"))),
        verdict("heap", both("heap")),
        verdict("heap --sample", both("heap --sample")),
        verdict("heap --combined", both("heap --combined")),
        verdict("probe", by_probes("probe")),
        verdict("probe --stacks", both("probe --stacks")),
    ]
}

//! `vmaudit compare`: runs of a command as it is and changed, in turn, each in a process of its own.

mod plan;
mod printed;
mod trial;

use crate::app::error::AppError;
use crate::app::output::{Destination, Output, program};
use crate::cli::{CompareArgs, PlainFormat};
use crate::compare::model::{Comparison, Failure};
use crate::compare::{Advice, Run, SideRuns, advice, judge};
use crate::launch::Supervisor;
use crate::render::compare::to_text;
use crate::render::to_json;
use crate::report::Report;
use crate::session::reporting;
use crate::session::say::say;
use plan::Plan;
use std::collections::BTreeSet;
use std::io::IsTerminal;
use trial::{Ended, Trial};

/// Sides did not end alike: the figures may not be comparable.
const UNLIKE: u8 = 1;
/// vmaudit has no run to show.
const NO_RUN: u8 = 125;
/// Notes shown; more say the same about other process numbers.
const MAX_NOTES: usize = 12;

/// Runs, compares, prints; returns vmaudit's exit code.
pub fn compare(args: &CompareArgs) -> Result<u8, AppError> {
    let output = Output::open(args.report.as_deref(), &program(&args.command))?;
    let mut runs = Runs {
        args,
        to: Destination { output, top: args.top },
        supervisor: Supervisor::new()?,
        trial: Trial::new(args)?,
        plans: Vec::new(),
        results: Vec::new(),
        advised: Vec::new(),
        frame: Comparison {
            command: args.command.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
            runs: args.runs,
            ended_by: trial::ended_by(args),
            ..Comparison::default()
        },
        notes: BTreeSet::new(),
        order: 0,
        signal: None,
    };
    runs.all()?;
    runs.report()
}

struct Runs<'a> {
    args: &'a CompareArgs,
    to: Destination,
    supervisor: Supervisor,
    trial: Trial<'a>,
    plans: Vec<Plan>,
    results: Vec<SideRuns>,
    /// What is tried alone, in the order of the sides from the second on.
    advised: Vec<Advice>,
    frame: Comparison,
    notes: BTreeSet<String>,
    /// Runs begun.
    order: u32,
    /// The user's request to stop.
    signal: Option<i32>,
}

impl Runs<'_> {
    /// A B, B A, A B …: neither side always comes first, so a machine that slows down or warms up during the
    /// runs is not mistaken for an effect.
    fn all(&mut self) -> Result<(), AppError> {
        let plan = Plan::of_arguments(self.args);
        // with --advice, what the command line says holds for all that is tried
        match self.args.advice {
            true => self.add(plan, None),
            false => self.add(Plan::as_it_is(), None),
        }
        if let Some(base) = self.results.first_mut().filter(|base| base.label.is_empty()) {
            base.label = "as it is".to_owned();
        }
        if !self.args.advice {
            self.add(Plan::of_arguments(self.args), None);
        }
        for round in 0..self.args.runs {
            let mut side = 0;
            while side < self.plans.len() {
                let at = if round % 2 == 0 { side } else { self.plans.len() - 1 - side };
                if round == 0 && at == self.advised.len() + 1 && self.args.advice {
                    self.all_that_count();
                }
                let report = self.one(at)?;
                if self.signal.is_some() || self.results.first().is_some_and(|base| base.failure.is_some()) {
                    return Ok(());
                }
                if let (true, 1, Some(report)) = (self.args.advice, self.order, report) {
                    self.take_advice(&report);
                    if self.plans.len() == 1 {
                        return Ok(());
                    }
                }
                side += 1;
            }
        }
        Ok(())
    }

    fn add(&mut self, plan: Plan, promised: Option<(u64, u64)>) {
        let (label, change) = (advice::label(&plan.change), plan.change.clone());
        self.results.push(SideRuns { label, change, promised, ..SideRuns::default() });
        self.plans.push(plan);
    }

    /// Each setting alone, and all together.
    fn take_advice(&mut self, report: &Report) {
        let Some(base) = self.plans.first().cloned() else { return };
        let advised = advice::advice(report, &|name| base.variable(name));
        self.frame.not_tried = advised.not_tried;
        self.advised = advised.settings;
        let all: Vec<Advice> = self.advised.clone();
        for advice in &all {
            self.add_advice(&base, &[advice]);
            // what stood in the variable before is part of the change, but not of its name
            if let Some(side) = self.results.last_mut() {
                side.label = advice.setting.label();
            }
        }
        if all.len() > 1 {
            self.add_advice(&base, &all.iter().collect::<Vec<_>>());
            if let Some(side) = self.results.last_mut() {
                side.label = "all of them together".to_owned();
            }
        }
    }

    fn add_advice(&mut self, base: &Plan, advised: &[&Advice]) {
        let settings: Vec<_> = advised.iter().map(|advice| &advice.setting).collect();
        let change = advice::change(&base.change, &settings, &|name| base.variable(name));
        self.add(base.with(change), Some(advice::together(advised.iter().copied())));
        if let Some(side) = self.results.last_mut() {
            side.promised_of = advised.iter().flat_map(|advice| advice.categories.iter().cloned()).collect();
        }
    }

    /// Before the settings are tried together for the first time: what made the command fail alone is left out.
    fn all_that_count(&mut self) {
        let Some((base, sides)) = self.results.split_first() else { return };
        let counts = |side: &SideRuns| judge::void(base, side).is_empty();
        let tried = self.advised.iter().zip(sides);
        let left: Vec<Advice> =
            tried.filter(|(_, side)| counts(side)).map(|(advice, _)| advice.clone()).collect();
        if left.len() == self.advised.len() {
            return;
        }
        self.plans.pop();
        self.results.pop();
        if let (true, Some(base)) = (left.len() > 1, self.plans.first().cloned()) {
            self.add_advice(&base, &left.iter().collect::<Vec<_>>());
            if let Some(side) = self.results.last_mut() {
                side.label = "all that are not void, together".to_owned();
            }
        }
    }

    /// One run of a side, unless that side has failed before.
    fn one(&mut self, at: usize) -> Result<Option<Report>, AppError> {
        let (Some(plan), Some(side)) = (self.plans.get(at), self.results.get_mut(at)) else {
            return Ok(None);
        };
        if side.failure.is_some() {
            return Ok(None);
        }
        self.order += 1;
        if self.args.verbose || std::io::stderr().is_terminal() {
            // with --advice the number of sides is known after the first run only
            say(format_args!(
                "run {} of {}: {}",
                self.order,
                self.plans.len() as u32 * self.args.runs,
                side.label
            ));
        }
        let done = self.trial.run(&self.supervisor, plan)?;
        let known = self.notes.len();
        self.notes.extend(done.notes.into_iter().take(MAX_NOTES.saturating_sub(known)));
        match done.ended {
            Ended::Report { report, load_code, complaint } => {
                let mut run = Run::of(&report, self.order);
                run.row.load_code = load_code;
                run.row.printed = done.output.map(|output| output.bytes);
                run.output = done.output;
                if let Some(complaint) = complaint
                    && !side.runs.iter().any(|known| known.row.outcome == run.row.outcome)
                {
                    self.notes.insert(format!("{} ({}): {complaint}", side.label, run.row.outcome));
                }
                side.runs.push(run);
                Ok(Some(*report))
            }
            Ended::Failed { code, message } => {
                side.failure = Some(Failure { code, message });
                Ok(None)
            }
            Ended::Interrupted(signal) => {
                self.signal = Some(signal as i32);
                Ok(None)
            }
        }
    }

    fn report(mut self) -> Result<u8, AppError> {
        reporting::begin(self.supervisor.take_requests()?);
        self.frame.interrupted = self.signal.is_some();
        self.frame.notes = std::mem::take(&mut self.notes).into_iter().collect();
        let comparison = crate::compare::compare(self.frame, self.results);
        let base = comparison.sides.first();
        if base.is_none_or(|side| side.runs.is_empty()) {
            if let Some(signal) = self.signal {
                say("interrupted before the first run was complete");
                return Ok(interrupted(signal));
            }
            let failure = base.and_then(|side| side.failure.as_ref());
            say(failure.map_or("the command gave no report", |failure| &failure.message));
            return Ok(failure.and_then(|failure| u8::try_from(failure.code).ok()).unwrap_or(NO_RUN));
        }
        self.to.put(
            match self.args.format {
                PlainFormat::Text => to_text(&comparison, self.to.options()),
                PlainFormat::Json => to_json(&comparison)?,
            }
            .as_bytes(),
        )?;
        Ok(match self.signal {
            Some(signal) => interrupted(signal),
            None if comparison.ended_alike() => 0,
            None => UNLIKE,
        })
    }
}

/// As shells show an end by that signal.
fn interrupted(signal: i32) -> u8 {
    128u8.saturating_add(u8::try_from(signal).unwrap_or(0))
}

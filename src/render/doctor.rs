//! `vmaudit doctor`: for people, and for programs (docs/doctor.md).

mod json;

use super::style::{Color, Tone, clean, truncated, wrapped};
use super::text::WIDTH;
use crate::doctor::{Advice, CommandVerdict, Diagnosis, Reach, Rung, TriedRung};
use crate::model::{LoadTrial, Outcome, Privileges, Refusal, Trial, TrialArea};

pub use json::doctor_to_json;

/// Width of the first column and of the results.
const WHAT: usize = 39;
const RESULT: usize = 9;
const INDENT: usize = 4;

/// Tables and advice, at most [`WIDTH`] columns. `verbose`: with the verifier's words.
pub fn doctor_to_text(diagnosis: &Diagnosis, verbose: bool, color: Color) -> String {
    let mut out = heading(&diagnosis.privileges, color);
    let mut area = None;
    for trial in &diagnosis.trials {
        if area != Some(trial.area) {
            area = Some(trial.area);
            out += &format!("\n  {}\n", color.paint(Tone::Dim, area_name(trial.area)));
        }
        out += &trial_row(trial, color);
    }
    if !diagnosis.loads.is_empty() {
        out += &format!("\n  {}\n", color.paint(Tone::Dim, "BPF programs, each loaded"));
        out += &load_rows(&diagnosis.loads, verbose, color);
    }
    out += &format!("\n  {}\n", color.paint(Tone::Dim, "backends, the best first"));
    for tried in &diagnosis.rungs {
        out += &rung_rows(tried, diagnosis.auto, color);
    }
    out += &format!("\n  {}\n", color.paint(Tone::Dim, "commands"));
    for command in &diagnosis.commands {
        out += &command_row(command, color);
    }
    out += &conclusion(diagnosis, color);
    for advice in &diagnosis.advice {
        out += &advice_block(advice, color);
    }
    out
}

fn area_name(area: TrialArea) -> &'static str {
    match area {
        TrialArea::Bpf => "BPF",
        TrialArea::Perf => "perf events",
        TrialArea::Seccomp => "seccomp",
        TrialArea::Reading => "looking at processes",
        TrialArea::Starting => "starting commands",
        TrialArea::Engines => "container engines",
    }
}

fn heading(privileges: &Privileges, color: Color) -> String {
    let who = if privileges.uid == 0 { "root".to_owned() } else { format!("uid {}", privileges.uid) };
    let first = format!(
        "vmaudit {} on Linux {} ({}), as {who}",
        env!("CARGO_PKG_VERSION"),
        clean(&privileges.kernel),
        privileges.arch
    );
    let mut marks = Vec::new();
    marks.push(match privileges.effective.names() {
        names if names.is_empty() => "no capability that helps".to_owned(),
        names => format!("with {}", names.join(", ")),
    });
    if !privileges.first_user_namespace {
        marks.push("in a user namespace".to_owned());
    }
    if !privileges.first_pid_namespace {
        marks.push("in a PID namespace (a container)".to_owned());
    }
    if privileges.seccomp_filter {
        marks.push("under a seccomp filter".to_owned());
    }
    if privileges.no_new_privs {
        marks.push("no_new_privs is set".to_owned());
    }
    let mut out = format!("{}\n", color.paint(Tone::Heading, &first));
    for line in wrapped(&marks.join(" · "), WIDTH) {
        out += &format!("{line}\n");
    }
    out
}

/// `    what   result   detail`, the detail in as many lines as it needs.
fn row(what: &str, result: (&str, Option<Tone>), detail: &str, color: Color) -> String {
    let (text, tone) = result;
    let cell = format!("{:<RESULT$}", truncated(text, RESULT - 1));
    let cell = tone.map_or_else(|| cell.clone(), |tone| color.paint(tone, &cell));
    let at = INDENT + WHAT + RESULT;
    let mut lines = wrapped(&clean(detail), WIDTH - at).into_iter();
    let first = lines.next().unwrap_or_default();
    let mut out = format!("{:INDENT$}{:<WHAT$}{cell}{first}", "", truncated(what, WHAT - 2));
    out.truncate(out.trim_end().len());
    out.push('\n');
    for line in lines {
        out += &format!("{:at$}{line}\n", "");
    }
    out
}

fn trial_row(trial: &Trial, color: Color) -> String {
    let without = |why: &str| match (why, trial.without) {
        ("", without) => without.to_owned(),
        (why, "") => why.to_owned(),
        (why, without) => format!("{why}: {without}"),
    };
    match &trial.outcome {
        Outcome::Works => row(trial.what, ("yes", Some(Tone::Advice)), &trial.detail, color),
        Outcome::Value(value) => row(trial.what, (value, None), &trial.detail, color),
        Outcome::Refused { name, .. } => row(trial.what, (name, Some(Tone::Warning)), &without(""), color),
        // An engine that is not there is nothing to warn of.
        Outcome::Absent(why) if trial.area == TrialArea::Engines => {
            row(trial.what, ("–", Some(Tone::Dim)), why, color)
        }
        Outcome::Absent(why) => row(trial.what, ("–", Some(Tone::Dim)), &without(why), color),
    }
}

/// The programs that are accepted in one row, each that is refused in one of its own. Commands with the same
/// outcome share them.
fn load_rows(loads: &[LoadTrial], verbose: bool, color: Color) -> String {
    let mut out = String::new();
    let mut at = 0;
    while let Some(load) = loads.get(at) {
        let rest = loads.get(at..).unwrap_or_default();
        let alike = rest.iter().take_while(|other| outcome(other) == outcome(load)).count().max(1);
        let commands: Vec<&str> = rest.iter().take(alike).map(|load| load.command).collect();
        at += alike;
        let mut what = commands.join(", ");
        if !load.way.is_empty() {
            what += &format!(", {}", load.way);
        }
        let taken: Vec<&str> = load
            .programs
            .iter()
            .filter(|program| program.refusal.is_none())
            .map(|program| program.name.as_str())
            .collect();
        let result = if load.works() { ("yes", Some(Tone::Advice)) } else { ("no", Some(Tone::Warning)) };
        out += &row(&what, result, &taken.join(", "), color);
        for program in &load.programs {
            if let Some(refusal) = &program.refusal {
                out += &refused_rows(&format!("  {}", program.name), refusal, verbose, color);
            }
        }
        match &load.failure {
            Some((_, Some(refusal))) => out += &refused_rows("", refusal, verbose, color),
            Some((text, None)) => out += &row("", ("", None), text, color),
            None => {}
        }
    }
    out
}

/// All but whose it is.
fn outcome(load: &LoadTrial) -> LoadTrial {
    LoadTrial { command: "", ..load.clone() }
}

fn refused_rows(what: &str, refusal: &Refusal, verbose: bool, color: Color) -> String {
    let words = refusal.verdict().map_or_else(|| refusal.to_string(), str::to_owned);
    let mut out = row(what, ("refused", Some(Tone::Warning)), &words, color);
    if verbose {
        for line in &refusal.verifier {
            out += &format!("{:INDENT$}  | {}\n", "", truncated(&clean(line), WIDTH - INDENT - 4));
        }
    }
    out
}

fn command_row(command: &CommandVerdict, color: Color) -> String {
    match &command.outcome {
        Ok(how) => row(command.name, ("yes", Some(Tone::Advice)), how, color),
        Err(why) => row(command.name, ("no", Some(Tone::Warning)), why, color),
    }
}

fn rung_rows(tried: &TriedRung, auto: Option<Rung>, color: Color) -> String {
    let name = tried.rung.name();
    let mark = if auto == Some(tried.rung) { "  ◀ auto" } else { "" };
    let what = format!("{name}{mark}");
    match &tried.failure {
        None => {
            let reach = match tried.reach {
                Reach::Everybody if tried.rung == Rung::Bpf => " of every user",
                Reach::Everybody => "; every user's processes",
                Reach::Own if tried.rung == Rung::Bpf => " of your own",
                Reach::Own => "; your own processes only",
                Reach::Nobody => "",
            };
            let detail = format!("{}{reach}", tried.rung.gives());
            row(&what, ("yes", Some(Tone::Advice)), &detail, color)
        }
        Some(failure) => row(&what, ("no", Some(Tone::Warning)), &failure.text, color),
    }
}

fn conclusion(diagnosis: &Diagnosis, color: Color) -> String {
    let text = match diagnosis.auto {
        Some(Rung::Bpf) if diagnosis.advice.is_empty() => {
            "Nothing is missing: auto takes bpf, the best there is.".to_owned()
        }
        Some(rung) => format!("auto takes {}.", rung.name()),
        None => "No backend can trace here: `vmaudit run` and `attach` would fail.".to_owned(),
    };
    let tone = if diagnosis.auto.is_some() { Tone::Heading } else { Tone::Warning };
    format!("\n{}\n", color.paint(tone, &text))
}

fn advice_block(advice: &Advice, color: Color) -> String {
    let mut out = String::from("\n");
    let text = format!("For {}: {}.", advice.unlocks, advice.why);
    for line in wrapped(&clean(&text), WIDTH) {
        out += &format!("{line}\n");
    }
    let width = advice.commands.iter().map(|each| each.when.chars().count()).max().unwrap_or(0);
    for command in &advice.commands {
        let typed = color.paint(Tone::Advice, &clean(&command.command));
        out += &format!("  {:<width$}   {typed}\n", command.when);
    }
    out
}

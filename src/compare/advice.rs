//! A report's advice as changes that can be tried: environment variables, `ulimit -s`, arguments.

use super::model::{Change, NotTried};
use crate::report::model::{Fix, Process};
use crate::report::units::exact_size;
use crate::report::{Placed, Report, option_lists, option_separator, place_option};
use std::collections::{BTreeMap, BTreeSet};

/// One setting, as strict as it can be read from a report's `knob`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Setting {
    Variable {
        name: String,
        value: String,
    },
    /// Bytes.
    StackLimit(u64),
    /// Of the command itself, after all others.
    Argument(String),
}

/// Something to try.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Advice {
    pub setting: Setting,
    pub saves_virt: u64,
    pub saves_rss: u64,
    /// VIRT and RSS of that, by finding.
    of: BTreeMap<usize, (u64, u64)>,
    /// Of the memory that it is about.
    pub categories: BTreeSet<String>,
}

/// What settings promise together, VIRT and RSS: what one of them takes of a finding another one cannot take again.
pub fn together<'a>(settings: impl IntoIterator<Item = &'a Advice>) -> (u64, u64) {
    let mut most: BTreeMap<usize, (u64, u64)> = BTreeMap::new();
    for (finding, (virt, rss)) in settings.into_iter().flat_map(|advice| &advice.of) {
        let known = most.entry(*finding).or_default();
        *known = (known.0.max(*virt), known.1.max(*rss));
    }
    most.into_values().fold((0, 0), |sum, each| (sum.0.saturating_add(each.0), sum.1.saturating_add(each.1)))
}

/// What a report advises.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Advised {
    /// The largest promise first, each setting once.
    pub settings: Vec<Advice>,
    pub not_tried: Vec<NotTried>,
}

impl Setting {
    /// `NAME=value` or `ulimit -s KIB`, perhaps followed by a remark in parentheses; the options of a
    /// runtime's start line go where it reads them and they count, whatever options it was `started` with.
    /// Nothing else is a setting.
    pub fn parse(knob: &str, started: &[String]) -> Option<Setting> {
        let words = knob.split_once(" (").map_or(knob, |(setting, _)| setting);
        if let Some(kib) = words.strip_prefix("ulimit -s ") {
            let bytes = number(kib)?.checked_mul(1024)?;
            return (bytes > 0).then_some(Setting::StackLimit(bytes));
        }
        if words.is_empty() || words.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return None;
        }
        let variable = |name: &str, value: &str| {
            Some(Setting::Variable { name: name.to_owned(), value: value.to_owned() })
        };
        match place_option(words, started) {
            Some(Placed::Variable { name, value }) => return variable(name, &value),
            Some(Placed::Argument) => return Some(Setting::Argument(words.to_owned())),
            None => {}
        }
        let (name, value) = words.split_once('=')?;
        (is_variable_name(name) && !value.is_empty()).then(|| variable(name, value))?
    }

    /// `MALLOC_ARENA_MAX=1`, `ulimit -s 1024`.
    pub fn label(&self) -> String {
        match self {
            Setting::Variable { name, value } => format!("{name}={value}"),
            Setting::StackLimit(bytes) => format!("ulimit -s {}", bytes / 1024),
            Setting::Argument(argument) => argument.clone(),
        }
    }

    /// Adds it to `change`; what a variable holds already (in the change, else in vmaudit's own
    /// environment) stays where the variable is a list.
    fn add_to(&self, change: &mut Change, environment: &dyn Fn(&str) -> Option<String>) {
        match self {
            Setting::StackLimit(bytes) => change.stack_limit = Some(*bytes),
            Setting::Argument(argument) => change.args.push(argument.clone()),
            Setting::Variable { name, value } => {
                let before = change.env.get(name).cloned().unwrap_or_else(|| environment(name));
                let combined = match (option_separator(name), before) {
                    // the later of two equal options counts
                    (Some(between), Some(before)) if !before.is_empty() => {
                        format!("{before}{between}{value}")
                    }
                    _ => value.clone(),
                };
                change.env.insert(name.clone(), Some(combined));
            }
        }
    }
}

/// `base`, and what applies all of `settings`.
pub fn change(base: &Change, settings: &[&Setting], environment: &dyn Fn(&str) -> Option<String>) -> Change {
    let mut change = base.clone();
    settings.iter().for_each(|setting| setting.add_to(&mut change, environment));
    change
}

/// `MALLOC_ARENA_MAX=1 … ulimit -s 1024`: as one would write it.
pub fn label(change: &Change) -> String {
    let env = change.env.iter().map(|(name, value)| match value {
        Some(value) => format!("{name}={value}"),
        None => format!("without {name}"),
    });
    let limit = change.stack_limit.map(|bytes| match bytes.is_multiple_of(1024) {
        true => format!("ulimit -s {}", bytes / 1024),
        false => format!("stack limit {}", exact_size(bytes)),
    });
    let args = change.args.iter().map(|arg| format!("… {arg}"));
    env.chain(limit).chain(args).collect::<Vec<_>>().join(" ")
}

/// Sorts a report's advice into what can be tried and what cannot. `environment`: what the command was started
/// with.
pub fn advice(report: &Report, environment: &dyn Fn(&str) -> Option<String>) -> Advised {
    let mut advised = Advised::default();
    let mut number = 0;
    for process in &report.processes {
        let started = started(process, environment);
        let first = number;
        number += process.findings.len();
        let findings = (first..).zip(&process.findings);
        let fixes =
            findings.flat_map(|(n, finding)| finding.fix.iter().map(move |fix| (n, &*finding.category, fix)));
        for (finding, category, fix) in fixes {
            let promises = fix.saves_virt > 0 || fix.saves_rss > 0;
            match Setting::parse(&fix.knob, &started) {
                // of a program that the command starts: what that is started with is not ours to say
                Some(Setting::Argument(_)) if !is_advised(report.processes.first(), fix) => {
                    let why = "an argument of a program that the command starts";
                    not_tried(&mut advised.not_tried, fix, why);
                }
                Some(setting) => tried(&mut advised.settings, setting, (finding, category, fix)),
                None if promises => {
                    let why = "a change of the program or of how it is started, not of its environment";
                    not_tried(&mut advised.not_tried, fix, why);
                }
                // "none for VIRT", "fewer threads": nothing to try, and nothing promised
                None => {}
            }
        }
    }
    advised.settings.sort_by_key(|advice| std::cmp::Reverse(advice.saves_virt.max(advice.saves_rss)));
    advised.not_tried.sort_by_key(|each| std::cmp::Reverse(each.saves_virt.max(each.saves_rss)));
    advised
}

/// The options that a process was started with: on its command line, and in the variables that are lists of them.
fn started(process: &Process, environment: &dyn Fn(&str) -> Option<String>) -> Vec<String> {
    let lists = option_lists().filter_map(|(name, separator)| Some((environment(name)?, separator)));
    let listed = lists.flat_map(|(list, separator)| {
        list.split(separator).filter(|word| !word.is_empty()).map(str::to_owned).collect::<Vec<_>>()
    });
    process.cmdline.iter().cloned().chain(listed).collect()
}

fn is_advised(process: Option<&Process>, fix: &Fix) -> bool {
    process.is_some_and(|p| p.findings.iter().flat_map(|f| &f.fix).any(|own| own.knob == fix.knob))
}

fn tried(settings: &mut Vec<Advice>, setting: Setting, (finding, category, fix): (usize, &str, &Fix)) {
    let at = settings.iter().position(|known| known.setting == setting);
    let at = at.unwrap_or_else(|| {
        let (of, categories) = (BTreeMap::new(), BTreeSet::new());
        settings.push(Advice { setting, saves_virt: 0, saves_rss: 0, of, categories });
        settings.len() - 1
    });
    if let Some(advice) = settings.get_mut(at) {
        advice.saves_virt = advice.saves_virt.saturating_add(fix.saves_virt);
        advice.saves_rss = advice.saves_rss.saturating_add(fix.saves_rss);
        advice.categories.insert(category.to_owned());
        let own = advice.of.entry(finding).or_default();
        *own = (own.0.saturating_add(fix.saves_virt), own.1.saturating_add(fix.saves_rss));
    }
}

fn not_tried(list: &mut Vec<NotTried>, fix: &Fix, why: &str) {
    if let Some(known) = list.iter_mut().find(|known| known.knob == fix.knob) {
        known.saves_virt = known.saves_virt.saturating_add(fix.saves_virt);
        known.saves_rss = known.saves_rss.saturating_add(fix.saves_rss);
        return;
    }
    list.push(NotTried {
        knob: fix.knob.clone(),
        why: why.to_owned(),
        saves_virt: fix.saves_virt,
        saves_rss: fix.saves_rss,
    });
}

fn is_variable_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

fn number(digits: &str) -> Option<u64> {
    digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::model::Finding;

    fn variable(knob: &str) -> Option<(String, String)> {
        match Setting::parse(knob, &[])? {
            Setting::Variable { name, value } => Some((name, value)),
            Setting::StackLimit(_) | Setting::Argument(_) => None,
        }
    }

    #[test]
    fn only_assignments_are_settings() {
        let pair = |a: &str, b: &str| Some((a.to_owned(), b.to_owned()));
        assert_eq!(
            variable("MALLOC_ARENA_MAX=1 (or mallopt(M_ARENA_MAX, 1))"),
            pair("MALLOC_ARENA_MAX", "1")
        );
        assert_eq!(
            variable("MALLOC_CONF=dirty_decay_ms:0,muzzy_decay_ms:0"),
            pair("MALLOC_CONF", "dirty_decay_ms:0,muzzy_decay_ms:0")
        );
        assert_eq!(variable("_RJEM_MALLOC_CONF=retain:false"), pair("_RJEM_MALLOC_CONF", "retain:false"));
        assert_eq!(
            variable("GLIBC_TUNABLES=glibc.pthread.stack_cache_size=0"),
            pair("GLIBC_TUNABLES", "glibc.pthread.stack_cache_size=0")
        );
        assert_eq!(variable("-Xmx64m"), pair("_JAVA_OPTIONS", "-Xmx64m"));
        assert_eq!(variable("-XX:+UseSerialGC"), pair("_JAVA_OPTIONS", "-XX:+UseSerialGC"));
        assert_eq!(variable("--jitless"), pair("NODE_OPTIONS", "--jitless"));
        assert_eq!(
            Setting::parse("--js-flags=--jitless", &[]),
            Some(Setting::Argument("--js-flags=--jitless".into()))
        );
        assert_eq!(Setting::parse("ulimit -s 1024 (or so)", &[]), Some(Setting::StackLimit(1 << 20)));
        for other in [
            "",
            "ask for less at this call",
            "link with -Wl,-z,max-page-size=4096",
            "fewer threads",
            "none for VIRT",
            "-Xmx (for example -Xmx64m)",
            "-Xmx, or -XX:+UseSerialGC",
            "--max-old-space-size=64",
            "A=",
            "=1",
            "1A=2",
            "A=1 B=2",
            "A=1\n",
            "ulimit -s unlimited",
            "ulimit -s 99999999999999999999",
            "ulimit -s 0",
        ] {
            assert_eq!(Setting::parse(other, &[]), None, "{other:?}");
        }
    }

    #[test]
    fn lists_are_extended_and_values_replaced() {
        let setting = |knob: &str| Setting::parse(knob, &[]).expect(knob);
        let (retain, decay) = (setting("MALLOC_CONF=retain:false"), setting("MALLOC_CONF=dirty_decay_ms:0"));
        let (arena, tunable) = (setting("MALLOC_ARENA_MAX=1"), setting("GLIBC_TUNABLES=a=1"));
        let own = |name: &str| match name {
            "MALLOC_CONF" => Some("narenas:2".to_owned()),
            "MALLOC_ARENA_MAX" => Some("4".to_owned()),
            _ => None,
        };
        let all =
            change(&Change::default(), &[&retain, &arena, &decay, &tunable, &setting("ulimit -s 64")], &own);
        assert_eq!(all.env["MALLOC_CONF"].as_deref(), Some("narenas:2,retain:false,dirty_decay_ms:0"));
        assert_eq!(all.env["MALLOC_ARENA_MAX"].as_deref(), Some("1"));
        assert_eq!(all.env["GLIBC_TUNABLES"].as_deref(), Some("a=1"));
        assert_eq!(all.stack_limit, Some(65_536));
        let alone = change(&Change::default(), &[&arena], &|_| None);
        assert_eq!(label(&alone), "MALLOC_ARENA_MAX=1");
    }

    #[test]
    fn equal_settings_of_several_findings_are_one() {
        let fix = |knob: &str, saves_virt, saves_rss| Fix {
            knob: knob.into(),
            saves_virt,
            saves_rss,
            note: String::new(),
        };
        let finding = |fix| Finding { fix, ..Finding::default() };
        let findings = vec![
            finding(vec![fix("MALLOC_ARENA_MAX=1 (or x)", 60, 0), fix("fewer threads", 0, 0)]),
            finding(vec![fix("MALLOC_ARENA_MAX=1 (or x)", 40, 0)]),
            finding(vec![fix("MALLOC_CONF=retain:false", 500, 0), fix("ask for less at this call", 7, 0)]),
            finding(vec![fix("ask for less at this call", 1, 0), fix("fewer of them", 0, 0)]),
            finding(vec![fix("X=1", 0, 0)]),
        ];
        let process = Process { findings, ..Process::default() };
        let advised = advice(&Report { processes: vec![process], ..Report::default() }, &|_| None);
        let settings: Vec<(String, u64)> =
            advised.settings.iter().map(|a| (a.setting.label(), a.saves_virt)).collect();
        assert_eq!(
            settings,
            [("MALLOC_CONF=retain:false".into(), 500), ("MALLOC_ARENA_MAX=1".into(), 100), ("X=1".into(), 0)]
        );
        assert_eq!(advised.not_tried.len(), 1, "what promises nothing is no advice to test");
        assert_eq!(advised.not_tried[0].saves_virt, 8);
    }

    #[test]
    fn what_two_settings_promise_of_one_finding_is_promised_once() {
        let fix = |knob: &str, saves_virt, saves_rss| Fix {
            knob: knob.into(),
            saves_virt,
            saves_rss,
            ..Fix::default()
        };
        let cache = "GLIBC_TUNABLES=glibc.pthread.stack_cache_size=0";
        let stacks = |limit, kept| Finding {
            fix: vec![fix("ulimit -s 1024", limit, 0), fix(cache, kept, 3)],
            ..Finding::default()
        };
        let arenas = Finding { fix: vec![fix("MALLOC_ARENA_MAX=1", 64, 0)], ..Finding::default() };
        let first = Process { findings: vec![stacks(7, 8), arenas], ..Process::default() };
        let second = Process { findings: vec![stacks(14, 8)], ..Process::default() };
        let report = Report { processes: vec![first, second], ..Report::default() };
        let settings = advice(&report, &|_| None).settings;
        assert_eq!(together(&settings), (8 + 64 + 14, 6));
        for alone in &settings {
            assert_eq!(together([alone]), (alone.saves_virt, alone.saves_rss));
        }
    }

    #[test]
    fn collectors_that_are_selected_elsewhere_are_let_go() {
        let started = ["java", "-Xmx1g", "-XX:+UseZGC", "Main"].map(str::to_owned);
        let setting = Setting::parse("-XX:+UseSerialGC", &started).expect("a setting");
        assert_eq!(setting.label(), "_JAVA_OPTIONS=-XX:-UseZGC -XX:+UseSerialGC");
        let process = Process { cmdline: vec!["java".into(), "Main".into()], ..Process::default() };
        let environment = |name: &str| (name == "JAVA_TOOL_OPTIONS").then(|| "-Xss1m -XX:+UseZGC".to_owned());
        assert_eq!(super::started(&process, &environment), ["java", "Main", "-Xss1m", "-XX:+UseZGC"]);
    }

    #[test]
    fn what_holds_for_every_side_is_kept() {
        let env = [("A".to_owned(), Some("1".to_owned())), ("MALLOC_CONF".to_owned(), None)].into();
        let base = Change { env, args: vec!["x".into()], stack_limit: Some(1 << 20) };
        let settings = ["MALLOC_CONF=retain:false", "--js-flags=--jitless"]
            .map(|knob| Setting::parse(knob, &[]).expect(knob));
        let own = |name: &str| (name == "MALLOC_CONF").then(|| "narenas:2".to_owned());
        let all = change(&base, &settings.iter().collect::<Vec<_>>(), &own);
        assert_eq!(all.env["MALLOC_CONF"].as_deref(), Some("retain:false"), "it was taken away");
        assert_eq!((all.env["A"].as_deref(), all.stack_limit), (Some("1"), Some(1 << 20)));
        assert_eq!(all.args, ["x", "--js-flags=--jitless"]);
    }

    #[test]
    fn an_argument_is_for_the_command_itself() {
        let knob = "--js-flags=--jitless";
        let process = |advised: bool| {
            let fix = Fix { knob: knob.into(), saves_virt: 7, ..Fix::default() };
            let findings = vec![Finding { fix: vec![fix], ..Finding::default() }];
            Process { findings: if advised { findings } else { vec![] }, ..Process::default() }
        };
        let of = |first: bool| {
            let processes = vec![process(first), process(true)];
            advice(&Report { processes, ..Report::default() }, &|_| None)
        };
        assert_eq!(of(true).settings[0].saves_virt, 14);
        assert_eq!((of(false).settings.len(), of(false).not_tried[0].saves_virt), (0, 7));
    }
}

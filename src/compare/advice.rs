//! A report's advice as changes that can be tried: environment variables and `ulimit -s`.

use super::model::{Change, NotTried};
use crate::report::units::exact_size;
use crate::report::{Report, option_separator, variable_of_option};

/// One setting, as strict as it can be read from a report's `knob`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Setting {
    Variable {
        name: String,
        value: String,
    },
    /// Bytes.
    StackLimit(u64),
}

/// Something to try.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Advice {
    pub setting: Setting,
    pub saves_virt: u64,
    pub saves_rss: u64,
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
    /// runtime's start line go into the variable that it reads. Nothing else is a setting.
    pub fn parse(knob: &str) -> Option<Setting> {
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
        if let Some(name) = variable_of_option(words) {
            return variable(name, words);
        }
        let (name, value) = words.split_once('=')?;
        (is_variable_name(name) && !value.is_empty()).then(|| variable(name, value))?
    }

    /// `MALLOC_ARENA_MAX=1`, `ulimit -s 1024`.
    pub fn label(&self) -> String {
        match self {
            Setting::Variable { name, value } => format!("{name}={value}"),
            Setting::StackLimit(bytes) => format!("ulimit -s {}", bytes / 1024),
        }
    }

    /// Adds it to `change`; what a variable holds already (in the change, else in vmaudit's own
    /// environment) stays where the variable is a list.
    fn add_to(&self, change: &mut Change, environment: &dyn Fn(&str) -> Option<String>) {
        match self {
            Setting::StackLimit(bytes) => change.stack_limit = Some(*bytes),
            Setting::Variable { name, value } => {
                let before = change.env.get(name).cloned().flatten().or_else(|| environment(name));
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

/// The change that applies all of `settings`.
pub fn change(settings: &[&Setting], environment: &dyn Fn(&str) -> Option<String>) -> Change {
    let mut change = Change::default();
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

/// Sorts a report's advice into what can be tried and what cannot.
pub fn advice(report: &Report) -> Advised {
    let mut advised = Advised::default();
    let fixes = report.processes.iter().flat_map(|p| &p.findings).flat_map(|f| &f.fix);
    for fix in fixes {
        let promises = fix.saves_virt > 0 || fix.saves_rss > 0;
        match Setting::parse(&fix.knob) {
            Some(setting) => {
                let at = advised.settings.iter().position(|known| known.setting == setting);
                let at = at.unwrap_or_else(|| {
                    advised.settings.push(Advice { setting, saves_virt: 0, saves_rss: 0 });
                    advised.settings.len() - 1
                });
                if let Some(advice) = advised.settings.get_mut(at) {
                    advice.saves_virt = advice.saves_virt.saturating_add(fix.saves_virt);
                    advice.saves_rss = advice.saves_rss.saturating_add(fix.saves_rss);
                }
            }
            None if promises => not_tried(&mut advised.not_tried, fix),
            // "none for VIRT", "fewer threads": nothing to try, and nothing promised
            None => {}
        }
    }
    advised.settings.sort_by_key(|advice| std::cmp::Reverse(advice.saves_virt.max(advice.saves_rss)));
    advised.not_tried.sort_by_key(|each| std::cmp::Reverse(each.saves_virt.max(each.saves_rss)));
    advised
}

fn not_tried(list: &mut Vec<NotTried>, fix: &crate::report::model::Fix) {
    if let Some(known) = list.iter_mut().find(|known| known.knob == fix.knob) {
        known.saves_virt = known.saves_virt.saturating_add(fix.saves_virt);
        known.saves_rss = known.saves_rss.saturating_add(fix.saves_rss);
        return;
    }
    list.push(NotTried {
        knob: fix.knob.clone(),
        why: "a change of the program or of how it is started, not of its environment".to_owned(),
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
    use crate::report::model::{Finding, Fix, Process};

    fn variable(knob: &str) -> Option<(String, String)> {
        match Setting::parse(knob)? {
            Setting::Variable { name, value } => Some((name, value)),
            Setting::StackLimit(_) => None,
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
        assert_eq!(variable("-Xmx64m"), pair("JAVA_TOOL_OPTIONS", "-Xmx64m"));
        assert_eq!(variable("-XX:+UseSerialGC"), pair("JAVA_TOOL_OPTIONS", "-XX:+UseSerialGC"));
        assert_eq!(variable("--jitless"), pair("NODE_OPTIONS", "--jitless"));
        assert_eq!(Setting::parse("ulimit -s 1024 (or so)"), Some(Setting::StackLimit(1 << 20)));
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
            assert_eq!(Setting::parse(other), None, "{other:?}");
        }
    }

    #[test]
    fn lists_are_extended_and_values_replaced() {
        let setting = |knob: &str| Setting::parse(knob).expect(knob);
        let (retain, decay) = (setting("MALLOC_CONF=retain:false"), setting("MALLOC_CONF=dirty_decay_ms:0"));
        let (arena, tunable) = (setting("MALLOC_ARENA_MAX=1"), setting("GLIBC_TUNABLES=a=1"));
        let own = |name: &str| match name {
            "MALLOC_CONF" => Some("narenas:2".to_owned()),
            "MALLOC_ARENA_MAX" => Some("4".to_owned()),
            _ => None,
        };
        let all = change(&[&retain, &arena, &decay, &tunable, &setting("ulimit -s 64")], &own);
        assert_eq!(all.env["MALLOC_CONF"].as_deref(), Some("narenas:2,retain:false,dirty_decay_ms:0"));
        assert_eq!(all.env["MALLOC_ARENA_MAX"].as_deref(), Some("1"));
        assert_eq!(all.env["GLIBC_TUNABLES"].as_deref(), Some("a=1"));
        assert_eq!(all.stack_limit, Some(65_536));
        let alone = change(&[&arena], &|_| None);
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
        let advised = advice(&Report { processes: vec![process], ..Report::default() });
        let settings: Vec<(String, u64)> =
            advised.settings.iter().map(|a| (a.setting.label(), a.saves_virt)).collect();
        assert_eq!(
            settings,
            [("MALLOC_CONF=retain:false".into(), 500), ("MALLOC_ARENA_MAX=1".into(), 100), ("X=1".into(), 0)]
        );
        assert_eq!(advised.not_tried.len(), 1, "what promises nothing is no advice to test");
        assert_eq!(advised.not_tried[0].saves_virt, 8);
    }
}

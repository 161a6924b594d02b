//! What has to be known before a comparison is trusted.

use super::cause::ByName;
use super::identity::Stacks;
use super::model::By;
use super::side::Side;
use crate::model::path::base_name;
use crate::report::units::{size, thousands};

/// Modules named in a note.
const NAMED: usize = 5;

pub(super) fn notes(
    a: &Side<'_>,
    b: &Side<'_>,
    (by, stacks, by_name): (By, &Stacks<'_>, &ByName),
) -> Vec<String> {
    let mut out = Vec::new();
    let uses_stacks = matches!(by, By::Stack | By::Finding);
    programs(a, b, &mut out);
    if by == By::Address {
        addresses(a, b, &mut out);
    }
    for (name, side) in [("A", a), ("B", b)] {
        let facts = &side.facts;
        several(name, (facts.processes, facts.compared), (&facts.of.comm, facts.of.pid), &mut out);
        loss(name, side, &mut out);
        if !side.knows_residency() {
            out.push(format!("{name} does not say what is in memory: RSS and unused are not compared"));
        }
    }
    if uses_stacks {
        without_stacks(a, b, by_name, &mut out);
        if *by_name != ByName::All {
            builds(stacks, &mut out);
        }
    }
    out
}

fn programs(a: &Side<'_>, b: &Side<'_>, out: &mut Vec<String>) {
    let (of_a, of_b) = (base_name(&a.facts.of.exe), base_name(&b.facts.of.exe));
    let unknown = of_a.is_empty() || of_b.is_empty();
    if !unknown && of_a != of_b && a.facts.compared == 1 && b.facts.compared == 1 {
        out.push(format!("two different programs are compared: A is {of_a}, B is {of_b}"));
    }
}

/// True when both sides show one layout: the same process twice, or a process and its fork.
fn same_layout(a: &Side<'_>, b: &Side<'_>) -> bool {
    let place = |side: &Side<'_>, name: &str| {
        let mut items = side.items.iter().filter(|item| item.process == 0);
        items.find(|item| item.region.path.as_deref() == Some(name)).map(|item| (item.start, item.end))
    };
    let vdso = place(a, "[vdso]");
    let stack_end = |side: &Side<'_>| place(side, "[stack]").map(|(_, end)| end);
    vdso.is_some() && vdso == place(b, "[vdso]") && stack_end(a) == stack_end(b)
}

fn addresses(a: &Side<'_>, b: &Side<'_>, out: &mut Vec<String>) {
    let randomised: Vec<&str> =
        [("A", a), ("B", b)].iter().filter(|(_, side)| side.facts.aslr).map(|(name, _)| *name).collect();
    if randomised.is_empty() || same_layout(a, b) {
        return;
    }
    out.push(format!(
        "addresses were randomised in {}: equal mappings are at other addresses, so nearly everything appears as new or gone; \
         record both with vmaudit run --aslr off, or compare --by stack",
        randomised.join(" and ")
    ));
}

/// Says which one it is where a side has `all` processes and one of them is `compared`.
pub(super) fn several(
    name: &str,
    (all, compared): (u64, u64),
    (comm, pid): (&str, i32),
    out: &mut Vec<String>,
) {
    if compared == 1 && all > 1 {
        let option = if name == "A" { "--pid PID:" } else { "--pid :PID" };
        out.push(format!(
            "{name} has {} processes; this is {comm} (pid {pid}): {option} picks another, --all compares all",
            thousands(all)
        ));
    }
}

fn loss(name: &str, side: &Side<'_>, out: &mut Vec<String>) {
    let doubtful: u64 = side.processes.iter().map(|p| p.coverage.doubtful).sum();
    if doubtful > 0 {
        out.push(format!("{name}: events were lost, and the stacks of {} may be wrong", size(doubtful)));
    }
    let drift: u64 = side.processes.iter().map(|p| p.coverage.ledger_drift).sum();
    if drift > 0 {
        out.push(format!("{name}: of {} it is not known which call mapped it last", size(drift)));
    }
    let unheld: Vec<_> = side.processes.iter().filter(|p| p.snapshot == "periodic").collect();
    match unheld.as_slice() {
        [] => {}
        [one] => {
            out.push(format!(
                "{name}: {} ended without being held; this is the last snapshot before",
                one.pid
            ));
        }
        many => out.push(format!(
            "{name}: {} processes ended without being held; these are the last snapshots before",
            thousands(many.len() as u64)
        )),
    }
}

fn without_stacks(a: &Side<'_>, b: &Side<'_>, by_name: &ByName, out: &mut Vec<String>) {
    match (by_name, a.has_stacks(), b.has_stacks()) {
        (ByName::All, false, false) => out.push(
            "neither side has call stacks: compared by name and category; vmaudit run or attach would show which stacks requested memory"
                .to_owned(),
        ),
        (ByName::All, has_a, _) => {
            let (with, without) = if has_a { ("A", "B") } else { ("B", "A") };
            out.push(format!(
                "{without} has no call stacks: compared by name and category; what only a stack can show is \
                 known in {with} alone, and unknown in {without}"
            ));
        }
        (ByName::These(categories), ..) if !categories.is_empty() => {
            let names: Vec<&str> = categories.iter().map(String::as_str).collect();
            out.push(format!(
                "compared by name, because only one side has their stacks: {}",
                names.join(", ")
            ));
        }
        (ByName::These(_), ..) => {}
    }
    if *by_name == ByName::All {
        return;
    }
    for (name, side) in [("A", a), ("B", b)] {
        let before: u64 = side.processes.iter().map(|p| p.coverage.preexisting).sum();
        if before > 0 {
            out.push(format!(
                "{name}: {} were mapped before tracing began: they have no stack, and are compared by name",
                size(before)
            ));
        }
    }
}

pub(super) fn builds(stacks: &Stacks<'_>, out: &mut Vec<String>) {
    let named = |modules: &[String]| {
        let more = match modules.len().saturating_sub(NAMED) {
            0 => String::new(),
            n => format!(" and {n} more"),
        };
        let first: Vec<&str> = modules.iter().take(NAMED).map(String::as_str).collect();
        format!("{}{more}", first.join(", "))
    };
    if !stacks.other_builds.is_empty() {
        out.push(format!(
            "of another build in B than in A: {}; there frames are compared by function name, and functions \
             that have none on a side are taken to be alike",
            named(&stacks.other_builds)
        ));
    }
    if !stacks.unproven.is_empty() {
        out.push(format!(
            "without a build id, so not proven to be the same build in A and B: {}",
            named(&stacks.unproven)
        ));
    }
}

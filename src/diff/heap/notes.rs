//! What has to be known before a comparison of two heaps is trusted.

use super::side::HeapSide;
use crate::diff::identity::Stacks;
use crate::diff::notes::{builds, several};
use crate::heap::report::model::Filter;
use crate::model::path::base_name;
use crate::report::units::{exact_size, thousands};

pub(super) fn notes(a: &HeapSide<'_>, b: &HeapSide<'_>, stacks: &Stacks<'_>) -> Vec<String> {
    let mut out = Vec::new();
    let (of_a, of_b) = (base_name(&a.facts.of.exe), base_name(&b.facts.of.exe));
    let is_one = a.facts.compared == 1 && b.facts.compared == 1;
    if is_one && of_a != of_b && !of_a.is_empty() && !of_b.is_empty() {
        out.push(format!("two different programs are compared: A is {of_a}, B is {of_b}"));
    }
    sampling(a, b, &mut out);
    if a.report.filter != b.report.filter {
        out.push(format!(
            "outstanding is of other blocks in B than in A: A has {}, B {}",
            filter(&a.report.filter),
            filter(&b.report.filter)
        ));
    } else if a.report.filter != Filter::default() {
        out.push(format!("outstanding is of {} on both sides", filter(&a.report.filter)));
    }
    for (name, side) in [("A", a), ("B", b)] {
        let facts = &side.facts;
        several(name, (facts.processes, facts.compared), (&facts.of.comm, facts.of.pid), &mut out);
        loss(name, side, &mut out);
    }
    peaks(a, b, &mut out);
    builds(stacks, &mut out);
    out
}

fn sampling(a: &HeapSide<'_>, b: &HeapSide<'_>, out: &mut Vec<String>) {
    let how = |side: &HeapSide<'_>| match side.facts.sampling_bytes {
        Some(mean) => format!("a sample every {}", exact_size(mean)),
        None => "every allocation".to_owned(),
    };
    if a.facts.sampling_bytes.is_some() || b.facts.sampling_bytes.is_some() {
        out.push(format!(
            "A saw {}, B {}: figures of samples are estimates. ± is one standard error of the change of outstanding \
             bytes; up to twice that is within the error: it may be chance",
            how(a),
            how(b)
        ));
    }
}

fn filter(filter: &Filter) -> String {
    let mut parts = Vec::new();
    if let Some(age) = filter.older_ns {
        parts.push(format!("blocks of {} s and older", age as f64 / 1e9));
    }
    if let Some(least) = filter.min_size {
        parts.push(format!("blocks of {least} bytes and more"));
    }
    if let Some(most) = filter.max_size {
        parts.push(format!("blocks of {most} bytes and less"));
    }
    if filter.leaks_only {
        parts.push("stacks that only grow".to_owned());
    }
    if parts.is_empty() { "all blocks".to_owned() } else { parts.join(", ") }
}

fn loss(name: &str, side: &HeapSide<'_>, out: &mut Vec<String>) {
    let lost = side.report.events.lost;
    if lost > 0 {
        out.push(format!("{name}: {} events were lost: its figures are not exact", thousands(lost)));
    }
    let without: u64 =
        side.figures.iter().filter(|(whose, _)| whose.stack.is_none()).map(|(_, f)| f.allocations).sum();
    if without > 0 {
        out.push(format!("{name}: {} allocations have no stack: they are one row", thousands(without)));
    }
    if side.processes.iter().any(|process| process.attached) {
        out.push(format!("{name}: watched while it ran: what was allocated before is in no figure"));
    }
}

fn peaks(a: &HeapSide<'_>, b: &HeapSide<'_>, out: &mut Vec<String>) {
    if a.knows_peak() && b.knows_peak() {
        return;
    }
    let several = a.facts.compared > 1 || b.facts.compared > 1;
    out.push(match several {
        true => "peaks are not compared: those of several processes are not at one moment".to_owned(),
        false => {
            let who = if a.knows_peak() { "B" } else { "A" };
            format!("peaks are not compared: {who} does not know its own (--combined)")
        }
    });
}

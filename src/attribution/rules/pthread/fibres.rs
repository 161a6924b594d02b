//! Stacks of no thread: mapped as stacks (MAP_STACK), and no thread began on them.

use super::FIBRE;
use crate::attribution::rules::{Advice, Group, RULES, World};
use crate::attribution::units::exact_size;

pub fn advise(group: &Group<'_>, world: &World<'_>) -> Advice {
    let stacks = group.pieces.iter().filter(|piece| piece.part == FIBRE);
    let sizes: Vec<u64> = stacks.map(|piece| piece.footprint.virt).collect();
    let count = sizes.len() as u64;
    let own = RULES.iter().find_map(|rule| rule.fibres(group, &sizes, world));
    let mut each: Vec<u64> = sizes.clone();
    each.sort_unstable();
    let each = match (each.first(), each.last()) {
        (Some(least), Some(most)) if least == most => format!("{} each", exact_size(*most)),
        (Some(least), Some(most)) => format!("{} to {}", exact_size(*least), exact_size(*most)),
        _ => String::new(),
    };
    let whose = match &own {
        Some(fibres) => format!("a fibre has a stack of its own, in address space, {each}; {}", fibres.why),
        None => format!(
            "mapped as stacks (MAP_STACK), {each}, and no thread began on them: fibres, coroutines and \
             interpreters have such stacks"
        ),
    };
    let mut advice = Advice::why(whose);
    advice.title = match (&own, count) {
        (Some(fibres), 1) => Some(format!("stack of {}", fibres.whose)),
        (Some(fibres), n) => Some(format!("{n} stacks of {}", fibres.whose)),
        (None, 0 | 1) => None,
        (None, n) => Some(format!("{n} stacks of no thread")),
    };
    if let Some(fibres) = own {
        advice = advice.fix(fibres.fix);
    }
    let why = "no thread's stack is among these: how large they are, the program or its runtime decides";
    advice.wont("ulimit -s, stack_cache_size", why)
}

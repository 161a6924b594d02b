//! Ruby's fibres (cont.c): a pool of stacks that are mapped together, many at a time, each with a guard page. A stack
//! holds what C code uses (512 KiB) and what the interpreter does (128 KiB).

use super::{Advice, Fibres, Group, Rule, World};
use crate::attribution::findings::Fix;

/// `fiber_pool_initialize`: both sizes and a page, with the default settings of 64-bit machines.
const DEFAULT: u64 = (512 + 128 + 4) << 10;
/// RUBY_VM_FIBER_MACHINE_STACK_SIZE_MIN is 64 KiB; the figure is for this one.
const MACHINE: u64 = 128 << 10;

pub struct RubyRule;

fn is_ruby(module: &str) -> bool {
    module.starts_with("libruby") || module == "ruby" || module.starts_with("ruby3")
}

impl Rule for RubyRule {
    fn id(&self) -> &'static str {
        "ruby"
    }

    fn categories(&self) -> &'static [crate::attribution::Category] {
        &[]
    }

    fn fibres(&self, group: &Group<'_>, sizes: &[u64], world: &World<'_>) -> Option<Fibres> {
        let default = sizes.iter().filter(|size| **size == DEFAULT).count() as u64;
        let own = match group.path {
            Some(path) => path.caller_line().is_some_and(|line| is_ruby(&line.module)),
            None => default > 0 && world.has_file(is_ruby),
        };
        let saves = default * ((512 << 10) - MACHINE);
        let note = "figure for 128 KiB instead of 512; too small a stack raises SystemStackError, or crashes in C code";
        let knob = "RUBY_FIBER_MACHINE_STACK_SIZE=131072";
        own.then(|| Fibres {
            whose: "Ruby's fibres",
            why: "the pool keeps the stacks of fibres that have ended for the next ones",
            fix: Fix::new(knob, saves.min(group.unused()), 0).note(note),
        })
    }

    fn advise(&self, _group: &Group<'_>, _world: &World<'_>) -> Advice {
        Advice::default()
    }
}

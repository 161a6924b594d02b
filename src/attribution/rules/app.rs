//! The program's own mmap calls: whatever no allocator, runtime or loader asked for.

use super::{Advice, Claim, Group, Rule, Subject, World};
use crate::attribution::callpath::{CallPath, Line};
use crate::attribution::category::{Category, Evidence, Merge};
use crate::attribution::code::Role;
use crate::attribution::findings::Fix;
use crate::attribution::role::role_of;
use crate::ledger::RegionKind;

pub const APP_MMAP: Category = Category {
    id: "app-mmap",
    color: 0x836217,
    name: "the program's own mappings",
    one: "mapping of the program's own",
    many: "mappings of the program's own",
};

pub struct AppRule;

impl Rule for AppRule {
    fn id(&self) -> &'static str {
        "app"
    }

    fn categories(&self) -> &'static [Category] {
        &[APP_MMAP]
    }

    fn as_last(&self, subject: &Subject<'_>, _world: &World<'_>) -> Option<Claim> {
        // without a stack nobody knows who called: unknown is an answer
        let path = subject.path.filter(|p| !p.lines.is_empty())?;
        let of_libc =
            |l: &Line| matches!(role_of(&l.module, l.function.as_deref()), Role::Libc | Role::Wrapper);
        if !path.complete && path.lines.iter().all(of_libc) {
            return None;
        }
        let part = match subject.region.kind {
            RegionKind::Brk => "brk",
            _ if subject.is_reserved() => "reserved (PROT_NONE)",
            _ => "mmap",
        };
        Some(Claim::new(APP_MMAP, Evidence::Stack, part).merge(Merge::ByCaller(path.caller())))
    }

    fn advise(&self, group: &Group<'_>, _world: &World<'_>) -> Advice {
        let caller = group.path.and_then(CallPath::caller_line);
        let who = caller.and_then(|l| l.display.as_deref().or(l.function.as_deref()));
        let by = match (who, caller.map(|l| l.module.as_str()).filter(|m| !m.is_empty())) {
            (Some(name), Some(module)) => format!("{name} in {module} calls mmap itself"),
            (None, Some(module)) => format!("{module} calls mmap itself"),
            _ => "the program calls mmap itself".to_string(),
        };
        let reserved = group.footprint.reserved;
        let why = if reserved == group.footprint.virt {
            format!("{by}, and reserves the range without the right to use it yet (PROT_NONE)")
        } else {
            format!("{by}; pages count only when touched")
        };
        Advice::why(why).fix(Fix::new("ask for less at this call", group.unused(), 0))
    }
}

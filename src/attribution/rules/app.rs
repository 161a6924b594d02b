//! The program's own mmap calls: whatever no allocator, runtime or loader requested.

use super::{Advice, Claim, Group, Rule, Subject, World};
use crate::attribution::callpath::{CallPath, Line};
use crate::attribution::category::{Category, CategoryInfo, Evidence, Merge};
use crate::attribution::code::Role;
use crate::attribution::findings::Fix;
use crate::attribution::role::role_of;
use crate::attribution::units::thousands;
use crate::ledger::RegionKind;

pub const APP_MMAP: Category = Category(&CategoryInfo {
    id: "app-mmap",
    color: 0x836217,
    name: "the program's own mappings",
    one: "mapping of the program's own",
    many: "mappings of the program's own",
});

/// From this many percent of vm.max_map_count on, the number of mappings matters more than their size.
const NEAR: u64 = 80;

/// Fewer unused bytes are no reason to change a program.
const WORTH_ADVICE: u64 = 1 << 20;

pub struct AppRule;

impl Rule for AppRule {
    fn id(&self) -> &'static str {
        "app"
    }

    fn categories(&self) -> &'static [Category] {
        &[APP_MMAP]
    }

    fn as_last(&self, subject: &Subject<'_>, _world: &World<'_>) -> Option<Claim> {
        // without a stack the caller is not known: unknown is an answer
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

    fn advise(&self, group: &Group<'_>, world: &World<'_>) -> Advice {
        let caller = group.path.map_or_else(|| UNNAMED.to_owned(), caller_of);
        let reserved = group.footprint.reserved;
        let why = if reserved == group.footprint.virt {
            format!("reserved by {caller}, without the right to use it yet (PROT_NONE)")
        } else {
            format!("reserved by {caller}; pages count only when touched")
        };
        if let Some(limit) = exhausted_by(group, world) {
            return too_many(group, (&caller, why), limit);
        }
        // A function without a name cannot be found in the sources; of what is in use there is nothing to
        // save.
        if !group.path.is_some_and(has_named_caller) || group.unused() < WORTH_ADVICE {
            return Advice::why(why);
        }
        let less = if group.instances == 1 { "less" } else { "less, or less often," };
        Advice::why(why).fix(Fix::new(&format!("ask for {less} in {caller}"), group.unused(), 0))
    }
}

/// vm.max_map_count, where the process would not be near it without these.
fn exhausted_by(group: &Group<'_>, world: &World<'_>) -> Option<u64> {
    let limit = world.input.observations.limits.max_map_count?;
    let all = world.mappings().len() as u64;
    let others = all.saturating_sub(group.pieces.len() as u64);
    let near = limit / 100 * NEAR;
    (all >= near && others < near).then_some(limit)
}

/// The number of mappings is what matters, not their bytes.
fn too_many(group: &Group<'_>, (caller, why): (&str, String), limit: u64) -> Advice {
    let own = thousands(group.pieces.len() as u64);
    Advice::why(format!(
        "{why}. These are {own} of the {} mappings that a process may have (vm.max_map_count): near it mmap, munmap and \
         mprotect fail with ENOMEM, however little memory that is. Neighbours are one mapping where protection, \
         flags, file and name are the same",
        thousands(limit)
    ))
    .fix(Fix::new(&format!("map fewer and larger ranges in {caller}, or give neighbours the same protection"), 0, 0))
    .fix(
        Fix::new(&format!("sysctl vm.max_map_count={}", limit.saturating_mul(4)), 0, 0)
            .note("for all processes of the machine; the mappings stay"),
    )
}

fn has_named_caller(path: &CallPath) -> bool {
    path.caller_line().is_some_and(|line| line.function.is_some() || line.display.is_some())
}

const UNNAMED: &str = "the program's own code";

/// The caller: `libfoo.so.2, pool_init`. Of a function without a name also the first one with a name that it
/// was called from.
pub fn caller_of(path: &CallPath) -> String {
    let name = |line: &Line| line.display.clone().or_else(|| line.function.clone());
    let Some(caller) = path.caller_line() else { return UNNAMED.to_owned() };
    let module = if caller.module.is_empty() { "code outside of all files" } else { &caller.module };
    if let Some(name) = name(caller) {
        return format!("{module}, {name}");
    }
    let outer = path.lines.get(path.caller() + 1..).unwrap_or(&[]);
    // A frame further out of another file says little about the library's purpose.
    let named = outer.iter().find_map(|line| Some((line.module.as_str(), name(line)?)));
    match named {
        Some((own, name)) if own == caller.module => format!("{module}, a function called by {name}"),
        Some((other, name)) => format!("{module}, called by {other}, {name}"),
        None => format!("{module}, a function without a name"),
    }
}

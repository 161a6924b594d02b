//! jemalloc in plain words, and which of its settings help here.

use super::{BASE, RETAINED, plain_name};
use crate::attribution::callpath::Line;
use crate::attribution::category::Evidence;
use crate::attribution::findings::Fix;
use crate::attribution::rules::{Advice, Group, World};
use crate::attribution::units::{count_word, size};

/// What every jemalloc reads that was configured without a prefix.
const USUAL_SETTING: &str = "MALLOC_CONF";
/// Unmapping instead of keeping made 308 mappings of 122 (Redis): with that little distance to the limit, the
/// advice would do harm.
const MORE_MAPPINGS: u64 = 3;

pub fn advise(group: &Group<'_>, world: &World<'_>) -> Advice {
    let retained = group.part(RETAINED);
    let base = group.part(BASE);
    let only_base = base.virt == group.footprint.virt;
    let by_header = group.pieces.iter().any(|piece| piece.evidence == Evidence::Header);
    let unused = group.unused();
    let variable = setting(group, world);
    let purged = group.footprint.purged > 0;
    let mut why = why(only_base, retained.virt > 0 || purged, purged);
    if base.virt > 0 && !only_base {
        why += &format!("; {} of it are its own bookkeeping, which it never frees", size(base.virt));
    }
    let mut advice = Advice::why(why);
    if only_base {
        advice.title = Some("jemalloc's own bookkeeping".to_string());
    } else {
        // Neither bound is known: what was purged may be in use again, and without keeping extents do not grow in
        // steps either: runs of one program with and without it differed by less than that, and by much more.
        advice = unmapping(advice, world, (&variable, retained.unused()));
        // Which pages are free is known to jemalloc alone, so no figure is promised.
        advice = advice.fix(Fix::new(&format!("{variable}=dirty_decay_ms:0,muzzy_decay_ms:0"), 0, 0).note(
            "gives freed pages back at once: lowers RSS by what was freed and not reused, which only a run \
             with it can tell (vmaudit compare); VIRT stays as it is",
        ));
    }
    if only_base && made_by_program(group) {
        let why = "the program made these arenas itself (mallctl, arenas.create): it limits those that jemalloc makes";
        advice = advice.wont(&format!("{variable}=narenas:1"), why);
    } else if only_base && group.instances > 4 {
        // who made an arena only its call shows
        let (saves, note) = match by_header {
            true => (
                0,
                "each arena has its own; how many of them jemalloc made itself is not known, and only those get fewer",
            ),
            false => {
                let note = "at most: each arena has its own, and one stays; threads that share one wait for each other";
                (unused / group.instances * (group.instances - 1), note)
            }
        };
        advice = advice.fix(Fix::new(&format!("{variable}=narenas:1"), saves, 0).note(note));
    }
    if !variable.split(" or ").any(|name| name == USUAL_SETTING) {
        advice = advice.wont(USUAL_SETTING, &format!("this copy of jemalloc reads {variable}"));
    }
    advice.wont("MALLOC_ARENA_MAX, malloc_trim", "they are glibc's, and this memory is jemalloc's")
}

/// src/ctl.c: arenas.create, and experimental ones.
fn made_by_program(group: &Group<'_>) -> bool {
    const CTL: &[&str] =
        &["arenas_create_ctl", "ctl_arena_init", "ctl_byname", "ctl_bymib", "mallctl", "mallctlbymib"];
    let by_ctl = |line: &Line| plain_name(line).is_some_and(|name| CTL.contains(&name));
    group.path.is_some_and(|path| path.any(by_ctl))
}

fn why(only_base: bool, kept: bool, purged: bool) -> String {
    let mut why = if only_base {
        "jemalloc keeps its own bookkeeping in blocks of 2 MiB and more, at least one per arena".to_string()
    } else {
        let rest = if purged { "" } else { "; what was not handed out yet is mapped but never touched" };
        format!(
            "jemalloc asks the kernel for extents in growing steps (2, 2.5, 3 … MiB) and hands out \
             pieces{rest}"
        )
    };
    if kept {
        why += "; freed memory was given back page by page but its addresses are kept for later use \
                (\"retained\")";
    }
    why
}

/// retain:false, unless its mappings would come near the limit.
fn unmapping(advice: Advice, world: &World<'_>, (variable, spare): (&str, u64)) -> Advice {
    let knob = format!("{variable}=retain:false");
    let now = world.mappings().len() as u64;
    let kept = match spare {
        0 => String::new(),
        bytes => format!(" ({} were purged and are untouched since)", size(bytes)),
    };
    let note = format!(
        "unmaps instead of keeping, and maps no more than is asked for: by how much that lowers VIRT only a run \
         with it can tell (vmaudit compare){kept}; many more munmap calls, and more mappings"
    );
    let Some(limit) = world.input.observations.limits.max_map_count else {
        return advice.fix(Fix::new(&knob, 0, 0).note(&note));
    };
    let of_limit = format!("{} of {} now", count_word(now), count_word(limit));
    if now.saturating_mul(MORE_MAPPINGS) > limit {
        let why = format!(
            "it unmaps piece by piece, which made 308 mappings of 122 on Redis: here they are {of_limit}, and \
             at the limit mmap fails"
        );
        return advice.wont(&knob, &why);
    }
    advice.fix(Fix::new(&knob, 0, 0).note(&format!("{note} ({of_limit})")))
}

/// The variable that the jemalloc at hand reads: by its functions' names, else by the strings of the file that made the call,
/// or of the only copy. Of several copies in one process all are named where it is not known which one it is.
fn setting(group: &Group<'_>, world: &World<'_>) -> String {
    if group.path.is_some_and(|p| p.any(|l| l.mentions("_rjem_"))) {
        return "_RJEM_MALLOC_CONF".to_string();
    }
    let copies: Vec<_> = world.marked(super::MARK).map(|copy| (copy, world.file_name(copy.file))).collect();
    let mut lines = group.path.iter().flat_map(|path| &path.lines);
    let own = lines.find_map(|line| copies.iter().find(|(_, name)| name.as_ref() == Some(&line.module)));
    let searched = own.map_or(copies.as_slice(), std::slice::from_ref);
    let mut names: Vec<&str> = searched.iter().filter_map(|(copy, _)| copy.setting.as_deref()).collect();
    names.sort_unstable();
    names.dedup();
    if names.is_empty() { USUAL_SETTING.to_string() } else { names.join(" or ") }
}

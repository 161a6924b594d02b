//! What stays when a library has fewer threads.

use super::{Group, World};
use crate::attribution::Piece;
use crate::attribution::callpath::{CallPath, Line};
use crate::attribution::code::Role;
use crate::attribution::role::role_of;
use std::collections::{HashMap, HashSet};

/// Who had it mapped.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum By {
    /// A thread that began in the library's code.
    OwnThread,
    /// The library when it was loaded, for threads to come.
    Start,
    /// A caller, in whatever thread.
    Caller,
}

/// Bytes that are not there any more when the library has no threads of its own and each copy keeps `number` of the things
/// that it made for threads when it was loaded. What callers had mapped stays: they need it with one thread, too.
pub(super) fn gone_with_threads(group: &Group<'_>, world: &World<'_>, number: u64) -> u64 {
    let mut made: HashMap<&str, HashMap<By, (HashSet<usize>, u64)>> = HashMap::new();
    for piece in &group.pieces {
        let Some(path) = path_of(piece, world) else { continue };
        let Some(library) = path.caller_line().map(|line| line.module.as_str()) else { continue };
        let (things, bytes) = made.entry(library).or_default().entry(made_by(path, library)).or_default();
        things.insert(piece.thing);
        *bytes += piece.footprint.virt;
    }
    made.values().map(|of_library| gone_of(of_library, number)).sum()
}

fn gone_of(made: &HashMap<By, (HashSet<usize>, u64)>, number: u64) -> u64 {
    let without = |by: By, kept: u64| {
        let Some((things, bytes)) = made.get(&by) else { return 0 };
        let all = things.len() as u64;
        let gone = u128::from(*bytes) * u128::from(all.saturating_sub(kept)) / u128::from(all.max(1));
        u64::try_from(gone).unwrap_or(0)
    };
    // Where the library makes none when it is loaded and nobody called, one thread's work is still done by somebody.
    let others = made.contains_key(&By::Start) || made.contains_key(&By::Caller);
    without(By::Start, number) + without(By::OwnThread, if others { 0 } else { number })
}

fn path_of<'w>(piece: &Piece, world: &'w World<'_>) -> Option<&'w CallPath> {
    let region = world.input.reconciled.regions.get(piece.region)?;
    world.path(world.record(region)?.stack.ok()?)
}

fn made_by(path: &CallPath, library: &str) -> By {
    let of_library = |line: &&Line| line.module == library;
    let outer = path.lines.iter().skip(path.caller()).find(|line| !of_library(line));
    match outer.map(|line| role_of(&line.module, line.function.as_deref())) {
        Some(Role::Start) if path.complete => By::OwnThread,
        Some(Role::Loader) => By::Start,
        _ => By::Caller,
    }
}

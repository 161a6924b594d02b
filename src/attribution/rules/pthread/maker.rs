//! The code that started a thread and chose the size of its stack: the caller of pthread_create, and none
//! further out.

use super::shape::UNLIMITED;
use super::{CREATORS, SIGNAL};
use crate::attribution::callpath::Line;
use crate::attribution::rules::{Group, World};
use crate::model::Sign;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Maker {
    OpenMp,
    Rust,
    Other,
}

pub const OPENMP_MODULES: &[&str] = &["libgomp", "libomp", "libiomp"];

/// The variable from which Rust's std takes the size of stacks, and where its sources are, according to its
/// panics.
const RUST: &str = "rust-std";
pub const SIGNS: &[Sign] = &[Sign::new(RUST, &["RUST_MIN_STACK", "library/std/src/"])];

/// What Rust's std gives a thread (library/std/src/thread, DEFAULT_MIN_STACK_SIZE).
pub const RUST_STACK: u64 = 2 << 20;

fn is_openmp(line: &Line) -> bool {
    let by_module = OPENMP_MODULES.iter().any(|m| line.module.starts_with(m));
    by_module || line.function.as_deref().is_some_and(|f| f.starts_with("GOMP_") || f.starts_with("__kmp"))
}

/// `std::thread` alone is C++'s, too. Both of Rust's manglings write the length of each part of a path, and
/// C++'s write `St` for its own std.
fn is_rust(line: &Line) -> bool {
    let mangled =
        line.function.as_deref().is_some_and(|f| f.contains("3std6thread") || f.contains("3std3sys"));
    mangled || (line.mentions("std::sys::") && line.mentions("Thread"))
}

impl Maker {
    /// Of the stacks of this size.
    pub fn of(group: &Group<'_>, size: u64, world: &World<'_>) -> Maker {
        let Some(path) = group.path else {
            // no other library was seen to give each thread of 2 MiB a signal stack
            let like_rust = size == UNLIMITED && group.part(SIGNAL).virt > 0 && world.has_mark(RUST);
            return if like_rust { Maker::Rust } else { Maker::Other };
        };
        // an interceptor has the name of what it calls
        let creator = path.lines.iter().position(|line| line.is(CREATORS));
        let callers = creator.map(|at| path.lines.iter().skip(at).find(|line| !line.is(CREATORS)));
        match callers.flatten() {
            Some(line) if is_openmp(line) => Maker::OpenMp,
            Some(line) if is_rust(line) || is_stripped_rust(line, size, world) => Maker::Rust,
            _ => Maker::Other,
        }
    }
}

/// Code without names in a file that holds Rust's std, and a size that nothing but that would have chosen: the C library
/// goes by a limit that is another.
fn is_stripped_rust(line: &Line, size: u64, world: &World<'_>) -> bool {
    let other_limit = world.input.observations.stack_limit.is_some_and(|limit| limit != RUST_STACK);
    line.function.is_none() && size == RUST_STACK && other_limit && world.is_marked(RUST, &line.module)
}

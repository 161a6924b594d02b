//! The code that started a thread and chose the size of its stack: the caller of pthread_create, and none
//! further out.

use super::shape::UNLIMITED;
use super::{CREATORS, SIGNAL};
use crate::attribution::callpath::Line;
use crate::attribution::rules::glibc::is_libc;
use crate::attribution::rules::{Group, World};
use crate::model::Sign;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Maker {
    OpenMp,
    Rust,
    /// The pool of libuv, where it does not leave the size to the C library.
    Uv,
    Other,
}

pub const OPENMP_MODULES: &[&str] = &["libgomp", "libomp", "libiomp"];

/// The variable from which Rust's std takes the size of stacks, and where its sources are, according to its
/// panics.
const RUST: &str = "rust-std";
/// The variable from which libuv takes the number of its pool's threads.
pub const UV_POOL: &str = "UV_THREADPOOL_SIZE";
pub const SIGNS: &[Sign] =
    &[Sign::new(RUST, &["RUST_MIN_STACK", "library/std/src/"]), Sign::new(UV_POOL, &[UV_POOL])];

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

/// libuv starts its pool once (src/threadpool.c, init_once): since 1.45 with a size of its own, which happens to be that
/// of the usual limit, before by uv_thread_create, which goes by the limit. `lines` are the callers of pthread_create.
fn is_uv_pool(lines: &[Line]) -> bool {
    let [create, outer @ ..] = lines else { return false };
    let once = outer.iter().position(|line| line.is(&["uv_once"]));
    let (true, Some(inner)) = (create.is(&["uv_thread_create_ex"]), once.and_then(|at| outer.get(..at)))
    else {
        return false;
    };
    let of_pool = |line: &Line| match line.function.as_deref() {
        Some(name) => name == "init_threads" || name == "init_once",
        None => line.module == create.module,
    };
    let of_libc = |line: &Line| line.module != create.module && is_libc(&line.module);
    !inner.is_empty() && inner.iter().all(|line| of_pool(line) || of_libc(line))
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
        let callers = creator.and_then(|at| {
            let begins = path.lines.iter().skip(at).position(|line| !line.is(CREATORS))?;
            path.lines.get(at + begins..)
        });
        match callers.and_then(<[Line]>::first) {
            Some(line) if is_openmp(line) => Maker::OpenMp,
            Some(_) if callers.is_some_and(is_uv_pool) => Maker::Uv,
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

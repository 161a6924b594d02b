//! Containers, from the host and from inside, with real engines. Each test that has no engine says so.

#[path = "../support/mod.rs"]
mod support;

mod attach;
mod cgroup;
mod docker;
mod files;
mod heap;
mod inside;

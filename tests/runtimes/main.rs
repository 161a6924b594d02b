//! Programs on each allocator and managed runtime: what their memory is taken for.

#[path = "../support/mod.rs"]
mod support;

mod data_rules;
mod engines;
mod extents;
mod generated;
mod jemalloc;
mod loader;
mod managed;
mod native;
mod own_mappings;
mod postgres;
mod segments;
mod stacks;
mod system;

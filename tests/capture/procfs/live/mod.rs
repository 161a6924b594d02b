//! Real processes: what `procfs::observe` reads, against what the kernel says in smaps.

mod programs;
mod shapes;
mod target;
mod tasks;

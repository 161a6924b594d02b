//! (being written)

pub mod strace_log;

//! What is read of a program, against what is true of it: calls, page faults, allocations and probes
//! from every backend; maps and residency; stacks and names. Most of it needs root.

#[path = "../support/mod.rs"]
mod support;

mod busy;
mod churn;
mod compat;
mod events {
    mod attached;
    mod filters;
    mod paths;
    mod strace;
}
mod fork_keeps;
mod goroutines;
mod heap {
    mod leak;
    mod programs;
    mod rate;
    mod silence;
}
mod kernel_types;
mod leaving;
mod loss;
mod notify;
mod peak;
mod perf;
mod probe;
mod python;
mod procfs {
    mod live;
    mod speed;
}
mod symbolize {
    mod big;
    mod go_table;
    mod truth;
}
mod touch;
mod unwind {
    pub mod captured;
    mod damage;
    mod own_tables;
    mod programs;
    mod runtimes;
    mod speed;
}

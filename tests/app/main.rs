//! The commands, from their arguments to what they print and leave: the built vmaudit on real programs.

#[path = "../support/mod.rs"]
mod support;

mod attach {
    mod moment;
    mod programs;
}
mod bystanders;
mod compare;
mod diff {
    mod command;
    mod heaps;
    mod runs;
}
mod double_kill;
mod explain;
mod heap {
    mod arenas;
    mod formats;
    mod lives;
    mod preload;
    mod python;
    mod recorded;
    mod runtime;
    mod unchanged;
    mod with_mappings;
}
mod library;
mod limits;
mod outputs;
mod privileges;
mod recording {
    mod crash;
    mod damaged;
    mod places;
    mod queries;
    mod same;
}
mod requests;
mod rules;
mod run {
    mod backlog;
    mod moment;
    mod programs;
}
mod security {
    mod bombs;
    mod claims;
    mod files;
    mod heap;
    mod lent;
}
mod snapshot {
    mod files;
    mod processes;
}
mod strict_mode;
mod symbols;
mod top {
    mod batch;
    mod tmux;
}
mod verdict;

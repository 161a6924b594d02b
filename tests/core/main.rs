//! The pure core, the command line, parsers and the recording's file: no other process, no privileges. Fixtures,
//! stories made by hand, and random work against naive models.

#[path = "../support/case.rs"]
mod case;
#[path = "../support/saved.rs"]
mod saved;

mod attribution {
    mod all_rules;
    mod allocators;
    mod callpath;
    mod data_rules;
    mod footprint;
    mod role;
    mod rules;
    mod stacks;
    mod system;
    mod world;
}
mod captures {
    mod classification;
    mod damaged;
    pub mod recorded;
    mod replay;
    mod strace_log;
    mod system;
}
mod cli {
    mod flame;
    mod top;
}
mod compare {
    mod spread;
}
mod containers {
    mod client;
}
mod diff_sums;
mod doctor;
mod explain_life;
mod functions;
mod fuzzed;
mod heap {
    mod arenas;
    mod describe_builtin;
    mod descriptions;
    mod ledger;
    mod silence;
}
mod how_sure;
mod ledger {
    mod model;
    pub mod rules;
}
mod maps_lines;
mod model {
    mod limits;
    mod mapping_vma_detail;
    mod path;
    mod reach;
    mod stack;
    mod time_zero;
    mod timeline;
}
mod procfs {
    mod smaps;
}
mod sentences;
mod report {
    mod growth;
    mod shared_frames;
}
mod store {
    mod heap;
    mod points;
    mod steps;
}
mod symbolize {
    mod demangle;
}
mod top;
mod touch_rules;

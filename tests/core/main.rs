//! The pure core and the recording's file: no other process, no privileges. Fixtures, stories made by
//! hand, and random work against naive models.

#[path = "../support/case.rs"]
mod case;
#[path = "../support/saved.rs"]
mod saved;

mod attribution {
    mod rules;
    mod system;
}
mod captures {
    mod classification;
    mod damaged;
    pub mod recorded;
    mod replay;
    mod strace_log;
    mod system;
}
mod diff_sums;
mod doctor;
mod explain_life;
mod functions;
mod fuzzed;
mod heap {
    mod descriptions;
    mod ledger;
}
mod how_sure;
mod ledger {
    mod model;
    mod rules;
}
mod maps_lines;
mod store {
    mod points;
    mod steps;
}
mod top;
mod touch_rules;

//! Reports as text, HTML, flame graphs and profiles: their sums, and what browsers and pprof make of them.

#[path = "../support/case.rs"]
mod case;
#[path = "../support/saved.rs"]
mod saved;
#[path = "../support/mod.rs"]
mod support;

mod compare;
mod contract;
mod flame {
    mod programs;
    pub mod reports;
    mod sums;
}
mod folded;
mod heap;
mod hostile;
mod html {
    mod browser;
    mod commands;
    mod driver;
    mod firefox;
}
mod style;
mod text;
mod top;

//! An audit without the command line: starts a command, and prints what of its address space is not in
//! memory, and why. As root: `cargo run --example audit -- ls -l`

use std::time::Duration;
use vmaudit::launch::LaunchConfig;
use vmaudit::session::audits::EventTotals;
use vmaudit::session::engine::Schedule;
use vmaudit::session::start::{Start, Traced};
use vmaudit::session::tracer::{TracerOptions, WATCHED_CALLS};
use vmaudit::session::{self, SessionError};

fn main() -> Result<(), SessionError> {
    session::begin()?;
    let argv = std::env::args_os().skip(1).collect();
    let config = LaunchConfig { argv, hold_exits: true, calls: WATCHED_CALLS, ..LaunchConfig::default() };
    let start = Start::command(config, TracerOptions::default(), (None, "", ""))?;
    let pipeline = start.pipeline();
    let traced = start.run(pipeline, Schedule::each(Duration::from_secs(1)), |session| session.run())?;
    let Traced { main, audits, counters, mut pipeline, .. } = traced;
    let events = EventTotals { dropped: counters.lost, without_stack: counters.without_stack };
    let (report, _) = audits.report(main, events, &mut pipeline);
    for process in &report.processes {
        let totals = &process.totals;
        println!(
            "{} (pid {}): {} of {} bytes are unused",
            process.comm, process.pid, totals.unused, totals.virt
        );
        for finding in process.findings.iter().take(3) {
            println!("  {} bytes: {}", finding.unused, finding.title);
        }
    }
    Ok(())
}

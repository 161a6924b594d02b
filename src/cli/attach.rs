//! `vmaudit attach`.

use super::{Backend, FlameArgs, Format, TargetArgs, TouchArgs, seconds};
use clap::{ArgGroup, Args};
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(group(ArgGroup::new("of").required(true).args(["pids", "container", "cgroup"])))]
pub struct AttachArgs {
    #[command(flatten)]
    pub of: TargetArgs,

    /// How to write the report
    #[arg(short, long, value_enum, default_value_t = Format::Text, value_name = "FORMAT")]
    pub format: Format,

    /// Write the report to FILE instead of standard output
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,

    /// Record everything in FILE (SQLite; docs/recording.md), for report, events, explain and diff
    ///
    /// An older recording there is kept as FILE.old; no other file is overwritten.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// How to see the calls
    #[arg(long, value_enum, default_value_t = Backend::Auto, value_name = "BACKEND")]
    pub backend: Backend,

    /// Report after SECS seconds
    #[arg(long, value_name = "SECS", value_parser = seconds)]
    pub duration: Option<f64>,

    /// Report a timeline of VIRT and RSS by category, with a look at the processes every SECS seconds
    ///
    /// Without it they are looked at five times a second all the same, because nothing holds them at
    /// their end, but only the last look counts.
    #[arg(long, value_name = "SECS", value_parser = seconds)]
    pub interval: Option<f64>,

    /// Copy at most N bytes of each call's user stack
    #[arg(long, value_name = "N", default_value_t = 65_536, value_parser = clap::value_parser!(u64).range(0..=262_144))]
    pub stack_bytes: u64,

    /// Trace these processes alone, not those that they start
    #[arg(long)]
    pub no_follow_forks: bool,

    /// Show the N largest findings of a process, and the N largest other processes
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub top: usize,

    #[command(flatten)]
    pub touch: TouchArgs,

    /// Say on standard error what was attached, read and how long it took
    #[arg(short, long)]
    pub verbose: bool,

    /// Bytes of ring buffer between kernel and vmaudit
    #[arg(long, value_name = "N", default_value_t = 32 << 20, hide_short_help = true)]
    pub ring_bytes: u32,

    /// Bytes of the second ring, for calls without stack while the first is full
    #[arg(long, value_name = "N", default_value_t = 4 << 20, hide_short_help = true)]
    pub spill_bytes: u32,

    /// Write every call with its frames to FILE, one JSON object a line
    #[arg(long, value_name = "FILE", hide = true)]
    pub dump_events: Option<PathBuf>,

    #[command(flatten)]
    pub flame: FlameArgs,
}

#[cfg(test)]
mod tests {
    use crate::cli::{Cli, Command};
    use clap::Parser;

    fn parse(words: &[&str]) -> Result<Vec<i32>, String> {
        let all = ["vmaudit", "attach"].iter().chain(words);
        match Cli::try_parse_from(all).map_err(|error| error.to_string())?.command {
            Command::Attach(args) => Ok(args.of.pids),
            _ => Err("another command".to_owned()),
        }
    }

    #[test]
    fn several_pids_in_either_way() {
        assert_eq!(parse(&["-p", "1", "-p", "2"]), Ok(vec![1, 2]));
        assert_eq!(parse(&["-p", "1,2", "--pid=3"]), Ok(vec![1, 2, 3]));
    }

    #[test]
    fn what_is_no_pid_is_refused_with_the_reason() {
        for bad in ["0", "-5", "4294967297", "9223372036854775808", "redis", "", "1,,2", "1.5"] {
            let error = parse(&["-p", bad]).expect_err(bad);
            assert!(error.contains("process"), "{bad}: {error}");
        }
        assert!(parse(&[]).is_err());
    }
}

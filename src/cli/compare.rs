//! `vmaudit compare`.

use super::quantity::seconds;
use super::{Aslr, ChangeArgs, PlainFormat, StartArgs};
use clap::{ArgGroup, Args};
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(group = ArgGroup::new("what").required(true).multiple(true)
    .args(["env", "unset_env", "stack_limit", "arg", "advice"]))]
pub struct CompareArgs {
    #[command(flatten)]
    pub change: ChangeArgs,

    /// Append an argument to the changed command (repeatable)
    #[arg(long, value_name = "A", allow_hyphen_values = true)]
    pub arg: Vec<OsString>,

    /// Try each setting that the first run's report recommends, alone and all together
    ///
    /// What --env, --unset-env, --stack-limit and --arg say then holds for every run.
    #[arg(long)]
    pub advice: bool,

    /// Run each side N times
    #[arg(short = 'n', long = "runs", value_name = "N", default_value_t = 3,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,

    /// How to write the comparison
    #[arg(short, long, value_enum, default_value_t = PlainFormat::Text, value_name = "FORMAT")]
    pub format: PlainFormat,

    /// Write the comparison to FILE instead of standard output
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,

    /// Take the rules in FOLDER, too (docs/rules.md), before all others
    #[arg(long, value_name = "FOLDER")]
    pub rules: Option<PathBuf>,

    /// Take the snapshot of each run after SECS seconds and end it then
    #[arg(long, value_name = "SECS", value_parser = seconds)]
    pub duration: Option<f64>,

    /// Run SCRIPT by sh -c while the command runs; when it ends, take the snapshot, and end the command
    ///
    /// For servers. It is started with the command, which may not be ready yet, it is not traced, and
    /// $VMAUDIT_PID is the command's process: 'until redis-cli ping; do sleep .1; done; redis-benchmark'
    #[arg(long, value_name = "SCRIPT")]
    pub load: Option<OsString>,

    /// Let the command's and the load's output through instead of discarding it
    #[arg(long)]
    pub show_output: bool,

    /// Address space layout randomisation of the command
    #[arg(long, value_enum, default_value_t = Aslr::Keep, value_name = "MODE")]
    pub aslr: Aslr,

    /// Trace the command alone, not the processes that it starts
    #[arg(long)]
    pub no_follow_forks: bool,

    #[command(flatten)]
    pub start: StartArgs,

    /// Show the N largest causes of each category
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub top: usize,

    /// Say on standard error how each run went
    #[arg(short, long)]
    pub verbose: bool,

    /// The command and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

//! `vmaudit top`.

use super::quantity::seconds;
use super::{Backend, StackArgs, TargetArgs};
use crate::top::SortBy;
use clap::Args;

#[derive(Args, Debug)]
pub struct TopArgs {
    #[command(flatten)]
    pub of: TargetArgs,

    /// Trace the processes too: the newest reservations and the stacks that made them, live
    ///
    /// Needs what `vmaudit attach` needs, and -p, --container or --cgroup: not the whole machine.
    #[arg(short, long, requires = "target")]
    pub trace: bool,

    /// How to see the calls
    #[arg(long, value_enum, default_value_t = Backend::Auto, value_name = "BACKEND", requires = "trace")]
    pub backend: Backend,

    #[command(flatten)]
    pub stacks: StackArgs,

    /// Seconds from one snapshot to the next
    #[arg(short, long, value_name = "SECS", default_value_t = 2.0, value_parser = seconds)]
    pub interval: f64,

    /// What comes first: the largest of this, or the first by name
    #[arg(short, long, value_enum, default_value_t = SortBy::Unused, value_name = "COLUMN")]
    pub sort: SortBy,

    /// End after N snapshots
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub iterations: Option<u64>,

    /// Print each snapshot as plain text instead, for scripts and files
    #[arg(short, long)]
    pub batch: bool,
}

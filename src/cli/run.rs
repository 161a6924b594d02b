//! `vmaudit run`.

use super::quantity::{sampled, seconds, size};
use super::{Aslr, AuditArgs, ChangeArgs, DetailArgs, FlameArgs, Format, InsideArgs, StackArgs, StartArgs};
use clap::{Args, ValueEnum};
use std::ffi::OsString;

#[derive(Args, Debug)]
pub struct RunArgs {
    #[command(flatten)]
    pub audit: AuditArgs,

    /// Address space layout randomisation of the command
    #[arg(long, value_enum, default_value_t = Aslr::Keep, value_name = "MODE")]
    pub aslr: Aslr,

    /// Report after SECS seconds and leave the command running
    #[arg(long, value_name = "SECS", value_parser = seconds)]
    pub duration: Option<f64>,

    /// Run SCRIPT by sh -c while the command runs, report when it ends; the command goes on
    #[arg(long, value_name = "SCRIPT")]
    pub load: Option<OsString>,

    #[command(flatten)]
    pub change: ChangeArgs,

    /// Report a timeline of VIRT and RSS by category, with a snapshot of the processes every SECS seconds
    ///
    /// Without it a snapshot is taken each second all the same, for those that a signal kills, but
    /// only the last one counts.
    #[arg(long, value_name = "SECS", value_parser = seconds)]
    pub interval: Option<f64>,

    #[command(flatten)]
    pub stacks: StackArgs,

    /// Trace the command alone, not the processes that it starts
    #[arg(long)]
    pub no_follow_forks: bool,

    /// Do not hold and examine processes smaller than this that end within a second; 0: examine all
    ///
    /// What they had mapped is known from their calls all the same, what was in memory is not. The command
    /// itself is always examined.
    #[arg(long, value_name = "BYTES", default_value_t = 16 << 20, value_parser = size)]
    pub min_virt: u64,

    /// Count allocations, too, by a preloaded library: which stacks hold the heap, next to which mapped it;
    /// with =SIZE, one every SIZE bytes on average
    ///
    /// The report of `vmaudit heap` follows that of the mappings; in JSON it is `heap`. A recording (-o) has both.
    #[arg(long, value_name = "SIZE", num_args = 0..=1, require_equals = true, value_parser = sampled)]
    pub heap: Option<Option<u64>>,

    #[command(flatten)]
    pub detail: DetailArgs,

    #[command(flatten)]
    pub start: StartArgs,

    #[command(flatten)]
    pub inside: InsideArgs,

    #[command(flatten)]
    pub flame: FlameArgs,

    /// The command and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

impl RunArgs {
    /// What clap cannot check by itself.
    ///
    /// # Errors
    /// Options that contradict each other, in words.
    pub fn check(&self) -> Result<(), String> {
        if self.heap.is_some() && !matches!(self.audit.to.format, Format::Text | Format::Json) {
            let format = self.audit.to.format.to_possible_value();
            let format = format.map(|value| value.get_name().to_owned()).unwrap_or_default();
            return Err(format!(
                "--heap: -f {format} shows the mappings alone (text and json show both); vmaudit heap -f {format} shows the heap"
            ));
        }
        Ok(())
    }
}

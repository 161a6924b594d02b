//! `vmaudit attach`.

use super::quantity::seconds;
use super::{AuditArgs, DetailArgs, FlameArgs, InsideArgs, StackArgs, TargetArgs};
use clap::{ArgGroup, Args};

#[derive(Args, Debug)]
#[command(group(ArgGroup::new("of").required(true).args(["pids", "container", "cgroup"])))]
pub struct AttachArgs {
    #[command(flatten)]
    pub of: TargetArgs,

    #[command(flatten)]
    pub audit: AuditArgs,

    /// Report after SECS seconds
    #[arg(long, value_name = "SECS", value_parser = seconds)]
    pub duration: Option<f64>,

    /// Report a timeline of VIRT and RSS by category, with a snapshot of the processes every SECS seconds
    ///
    /// Without it a snapshot is taken five times a second all the same, because nothing holds them at
    /// their end, but only the last one counts.
    #[arg(long, value_name = "SECS", value_parser = seconds)]
    pub interval: Option<f64>,

    #[command(flatten)]
    pub stacks: StackArgs,

    /// Trace these processes alone, not those that they start
    #[arg(long)]
    pub no_follow_forks: bool,

    #[command(flatten)]
    pub detail: DetailArgs,

    #[command(flatten)]
    pub inside: InsideArgs,

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
